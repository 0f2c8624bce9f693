//! Streams, what copies on them, graphs captured from them, and events that time them.
#![allow(unsafe_code)]

use super::{CudaError, Device, check};
use cudarc::driver::sys;

/// A queue of work on one device.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    stream: sys::CUstream,
}

// SAFETY: the driver takes a stream's handle from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is a live local.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Stream { device, stream })
    }

    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is live as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Pageable memory may be reused at once where the driver has to stage it, which it does before this returns
    /// ([`Device::reads_pageable_memory`] is false); else, and pinned memory always, when the stream has come past the copy.
    ///
    /// # Safety
    /// There are that many bytes at `to`, and the source is as said.
    pub unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the caller's word for the destination.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream)
        })
    }

    /// Waits for all work of the stream.
    ///
    /// # Safety
    /// There are that many bytes at `from`.
    pub unsafe fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the caller's word for the source; the copy is over before `to` is given back.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.stream)
        })?;
        self.synchronize()
    }

    /// # Safety
    /// There are that many bytes at `at`.
    pub unsafe fn fill(&self, at: u64, bytes: usize, value: u8) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the caller's word.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, value, bytes, self.stream) })
    }

    /// Records what `work` puts on this stream instead of running it.
    pub fn capture<E: From<CudaError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.device.make_current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is live; capture is ended whatever `work` returned; pointers are to live locals.
        unsafe {
            check("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(self.stream, mode))?;
            let outcome = work();
            let ended = check("cuStreamEndCapture", sys::cuStreamEndCapture(self.stream, &mut graph));
            outcome?;
            ended?;
            let made =
                check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            let _ = sys::cuGraphDestroy(graph);
            made?;
        }
        Ok(Graph { executable })
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once; the driver waits for work in flight.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// Captured work, ready to be replayed.
#[derive(Debug)]
pub struct Graph {
    executable: sys::CUgraphExec,
}

impl Graph {
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`, destroyed once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}

/// A point in a stream whose time the device notes.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
}

// SAFETY: the driver takes an event's handle from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(device: Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is a live local.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Event { event })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.event, stream.stream) })
    }

    /// Microseconds from `earlier` to this event; waits for both.
    pub fn microseconds_since(&self, earlier: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0f32;
        // SAFETY: both are live, `milliseconds` is a live local.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(self.event))?;
            check(
                "cuEventElapsedTime",
                sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.event, self.event),
            )?;
        }
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}
