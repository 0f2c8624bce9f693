//! CUDA as this crate needs it. What takes an address stays unsafe, as nothing can check it: memory is owned one module up,
//! by `gpu::Buffer`.
//!
//! Nothing here is linked: the driver and NVRTC are opened when asked for, and their absence is a value.

mod device;
mod module;
mod nvrtc;
mod pinned;
mod stream;

pub use device::{Device, DeviceFacts, devices};
pub use module::{Begins, Grid, Kernel, KernelFacts};
pub use nvrtc::{Compiled, Compiler, Header};
pub use pinned::PinnedMemory;
pub use stream::{Event, Graph, Stream};

use cudarc::driver::sys::CUresult;

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("no GPU: the CUDA driver library (libcuda.so.1) is not on this machine")]
    NoDriver,
    #[error("no GPU: the CUDA driver knows no device ({reason})")]
    NoDevice { reason: String },
    #[error("no GPU: the CUDA driver does not start ({reason})")]
    NoStart { reason: String },
    #[error("the CUDA driver is too old: it speaks CUDA {}.{}, cubins here need 13.0 (driver 580 or newer)", .version / 1000, .version % 1000 / 10)]
    OldDriver { version: i32 },
    #[error(
        "GPU {ordinal} is taken: another process holds it alone; end that process, or choose another GPU with --devices"
    )]
    Busy { ordinal: i32 },
    #[error(
        "GPU {ordinal} is full: another process has left no memory to begin with; end that process, or choose another GPU with --devices"
    )]
    Full { ordinal: i32 },
    #[error(
        "a GPU has no {bytes} bytes left in one piece: another process took memory after it was planned; end that process, or plan \
         for less"
    )]
    OutOfMemory { bytes: usize },
    #[error("{bytes} bytes of host memory cannot be pinned: free some memory of this machine")]
    NoPinnedMemory { bytes: usize },
    #[error("the driver takes no such image: {reason}")]
    Image { reason: String },
    #[error("{call} failed: {reason}")]
    Call { call: &'static str, reason: String },
    #[error(
        "no NVRTC: put libnvrtc.so.13 on the library path, or name it in OVERSHOT_NVRTC (pip package nvidia-cuda-nvrtc)"
    )]
    NoCompiler,
    #[error("NVRTC refused {name} for {architecture}:\n{log}")]
    Compile { name: String, architecture: String, log: String },
    #[error("{what} holds a zero byte and cannot be handed to C")]
    ZeroByte { what: String },
}

impl CudaError {
    /// Whether this machine has no GPU that can be used, rather than one that failed.
    pub fn is_absence(&self) -> bool {
        self.is_bare_machine() || matches!(self, CudaError::NoStart { .. } | CudaError::OldDriver { .. })
    }

    /// Whether nothing here looks like a GPU.
    pub fn is_bare_machine(&self) -> bool {
        matches!(self, CudaError::NoDriver | CudaError::NoDevice { .. })
    }
}

/// Turns a driver's answer into an error that names the call.
fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(CudaError::Call { call, reason: format!("{result:?}") })
}
