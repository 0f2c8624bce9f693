//! Accounting of cache state. A request's set (window, compressed entries, indexer keys, compressor rows) is
//! allocated, snapshotted, forked, restored or freed as a whole or not at all.
//!
//! This crate counts and decides; it owns no byte. Bytes live in a backend's pools, addressed (pool, page, slot).

mod accounts;
mod address;
mod pages;
mod set;

pub use accounts::{Kv, SetId, SnapshotId};
pub use address::{PageId, PageOp, PageTable, Pool, PoolCapacity, TOKENS_PER_PAGE};
pub use set::ROLLBACK;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    #[error("out of cache: {needed} pages of pool {pool:?} are needed and {free} are free")]
    Full { pool: Pool, needed: usize, free: usize },
    #[error("{id} of the cache was freed, or never was")]
    NoSuchSet { id: SetId },
    #[error("{id} of the cache was dropped, or never was")]
    NoSuchSnapshot { id: SnapshotId },
    #[error("{id} of the cache cannot undo {positions} positions: {possible} are possible")]
    TooFarBack { id: SetId, positions: usize, possible: usize },
}
