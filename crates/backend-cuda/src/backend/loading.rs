//! Brings pieces to a device: threads page the mapped files in and copy into pinned buffers, from which the device fetches
//! by itself. Memory is bounded by two buffers a thread; in which order parts arrive changes nothing. How fast it is has not been
//! measured on a card: `gpu-check load` does.

use super::pieces::Pieces;
use super::weights::DeviceWeights;
use crate::gpu::{Buffer, Gpu, GpuError};
use overshot_backend::Shard;
use overshot_model::Model;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Of one buffer. Long enough that starting a copy costs nothing beside it.
const STAGING_BYTES: usize = 16 << 20;

/// More threads than this read no faster from what checkpoints lie on, and each holds two buffers.
const THREADS_MAX: usize = 16;

/// How weights are brought in.
#[derive(Clone, Copy)]
pub struct Loading<'a> {
    /// That read files; at least one.
    pub threads: usize,
    /// Called from any of them with the bytes that are underway or there, over all devices, and with all there are.
    pub on_progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Loading<'static> {
    /// As many threads as are worth it here, nobody told.
    pub fn quietly() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        Loading { threads, on_progress: &|_, _| () }
    }
}

/// Of all devices together.
pub struct Progress {
    pub done: AtomicU64,
    pub all: u64,
}

impl Progress {
    pub fn of(model: &Model, shards: &[Shard]) -> Self {
        let bytes = |shard| DeviceWeights::bytes(&model.weights, shard) as u64;
        Progress { done: AtomicU64::new(0), all: shards.iter().map(bytes).sum() }
    }
}

/// Fills `arena` with all pieces.
pub fn load(
    gpu: &Arc<dyn Gpu>,
    pieces: &Pieces,
    arena: &Buffer<u8>,
    loading: Loading,
    progress: &Progress,
) -> Result<(), GpuError> {
    load_in_parts(gpu, pieces, arena, loading, progress, STAGING_BYTES.min(pieces.bytes()).max(1))
}

fn load_in_parts(
    gpu: &Arc<dyn Gpu>,
    pieces: &Pieces,
    arena: &Buffer<u8>,
    loading: Loading,
    progress: &Progress,
    part_bytes: usize,
) -> Result<(), GpuError> {
    let loading = Loading { threads: loading.threads.clamp(1, THREADS_MAX), ..loading };
    let load = Load {
        gpu,
        pieces,
        arena,
        loading,
        progress,
        part_bytes,
        next: AtomicUsize::new(0),
        failure: Failure::default(),
    };
    std::thread::scope(|scope| {
        for _ in 1..loading.threads.min(load.parts()) {
            let spawned = std::thread::Builder::new().name("load".into()).spawn_scoped(scope, || load.work());
            if let Err(error) = spawned {
                load.failure.report(GpuError::Thread(error));
                break;
            }
        }
        load.work();
    });
    load.failure.into_result()
}

struct Load<'a> {
    gpu: &'a Arc<dyn Gpu>,
    pieces: &'a Pieces,
    arena: &'a Buffer<u8>,
    loading: Loading<'a>,
    progress: &'a Progress,
    part_bytes: usize,
    next: AtomicUsize,
    failure: Failure,
}

/// The first failure of any thread; the others end when they see it.
#[derive(Default)]
struct Failure {
    happened: AtomicBool,
    first: Mutex<Option<GpuError>>,
}

