//! Device memory, taken once and given back when dropped.
#![allow(unsafe_code)]

use super::{Gpu, GpuError, Staging};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Values that may be copied byte for byte between host and device.
pub trait Plain: Copy + Default + sealed::Sealed {}
mod sealed {
    pub trait Sealed {}
}
macro_rules! plain {
    ($($type:ty),*) => { $(impl sealed::Sealed for $type {} impl Plain for $type {})* };
}
plain!(u8, u16, u32, i32, f32, u64, i64);

/// An address on the device, as kernels take it. 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    pub const NULL: DeviceAddress = DeviceAddress(0);

    pub fn plus(self, bytes: usize) -> Self {
        DeviceAddress(self.0 + bytes as u64)
    }
}

/// `len` values on a device.
pub struct Buffer<T: Plain> {
    gpu: Arc<dyn Gpu>,
    address: DeviceAddress,
    len: usize,
    value: PhantomData<T>,
}

/// Nothing is asked of the driver where there is nothing to do: it promises little about copies of no bytes.
impl<T: Plain> Buffer<T> {
    /// What it holds is not defined.
    pub fn new(gpu: &Arc<dyn Gpu>, len: usize) -> Result<Self, GpuError> {
        let address = gpu.allocate((len * size_of::<T>()).max(1))?;
        Ok(Buffer { gpu: gpu.clone(), address, len, value: PhantomData })
    }

    /// All bytes zero.
    pub fn zeroed(gpu: &Arc<dyn Gpu>, len: usize) -> Result<Self, GpuError> {
        let mut buffer = Self::new(gpu, len)?;
        buffer.fill_bytes(0)?;
        Ok(buffer)
    }

    pub fn of(gpu: &Arc<dyn Gpu>, values: &[T]) -> Result<Self, GpuError> {
        let mut buffer = Self::new(gpu, values.len())?;
        buffer.copy_in(values)?;
        Ok(buffer)
    }

    /// Sets every byte: 0xff makes NaN of floats, which no correct result is.
    pub fn fill_bytes(&mut self, byte: u8) -> Result<(), GpuError> {
        self.fill_first(self.len, byte)
    }

    /// The same of the first `count` values.
    pub fn fill_first(&mut self, count: usize, byte: u8) -> Result<(), GpuError> {
        if count > self.len {
            return Err(GpuError::Size { given: count, room: self.len });
        }
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the allocation has at least that many bytes.
        unsafe { self.gpu.fill(self.address, count * size_of::<T>(), byte) }
    }

    pub fn copy_in(&mut self, values: &[T]) -> Result<(), GpuError> {
        self.copy_in_at(0, values)
    }

    /// Replaces the values from `at` on.
    pub fn copy_in_at(&mut self, at: usize, values: &[T]) -> Result<(), GpuError> {
        let room = self.len.saturating_sub(at);
        if values.len() > room {
            return Err(GpuError::Size { given: values.len(), room });
        }
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: values are plain, so they may be read as bytes; the allocation has room for them.
        unsafe {
            let bytes = std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values));
            self.gpu.copy_in(self.address.plus(at * size_of::<T>()), bytes)
        }
    }

    /// Begins to copy the first `count` values of a staging's buffer to the place from `at` on. Several threads may bring parts
    /// at the same time.
    pub fn receive(&self, at: usize, staging: &mut dyn Staging, count: usize) -> Result<(), GpuError> {
        let room = self.len.saturating_sub(at);
        if count > room {
            return Err(GpuError::Size { given: count, room });
        }
        // SAFETY: there is room, and a buffer that is being filled is used by no launch yet: its owner has nothing to launch
        // with until it has waited for its stagings.
        unsafe { staging.upload(count * size_of::<T>(), self.at(at)) }
    }

    /// Waits for all queued work first.
    pub fn copy_out(&self) -> Result<Vec<T>, GpuError> {
        self.copy_out_range(0..self.len)
    }

    pub fn copy_out_range(&self, range: Range<usize>) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::default(); range.len()];
        if range.end > self.len {
            return Err(GpuError::Size { given: range.end, room: self.len });
        }
        if values.is_empty() {
            return Ok(values);
        }
        // SAFETY: `values` may be written as bytes, as any bytes are a value of a plain type; the range was looked at.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(&*values));
            self.gpu.copy_out(self.address.plus(range.start * size_of::<T>()), bytes)?;
        }
        Ok(values)
    }

    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Of the value at `index`.
    pub fn at(&self, index: usize) -> DeviceAddress {
        self.address.plus(index * size_of::<T>())
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
        // A launch that is still under way may use it. A failure has nobody to go to: the process is ending, or the
        // device is lost and its memory with it.
        let _ = self.gpu.synchronize();
        // SAFETY: allocated by `new`, freed once, and nothing is queued any more.
        unsafe { self.gpu.free(self.address) };
    }
}
