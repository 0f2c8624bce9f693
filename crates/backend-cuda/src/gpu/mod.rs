//! A device as the backend sees it: memory, kernels, and one queue in which everything happens in order. [`CudaGpu`] is
//! a real one, `emulator::EmulatedGpu` runs the same kernels on the host; nothing above this module knows which.
#![allow(unsafe_code)]

mod buffer;
mod cuda;
mod tally;

pub use buffer::{Buffer, DeviceAddress, Plain};
pub use cuda::{CudaGpu, KernelStore};
pub use tally::Tally;

use crate::cubins::Source;
pub use crate::cuda::{Grid, KernelFacts};

use crate::cuda::{CudaError, Device};
use overshot_gpu_model::Target;
use std::num::NonZeroU32;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[cfg(feature = "emulator")]
    #[error(transparent)]
    Emulator(#[from] crate::emulator::EmulatorError),
    #[error("a copy of {given} values does not fit a buffer of {room}")]
    Size { given: usize, room: usize },
    #[error(
        "no kernel {name} for {architecture}: this binary was built without it, and there is no NVRTC to compile it; put libnvrtc.so.13 on the library path"
    )]
    NoKernel { name: String, architecture: String },
    #[error(
        "kernel {name} was made for {architecture} and this GPU refuses it ({source}): its driver may be too old"
    )]
    KernelRefused { name: String, architecture: String, source: CudaError },
    #[error("kernel {name} cannot be loaded: {source}")]
    KernelNotLoaded { name: String, source: CudaError },
    #[error("{what} could not be brought to the GPU: {source}")]
    Upload { what: String, source: Box<GpuError> },
    #[error("point {point} of a timeline that has {points} was never marked")]
    NoPoint { point: usize, points: usize },
    #[error("a thread that loads weights cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
}

/// What choices depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    pub name: String,
    /// 90 for compute capability 9.0.
    pub sm: u32,
    pub multiprocessors: u32,
    pub memory_free_bytes: usize,
    pub shared_bytes_per_block: u32,
}

impl GpuFacts {
    /// The device as kernels are chosen for it.
    pub fn target(&self) -> Target {
        let multiprocessors = NonZeroU32::new(self.multiprocessors).unwrap_or(NonZeroU32::MIN);
        Target { name: self.name.clone(), sm: self.sm, multiprocessors }
    }
}

/// How a kernel is launched, whatever its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub threads: u32,
    /// Of dynamic shared memory.
    pub shared_bytes: u32,
}

/// Memory is reached through [`Buffer`], which keeps the promises that the unsafe functions here ask for. Work is queued
/// in the order of calls; only `copy_out` and `synchronize` wait for it.
pub trait Gpu: Send + Sync {
    fn facts(&self) -> Result<GpuFacts, GpuError>;

    /// `bytes` of memory (at least one), a multiple of 256 bytes in address. What it holds is not defined.
    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, GpuError>;

    /// # Safety
    /// The address came from `allocate`, is given back once, and no queued work uses it.
    unsafe fn free(&self, address: DeviceAddress);

    /// Copies before it returns, or before any work that is queued later.
    ///
    /// # Safety
    /// There are that many bytes at `to`.
    unsafe fn copy_in(&self, to: DeviceAddress, from: &[u8]) -> Result<(), GpuError>;

    /// Waits for all queued work first.
    ///
    /// # Safety
    /// There are that many bytes at `from`.
    unsafe fn copy_out(&self, from: DeviceAddress, to: &mut [u8]) -> Result<(), GpuError>;

    /// # Safety
    /// There are that many bytes at `at`.
    unsafe fn fill(&self, at: DeviceAddress, bytes: usize, value: u8) -> Result<(), GpuError>;

    /// Who this is to other devices.
    fn identity(&self) -> Identity;

    /// Makes the memory of another device readable and writable by this one's kernels, from now on. False where the machine has
    /// no way to.
    fn reach(&self, other: Identity) -> Result<bool, GpuError>;

    /// Words of host memory that every device's kernels can read, 0 to begin with.
    fn shared_words(&self, count: usize) -> Result<Box<dyn SharedWords>, GpuError>;

    /// A way to bring in large things beside the queue, through a host buffer of `bytes`.
    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, GpuError>;

    fn load(&self, source: &Source, entry: &str, shape: Shape) -> Result<Box<dyn Kernel>, GpuError>;

    fn synchronize(&self) -> Result<(), GpuError>;

    /// A way to time what is queued.
    fn timeline(&self) -> Result<Box<dyn Timeline>, GpuError>;
}

/// Points in a device's queue whose times it notes.
pub trait Timeline: Send {
    /// Point `point` is here; where it was before is forgotten. Points are taken in order: the first use of each makes it.
    fn mark(&mut self, point: usize) -> Result<(), GpuError>;

    /// Microseconds from one marked point to a later one; waits for both.
    fn microseconds(&self, from: usize, to: usize) -> Result<f64, GpuError>;
}

/// What tells devices of a machine apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    Cuda(Device),
    /// The host's own memory.
    Emulated,
    /// A device that only counts.
    Counted,
}

/// Kernels may read them until they are dropped.
pub trait SharedWords: Send + Sync {
    fn address(&self) -> DeviceAddress;

    /// Makes one of them 1, for kernels that run already, too. Nothing where there are not so many.
    fn raise(&self, index: usize);
}

/// A host buffer that a device reads by itself. What was uploaded is there once `bytes` has returned again, or the staging
/// is dropped.
pub trait Staging: Send {
    /// The buffer, as soon as its last upload is over.
    fn bytes(&mut self) -> Result<&mut [u8], GpuError>;

    /// Begins to copy the first `len` bytes.
    ///
    /// # Safety
    /// There are that many bytes at `to`, and no queued work uses them.
    unsafe fn upload(&mut self, len: usize, to: DeviceAddress) -> Result<(), GpuError>;
}

/// A kernel of one device, ready to be launched.
pub trait Kernel: Send + Sync {
    fn facts(&self) -> Result<KernelFacts, GpuError>;

    /// Queues a launch with one by-value parameter.
    ///
    /// # Safety
    /// `arguments` are the bytes of the struct that the kernel takes, and the addresses inside are live and large enough
    /// until the launch has run.
    unsafe fn launch(&self, grid: Grid, arguments: &[u8]) -> Result<(), GpuError>;
}

/// The bytes of an argument struct.
pub fn bytes_of<Arguments: Copy>(arguments: &Arguments) -> &[u8] {
    // SAFETY: any value may be looked at as bytes for as long as it is borrowed; padding of argument structs is made
    // explicit, so all of them are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(arguments).cast(), size_of::<Arguments>()) }
}
