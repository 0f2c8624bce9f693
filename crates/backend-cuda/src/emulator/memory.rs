//! Emulated device memory: every allocation lies between red zones, which are looked at after each launch, and is full
//! of NaN patterns until it is written.

use super::EmulatorError;
use crate::gpu::DeviceAddress;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

const ALIGN: usize = 256;
const ZONE: usize = 256;
const ZONE_BYTE: u8 = 0xfd;
const FRESH_BYTE: u8 = 0xff;

pub struct Memory {
    /// By address.
    allocations: BTreeMap<u64, Allocation>,
    free_bytes: usize,
}

struct Allocation {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: an allocation is owned by the map it stands in.
unsafe impl Send for Memory {}

impl Allocation {
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.checked_add(2 * ZONE)?, ALIGN).ok()
    }

    fn new(bytes: usize) -> Option<Self> {
        let layout = Self::layout(bytes)?;
        // SAFETY: the layout has bytes, and all of them are written before anybody reads.
        unsafe {
            let start = alloc(layout);
            if start.is_null() {
                return None;
            }
            start.write_bytes(ZONE_BYTE, layout.size());
            start.add(ZONE).write_bytes(FRESH_BYTE, bytes);
            Some(Allocation { start, bytes })
        }
    }

    fn zones(&self) -> [&[u8]; 2] {
        // SAFETY: `new` made both zones, and only a kernel that is at fault writes there.
        unsafe {
            [
                std::slice::from_raw_parts(self.start, ZONE),
                std::slice::from_raw_parts(self.start.add(ZONE + self.bytes), ZONE),
            ]
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.bytes) {
            // SAFETY: allocated by `new` with the same layout.
            unsafe { dealloc(self.start, layout) };
        }
    }
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Memory { allocations: BTreeMap::new(), free_bytes: bytes }
    }

    pub fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    pub fn allocate(&mut self, bytes: usize) -> Result<DeviceAddress, EmulatorError> {
        let none = EmulatorError::Memory { given: bytes, free: self.free_bytes };
        let Some(left) = self.free_bytes.checked_sub(bytes) else { return Err(none) };
        let allocation = Allocation::new(bytes).ok_or(none)?;
        let address = allocation.start as u64 + ZONE as u64;
        self.allocations.insert(address, allocation);
        self.free_bytes = left;
        Ok(DeviceAddress(address))
    }

    pub fn free(&mut self, address: DeviceAddress) {
        self.free_bytes += self.allocations.remove(&address.0).map_or(0, |allocation| allocation.bytes);
    }

    /// `bytes` from `at` on, which lie in one allocation.
    pub fn slice(&mut self, at: DeviceAddress, bytes: usize) -> Result<&mut [u8], EmulatorError> {
        let outside = || EmulatorError::OutOfBounds {
            kernel: "copy".into(),
            what: format!("{bytes} bytes at {:#x} are in no allocation", at.0),
        };
        let (address, allocation) = self.allocations.range(..=at.0).next_back().ok_or_else(outside)?;
        let offset = (at.0 - address) as usize;
        if offset.checked_add(bytes).is_none_or(|end| end > allocation.bytes) {
            return Err(outside());
        }
        // SAFETY: inside of a live allocation, and borrowed with the map.
        Ok(unsafe { std::slice::from_raw_parts_mut(allocation.start.add(ZONE + offset), bytes) })
    }

    /// Whether all red zones are as they were.
    pub fn check(&self, kernel: &str) -> Result<(), EmulatorError> {
        for (address, allocation) in &self.allocations {
            for (side, zone) in ["before", "behind"].iter().zip(allocation.zones()) {
                if let Some(at) = zone.iter().position(|byte| *byte != ZONE_BYTE) {
                    let what = format!(
                        "byte {at} of the {ZONE} {side} an allocation of {} bytes at {address:#x}",
                        allocation.bytes
                    );
                    return Err(EmulatorError::OutOfBounds { kernel: kernel.into(), what });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_behind_an_allocation_is_noticed_and_slices_stay_inside() {
        let mut memory = Memory::new(150);
        let address = memory.allocate(100).unwrap();
        assert!(memory.free_bytes() == 50 && memory.allocate(51).is_err());
        assert!(memory.slice(address, 100).unwrap().iter().all(|byte| *byte == FRESH_BYTE));
        assert!(memory.slice(address, 101).is_err() && memory.slice(address.plus(60), 41).is_err());
        assert!(memory.check("k").is_ok());
        // SAFETY: the red zone behind the allocation is this test's to spoil.
        unsafe { *(address.plus(103).0 as *mut u8) = 0 };
        let message = memory.check("k").unwrap_err().to_string();
        assert!(
            message.contains("kernel k wrote") && message.contains("byte 3 of the 256 behind"),
            "{message}"
        );
        memory.free(address);
        assert!(memory.check("k").is_ok() && memory.slice(address, 1).is_err());
        assert_eq!(memory.free_bytes(), 150);
    }
}
