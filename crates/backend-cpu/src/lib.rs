//! The CPU backend: the readable reference, the oracle that every other backend is compared with, and fast.
//!
//! Bytes, flops and what they cost: a decode step streams every active weight once (batch 1 is bound by reading
//! them), a prefill step is bound by multiply-adds. `matmul` is nearly all of both. Read `forward.rs` for the order
//! of things, then `layer/`, one file per kind of work.
//!
//! A row's results depend on the row alone: not on the batch, the chunking or the thread count, to the bit.

mod buffers;
mod capture;
#[cfg(test)]
mod fixture;
mod forward;
mod isa;
mod layer;
#[doc(hidden)] // Public for its benchmark only.
pub mod matmul;
mod norm;
mod pools;
mod rank;
pub mod roofline;
mod rope;
mod simd;
mod step;

pub use capture::Capture;
pub use isa::Isa;

use overshot_backend::{
    Backend, BackendError, Member, Numerics, Ranks, RanksInfo, Rehearsal, Shard, ShardError, StepMasks,
    StepPlan, StepResult,
};
use overshot_kv::PoolCapacity;
use overshot_model::{Model, Spec};
use rank::{CaptureSlot, CpuRank};
use std::sync::Arc;

/// How a [`CpuBackend`] runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    pub numerics: Numerics,
    /// Of every rank.
    pub capacity: PoolCapacity,
    /// Ranks that share the model between them: 1, 2 or 4.
    pub tp: usize,
    /// Of all ranks together; each has one at least. `None`: one per core.
    pub threads: Option<usize>,
    pub isa: Isa,
    pub rehearsal: Option<Rehearsal>,
}

impl CpuOptions {
    fn threads_per_rank(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        (self.threads.unwrap_or_else(cores) / self.tp.max(1)).max(1)
    }
}

/// Ranks on the host's cores. Alone (`tp` 1) a rank meets nobody and copies nothing.
pub struct CpuBackend {
    ranks: Ranks,
    /// Of every rank, rank 0 first.
    captures: Vec<CaptureSlot>,
}

#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    #[error("the thread of a rank could not be started: {0}")]
    RankThread(#[from] std::io::Error),
    #[error(
        "{:.1} GB of memory for cached tokens cannot be had: ask for a smaller context or fewer sequences",
        *.bytes as f64 / 1e9
    )]
    Memory { bytes: usize },
    #[error(transparent)]
    Shard(#[from] ShardError),
}

impl CpuBackend {
    /// Claims the pools' address space; memory becomes resident as it is used. Weights stay where they are mapped: each
    /// rank reads its part of them.
    ///
    /// # Errors
    /// A number of ranks that this model cannot be split by; threads or memory that the system does not give.
    pub fn new(model: Arc<Model>, options: CpuOptions) -> Result<Self, CpuError> {
        // One each: clones of a slot are that slot.
        let captures: Vec<CaptureSlot> = (0..options.tp).map(|_| CaptureSlot::default()).collect();
        let ranks = Self::ranks(&model, options, &captures)?;
        let (isa, tp, threads) = (options.isa, options.tp, options.threads_per_rank());
        let name = match tp {
            1 => format!("cpu ({isa}, {threads} threads)"),
            _ => format!("cpu ({isa}, {tp} ranks x {threads} threads)"),
        };
        let info = RanksInfo { name, spec: model.spec.clone(), capacity: options.capacity };
        Ok(CpuBackend { ranks: Ranks::start(info, ranks)?, captures })
    }

    fn ranks(
        model: &Arc<Model>,
        options: CpuOptions,
        captures: &[CaptureSlot],
    ) -> Result<Vec<CpuRank>, CpuError> {
        let (spec, tp) = (&model.spec, options.tp);
        let shards = Shard::of_ranks(spec, options.numerics, tp, options.rehearsal)?;
        let ranks = Member::places(tp).into_iter().zip(shards).zip(captures);
        let ranks = ranks.map(|((member, shard), capture)| {
            CpuRank::new(model.clone(), options, shard, member, capture.clone())
        });
        ranks.collect()
    }

    /// Starts keeping intermediate values, from the next step on. All plans must have been collected.
    pub fn start_capture(&mut self) {
        // On all ranks, so that they do the same work.
        self.captures.iter().for_each(|slot| *slot.lock() = Some(Capture::default()));
    }

    /// What was kept since. All of it is the same on every rank.
    pub fn take_capture(&mut self) -> Capture {
        let taken: Vec<Capture> =
            self.captures.iter().map(|slot| slot.lock().take().unwrap_or_default()).collect();
        taken.into_iter().next().unwrap_or_default()
    }
}

impl Backend for CpuBackend {
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

/// Rows per thread below which waking another one costs more than it brings, for rows of `width` numbers that are
/// passed over a few times.
fn min_parallel_rows(width: usize) -> usize {
    const NUMBERS: usize = 1 << 14;
    (NUMBERS / width).max(1)
}
