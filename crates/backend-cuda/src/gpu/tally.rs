//! A device that only counts: what is made on it says how much memory the same would take on a real one. So a plan of memory
//! and the memory that is taken cannot disagree: both are made by the same functions.
#![allow(unsafe_code)]

use super::{
    DeviceAddress, Gpu, GpuError, GpuFacts, Grid, Identity, Kernel, KernelFacts, Shape, SharedWords, Staging,
    Timeline,
};
use crate::cubins::Source;
use std::sync::atomic::{AtomicU64, Ordering};

/// Drivers hand out large memory in pieces of this size; smaller things share one.
const PIECE: u64 = 2 << 20;
const SMALL: u64 = 512;

pub struct Tally {
    facts: GpuFacts,
    bytes: AtomicU64,
}

impl Tally {
    /// Looks like the device of these facts.
    pub fn like(facts: &GpuFacts) -> Self {
        Tally { facts: facts.clone(), bytes: AtomicU64::new(0) }
    }

    /// Of all allocations so far, given back or not.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What an allocation takes.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(if bytes > PIECE / 2 { PIECE } else { SMALL })
    }
}

impl Gpu for Tally {
    fn facts(&self) -> Result<GpuFacts, GpuError> {
        Ok(self.facts.clone())
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, GpuError> {
        self.bytes.fetch_add(Self::rounded(bytes as u64), Ordering::Relaxed);
        Ok(DeviceAddress::NULL)
    }

    unsafe fn free(&self, _: DeviceAddress) {}

    unsafe fn copy_in(&self, _: DeviceAddress, _: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }

    unsafe fn copy_out(&self, _: DeviceAddress, _: &mut [u8]) -> Result<(), GpuError> {
        Ok(())
    }

    unsafe fn fill(&self, _: DeviceAddress, _: usize, _: u8) -> Result<(), GpuError> {
        Ok(())
    }

    fn identity(&self) -> Identity {
        Identity::Counted
    }

    fn reach(&self, _: Identity) -> Result<bool, GpuError> {
        Ok(true)
    }

    fn shared_words(&self, _: usize) -> Result<Box<dyn SharedWords>, GpuError> {
        Ok(Box::new(Nothing))
    }

    fn staging(&self, bytes: usize) -> Result<Box<dyn Staging>, GpuError> {
        Ok(Box::new(Nowhere(vec![0; bytes])))
    }

    fn load(&self, _: &Source, _: &str, _: Shape) -> Result<Box<dyn Kernel>, GpuError> {
        Ok(Box::new(Nothing))
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn timeline(&self) -> Result<Box<dyn Timeline>, GpuError> {
        Ok(Box::new(Nothing))
    }
}

impl Timeline for Nothing {
    fn mark(&mut self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }

    fn microseconds(&self, _: usize, _: usize) -> Result<f64, GpuError> {
        Ok(0.0)
    }
}

struct Nowhere(Vec<u8>);

impl Staging for Nowhere {
    fn bytes(&mut self) -> Result<&mut [u8], GpuError> {
        Ok(&mut self.0)
    }

    unsafe fn upload(&mut self, _: usize, _: DeviceAddress) -> Result<(), GpuError> {
        Ok(())
    }
}

struct Nothing;

impl SharedWords for Nothing {
    fn address(&self) -> DeviceAddress {
        DeviceAddress::NULL
    }

    fn raise(&self, _: usize) {}
}

impl Kernel for Nothing {
    fn facts(&self) -> Result<KernelFacts, GpuError> {
        Ok(KernelFacts::ON_HOST)
    }

    unsafe fn launch(&self, _: Grid, _: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }
}