impl Failure {
    fn report(&self, error: GpuError) {
        self.happened.store(true, Ordering::Relaxed);
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn into_result(self) -> Result<(), GpuError> {
        self.first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Load<'_> {
    fn parts(&self) -> usize {
        self.pieces.bytes().div_ceil(self.part_bytes)
    }

    fn range(&self, part: usize) -> Range<usize> {
        let start = part * self.part_bytes;
        start..(start + self.part_bytes).min(self.pieces.bytes())
    }

    fn work(&self) {
        if let Err(error) = self.bring_parts() {
            self.failure.report(error);
        }
    }

    /// Two buffers in turn: one is filled while the other is fetched.
    fn bring_parts(&self) -> Result<(), GpuError> {
        let mut stagings = [self.gpu.staging(self.part_bytes)?, self.gpu.staging(self.part_bytes)?];
        let mut under_way: [Option<Range<usize>>; 2] = [None, None];
        for turn in (0..2).cycle() {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts() || self.failure.happened.load(Ordering::Relaxed) {
                break;
            }
            let (range, staging) = (self.range(part), &mut stagings[turn]);
            // The part that this thread is likely to take next.
            self.pieces.will_need(&self.range((part + self.loading.threads).min(self.parts() - 1)));
            let last = under_way[turn].take().unwrap_or_else(|| range.clone());
            let bytes = staging.bytes().map_err(|error| self.of_range(&last, error))?;
            self.pieces.copy(&range, &mut bytes[..range.len()]);
            let begun = self.arena.receive(range.start, staging.as_mut(), range.len());
            begun.map_err(|error| self.of_range(&range, error))?;
            let done =
                self.progress.done.fetch_add(range.len() as u64, Ordering::Relaxed) + range.len() as u64;
            (self.loading.on_progress)(done, self.progress.all);
            under_way[turn] = Some(range);
        }
        for (staging, range) in stagings.iter_mut().zip(under_way) {
            if let Some(range) = range {
                staging.bytes().map_err(|error| self.of_range(&range, error))?;
            }
        }
        Ok(())
    }

    fn of_range(&self, range: &Range<usize>, error: GpuError) -> GpuError {
        GpuError::Upload { what: self.pieces.names(range), source: Box::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pieces::{Arena, Group};
    use super::*;
    use crate::emulator::{EmulatedGpu, Order};
    use std::sync::atomic::AtomicUsize;

    fn pieces(base: &Buffer<u8>) -> Pieces {
        let mut arena = Arena::at(base.address());
        for number in 0..40 {
            let group = Group::of_layer(2, "ffn.experts").numbered(number);
            arena.made(group, "w1", 777, || (0..777).map(|byte| (byte * 7 + number) as u8).collect());
        }
        arena.into_pieces()
    }

    fn load_with(threads: usize, part_bytes: usize, room: usize) -> Result<(), GpuError> {
        let gpu = Arc::new(EmulatedGpu::new(Order::Ascending)?) as Arc<dyn Gpu>;
        let arena = Buffer::new(&gpu, room)?;
        let pieces = pieces(&arena);
        let (calls, last) = (AtomicUsize::new(0), AtomicU64::new(0));
        let on_progress = |done, all| {
            assert_eq!(all, 40 * 1024);
            calls.fetch_add(1, Ordering::Relaxed);
            last.fetch_max(done, Ordering::Relaxed);
        };
        let loading = Loading { threads, on_progress: &on_progress };
        let progress = Progress { done: AtomicU64::new(0), all: pieces.bytes() as u64 };
        load_in_parts(&gpu, &pieces, &arena, loading, &progress, part_bytes)?;
        let mut expected = vec![0; pieces.bytes()];
        pieces.copy(&(0..pieces.bytes()), &mut expected);
        assert!(arena.copy_out()? == expected, "{threads} threads, parts of {part_bytes}");
        assert_eq!(last.into_inner(), progress.all);
        assert_eq!(calls.into_inner(), pieces.bytes().div_ceil(part_bytes));
        Ok(())
    }

    #[test]
    fn any_number_of_threads_and_parts_brings_the_same() {
        if let Err(absent) = EmulatedGpu::new(Order::Ascending) {
            eprintln!("SKIPPED: {absent}");
            return;
        }
        for (threads, part_bytes) in [(1, 100), (1, 1 << 20), (3, 1000), (7, 4096), (16, 1)] {
            load_with(threads, part_bytes, 40 * 1024).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_brought_is_named() {
        // Room for all pieces but the last.
        match load_with(4, 1024, 39 * 1024) {
            Err(GpuError::Emulator(absent)) => eprintln!("SKIPPED: {absent}"),
            Err(error) => assert_eq!(
                error.to_string(),
                "layers.2.ffn.experts.39.w1 could not be brought to the GPU: a copy of 1024 values does not fit a buffer of 0"
            ),
            Ok(()) => panic!("was brought"),
        }
    }
}
