//! The kernels on the host, for machines without a GPU: their sources compiled as C++ and run thread by thread. For
//! tests and developers (feature `emulator`, needs `c++`). See `emulator/fibers.hpp` for what it finds and what it cannot.
#![allow(unsafe_code)]

mod library;
mod memory;

pub use library::Order;

use crate::cubins::Source;
use crate::gpu::{
    DeviceAddress, Gpu, GpuError, GpuFacts, Grid, Identity, Kernel, KernelFacts, Shape, SharedWords, Staging,
    Timeline,
};
use library::{Entry, Library};
use memory::Memory;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    #[error("no C++ compiler: put `c++` on the path ({reason})")]
    NoCompiler { reason: String },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("c++ refused {name}:\n{log}")]
    Compile { name: String, log: String },
    #[error("kernel library {} cannot be loaded: {reason}", .path.display())]
    Load { path: PathBuf, reason: String },
    #[error("{message}")]
    Launch { message: String },
    #[error("kernel {kernel} wrote outside of its memory: {what}")]
    OutOfBounds { kernel: String, what: String },
    #[error("{given} bytes of emulated memory cannot be had: {free} are free")]
    Memory { given: usize, free: usize },
}

/// What a device of this kind looks like to choosers: few multiprocessors, so that persistent kernels stay quick.
const FACTS: GpuFacts = GpuFacts {
    name: String::new(),
    sm: 90,
    multiprocessors: 4,
    memory_free_bytes: 0,
    shared_bytes_per_block: 232_448,
};

const MEMORY_BYTES: usize = 4 << 30;

/// Of each kernel so far, by the name of its source and its own: `matmul_v1 dense`.
pub type Launches = BTreeMap<String, usize>;

/// A GPU that is not there. Launches run before `launch` returns, so everything is in order.
pub struct EmulatedGpu {
    order: Order,
    compiler: library::Compiler,
    memory: Arc<Mutex<Memory>>,
    launches: Arc<Mutex<Launches>>,
}

impl EmulatedGpu {
    /// Threads of a block take turns in this order: no result may depend on it.
    pub fn new(order: Order) -> Result<Self, EmulatorError> {
        Ok(EmulatedGpu {
            order,
            compiler: library::Compiler::open()?,
            memory: Arc::new(Mutex::new(Memory::new(MEMORY_BYTES))),
            launches: Arc::default(),
        })
    }

    /// With so much memory instead of 4 GiB. The host's is taken with each allocation.
    pub fn with_memory(self, bytes: usize) -> Self {
        EmulatedGpu { memory: Arc::new(Mutex::new(Memory::new(bytes))), ..self }
    }

    /// What was launched: for tests that a kernel was taken, and which.
    pub fn launches(&self) -> Launches {
        lock(&self.launches).clone()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics half-way through a change.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu for EmulatedGpu {
    fn facts(&self) -> Result<GpuFacts, GpuError> {
        let memory_free_bytes = lock(&self.memory).free_bytes();
        Ok(GpuFacts { name: format!("emulator, threads {}", self.order), memory_free_bytes, ..FACTS })
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, GpuError> {
        Ok(lock(&self.memory).allocate(bytes)?)
    }

    unsafe fn free(&self, address: DeviceAddress) {
        lock(&self.memory).free(address);
    }

    unsafe fn copy_in(&self, to: DeviceAddress, from: &[u8]) -> Result<(), GpuError> {
        lock(&self.memory).slice(to, from.len())?.copy_from_slice(from);
        Ok(())
    }

    unsafe fn copy_out(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), GpuError> {
        to.copy_from_slice(lock(&self.memory).slice(from, to.len())?);
        Ok(())
    }

    unsafe fn fill(&self, at: DeviceAddress, bytes: usize, value: u8) -> Result<(), GpuError> {
        lock(&self.memory).slice(at, bytes)?.fill(value);
        Ok(())
    }

    fn identity(&self) -> Identity {
        Identity::Emulated
    }

    fn reach(&self, other: Identity) -> Result<bool, GpuError> {
        Ok(other == Identity::Emulated)
    }

    fn shared_words(&self, count: usize) -> Result<Box<dyn SharedWords>, GpuError> {
        Ok(Box::new(EmulatedWords((0..count).map(|_| AtomicU32::new(0)).collect())))
    }

    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, GpuError> {
        Ok(Box::new(EmulatedStaging { bytes: vec![0; bytes], memory: self.memory.clone() }))
    }

    fn load(&self, source: &Source, entry: &str, shape: Shape) -> Result<Box<dyn Kernel>, GpuError> {
        let library = Library::get(&self.compiler, source)?;
        Ok(Box::new(EmulatedKernel {
            name: format!("{} {entry}", source.name),
            entry: library.entry(entry)?,
            shape,
            order: self.order,
            memory: self.memory.clone(),
            launches: self.launches.clone(),
        }))
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn timeline(&self) -> Result<Box<dyn Timeline>, GpuError> {
        Ok(Box::new(EmulatedTimeline(Vec::new())))
    }
}

/// Launches run before they return: the host's clock is the device's.
struct EmulatedTimeline(Vec<Instant>);

impl EmulatedTimeline {
    fn at(&self, point: usize) -> Result<Instant, GpuError> {
        self.0.get(point).copied().ok_or(GpuError::NoPoint { point, points: self.0.len() })
    }
}

impl Timeline for EmulatedTimeline {
    fn mark(&mut self, point: usize) -> Result<(), GpuError> {
        match self.0.get_mut(point) {
            Some(known) => *known = Instant::now(),
            None => self.0.push(Instant::now()),
        }
        self.at(point).map(|_| ())
    }

    fn microseconds(&self, from: usize, to: usize) -> Result<f64, GpuError> {
        Ok(self.at(to)?.saturating_duration_since(self.at(from)?).as_secs_f64() * 1e6)
    }
}

struct EmulatedWords(Box<[AtomicU32]>);

impl SharedWords for EmulatedWords {
    fn address(&self) -> DeviceAddress {
        DeviceAddress(self.0.as_ptr() as u64)
    }

    fn raise(&self, index: usize) {
        if let Some(word) = self.0.get(index) {
            word.store(1, Ordering::Release);
        }
    }
}

struct EmulatedStaging {
    bytes: Vec<u8>,
    memory: Arc<Mutex<Memory>>,
}

impl Staging for EmulatedStaging {
    fn bytes(&mut self) -> Result<&mut [u8], GpuError> {
        Ok(&mut self.bytes)
    }

    unsafe fn upload(&mut self, len: usize, to: DeviceAddress) -> Result<(), GpuError> {
        let room = self.bytes.len();
        let bytes = self.bytes.get(..len).ok_or(GpuError::Size { given: len, room })?;
        lock(&self.memory).slice(to, len)?.copy_from_slice(bytes);
        Ok(())
    }
}

struct EmulatedKernel {
    name: String,
    entry: Entry,
    shape: Shape,
    order: Order,
    memory: Arc<Mutex<Memory>>,
    launches: Arc<Mutex<Launches>>,
}

impl Kernel for EmulatedKernel {
    fn facts(&self) -> Result<KernelFacts, GpuError> {
        Ok(KernelFacts::ON_HOST)
    }

    unsafe fn launch(&self, grid: Grid, arguments: &[u8]) -> Result<(), GpuError> {
        *lock(&self.launches).entry(self.name.clone()).or_default() += 1;
        // SAFETY: the caller's word for the addresses; the entry compares the size of the arguments with its own.
        unsafe { self.entry.call(grid, self.shape, self.order, arguments) }?;
        Ok(lock(&self.memory).check(&self.entry.name)?)
    }
}
