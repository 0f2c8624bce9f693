//! What memory a model takes on its devices, before anything is loaded: weights, cache, workspace, and what stays reserved; or
//! the numbers that say why it does not fit. Sizes are not reckoned a second time: the plan makes the rank's memory on a device
//! that only counts (`gpu/tally.rs`).

use super::inputs::DrawsOn;
use super::limits::{self, Unsupported};
use super::memory::RankMemory;
use super::pools::DevicePools;
use super::sums::Mailbox;
use super::weights::DeviceWeights;
use super::{Company, CudaOptions};
use crate::gpu::{Gpu, GpuError, GpuFacts, Tally};
use overshot_backend::{Numerics, Rehearsal, Shard, ShardError};
use overshot_kv::{Pool, PoolCapacity, TOKENS_PER_PAGE};
use overshot_model::Model;
use std::sync::Arc;

/// Left to the driver: code and stacks of kernels, what lies between allocations, other processes' small changes. A round
/// number, not a measured one.
pub const RESERVE_BYTES: u64 = 1 << 30;

/// What the cache is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    Fixed(PoolCapacity),
    /// What is left beside all the rest, for so many requests; no more than they can fill.
    Rest {
        requests: usize,
    },
}

/// What is planned for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub numerics: Numerics,
    pub cache: CacheSize,
    /// As in [`CudaOptions`].
    pub tokens_max: usize,
    pub company: Company,
    pub rehearsal: Option<Rehearsal>,
}

/// Bytes of the device that has least to spare; all of them hold the same cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub free_bytes: u64,
    pub weight_bytes: u64,
    /// What requests hold however short they are: window and compressor rows.
    pub request_bytes: u64,
    /// What grows with their tokens.
    pub cache_bytes: u64,
    pub workspace_bytes: u64,
    pub reserve_bytes: u64,
    pub capacity: PoolCapacity,
}

impl Budget {
    pub fn needed_bytes(&self) -> u64 {
        self.weight_bytes + self.request_bytes + self.cache_bytes + self.workspace_bytes + self.reserve_bytes
    }

    pub fn fits(&self) -> bool {
        self.needed_bytes() <= self.free_bytes
    }

    pub fn left_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.needed_bytes())
    }

    pub fn requests(&self) -> usize {
        self.capacity.pages(Pool::Window)
    }

    /// That all requests together can have.
    pub fn cache_tokens(&self) -> usize {
        self.capacity.longest_set_tokens()
    }

    /// How scarce memory is with this budget: the more, the scarcer.
    fn scarcity(&self) -> i128 {
        i128::from(self.needed_bytes()) - i128::from(self.free_bytes)
    }
}

/// What would have to shrink for a model to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// They alone are too large.
    Weights,
    /// With the smallest cache it does not fit either.
    Requests,
    /// A smaller one would fit.
    Cache,
}

#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    #[error("{} bytes of GPU memory are needed where {} are free", .budget.needed_bytes(), .budget.free_bytes)]
    DoesNotFit { budget: Box<Budget>, obstacle: Obstacle },
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// Plans for one rank a device. Touches no device: `gpus` are what they said of themselves.
///
/// # Errors
/// [`BudgetError::DoesNotFit`] with the numbers; a number of devices that this model cannot be split by; a model of more than
/// kernels take.
pub fn plan(model: &Model, demand: Demand, gpus: &[GpuFacts]) -> Result<Budget, BudgetError> {
    limits::check(&model.spec)?;
    let shards = Shard::of_ranks(&model.spec, demand.numerics, gpus.len(), demand.rehearsal)?;
    let planner = Planner::new(model, demand, gpus, shards);
    let budget = match demand.cache {
        CacheSize::Fixed(capacity) => planner.budget(capacity)?,
        CacheSize::Rest { requests } => planner.most(requests)?,
    };
    if budget.fits() {
        return Ok(budget);
    }
    let obstacle = planner.obstacle(budget)?;
    Err(BudgetError::DoesNotFit { budget: Box::new(budget), obstacle })
}

struct Planner<'a> {
    model: &'a Model,
    demand: Demand,
    ranks: Vec<RankPlan<'a>>,
}

struct RankPlan<'a> {
    gpu: &'a GpuFacts,
    shard: Shard,
    weight_bytes: u64,
}

impl<'a> Planner<'a> {
    fn new(model: &'a Model, demand: Demand, gpus: &'a [GpuFacts], shards: Vec<Shard>) -> Self {
        let rank = |(gpu, shard): (&'a GpuFacts, Shard)| {
            let weight_bytes = Tally::rounded(DeviceWeights::bytes(&model.weights, &shard) as u64);
            RankPlan { gpu, shard, weight_bytes }
        };
        Planner { model, demand, ranks: gpus.iter().zip(shards).map(rank).collect() }
    }

