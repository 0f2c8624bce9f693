//! The cache pages of one rank, holding what the hash model reads back: a wrong page, a lost row or a stale entry
//! changes what a query sees, or is noticed outright.

use super::model::fold;
use overshot_backend::Row;
use overshot_kv::{PageId, PageOp, PageTable, Pool, PoolCapacity, TOKENS_PER_PAGE};
use std::collections::{HashMap, HashSet};

/// Rows of the compressor rings, one after the other in a page.
const RATIO_4_ROWS: usize = 16;
const RATIO_128_ROWS: usize = 136;

pub struct Memory {
    capacity: PoolCapacity,
    slots: HashMap<(Pool, PageId), Vec<Option<u64>>>,
}

impl Memory {
    pub fn new(capacity: PoolCapacity) -> Self {
        Memory { capacity, slots: HashMap::new() }
    }

    pub fn copy(&mut self, op: PageOp) -> Result<(), String> {
        let PageOp::Copy { pool, from, to } = op;
        let bytes = self.page(pool, from)?.clone();
        *self.page(pool, to)? = bytes;
        Ok(())
    }

    /// Writes the state of a row's tokens.
    pub fn write_row(&mut self, row: &Row, tokens: &[u32]) -> Result<(), String> {
        for (index, token) in tokens.iter().enumerate() {
            self.write(&row.pages, row.start + index, *token)?;
        }
        Ok(())
    }

    /// What a query after `len` positions sees.
    pub fn visible(&mut self, table: &PageTable, len: usize) -> Result<u64, String> {
        let ring = self.page(Pool::Window, table.pages(Pool::Window)[0])?;
        let mut sum = 7;
        for position in len.saturating_sub(128)..len {
            sum = fold(sum, written(ring[position % TOKENS_PER_PAGE])?);
        }
        for pool in [Pool::Csa, Pool::IndexKeys, Pool::Hca] {
            let ratio = pool.tokens_per_slot().unwrap();
            for entry in 0..len / ratio {
                let (page, slot) = (entry * ratio / TOKENS_PER_PAGE, entry % (TOKENS_PER_PAGE / ratio));
                sum = fold(sum, written(self.page(pool, table.pages(pool)[page])?[slot])?);
            }
        }
        Ok(sum)
    }

    fn page(&mut self, pool: Pool, page: PageId) -> Result<&mut Vec<Option<u64>>, String> {
        if page.0 as usize >= self.capacity.pages(pool) {
            return Err(format!("{pool:?} has no {page:?}"));
        }
        let slots = match pool {
            Pool::Window => TOKENS_PER_PAGE,
            Pool::CompressorRows => RATIO_4_ROWS + RATIO_128_ROWS,
            _ => TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap(),
        };
        Ok(self.slots.entry((pool, page)).or_insert_with(|| vec![None; slots]))
    }

    fn write(&mut self, table: &PageTable, position: usize, token: u32) -> Result<(), String> {
        let token = Some(u64::from(token));
        self.page(Pool::Window, table.pages(Pool::Window)[0])?[position % TOKENS_PER_PAGE] = token;
        let rows = self.page(Pool::CompressorRows, table.pages(Pool::CompressorRows)[0])?;
        rows[position % RATIO_4_ROWS] = token;
        rows[RATIO_4_ROWS + position % RATIO_128_ROWS] = token;
        let pooled = |first: usize, ring: usize, reach: usize| {
            let positions = (position + 1).saturating_sub(reach)..=position;
            positions.map(|p| written(rows[first + p % ring])).try_fold(1, |sum, row| Ok(fold(sum, row?)))
        };
        let ends = |ratio: usize| (position + 1).is_multiple_of(ratio);
        let overlapped: Option<Result<u64, String>> = ends(4).then(|| pooled(0, RATIO_4_ROWS, 8));
        let heavy = ends(128).then(|| pooled(RATIO_4_ROWS, RATIO_128_ROWS, 128));
        let (overlapped, heavy) = (overlapped.transpose()?, heavy.transpose()?);
        for (pool, entry) in [(Pool::Csa, overlapped), (Pool::IndexKeys, overlapped), (Pool::Hca, heavy)] {
            if entry.is_some() {
                let page = table.pages(pool)[position / TOKENS_PER_PAGE];
                let slot = position % TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap();
                self.page(pool, page)?[slot] = entry;
            }
        }
        Ok(())
    }
}

fn written(slot: Option<u64>) -> Result<u64, String> {
    slot.ok_or_else(|| "a slot is read that was never written".into())
}

/// Whether a plan's rows have the pages they need, each written by one row only.
pub fn check_rows(rows: &[Row]) -> Result<(), String> {
    let mut written = HashSet::new();
    for (index, row) in rows.iter().enumerate() {
        let end = row.start + row.tokens.len();
        if row.tokens.is_empty() {
            return Err(format!("row {index} has no tokens"));
        }
        for pool in Pool::ALL {
            let pages = row.pages.pages(pool);
            if pages.len() != pool.pages_for(end) {
                return Err(format!("row {index} has {} pages of {pool:?} for {end} positions", pages.len()));
            }
            let first = if pool.tokens_per_slot().is_some() { row.start / TOKENS_PER_PAGE } else { 0 };
            if let Some(page) = pages[first..].iter().find(|page| !written.insert((pool, **page))) {
                return Err(format!("row {index} and another write {page:?} of {pool:?}"));
            }
        }
    }
    Ok(())
}
