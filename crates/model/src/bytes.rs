//! A range of bytes that keeps its owner alive: a mapped file, a built-in blob, or a buffer.

use std::ops::{Deref, Range};
use std::sync::Arc;

#[derive(Clone)]
enum Owner {
    Mapped(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
    Heap(Arc<Vec<u8>>),
}

/// Cheap to clone and to slice; dereferences to `[u8]`. Its start has no particular alignment.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

impl Bytes {
    pub fn mapped(map: Arc<memmap2::Mmap>) -> Self {
        let range = 0..map.len();
        Bytes { owner: Owner::Mapped(map), range }
    }

    pub fn from_static(bytes: &'static [u8]) -> Self {
        Bytes { owner: Owner::Static(bytes), range: 0..bytes.len() }
    }

    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Bytes { owner: Owner::Heap(Arc::new(bytes)), range }
    }

    pub fn empty() -> Self {
        Bytes::from_static(&[])
    }

    /// Asks the system to read these bytes of a mapped file soon, ahead of whoever touches them. Only a hint: what cannot be
    /// had shows when it is touched.
    pub fn will_need(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map) = &self.owner {
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// The part `range` of these bytes, sharing the owner. Panics when out of bounds, as slicing does.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "slice {range:?} of {} bytes",
            self.len()
        );
        Bytes {
            owner: self.owner.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Mapped(map) => map,
            Owner::Static(bytes) => bytes,
            Owner::Heap(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({} bytes)", self.range.len())
    }
}