    /// Of the rank that has least to spare.
    fn budget(&self, capacity: PoolCapacity) -> Result<Budget, GpuError> {
        let budgets: Vec<Budget> =
            self.ranks.iter().map(|rank| self.rank_budget(rank, capacity)).collect::<Result<_, _>>()?;
        Ok(budgets.into_iter().max_by_key(Budget::scarcity).expect("a checked number of ranks is not 0"))
    }

    fn rank_budget(&self, rank: &RankPlan, capacity: PoolCapacity) -> Result<Budget, GpuError> {
        let Demand { numerics, tokens_max, company, .. } = self.demand;
        let spec = &self.model.spec;
        // Whether devices reach each other is not known here: if not, they take less.
        let draws_on = if self.ranks.len() == 1 { DrawsOn::Device } else { DrawsOn::Devices };
        let pools =
            |capacity| bytes_of(rank.gpu, |gpu| DevicePools::new(gpu, spec, numerics, capacity).map(|_| ()));
        let pool_bytes = pools(capacity)?;
        let request_bytes = pools(PoolCapacity::shared_by(capacity.pages(Pool::Window), 0))?;
        let options = CudaOptions { numerics, capacity, tokens_max, company, rehearsal: None };
        let all_bytes = bytes_of(rank.gpu, |gpu| {
            if self.ranks.len() > 1 {
                Mailbox::new(gpu, self.ranks.len())?;
            }
            RankMemory::take(gpu, self.model, options, &rank.shard, draws_on).map(|_| ())
        })?;
        Ok(Budget {
            free_bytes: rank.gpu.memory_free_bytes as u64,
            weight_bytes: rank.weight_bytes,
            request_bytes,
            cache_bytes: pool_bytes.saturating_sub(request_bytes),
            workspace_bytes: all_bytes - pool_bytes,
            reserve_bytes: RESERVE_BYTES,
            capacity,
        })
    }

    /// In the way of a budget that does not fit.
    fn obstacle(&self, budget: Budget) -> Result<Obstacle, GpuError> {
        let requests = budget.requests();
        if budget.weight_bytes + budget.reserve_bytes > budget.free_bytes {
            Ok(Obstacle::Weights)
        } else if self.budget(capacity_of(requests, requests))?.fits() {
            Ok(Obstacle::Cache)
        } else {
            Ok(Obstacle::Requests)
        }
    }

    /// The largest cache that fits, of whole pages; the smallest that serves all requests where not even that does.
    fn most(&self, requests: usize) -> Result<Budget, GpuError> {
        let each = self.model.spec.max_positions.div_ceil(TOKENS_PER_PAGE);
        let (mut fits, mut too_many) = (requests, requests.saturating_mul(each).saturating_add(1));
        let mut best = self.budget(capacity_of(requests, fits))?;
        while best.fits() && fits + 1 < too_many {
            let pages = fits + (too_many - fits) / 2;
            let budget = self.budget(capacity_of(requests, pages))?;
            if budget.fits() {
                (fits, best) = (pages, budget);
            } else {
                too_many = pages;
            }
        }
        Ok(best)
    }
}

/// So many pages of growing pools between so many requests.
fn capacity_of(requests: usize, pages: usize) -> PoolCapacity {
    PoolCapacity::shared_by(requests, pages.saturating_mul(TOKENS_PER_PAGE))
}

