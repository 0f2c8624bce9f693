//! A case on the device: buffers, and launches over one of its index sets.
#![allow(unsafe_code)]

use super::inputs::{Case, HEAD_DIMS, Inputs};
use super::reference::SOFTMAX_SCALE;
use crate::decode::{Args, DecodeKernel, LaunchError, Pool, RUN_BYTES, Schedule, ScheduleArgs, WORKERS_MAX};
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError};
use overshot_gpu_model::{Lists, Load, Table, Target};
use std::sync::Arc;

const LOG2_E: f64 = std::f64::consts::LOG2_E;

pub struct DevicePools {
    pub data: [Buffer<u8>; 2],
}

pub struct DeviceCase {
    case: Case,
    q: Buffer<u16>,
    sink: Buffer<f32>,
    /// One pair of index lists a set.
    index: Vec<[Buffer<i32>; 2]>,
    length: [Buffer<i32>; 2],
    pub out: Buffer<u16>,
    partial: Buffer<f32>,
    partial_log: Buffer<f32>,
    arrivals: Buffer<i32>,
    /// One schedule a kernel: they differ in tiles and workers.
    runs: Vec<Buffer<u8>>,
}

impl DevicePools {
    pub fn new(gpu: &Arc<dyn Gpu>, inputs: &Inputs) -> Result<Self, GpuError> {
        let [window, extra] = &inputs.pools;
        Ok(DevicePools { data: [Buffer::of(gpu, &window.bytes)?, Buffer::of(gpu, &extra.bytes)?] })
    }
}

impl DeviceCase {
    /// `parts` is the largest rows x splits that any launch will use, `kernels` how many need a schedule of their own.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        case: &Case,
        inputs: &Inputs,
        more_sets: &[[Vec<i32>; 2]],
        parts: usize,
        kernels: usize,
    ) -> Result<Self, GpuError> {
        let numbers = case.rows * case.heads * HEAD_DIMS;
        let upload = |lists: &[Vec<i32>; 2]| {
            Ok::<_, GpuError>([Buffer::of(gpu, &lists[0])?, Buffer::of(gpu, &lists[1])?])
        };
        let mut index = vec![upload(&inputs.index)?];
        for set in more_sets {
            index.push(upload(set)?);
        }
        Ok(DeviceCase {
            case: case.clone(),
            q: Buffer::of(gpu, &inputs.q)?,
            sink: Buffer::of(gpu, &inputs.sink)?,
            index,
            length: upload(&inputs.length)?,
            out: Buffer::zeroed(gpu, numbers)?,
            partial: Buffer::zeroed(gpu, parts * case.heads * HEAD_DIMS)?,
            partial_log: Buffer::zeroed(gpu, parts * case.heads)?,
            arrivals: Buffer::zeroed(gpu, case.rows.max(WORKERS_MAX as usize) * case.heads)?,
            runs: (0..kernels)
                .map(|_| Buffer::zeroed(gpu, WORKERS_MAX as usize * RUN_BYTES))
                .collect::<Result<_, _>>()?,
        })
    }

    pub fn sets(&self) -> usize {
        self.index.len()
    }

    pub fn poison(&mut self) -> Result<(), GpuError> {
        self.out.fill_bytes(0xff)?;
        self.partial.fill_bytes(0xff)?;
        self.partial_log.fill_bytes(0xff)
    }

    /// Deals out the tiles of kernel `number`, if it takes a schedule.
    pub fn schedule(
        &self,
        schedule: &Schedule,
        kernel: &DecodeKernel,
        number: usize,
        workers: u32,
    ) -> Result<(), LaunchError> {
        if !kernel.variant.takes_schedule() {
            return Ok(());
        }
        // SAFETY: all addresses are of this case's buffers, which wait for queued work before they go.
        unsafe { schedule.launch(&self.schedule_args(kernel, number, workers)) }
    }

    /// `args` come from `self.args`.
    pub fn launch(&self, kernel: &DecodeKernel, args: &Args) -> Result<(), LaunchError> {
        // SAFETY: as in `schedule`; the pools outlive the case.
        unsafe { kernel.launch(args) }
    }

    fn schedule_args(&self, kernel: &DecodeKernel, number: usize, workers: u32) -> ScheduleArgs {
        let [row_quarters, part_quarters] = kernel.variant.prices;
        ScheduleArgs {
            window_length: self.length[0].address(),
            extra_length: self.length[1].address(),
            runs: self.runs[number].address(),
            window_capacity: self.case.window.capacity as i32,
            extra_capacity: self.case.extra.capacity as i32,
            rows: self.case.rows as i32,
            workers: workers as i32,
            tile: kernel.variant.tile as i32,
            row_quarters,
            part_quarters,
            unused: 0,
        }
    }

    /// `splits` is the number of workers for a kernel that takes a schedule.
    pub fn args(&self, pools: &DevicePools, set: usize, number: usize, splits: u32) -> Args {
        let row = (self.case.heads * HEAD_DIMS) as i64;
        let pool = |list: usize| {
            let shape = [self.case.window, self.case.extra][list];
            Pool {
                data: pools.data[list].address(),
                index: self.index[set][list].address(),
                length: self.length[list].address(),
                page_bytes: (overshot_model::quant::PackedPage { entries: shape.page_entries }).bytes()
                    as i64,
                page_entries: shape.page_entries as i32,
                entries: shape.entries as i32,
                index_stride: shape.capacity as i32,
                capacity: shape.capacity as i32,
            }
        };
        Args {
            q: self.q.address(),
            out: self.out.address(),
            sink: self.sink.address(),
            partial: self.partial.address(),
            partial_log: self.partial_log.address(),
            arrivals: self.arrivals.address(),
            runs: self.runs[number].address(),
            window: pool(0),
            extra: pool(1),
            q_stride: row,
            out_stride: row,
            rows: self.case.rows as i32,
            heads: self.case.heads as i32,
            splits: splits as i32,
            scale_log2: (SOFTMAX_SCALE * LOG2_E) as f32,
        }
    }
}

