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
pub mod matmul;
mod norm;
mod pools;
mod rope;
pub mod simd;
mod step;

pub use capture::Capture;
pub use isa::Isa;

use buffers::Buffers;
use forward::forward;
use overshot_backend::{Backend, BackendError, Numerics, StepPlan, StepResult};
use overshot_kv::{Pool, PoolCapacity};
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
            pools: Pools::new(spec, options.numerics, options.capacity),
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
        let pages_exist =
            |pool: Pool, page: overshot_kv::PageId| (page.0 as usize) < self.options.capacity.pages(pool);
        for op in &plan.page_ops {
            let overshot_kv::PageOp::Copy { pool, from, to } = *op;
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
            let end = r.start + r.tokens.len();
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
            if !written.insert(r.pages.pages(Pool::Window)[0]) {
                return bad("it writes the same window page as another row".into());
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
        let CpuBackend { model, options, rope, pools, buffers, threads, capture, .. } = self;
        let rows = threads.install(|| {
            forward(model, options.isa, options.numerics, rope, &plan.rows, pools, buffers, capture.as_mut())
        });
        self.results.push_back(StepResult { number: plan.number, rows });
        Ok(())
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
