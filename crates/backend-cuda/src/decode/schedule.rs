//! The kernel that deals tiles to the workers of version 7, from the lengths on the device.
#![allow(unsafe_code)]

use super::{LaunchError, ScheduleArgs};
use crate::cubins::Source;
use crate::cuda::Header;
use crate::gpu::{Gpu, GpuError, Grid, Kernel, Shape, bytes_of};

/// The most workers and rows that one schedule has room for.
pub const WORKERS_MAX: u32 = 256;
const ROWS_MAX: i32 = 8192;
/// Costs are summed in 32 bits.
const TILES_MAX: i64 = 1 << 26;
/// Of both together: more, and the budgets that are tried might not suffice.
const PRICES_MAX: i32 = 8;
const THREADS: u32 = 512;
/// The price of all rows before each, and of all.
const SHARED_BYTES: u32 = 4 * (ROWS_MAX as u32 + 1);

pub struct Schedule {
    kernel: Box<dyn Kernel>,
}

impl Schedule {
    pub fn source() -> Source {
        const HEADERS: &[Header] = &[
            Header { name: "types.cuh", text: include_str!("../../kernels/common/types.cuh") },
            Header { name: "args.cuh", text: include_str!("../../kernels/decode/args.cuh") },
        ];
        Source {
            name: "schedule".into(),
            text: include_str!("../../kernels/decode/schedule.cu"),
            headers: HEADERS,
            definitions: vec![],
        }
    }

    pub fn load(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        let shape = Shape { threads: THREADS, shared_bytes: SHARED_BYTES };
        Ok(Schedule { kernel: gpu.load(&Self::source(), "schedule", shape)? })
    }

    /// Queues one launch: one for all layers of a step whose lists are equally long.
    ///
    /// # Safety
    /// Every address in `args` is live and as large as its field says, until the launch has run.
    pub unsafe fn launch(&self, args: &ScheduleArgs) -> Result<(), LaunchError> {
        check(args)?;
        // SAFETY: `ScheduleArgs` mirrors the kernel's struct; the addresses are the caller's word.
        Ok(unsafe { self.kernel.launch(Grid(1, 1, 1), bytes_of(args)) }?)
    }
}

fn check(args: &ScheduleArgs) -> Result<(), LaunchError> {
    let refuse = |field, given, limit| Err(LaunchError::Argument { field, given, limit });
    if !(1..=ROWS_MAX).contains(&args.rows) {
        return refuse("rows", args.rows.into(), "1 to 8,192");
    }
    if !(1..=WORKERS_MAX as i32).contains(&args.workers) {
        return refuse("workers", args.workers.into(), "1 to 256");
    }
    if args.tile < 1 || args.window_capacity < 0 || args.extra_capacity < 0 {
        return refuse("tile", args.tile.into(), "at least 1, over lists that are not negative");
    }
    let tiles = i64::from(args.window_capacity / args.tile) + i64::from(args.extra_capacity / args.tile) + 2;
    if tiles * i64::from(args.rows) > TILES_MAX {
        return refuse("capacity", tiles, "at most 67,108,864 tiles in all rows together");
    }
    let prices = [args.row_quarters, args.part_quarters];
    if prices[0] < 1 || prices[1] < 0 || prices[0].saturating_add(prices[1]) > PRICES_MAX {
        return refuse("row_quarters", args.row_quarters.into(), "1 to 8 with part_quarters added");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
