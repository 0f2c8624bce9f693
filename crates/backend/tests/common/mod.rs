//! What the tests share: a small spec, rows of sequences known by their window page, and plans in their order.

#![allow(dead_code, clippy::unwrap_used)]

use overshot_backend::{Backend, BackendError, Choice, Row, Sampling, StepPlan, TokenMask, Wanted};
use overshot_kv::{PageId, PageOp, PageTable, Pool};
use overshot_model::Spec;
use std::sync::Arc;

pub fn spec() -> Spec {
    Spec::hollow(64, 1_000_000)
}

/// The first row of the sequence in window page `page`.
pub fn prompt(page: u32, tokens: &[u32]) -> Row {
    decode(page, 0, tokens)
}

pub fn decode(page: u32, start: usize, tokens: &[u32]) -> Row {
    let mut pages = PageTable::default();
    for pool in Pool::ALL {
        pages.pages_mut(pool).push(PageId(page));
    }
    let sampling = Arc::new(Sampling::greedy());
    let wanted = Wanted::Token { sampling, seen: Vec::new(), choice: Choice::Free };
    Row { tokens: tokens.to_vec(), start, placeholder: None, pages, wanted }
}

pub fn mask(allowed: &[u32]) -> TokenMask {
    let mut mask = TokenMask::none(64);
    allowed.iter().for_each(|token| mask.allow(*token));
    mask
}

/// Numbers the plans that go to a backend.
pub struct Plans<B> {
    pub inner: B,
    /// Of the next plan.
    pub page_ops: Vec<PageOp>,
    next: u64,
}

impl<B: Backend> Plans<B> {
    pub fn of(inner: B) -> Self {
        Plans { inner, page_ops: Vec::new(), next: 0 }
    }

    pub fn submit(&mut self, rows: Vec<Row>) -> Result<u64, BackendError> {
        let number = self.next;
        self.next += 1;
        self.inner.submit(StepPlan {
            number,
            page_ops: std::mem::take(&mut self.page_ops),
            rows,
            ..StepPlan::default()
        })?;
        Ok(number)
    }

    /// The tokens of each row.
    pub fn collect(&mut self) -> Result<Vec<Vec<u32>>, BackendError> {
        let rows = self.inner.collect()?.rows;
        Ok(rows.iter().map(|row| row.tokens.iter().map(|sampled| sampled.token).collect()).collect())
    }

    pub fn draw(&mut self, rows: Vec<Row>) -> Vec<Vec<u32>> {
        self.submit(rows).unwrap();
        self.collect().unwrap()
    }
}
