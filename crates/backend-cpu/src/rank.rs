//! One rank: its share of the model, its own copy of the cache, its threads.

use crate::buffers::Buffers;
use crate::capture::Capture;
use crate::forward::{forward, places};
use crate::layer::LayerPlace;
use crate::pools::Pools;
use crate::step::{Rope, Step};
use crate::{CpuError, CpuOptions};
use overshot_backend::{Member, PeerGone, Rank, RowResult, Sampler, Shard, StepMasks, StepPlan, draw_rows};
use overshot_model::{Model, RopeFrequencies};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a rank leaves intermediate values, while someone asks for them.
#[derive(Clone, Default)]
pub struct CaptureSlot(Arc<Mutex<Option<Capture>>>);

impl CaptureSlot {
    pub fn lock(&self) -> MutexGuard<'_, Option<Capture>> {
        // A capture of a step that panicked is as good as any: nothing else of that rank is used again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct CpuRank {
    model: Arc<Model>,
    options: CpuOptions,
    shard: Shard,
    /// None when this rank is all there is.
    member: Option<Member>,
    rope: Rope,
    places: Vec<LayerPlace>,
    pools: Pools,
    buffers: Buffers,
    threads: Arc<rayon::ThreadPool>,
    capture: CaptureSlot,
    sampler: Sampler,
    /// What the rows of the plan under way want, `[positions, vocab]`.
    logits: Vec<f32>,
    /// What the last plan drew, by row.
    drawn: Vec<Option<u32>>,
}

impl CpuRank {
    /// Claims the pools' address space; memory becomes resident as it is used.
    ///
    /// # Errors
    /// Threads or memory that the system does not give.
    pub fn new(
        model: Arc<Model>,
        options: CpuOptions,
        shard: Shard,
        member: Option<Member>,
        capture: CaptureSlot,
    ) -> Result<Self, CpuError> {
        let spec = &model.spec;
        Ok(CpuRank {
            rope: Rope {
                window: RopeFrequencies::window(spec),
                compressed: RopeFrequencies::compressed(spec),
            },
            pools: Pools::new(spec, options.numerics, options.capacity, options.rehearsal)?,
            places: places(spec),
            buffers: Buffers::default(),
            threads: Arc::new(
                rayon::ThreadPoolBuilder::new().num_threads(options.threads_per_rank()).build()?,
            ),
            sampler: Sampler::default(),
            logits: Vec::new(),
            drawn: Vec::new(),
            options,
            shard,
            member,
            capture,
            model,
        })
    }
}

impl Rank for CpuRank {
    type Error = PeerGone;

    fn forward(&mut self, plan: &StepPlan) -> Result<(), PeerGone> {
        for op in &plan.page_ops {
            self.pools.apply(*op);
        }
        let CpuRank { model, options, rope, .. } = self;
        let mut capture = self.capture.lock();
        let mut step = Step {
            isa: options.isa,
            spec: &model.spec,
            numerics: options.numerics,
            shard: &self.shard,
            member: self.member.as_ref(),
            rope,
            rows: &plan.rows,
            tokens: Step::tokens_of(&plan.rows, &self.drawn, rope),
            pools: &mut self.pools,
            buffers: &mut self.buffers,
            capture: capture.as_mut(),
        };
        self.logits = forward(&mut step, &model.weights, &self.places)?;
        Ok(())
    }

    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, PeerGone> {
        let logits = std::mem::take(&mut self.logits);
        let vocab = match self.member {
            Some(_) => self.model.spec.vocab_size,
            None => self.shard.vocab.len(),
        };
        let results = draw_rows(&mut self.sampler, plan, masks, &self.drawn, &logits, vocab);
        self.buffers.give([logits]);
        let drawn = results.iter().map(|row| row.tokens.first().map(|sampled| sampled.token)).collect();
        self.drawn = match &self.member {
            Some(member) => member.broadcast_drawn(drawn)?,
            None => drawn,
        };
        Ok(results)
    }

    fn follow(&mut self, _: &StepPlan) -> Result<(), PeerGone> {
        self.buffers.give([std::mem::take(&mut self.logits)]);
        if let Some(member) = &self.member {
            self.drawn = member.broadcast_drawn(Vec::new())?;
        }
        Ok(())
    }

