//! A GPU behind the CUDA driver: one stream, kernels from [`Cubins`].
#![allow(unsafe_code)]

use super::{
    DeviceAddress, Gpu, GpuError, GpuFacts, Grid, Identity, Kernel, Shape, SharedWords, Staging, Timeline,
};
use crate::archive;
use crate::cubins::{Cubins, Source};
use crate::cuda::{
    self, Begins, Compiler, CudaError, Device, DeviceFacts, Event, KernelFacts, PinnedMemory, Stream,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where kernels come from.
#[derive(Clone, Debug)]
pub enum KernelStore {
    /// Those that were built in, and what is missing there is compiled when first asked for, if there is a compiler.
    BuiltIn { otherwise: Option<Cubins> },
    /// Files named `NAME.ARCHITECTURE.cubin`, as `gpu-check build` writes them.
    Folder(PathBuf),
}

impl KernelStore {
    pub fn built_in() -> Self {
        let folder = Some(std::env::temp_dir().join("overshot-cubins"));
        let compiler = Compiler::open().ok();
        KernelStore::BuiltIn { otherwise: compiler.map(|compiler| Cubins { compiler, folder }) }
    }
}

pub struct CudaGpu {
    device: Device,
    facts: DeviceFacts,
    stream: Arc<Stream>,
    /// Whether it may still read what it was given when a copy returns, instead of what the driver staged.
    reads_pageable_memory: bool,
    store: KernelStore,
}

impl CudaGpu {
    pub fn open(ordinal: i32, store: KernelStore) -> Result<Self, GpuError> {
        let device = Device::open(ordinal)?;
        Ok(CudaGpu {
            device,
            facts: device.facts()?,
            stream: Arc::new(Stream::new(device)?),
            reads_pageable_memory: device.reads_pageable_memory()?,
            store,
        })
    }

    pub fn device(&self) -> Device {
        self.device
    }

    pub fn device_facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The bytes that `load` would load.
    pub fn cubin(&self, source: &Source) -> Result<Vec<u8>, GpuError> {
        let architecture = self.facts.architecture();
        match &self.store {
            KernelStore::BuiltIn { otherwise } => {
                let built_in = archive::embedded().and_then(|archive| archive.get(source, &architecture));
                match (built_in, otherwise) {
                    (Some(cubin), _) => Ok(cubin),
                    (None, Some(cubins)) => Ok(cubins.get(source, &architecture)?),
                    (None, None) => Err(GpuError::NoKernel { name: source.name.clone(), architecture }),
                }
            }
            KernelStore::Folder(folder) => {
                let path = folder.join(format!("{}.{architecture}.cubin", source.name));
                std::fs::read(&path).map_err(|source| GpuError::File { path, source })
            }
        }
    }
}

impl Gpu for CudaGpu {
    fn facts(&self) -> Result<GpuFacts, GpuError> {
        Ok(GpuFacts {
            name: self.facts.name.clone(),
            sm: self.facts.sm,
            multiprocessors: self.facts.multiprocessors,
            memory_free_bytes: self.device.memory_free_bytes()?,
            shared_bytes_per_block: self.facts.shared_bytes_per_cta,
        })
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, GpuError> {
        Ok(DeviceAddress(self.device.allocate(bytes)?))
    }

    unsafe fn free(&self, address: DeviceAddress) {
        // SAFETY: the caller's word.
        unsafe { self.device.free(address.0) }
    }

    unsafe fn copy_in(&self, to: DeviceAddress, from: &[u8]) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        unsafe { self.stream.copy_in(to.0, from) }?;
        match self.reads_pageable_memory {
            true => self.synchronize(),
            false => Ok(()),
        }
    }

    unsafe fn copy_out(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        Ok(unsafe { self.stream.copy_out(from.0, to) }?)
    }

    unsafe fn fill(&self, at: DeviceAddress, bytes: usize, value: u8) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        Ok(unsafe { self.stream.fill(at.0, bytes, value) }?)
    }

    fn identity(&self) -> Identity {
        Identity::Cuda(self.device)
    }

    fn reach(&self, other: Identity) -> Result<bool, GpuError> {
        match other {
            Identity::Cuda(other) => Ok(self.device.reach(other)?),
            Identity::Emulated | Identity::Counted => Ok(false),
        }
    }

    fn shared_words(&self, count: usize) -> Result<Box<dyn SharedWords>, GpuError> {
        Ok(Box::new(PinnedMemory::new(self.device, count * size_of::<AtomicU32>())?))
    }

    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, GpuError> {
        let memory = PinnedMemory::new(self.device, bytes)?;
        Ok(Box::new(CudaStaging { memory, stream: Stream::new(self.device)? }))
    }

    fn load(&self, source: &Source, entry: &str, shape: Shape) -> Result<Box<dyn Kernel>, GpuError> {
        let cubin = self.cubin(source)?;
        let begins = if source.waits_for_launch_before() { Begins::Early } else { Begins::InOrder };
        let kernel =
            cuda::Kernel::load(self.device, &cubin, entry, shape.threads, shape.shared_bytes, begins);
        let name = || source.name.clone();
        let kernel = kernel.map_err(|error| match error {
            CudaError::Image { .. } => GpuError::KernelRefused {
                name: name(),
                architecture: self.facts.architecture(),
                source: error,
            },
            error => GpuError::KernelNotLoaded { name: name(), source: error },
        })?;
        Ok(Box::new(CudaKernel { kernel, stream: self.stream.clone() }))
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        Ok(self.stream.synchronize()?)
    }

    fn timeline(&self) -> Result<Box<dyn Timeline>, GpuError> {
        Ok(Box::new(CudaTimeline { device: self.device, stream: self.stream.clone(), events: Vec::new() }))
    }
}

