//! What a plan must satisfy before a backend may touch its pools: whatever passes here addresses nothing outside of
//! the vocabulary and the pools, and no two rows write the same page. Says nothing about what the pages hold.

use crate::{BackendError, Row, StepPlan};
use overshot_kv::{PageId, PageOp, Pool, PoolCapacity, TOKENS_PER_PAGE};
use std::collections::HashSet;

impl StepPlan {
    /// # Errors
    /// [`BackendError::BadPlan`] for the first page operation, [`BackendError::BadRow`] for the first row that names
    /// something that is not there, or that another row writes too.
    pub fn check(&self, vocab_size: usize, capacity: PoolCapacity) -> Result<(), BackendError> {
        let number = self.number;
        for op in &self.page_ops {
            let PageOp::Copy { pool, from, to } = *op;
            if [from, to].iter().any(|page| !exists(capacity, pool, *page)) {
                let what = format!("{op:?} names a page that is not there");
                return Err(BackendError::BadPlan { number, what });
            }
        }
        let mut written = HashSet::new();
        for (row, contents) in self.rows.iter().enumerate() {
            contents.check(vocab_size, capacity, &mut written).map_err(|what| BackendError::BadRow {
                number,
                row,
                what,
            })?;
        }
        Ok(())
    }
}

impl Row {
    fn check(
        &self,
        vocab_size: usize,
        capacity: PoolCapacity,
        written: &mut HashSet<(Pool, PageId)>,
    ) -> Result<(), String> {
        if self.tokens.is_empty() {
            return Err("no tokens".into());
        }
        let Some(end) = self.start.checked_add(self.tokens.len()) else {
            return Err(format!("it starts at position {}", self.start));
        };
        // What stands for a placeholder's token means nothing.
        let known = self.tokens.len() - usize::from(self.placeholder.is_some());
        if let Some(token) = self.tokens[..known].iter().find(|token| **token as usize >= vocab_size) {
            return Err(format!("token {token} is not below the vocabulary's {vocab_size}"));
        }
        for pool in Pool::ALL {
            let pages = self.pages.pages(pool);
            let needed = pool.pages_for(end);
            if pages.len() < needed || pages.iter().any(|page| !exists(capacity, pool, *page)) {
                return Err(format!("its pages of pool {pool:?} do not cover {end} positions"));
            }
            let first = if pool.tokens_per_slot().is_some() { self.start / TOKENS_PER_PAGE } else { 0 };
            if let Some(page) = pages[first..needed].iter().find(|page| !written.insert((pool, **page))) {
                return Err(format!("another row writes {page:?} of pool {pool:?} too"));
            }
        }
        Ok(())
    }
}

fn exists(capacity: PoolCapacity, pool: Pool, page: PageId) -> bool {
    (page.0 as usize) < capacity.pages(pool)
}