    /// On one of the rank's own threads, so that a step wakes no other to begin with.
    fn host(&mut self, work: impl FnOnce(&mut Self) + Send) {
        let threads = self.threads.clone();
        threads.install(|| work(self));
    }
}

#[cfg(test)]
mod tests {
    //! Ranks that really need each other, and one of them fails.

    use super::*;
    use crate::{CpuBackend, Isa};
    use overshot_backend::{Backend, Numerics, Ranks, RanksInfo, Row, Wanted};
    use overshot_kv::{Kv, PoolCapacity};

    #[derive(Clone, Copy, Debug)]
    enum Trouble {
        Stop,
        Panic,
        PanicAfterForward,
    }

    #[derive(Debug, thiserror::Error)]
    enum Broken {
        #[error("a fan stands still")]
        Fan,
        #[error(transparent)]
        Peer(#[from] PeerGone),
    }

    struct Troubled {
        rank: CpuRank,
        trouble: Option<Trouble>,
    }

    impl Rank for Troubled {
        type Error = Broken;

        fn forward(&mut self, plan: &StepPlan) -> Result<(), Broken> {
            match self.trouble.filter(|_| plan.number == 1) {
                Some(Trouble::Stop) => Err(Broken::Fan),
                Some(Trouble::Panic) => panic!("out of luck"),
                _ => Ok(self.rank.forward(plan)?),
            }
        }

        fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, Broken> {
            assert!(plan.number != 1 || self.trouble.is_none(), "out of luck");
            Ok(self.rank.draw(plan, masks)?)
        }

        fn follow(&mut self, plan: &StepPlan) -> Result<(), Broken> {
            assert!(plan.number != 1 || self.trouble.is_none(), "out of luck");
            Ok(self.rank.follow(plan)?)
        }

        fn host(&mut self, work: impl FnOnce(&mut Self) + Send) {
            let threads = self.rank.threads.clone();
            threads.install(|| work(self));
        }
    }

    #[test]
    fn a_rank_that_fails_in_the_middle_of_a_step_stops_all_of_them_with_its_reason() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-bf16");
        let model = Arc::new(Model::open(folder).unwrap());
        let capacity = PoolCapacity::for_sets(1, 64);
        let (numerics, isa) = (Numerics::default(), Isa::detect());
        let options = CpuOptions { numerics, capacity, tp: 2, threads: Some(4), isa, rehearsal: None };
        for failing in [0, 1] {
            for trouble in [Trouble::Stop, Trouble::Panic, Trouble::PanicAfterForward] {
                let ranks =
                    CpuBackend::ranks(&model, options, &[(); 2].map(|()| CaptureSlot::default())).unwrap();
                let ranks = ranks.into_iter().enumerate().map(|(number, rank)| Troubled {
                    rank,
                    trouble: Some(trouble).filter(|_| number == failing),
                });
                let info = RanksInfo { name: "troubled".into(), spec: model.spec.clone(), capacity };
                let mut ranks = Ranks::start(info, ranks.collect()).unwrap();
                let mut kv = Kv::new(capacity);
                let set = kv.create().unwrap();
                for number in [0, 1] {
                    let start = kv.len(set).unwrap();
                    let page_ops = kv.extend(set, 3).unwrap();
                    let pages = kv.table(set).unwrap().clone();
                    let wanted = Wanted::LastLogits;
                    let row = Row { tokens: vec![1, 2, 3], start, placeholder: None, pages, wanted };
                    ranks
                        .submit(StepPlan { number, page_ops, rows: vec![row], ..StepPlan::default() })
                        .unwrap();
                }
                assert!(ranks.collect().is_ok());
                let what = match trouble {
                    Trouble::Stop => "a fan stands still",
                    Trouble::Panic | Trouble::PanicAfterForward => "it panicked: out of luck",
                };
                let told = ranks.collect().unwrap_err().to_string();
                assert_eq!(told, format!("rank {failing} stopped: {what}"), "{trouble:?}");
            }
        }
    }
}
