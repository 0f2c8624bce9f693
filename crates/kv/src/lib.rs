//! Accounting of cache state. A request's set (window, compressed entries, indexer keys, compressor rows) is
//! allocated, snapshotted, forked, restored or freed as a whole or not at all.
//!
//! This crate counts and decides; it owns no byte. Bytes live in a backend's pools, addressed (pool, page, slot).

mod address;

pub use address::{PageId, PageOp, PageTable, Pool, PoolCapacity, TOKENS_PER_PAGE};