fn bytes_of(
    facts: &GpuFacts,
    take: impl FnOnce(&Arc<dyn Gpu>) -> Result<(), GpuError>,
) -> Result<u64, GpuError> {
    let tally = Arc::new(Tally::like(facts));
    take(&(tally.clone() as Arc<dyn Gpu>))?;
    Ok(tally.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_model::Bytes;

    fn model() -> Model {
        let config = include_str!("../../../../fixtures/tiny-fp8fp4/config.json");
        let weights = include_bytes!("../../../../fixtures/tiny-fp8fp4/model.safetensors");
        Model::from_parts(config, Bytes::from_static(weights)).unwrap()
    }

    fn gpu(memory_free_bytes: usize) -> GpuFacts {
        GpuFacts {
            name: "paper".into(),
            sm: 90,
            multiprocessors: 4,
            memory_free_bytes,
            shared_bytes_per_block: 232_448,
        }
    }

    fn demand(cache: CacheSize) -> Demand {
        Demand {
            numerics: Numerics::default(),
            cache,
            tokens_max: 64,
            company: Company::Any,
            rehearsal: None,
        }
    }

    fn refused(demand: Demand, free_bytes: u64) -> (Budget, Obstacle) {
        match plan(&model(), demand, &[gpu(free_bytes as usize)]) {
            Err(BudgetError::DoesNotFit { budget, obstacle }) => (*budget, obstacle),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_byte_less_than_is_needed_is_refused_with_what_stands_in_the_way() {
        let fixed = |tokens| demand(CacheSize::Fixed(PoolCapacity::shared_by(4, tokens)));
        let (large, least) = (fixed(65_536), fixed(4 * TOKENS_PER_PAGE));
        let budget = plan(&model(), large, &[gpu(8 << 30)]).unwrap();
        assert_eq!((budget.requests(), budget.cache_tokens()), (4, 65_536));
        assert_eq!(budget.left_bytes(), (8 << 30) - budget.needed_bytes());
        let needed = budget.needed_bytes();
        assert!(plan(&model(), large, &[gpu(needed as usize)]).is_ok());
        assert_eq!(
            refused(large, needed - 1),
            (Budget { free_bytes: needed - 1, ..budget }, Obstacle::Cache)
        );
        let needed = plan(&model(), least, &[gpu(8 << 30)]).unwrap().needed_bytes();
        assert_eq!(refused(large, needed).1, Obstacle::Cache);
        assert_eq!(refused(large, needed - 1).1, Obstacle::Requests);
        assert_eq!(refused(large, 1 << 30).1, Obstacle::Weights);
        assert_eq!(refused(least, 0).0.left_bytes(), 0);
    }

    #[test]
    fn the_rest_is_what_fits_to_the_page_and_no_more_than_can_be_filled() {
        let rest = demand(CacheSize::Rest { requests: 3 });
        let plentiful = plan(&model(), rest, &[gpu(64 << 30)]).unwrap();
        let pages = 3 * model().spec.max_positions.div_ceil(TOKENS_PER_PAGE);
        assert_eq!(plentiful.cache_tokens(), pages * TOKENS_PER_PAGE);
        let free_bytes = (plentiful.needed_bytes() - plentiful.cache_bytes / 2) as usize;
        let scarce = plan(&model(), rest, &[gpu(free_bytes)]).unwrap();
        assert!(scarce.cache_tokens() < plentiful.cache_tokens());
        let fixed = |tokens| demand(CacheSize::Fixed(PoolCapacity::shared_by(3, tokens)));
        let again = plan(&model(), fixed(scarce.cache_tokens()), &[gpu(free_bytes)]).unwrap();
        assert_eq!(again, scarce);
        assert!(plan(&model(), fixed(scarce.cache_tokens() + 1), &[gpu(free_bytes)]).is_err());
        assert_eq!(refused(rest, 1 << 30).0.capacity, PoolCapacity::shared_by(3, 3 * TOKENS_PER_PAGE));
    }

    #[test]
    fn more_than_kernels_take_is_refused_by_the_plan() {
        let mut model = model();
        model.spec.experts = 1024;
        assert!(limits::check(&model.spec).is_ok());
        model.spec.experts = 1025;
        let rest = demand(CacheSize::Rest { requests: 1 });
        let told = plan(&model, rest, &[gpu(8 << 30)]).unwrap_err();
        assert!(matches!(told, BudgetError::Unsupported(_)));
        assert_eq!(
            told.to_string(),
            "the model has 1025 routed experts a layer where the GPU's kernels take 1024: use --backend cpu"
        );
        model.spec.experts = 8;
        for (hidden, fits) in [(8192, true), (4098, false), (8196, false)] {
            model.spec.hidden_size = hidden;
            assert_eq!(limits::check(&model.spec).is_ok(), fits, "{hidden}");
        }
    }

    #[test]
    fn the_device_with_least_to_spare_decides_and_ranks_must_divide() {
        let rest = demand(CacheSize::Rest { requests: 2 });
        let whole = plan(&model(), rest, &[gpu(2 << 30)]).unwrap();
        let halves = plan(&model(), rest, &[gpu(2 << 30), gpu(3 << 29)]).unwrap();
        assert!(halves.weight_bytes <= whole.weight_bytes);
        assert_eq!(halves.free_bytes, 3 << 29);
        assert!(matches!(plan(&model(), rest, &[]), Err(BudgetError::Shard(_))));
        assert!(matches!(plan(&model(), rest, &vec![gpu(1 << 31); 3]), Err(BudgetError::Shard(_))));
    }
}
