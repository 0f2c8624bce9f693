//! Host memory that a device reads by itself, so that a copy runs beside everything else.
#![allow(unsafe_code)]

use super::{CudaError, Device, check};
use cudarc::driver::sys::{self, CUresult};
use std::ptr::NonNull;

/// Zeroed bytes that never move.
#[derive(Debug)]
pub struct PinnedMemory {
    device: Device,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, and the driver takes the address from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; they change through `&mut` alone, but for words that are atomic.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub fn new(device: Device, len: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: `start` is a live local; the context is current.
        match unsafe { sys::cuMemHostAlloc(&mut start, len.max(1), 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(CudaError::NoPinnedMemory { bytes: len }),
            result => check("cuMemHostAlloc", result)?,
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(CudaError::NoPinnedMemory { bytes: len })?;
        // SAFETY: the allocation has that many bytes, and nobody else knows it.
        unsafe { start.write_bytes(0, len) };
        Ok(PinnedMemory { device, start, len })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and written by `new`, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A failure here has nobody to go to: the process is ending, or the context is lost and its memory with it.
        let _ = self.device.make_current();
        // SAFETY: allocated by `new`, freed once; whoever queued a copy from it has waited for that.
        let _ = unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
    }
}
