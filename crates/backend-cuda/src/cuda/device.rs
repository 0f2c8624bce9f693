//! One GPU: whether there is any, and what it says of itself.
#![allow(unsafe_code)]

use super::{CudaError, check};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use serde::{Deserialize, Serialize};

/// CUDA 13.0, the toolkit whose cubins are loaded and whose functions are called.
const DRIVER_VERSION_MIN: i32 = 13_000;

/// A device's primary context. Cheap to clone; the context lives until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a device is a number, and the driver takes a context's handle from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a device reports, in its own units.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub name: String,
    pub driver_cuda_version: i32,
    /// 90 for compute capability 9.0.
    pub sm: u32,
    pub multiprocessors: u32,
    pub memory_bytes: usize,
    pub l2_bytes: usize,
    pub shared_bytes_per_sm: u32,
    pub shared_bytes_per_cta: u32,
    pub registers_per_sm: u32,
    pub threads_per_sm: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
}

impl DeviceFacts {
    /// The architecture that cubins for this device are built for.
    pub fn architecture(&self) -> String {
        format!("sm_{}a", self.sm)
    }
}

impl Device {
    /// The device of this number. No driver, an old driver and no device are errors with a sentence, never a panic.
    pub fn open(ordinal: i32) -> Result<Self, CudaError> {
        start_driver()?;
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver is started; every pointer is to a live local of the type the call writes.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))
                .map_err(|error| CudaError::NoDevice { reason: error.to_string() })?;
            match sys::cuDevicePrimaryCtxRetain(&mut context, device) {
                CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => return Err(CudaError::Busy { ordinal }),
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(CudaError::Full { ordinal }),
                result => check("cuDevicePrimaryCtxRetain", result)?,
            }
        }
        let device = Device { device, context };
        device.make_current()?;
        Ok(device)
    }

    /// Contexts belong to threads: a thread that did not open the device calls this first.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context was retained by `open` and is never released.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    pub fn facts(&self) -> Result<DeviceFacts, CudaError> {
        facts_of(self.device)
    }

    /// Whether it reads any memory of the host by itself.
    pub fn reads_pageable_memory(&self) -> Result<bool, CudaError> {
        Ok(attribute(self.device, Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)? != 0)
    }

    /// Lets kernels of this device use the other's memory. False for a machine that cannot, and for one device: kernels of two
    /// queues that wait for each other would wait for what else the driver does in between.
    pub fn reach(&self, other: Device) -> Result<bool, CudaError> {
        if self.device == other.device {
            return Ok(false);
        }
        let mut possible = 0;
        // SAFETY: `possible` is a live local.
        check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&mut possible, self.device, other.device)
        })?;
        if possible == 0 {
            return Ok(false);
        }
        self.make_current()?;
        // SAFETY: contexts live until the process ends.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            CUresult::CUDA_ERROR_TOO_MANY_PEERS | CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(false),
            result => check("cuCtxEnablePeerAccess", result).map(|()| true),
        }
    }

    pub fn memory_free_bytes(&self) -> Result<usize, CudaError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free)
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.make_current()?;
        let mut address = 0;
        // SAFETY: `address` is a live local; the context is current.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(CudaError::OutOfMemory { bytes }),
            result => check("cuMemAlloc", result).map(|()| address),
        }
    }

    /// # Safety
    /// The address came from `allocate` and is given back once, when no queued work uses it.
    pub unsafe fn free(&self, address: u64) {
        // A failure here has nobody to go to: the process is ending, or the context is lost and its memory with it.
        let _ = self.make_current();
        // SAFETY: the caller's word.
        let _ = unsafe { sys::cuMemFree_v2(address) };
    }
}

/// What every device of this machine says of itself, in the order of their numbers; takes no memory of any.
pub fn devices() -> Result<Vec<DeviceFacts>, CudaError> {
    start_driver()?;
    let mut count = 0;
    // SAFETY: the driver is started; `count` is a live local.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    let facts = |ordinal| {
        let mut device = 0;
        // SAFETY: as above.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
        facts_of(device)
    };
    (0..count).map(facts).collect()
}

/// Loads and starts the driver: all calls behind it have one to call.
fn start_driver() -> Result<(), CudaError> {
    // SAFETY: opens the driver library and closes it again; its constructors are the vendor's.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there; `version` is a live local.
    unsafe {
        match sys::cuInit(0) {
            CUresult::CUDA_SUCCESS => {}
            none @ (CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY) => {
                return Err(CudaError::NoDevice { reason: format!("{none:?}") });
            }
            failure => return Err(CudaError::NoStart { reason: format!("cuInit: {failure:?}") }),
        }
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
    }
    if version < DRIVER_VERSION_MIN { Err(CudaError::OldDriver { version }) } else { Ok(()) }
}

fn facts_of(device: sys::CUdevice) -> Result<DeviceFacts, CudaError> {
    let mut name = [0u8; 256];
    let mut memory_bytes = 0;
    let mut driver_cuda_version = 0;
    // SAFETY: the name buffer is as long as said, the others are live locals of the right type.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), 255, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut driver_cuda_version))?;
    }
    let number = |wanted| attribute(device, wanted);
    let name: Vec<u8> = name.into_iter().take_while(|byte| *byte != 0).collect();
    Ok(DeviceFacts {
        name: String::from_utf8_lossy(&name).into_owned(),
        driver_cuda_version,
        sm: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes,
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_bytes_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        shared_bytes_per_cta: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        registers_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_sm: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    })
}

fn attribute(device: sys::CUdevice, attribute: Attribute) -> Result<u32, CudaError> {
    let mut value = 0;
    // SAFETY: `value` is a live local.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_told_so_in_a_sentence() {
        match Device::open(0) {
            Ok(device) => assert!(device.facts().unwrap().multiprocessors > 0),
            Err(error) => {
                assert!(error.to_string().contains("GPU") || error.to_string().contains("driver"));
                assert!(devices().is_err());
            }
        }
    }
}
