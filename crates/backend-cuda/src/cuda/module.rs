//! A kernel of a cubin: its facts as the driver sees them, and its launch.
#![allow(unsafe_code)]

use super::{CudaError, Device, Stream, check};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUresult};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Stays loaded until the process ends, once on a device however often it is asked for: kernels are few.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    device: Device,
    function: sys::CUfunction,
    threads: u32,
    shared_bytes: u32,
    begins: Begins,
}

/// When a launch may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// When what was queued before has ended.
    InOrder,
    /// When the blocks of the launch before let it: the kernel waits by itself where it has to (programmatic dependent launch).
    Early,
}

// SAFETY: the driver takes a function's handle from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// What the driver says of a loaded kernel, to hold against our own reading of the cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFacts {
    pub registers_per_thread: u32,
    pub local_bytes_per_thread: u32,
    pub static_shared_bytes: u32,
    pub ctas_per_sm: u32,
}

impl KernelFacts {
    /// Of a kernel on the host: there are no registers, and one block a multiprocessor is the honest answer.
    pub const ON_HOST: KernelFacts = KernelFacts {
        registers_per_thread: 0,
        local_bytes_per_thread: 0,
        static_shared_bytes: 0,
        ctas_per_sm: 1,
    };
}

/// Blocks in x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid(pub u32, pub u32, pub u32);

impl Kernel {
    /// Loads `name` from a cubin, to be launched with that many threads and bytes of dynamic shared memory.
    pub fn load(
        device: Device,
        cubin: &[u8],
        name: &str,
        threads: u32,
        shared_bytes: u32,
        begins: Begins,
    ) -> Result<Self, CudaError> {
        device.make_current()?;
        let c_name = CString::new(name).map_err(|_| CudaError::ZeroByte { what: name.into() })?;
        let module = loaded(device, cubin)?;
        let mut function = std::ptr::null_mut();
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut room = 0;
        // SAFETY: the module is loaded and stays so; all pointers are to live locals.
        unsafe {
            check("cuModuleGetFunction", sys::cuModuleGetFunction(&mut function, module.0, c_name.as_ptr()))?;
            // The function may be another's, too, who needs more.
            check("cuFuncGetAttribute", sys::cuFuncGetAttribute(&mut room, attribute, function))?;
            check(
                "cuFuncSetAttribute(shared memory)",
                sys::cuFuncSetAttribute(function, attribute, room.max(shared_bytes as i32)),
            )?;
        }
        Ok(Kernel { device, function, threads, shared_bytes, begins })
    }

    pub fn facts(&self) -> Result<KernelFacts, CudaError> {
        let number = |attribute| {
            let mut value = 0;
            // SAFETY: `value` is a live local and the function is loaded.
            check("cuFuncGetAttribute", unsafe {
                sys::cuFuncGetAttribute(&mut value, attribute, self.function)
            })?;
            Ok::<u32, CudaError>(value.max(0) as u32)
        };
        let mut blocks = 0;
        // SAFETY: as above.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.function,
                self.threads as i32,
                self.shared_bytes as usize,
            )
        })?;
        Ok(KernelFacts {
            registers_per_thread: number(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes_per_thread: number(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared_bytes: number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            ctas_per_sm: blocks.max(0) as u32,
        })
    }

    /// Launches with one by-value parameter, the bytes of the kernel's argument struct.
    ///
    /// # Safety
    /// They are the struct as the kernel declares it, and the addresses inside are live, large enough, and not written by
    /// anybody else, until the stream has run the launch (a captured one: whenever it is replayed).
    pub unsafe fn launch(&self, stream: &Stream, grid: Grid, arguments: &[u8]) -> Result<(), CudaError> {
        self.device.make_current()?;
        let mut parameters = [arguments.as_ptr().cast_mut().cast()];
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream.raw(),
            attrs: &mut early,
            numAttrs: u32::from(self.begins == Begins::Early),
        };
        // SAFETY: the driver copies configuration and parameter during the call; what it points to is the caller's word, above.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&config, self.function, parameters.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}

#[derive(Clone, Copy)]
struct Module(sys::CUmodule);

// SAFETY: the driver takes a module's handle from any thread.
unsafe impl Send for Module {}

/// The module of a cubin, whose device is current.
fn loaded(device: Device, cubin: &[u8]) -> Result<Module, CudaError> {
    type Loaded = HashMap<(Device, [u8; 32]), Module>;
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let key = (device, Sha256::digest(cubin).into());
    // Nothing panics half-way through a change.
    let mut all = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = all.get(&key) {
        return Ok(*module);
    }
    let mut module = std::ptr::null_mut();
    // SAFETY: the driver checks the image and copies it; `module` is a live local.
    take_image(unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) })?;
    all.insert(key, Module(module));
    Ok(Module(module))
}

/// An image that is not for this device or driver is told from all else that can go wrong.
fn take_image(result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_IMAGE
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            Err(CudaError::Image { reason: format!("{result:?}") })
        }
        result => check("cuModuleLoadData", result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_another_kind_are_told_from_what_goes_wrong() {
        let told = |result| take_image(result).unwrap_err();
        for result in [CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION] {
            assert!(matches!(told(result), CudaError::Image { .. }), "{result:?}");
        }
        let full = told(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(
            matches!(full, CudaError::Call { .. }) && full.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY")
        );
        assert!(take_image(CUresult::CUDA_SUCCESS).is_ok());
    }
}