struct CudaTimeline {
    device: Device,
    stream: Arc<Stream>,
    events: Vec<Event>,
}

impl CudaTimeline {
    fn event(&self, point: usize) -> Result<&Event, GpuError> {
        self.events.get(point).ok_or(GpuError::NoPoint { point, points: self.events.len() })
    }
}

impl Timeline for CudaTimeline {
    fn mark(&mut self, point: usize) -> Result<(), GpuError> {
        if point == self.events.len() {
            self.events.push(Event::new(self.device)?);
        }
        Ok(self.event(point)?.record(&self.stream)?)
    }

    fn microseconds(&self, from: usize, to: usize) -> Result<f64, GpuError> {
        Ok(self.event(to)?.microseconds_since(self.event(from)?)?)
    }
}

/// All devices see pinned memory at the host's own address.
impl SharedWords for PinnedMemory {
    fn address(&self) -> DeviceAddress {
        DeviceAddress(self.bytes().as_ptr() as u64)
    }

    fn raise(&self, index: usize) {
        let Some(word) = self.bytes().chunks_exact(size_of::<AtomicU32>()).nth(index) else { return };
        // SAFETY: the driver aligns to pages, these are a word's bytes, and nobody borrows them but through here.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast_mut().cast()) }.store(1, Ordering::Release);
    }
}

/// A stream of its own, so that waiting for one copy waits for no other.
struct CudaStaging {
    memory: PinnedMemory,
    stream: Stream,
}

impl Staging for CudaStaging {
    fn bytes(&mut self) -> Result<&mut [u8], GpuError> {
        self.stream.synchronize()?;
        Ok(self.memory.bytes_mut())
    }

    unsafe fn upload(&mut self, len: usize, to: DeviceAddress) -> Result<(), GpuError> {
        let source = self.memory.bytes();
        let room = source.len();
        let source = source.get(..len).ok_or(GpuError::Size { given: len, room })?;
        // SAFETY: the caller's word for the destination; `bytes` and `drop` wait for the copy before the source changes.
        Ok(unsafe { self.stream.copy_in(to.0, source) }?)
    }
}

impl Drop for CudaStaging {
    fn drop(&mut self) {
        // The memory is freed next, and a copy may be under way. Who wants to know whether it went well asks `bytes`.
        let _ = self.stream.synchronize();
    }
}

struct CudaKernel {
    kernel: cuda::Kernel,
    stream: Arc<Stream>,
}

impl Kernel for CudaKernel {
    fn facts(&self) -> Result<KernelFacts, GpuError> {
        Ok(self.kernel.facts()?)
    }

    unsafe fn launch(&self, grid: Grid, arguments: &[u8]) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        Ok(unsafe { self.kernel.launch(&self.stream, grid, arguments) }?)
    }
}
