//! What a device's memory gives at most, measured: the rate that times of kernels are set against.
#![allow(unsafe_code)]

use crate::cubins::Source;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, Shape, bytes_of};
use std::sync::Arc;

/// Many times an L2 cache; and on a device of few multiprocessors as much as takes them as long.
const BYTES_MAX: usize = 4 << 30;
const BYTES_A_MULTIPROCESSOR: usize = 32 << 20;
const ROUNDS: usize = 10;

pub fn source() -> Source {
    Source {
        name: "ceiling".into(),
        text: include_str!("../kernels/ceiling.cu"),
        headers: &[],
        definitions: vec![],
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Read {
    from: DeviceAddress,
    count: u64,
    never: DeviceAddress,
}

/// Bytes a second of reading up to 4 GiB once, the best of a few runs: a ceiling is what is possible.
///
/// # Errors
/// A device that fails, or has not an eighth of its memory free.
pub fn read_bytes_per_s(gpu: &Arc<dyn Gpu>) -> Result<f64, GpuError> {
    let facts = gpu.facts()?;
    let most = BYTES_MAX.min(facts.multiprocessors as usize * BYTES_A_MULTIPROCESSOR);
    let bytes = most.min(facts.memory_free_bytes / 8);
    let mut from = Buffer::<u8>::zeroed(gpu, bytes)?;
    from.fill_bytes(0x5a)?;
    let never = Buffer::<u32>::zeroed(gpu, 1)?;
    let kernel = gpu.load(&source(), "read_all", Shape { threads: 512, shared_bytes: 0 })?;
    let read = Read { from: from.address(), count: (bytes / 16) as u64, never: never.address() };
    let mut timeline = gpu.timeline()?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        timeline.mark(0)?;
        // SAFETY: `Read` mirrors the kernel's struct, its buffers wait for queued work before they go.
        unsafe { kernel.launch(Grid(facts.multiprocessors * 4, 1, 1), bytes_of(&read)) }?;
        timeline.mark(1)?;
        best = best.min(timeline.microseconds(0, 1)?);
    }
    Ok(bytes as f64 / best * 1e6)
}
