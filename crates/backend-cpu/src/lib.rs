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
mod rope;
mod simd;
mod step;

pub use capture::Capture;
pub use isa::Isa;

use buffers::Buffers;
use forward::{Machinery, forward};
use layer::LayerPlace;
use overshot_backend::{Backend, BackendError, Numerics, StepMasks, StepPlan, StepResult};
use overshot_kv::{PageId, PageOp, Pool, PoolCapacity, TOKENS_PER_PAGE};
use overshot_model::{Model, Spec};
use pools::Pools;
use std::collections::VecDeque;
use std::sync::Arc;
use step::Rope;

/// How a [`CpuBackend`] runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    pub numerics: Numerics,
    pub capacity: PoolCapacity,
    /// `None`: one per core.
    pub threads: Option<usize>,
    pub isa: Isa,
}

pub struct CpuBackend {
    model: Arc<Model>,
    options: CpuOptions,
    rope: Rope,
    places: Vec<LayerPlace>,
    pools: Pools,
    buffers: Buffers,
    threads: rayon::ThreadPool,
    next_number: u64,
    results: VecDeque<StepResult>,
    capture: Option<Capture>,
}

#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("the worker threads could not be started: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    #[error(
        "{:.1} GB of memory for cached tokens cannot be had: ask for a smaller context or fewer sequences",
        *.bytes as f64 / 1e9
    )]
    Memory { bytes: usize },
}

impl CpuBackend {
    /// Claims the pools' address space; memory becomes resident as it is used.
    pub fn new(model: Arc<Model>, options: CpuOptions) -> Result<Self, CpuError> {
        let spec = &model.spec;
        Ok(CpuBackend {
            rope: Rope {
                window: rope::Frequencies::window(spec),
                compressed: rope::Frequencies::compressed(spec),
            },
            pools: Pools::new(spec, options.numerics, options.capacity)?,
            places: forward::places(spec),
            buffers: Buffers::default(),
            threads: rayon::ThreadPoolBuilder::new().num_threads(options.threads.unwrap_or(0)).build()?,
            next_number: 0,
            results: VecDeque::new(),
            capture: None,
            options,
            model,
        })
    }

    /// Starts keeping intermediate values, from the next step on.
    pub fn start_capture(&mut self) {
        self.capture = Some(Capture::default());
    }

    pub fn take_capture(&mut self) -> Capture {
        self.capture.take().unwrap_or_default()
    }

    /// What a plan must satisfy so that nothing below can go out of bounds.
    fn check(&self, plan: &StepPlan) -> Result<(), BackendError> {
        let number = plan.number;
        let pages_exist = |pool: Pool, page: PageId| (page.0 as usize) < self.options.capacity.pages(pool);
        for op in &plan.page_ops {
            let PageOp::Copy { pool, from, to } = *op;
            if !pages_exist(pool, from) || !pages_exist(pool, to) {
                return Err(BackendError::BadPlan {
                    number,
                    what: format!("{op:?} names a page that is not there"),
                });
            }
        }
        let mut written = std::collections::HashSet::new();
        for (row, r) in plan.rows.iter().enumerate() {
            let bad = |what: String| Err(BackendError::BadRow { number, row, what });
            let Some(end) = r.start.checked_add(r.tokens.len()) else {
                return bad(format!("it starts at position {}", r.start));
            };
            if r.tokens.is_empty() {
                return bad("no tokens".into());
            }
            if let Some(token) = r.tokens.iter().find(|&&token| token as usize >= self.model.spec.vocab_size)
            {
                return bad(format!(
                    "token {token} is not below the vocabulary's {}",
                    self.model.spec.vocab_size
                ));
            }
            for pool in Pool::ALL {
                let pages = r.pages.pages(pool);
                if pages.len() < pool.pages_for(end) || !pages.iter().all(|&page| pages_exist(pool, page)) {
                    return bad(format!("its pages of pool {pool:?} do not cover {end} positions"));
                }
            }
            for pool in Pool::ALL {
                let pages = r.pages.pages(pool);
                let first = if pool.tokens_per_slot().is_some() { r.start / TOKENS_PER_PAGE } else { 0 };
                if let Some(page) =
                    pages[first..pool.pages_for(end)].iter().find(|page| !written.insert((pool, **page)))
                {
                    return bad(format!("another row writes {page:?} of pool {pool:?} too"));
                }
            }
        }
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.options.isa, self.threads.current_num_threads())
    }

    fn spec(&self) -> &Spec {
        &self.model.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.options.capacity
    }

    /// Computes at once: there is no device to wait for.
    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        if plan.number != self.next_number {
            return Err(BackendError::OutOfOrder { number: plan.number, expected: self.next_number });
        }
        self.next_number += 1;
        self.check(&plan)?;
        for op in &plan.page_ops {
            self.pools.apply(*op);
        }
        let CpuBackend { model, options, rope, places, pools, buffers, threads, capture, .. } = self;
        let fixed = Machinery { model, isa: options.isa, numerics: options.numerics, rope, places };
        let rows = threads.install(|| forward(fixed, &plan.rows, pools, buffers, capture.as_mut()));
        self.results.push_back(StepResult { number: plan.number, rows, ..StepResult::default() });
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        let supplied = masks.rows.iter().map(|(row, _)| *row).collect();
        Err(BackendError::WrongMasks { number: masks.number, rows: Vec::new(), supplied })
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        self.results.pop_front().ok_or(BackendError::NothingSubmitted)
    }
}

/// Rows per thread below which waking another one costs more than it brings, for rows of `width` numbers that are
/// passed over a few times.
fn min_parallel_rows(width: usize) -> usize {
    const NUMBERS: usize = 1 << 14;
    (NUMBERS / width).max(1)
}
