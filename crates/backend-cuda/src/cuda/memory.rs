//! Device memory, taken once and given back when dropped.
#![allow(unsafe_code)]

use super::{CudaError, Device, check};
use cudarc::driver::sys;
use std::marker::PhantomData;

/// Values that may be copied byte for byte between host and device.
pub trait Plain: Copy + Default + sealed::Sealed {}
mod sealed {
    pub trait Sealed {}
}
macro_rules! plain {
    ($($type:ty),*) => { $(impl sealed::Sealed for $type {} impl Plain for $type {})* };
}
plain!(u8, u16, u32, i32, f32, u64);

/// An address on the device, as kernels take it. 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceAddress(pub u64);

/// `len` values on the device.
#[derive(Debug)]
pub struct Buffer<T: Plain> {
    device: Device,
    address: u64,
    len: usize,
    value: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// All bytes zero.
    pub fn zeroed(device: Device, len: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut address = 0;
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: `address` is a live local; the context is current.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        let mut buffer = Buffer { device, address, len, value: PhantomData };
        buffer.fill_bytes(0)?;
        Ok(buffer)
    }

    pub fn of(device: Device, values: &[T]) -> Result<Self, CudaError> {
        let mut buffer = Self::zeroed(device, values.len())?;
        buffer.copy_in(values)?;
        Ok(buffer)
    }

    /// Sets every byte: 0xff makes NaN of floats, which no correct result is. Waits until it is done: the driver's
    /// memset returns early, and streams here do not wait for it.
    pub fn fill_bytes(&mut self, byte: u8) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the allocation has that many bytes.
        unsafe {
            check("cuMemsetD8", sys::cuMemsetD8_v2(self.address, byte, self.len * size_of::<T>()))?;
            check("cuCtxSynchronize", sys::cuCtxSynchronize())
        }
    }

    pub fn copy_in(&mut self, values: &[T]) -> Result<(), CudaError> {
        if values.len() > self.len {
            return Err(CudaError::Size { given: values.len(), room: self.len });
        }
        self.device.make_current()?;
        // SAFETY: source and destination hold at least that many bytes.
        check("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(self.address, values.as_ptr().cast(), size_of_val(values))
        })
    }

    /// Waits for nothing but the copy: synchronize the stream that writes first.
    pub fn copy_out(&self) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::default(); self.len];
        self.device.make_current()?;
        // SAFETY: `values` holds as many bytes as the buffer, and any bytes are a value of a `Plain` type.
        check("cuMemcpyDtoH", unsafe {
            sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), self.address, self.len * size_of::<T>())
        })?;
        Ok(values)
    }

    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.address)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        // A failure here has nobody to go to: the process is ending, or the context is lost and its memory with it.
        let _ = self.device.make_current();
        // SAFETY: the address came from cuMemAlloc and is freed once.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}
