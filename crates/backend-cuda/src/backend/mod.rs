//! The model on devices behind the trait `Backend`: `rank.rs` is one device, `step.rs` the order of launches,
//! `arguments.rs` what kernels take. Products with matrices and experts are those of `crate::matmul` wherever it takes the
//! matrix (`products.rs`, `experts.rs`). The other kernels began as plain first versions, right before they are fast; each family's
//! later ones replace them behind the same arguments, as those of attention and the indexer did. Steps of short rows have
//! attention of their own (`decoding.rs`).
//!
//! With [`Company::Invariant`] a row's results depend on the row alone, to the bit: every sum runs in an order that neither the
//! batch nor the chunking changes. Tokens are drawn on the device of rank 0; several ranks meet on the
//! host for that, and for sums, where they do not reach each other's memory (`sums.rs`). Not here yet: graphs.

pub(crate) mod arguments;
mod budget;
pub(crate) mod decoding;
mod experts;
mod inputs;
pub(crate) mod kernels;
mod limits;
mod loading;
mod memory;
mod pieces;
mod pools;
mod products;
mod rank;
mod sampling;
mod step;
mod stopwatch;
mod sums;
mod weights;
mod workspace;

pub use self::loading::Loading;
pub use crate::matmul::Company;
pub use budget::{Budget, BudgetError, CacheSize, Demand, Obstacle, RESERVE_BYTES, plan};
pub use kernels::{ATTENTION_TILES_SHAPE, sources};
pub use limits::Unsupported;
pub use rank::RankError;
pub(crate) use sums::{Sums, Way};

use crate::gpu::{Gpu, GpuError};
use loading::Progress;
use overshot_backend::{
    Backend, BackendError, Member, Numerics, Ranks, RanksInfo, Rehearsal, Shard, ShardError, StepMasks,
    StepPlan, StepResult,
};
use overshot_kv::PoolCapacity;
use overshot_model::{Model, Spec};
use rank::CudaRank;
use std::sync::Arc;
use weights::DeviceWeights;

/// How a [`CudaBackend`] runs.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    pub numerics: Numerics,
    /// Of every rank.
    pub capacity: PoolCapacity,
    /// Tokens that are computed at a time, at most 65,536 with each of their experts counted: a step with more is done in parts,
    /// with the same results.
    pub tokens_max: usize,
    /// Whether a row's bits may depend on the rest of its step; if so, rows of few tokens have kernels of their own.
    pub company: Company,
    pub rehearsal: Option<Rehearsal>,
}

/// A rank a device.
pub struct CudaBackend {
    ranks: Ranks,
}

#[derive(Debug, thiserror::Error)]
pub enum CudaBackendError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("the thread of a rank could not be started: {0}")]
    RankThread(#[from] std::io::Error),
}

impl CudaBackend {
    /// As [`CudaBackend::load`], with nobody told of its progress.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        model: &Arc<Model>,
        options: CudaOptions,
        gpus: Vec<Arc<dyn Gpu>>,
    ) -> Result<Self, CudaBackendError> {
        Self::load(model, options, gpus, Loading::quietly())
    }

    /// Takes all memory and brings the weights in, on all devices at once; nothing is allocated on one afterwards.
    ///
    /// # Errors
    /// A number of devices that this model cannot be split by; a model of more than kernels take; a device that refuses memory or
    /// kernels.
    pub fn load(
        model: &Arc<Model>,
        options: CudaOptions,
        gpus: Vec<Arc<dyn Gpu>>,
        loading: Loading,
    ) -> Result<Self, CudaBackendError> {
        let (spec, tp) = (&model.spec, gpus.len());
        limits::check(spec)?;
        let shards = Shard::of_ranks(spec, options.numerics, tp, options.rehearsal)?;
        let device =
            gpus.first().map(|gpu| gpu.facts()).transpose()?.map_or(String::new(), |facts| facts.name);
        let progress = Progress::of(model, &shards);
        let sums = Sums::between(&gpus)?;
        let name = match tp {
            1 => format!("cuda ({device})"),
            _ if sums.iter().all(Sums::by_devices) => format!("cuda ({tp} ranks, {device})"),
            _ => format!("cuda ({tp} ranks that sum by way of the host, {device})"),
        };
        let loading = Loading { threads: (loading.threads / tp.max(1)).max(1), ..loading };
        let progress = &progress;
        let starts: Vec<_> = Member::places(tp)
            .into_iter()
            .zip(sums)
            .zip(gpus)
            .zip(shards)
            .map(|(((member, sums), gpu), shard)| {
                let model = model.clone();
                move || CudaRank::new(gpu, model, options, shard, member, sums, loading, progress)
            })
            .collect();
        let ranks = all_at_once(starts)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        let info = RanksInfo { name, spec: spec.clone(), capacity: options.capacity };
        Ok(CudaBackend { ranks: Ranks::start(info, ranks)? })
    }
}

/// Calls each on a thread of its own; answers in their order.
fn all_at_once<T: Send>(calls: Vec<impl FnOnce() -> T + Send>) -> std::io::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let thread = || std::thread::Builder::new().name("start a rank".into());
        let calls = calls.into_iter().map(|call| thread().spawn_scoped(scope, call));
        let threads = calls.collect::<std::io::Result<Vec<_>>>()?;
        let ended = threads.into_iter().map(|thread| thread.join());
        Ok(ended.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect())
    })
}

/// Brings a model's weights to devices, all of which they take, and lets go of them: for those who measure it. Returns their
/// bytes.
///
/// # Errors
/// As [`CudaBackend::load`].
pub fn bring_weights(
    model: &Model,
    gpus: &[Arc<dyn Gpu>],
    loading: Loading,
) -> Result<u64, CudaBackendError> {
    let shards = Shard::of_ranks(&model.spec, Numerics::default(), gpus.len(), None)?;
    let progress = Progress::of(model, &shards);
    for (gpu, shard) in gpus.iter().zip(&shards) {
        DeviceWeights::load(gpu, &model.weights, shard, loading, &progress)?;
    }
    Ok(progress.all)
}

impl Backend for CudaBackend {
    fn name(&self) -> String {
        self.ranks.name()
    }

    fn spec(&self) -> &Spec {
        self.ranks.spec()
    }

    fn capacity(&self) -> PoolCapacity {
        self.ranks.capacity()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        self.ranks.submit(plan)
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        self.ranks.supply(masks)
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        self.ranks.collect()
    }
}
