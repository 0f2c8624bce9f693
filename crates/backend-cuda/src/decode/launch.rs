//! A loaded variant, and its launch with arguments that were looked at first.
#![allow(unsafe_code)]

use super::{Args, Pool, Variant, schedule};
use crate::gpu::{Gpu, GpuError, Grid, Kernel, KernelFacts, Shape, bytes_of};

const ENTRY: &str = "decode";

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("{field} is {given}, which the decode kernel does not take: {limit}")]
    Argument { field: &'static str, given: i64, limit: &'static str },
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

pub struct DecodeKernel {
    pub variant: Variant,
    kernel: Box<dyn Kernel>,
    pub facts: KernelFacts,
}

impl DecodeKernel {
    pub fn load(gpu: &dyn Gpu, variant: &Variant) -> Result<Self, GpuError> {
        let shape = Shape { threads: variant.threads, shared_bytes: variant.shared_bytes };
        let kernel = gpu.load(&variant.source(), ENTRY, shape)?;
        let facts = kernel.facts()?;
        Ok(DecodeKernel { variant: variant.clone(), kernel, facts })
    }

    /// Queues one launch.
    ///
    /// # Safety
    /// Every address in `args` is live and as large as its field says, until the launch has run.
    pub unsafe fn launch(&self, args: &Args) -> Result<(), LaunchError> {
        check(args)?;
        let head_blocks = (args.heads as u32).div_ceil(self.variant.heads_per_block);
        let grid = if self.variant.takes_schedule() {
            check_workers(args)?;
            Grid(head_blocks, args.splits as u32, 1)
        } else {
            Grid(args.splits as u32, head_blocks, args.rows as u32)
        };
        // SAFETY: `Args` mirrors the kernel's struct; the addresses are the caller's word.
        Ok(unsafe { self.kernel.launch(grid, bytes_of(args)) }?)
    }
}

fn check(args: &Args) -> Result<(), LaunchError> {
    let refuse = |field, given, limit| Err(LaunchError::Argument { field, given, limit });
    if !(1..=128).contains(&args.heads) {
        return refuse("heads", args.heads.into(), "1 to 128");
    }
    if !(1..=65_535).contains(&args.rows) {
        return refuse("rows", args.rows.into(), "1 to 65,535");
    }
    if args.splits < 1 || (args.splits > 1 && args.partial.0 == 0) {
        return refuse("splits", args.splits.into(), "at least 1, and parts need a buffer");
    }
    for (stride, field) in [(args.q_stride, "q_stride"), (args.out_stride, "out_stride")] {
        if stride % 8 != 0 {
            return refuse(field, stride, "a multiple of 8, as rows are read 16 bytes at a time");
        }
    }
    [args.window, args.extra].iter().try_for_each(check_pool)
}

fn check_workers(args: &Args) -> Result<(), LaunchError> {
    let refuse = |field, given, limit| Err(LaunchError::Argument { field, given, limit });
    if args.runs.0 == 0 || args.partial.0 == 0 {
        return refuse("runs", args.runs.0 as i64, "workers need a schedule and a buffer for parts");
    }
    if !(1..=schedule::WORKERS_MAX as i32).contains(&args.splits) {
        return refuse("workers", args.splits.into(), "1 to 256");
    }
    Ok(())
}

fn check_pool(pool: &Pool) -> Result<(), LaunchError> {
    let refuse = |field, given, limit| Err(LaunchError::Argument { field, given, limit });
    if pool.capacity < 0 || pool.index_stride < pool.capacity {
        return refuse("capacity", pool.capacity.into(), "0 to index_stride");
    }
    if pool.capacity > 0 && pool.page_entries < 1 {
        return refuse("page_entries", pool.page_entries.into(), "at least 1");
    }
    if pool.page_bytes % 16 != 0 || !pool.data.0.is_multiple_of(16) {
        return refuse("page_bytes", pool.page_bytes, "pages lie at multiples of 16 bytes");
    }
    if pool.capacity > 0 && pool.page_bytes < i64::from(pool.page_entries) * 584 {
        return refuse("page_bytes", pool.page_bytes, "at least 584 an entry");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_outside_the_kernels_domain_are_refused_by_name() {
        let good = Args { rows: 1, heads: 16, splits: 1, ..Args::default() };
        assert!(check(&good).is_ok());
        let field = |args: Args| check(&args).unwrap_err().to_string();
        assert!(field(Args { heads: 0, ..good }).starts_with("heads is 0"));
        assert!(field(Args { splits: 2, ..good }).starts_with("splits is 2"));
        let pool = Pool { capacity: 4, index_stride: 4, page_entries: 64, page_bytes: 64, ..Pool::default() };
        assert!(field(Args { window: pool, ..good }).contains("584 an entry"));
    }
}