/// The same launch over one row of it.
pub fn only_row(args: &Args, row: usize) -> Args {
    let on = |address: DeviceAddress, bytes: i64| DeviceAddress(address.0 + row as u64 * bytes as u64);
    let pool = |pool: Pool| Pool {
        index: on(pool.index, 4 * i64::from(pool.index_stride)),
        length: on(pool.length, 4),
        ..pool
    };
    Args {
        q: on(args.q, 2 * args.q_stride),
        out: on(args.out, 2 * args.out_stride),
        window: pool(args.window),
        extra: pool(args.extra),
        rows: 1,
        ..*args
    }
}

/// The splits or workers that the chooser would give this kernel; 1 for what it does not take.
pub fn planned_parts(
    kernel: &DecodeKernel,
    target: &Target,
    rows: usize,
    heads: usize,
    lists: [Lists; 2],
) -> u32 {
    let shape = kernel.variant.shape(kernel.facts.ctas_per_sm);
    let costs = Table::built_in().costs_like(&shape);
    Load::new(rows as u32, heads as u32, lists)
        .map_or(1, |load| shape.plan(&costs, target, &load).deal.parts())
}

/// The lists of a case as its capacities allow, for a launch that knows no lengths.
pub fn capacities(case: &Case) -> [Lists; 2] {
    [case.window, case.extra].map(|list| Lists::even(list.capacity as u32))
}

/// The lists as they are.
pub fn lists(inputs: &Inputs) -> [Lists; 2] {
    [0, 1].map(|list| {
        let lengths = &inputs.length[list];
        let sum: f64 = lengths.iter().map(|length| f64::from(*length)).sum();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(0) as u32;
        Lists { mean: (sum / lengths.len().max(1) as f64).min(f64::from(longest)), longest }
    })
}
