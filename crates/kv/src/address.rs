//! Where cache state lives: pools of pages, the same on every backend.

/// The five kinds of state that a request owns. A page of a pool spans *all* layers that have such state, so one
/// page id serves every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Latents of the last tokens, all layers: one page a request, a ring of `TOKENS_PER_PAGE` slots
    /// (position modulo ring).
    Window,
    /// Compressed entries of ratio-4 layers: 64 slots a page.
    Csa,
    /// Compressed entries of ratio-128 layers: 2 slots a page.
    Hca,
    /// Indexer keys of ratio-4 layers: 64 slots a page.
    IndexKeys,
    /// Rows of unfinished compression windows, all compressed layers: one page a request.
    CompressorRows,
}

/// Tokens that one page of a growing pool covers, and the slots of the window ring.
pub const TOKENS_PER_PAGE: usize = 256;

impl Pool {
    pub const ALL: [Pool; 5] = [Pool::Window, Pool::Csa, Pool::Hca, Pool::IndexKeys, Pool::CompressorRows];

    /// The pools whose pages a set collects as it grows.
    pub const GROWING: [Pool; 3] = [Pool::Csa, Pool::Hca, Pool::IndexKeys];
    /// The pools of which every set has one page: rings, overwritten by every step.
    pub const FIXED: [Pool; 2] = [Pool::Window, Pool::CompressorRows];

    pub fn index(self) -> usize {
        self as usize
    }

    /// Tokens per slot in pools that grow with the context; `None` for the pools with one page a request.
    pub fn tokens_per_slot(self) -> Option<usize> {
        match self {
            Pool::Csa | Pool::IndexKeys => Some(4),
            Pool::Hca => Some(128),
            Pool::Window | Pool::CompressorRows => None,
        }
    }

    /// Pages that a set of `tokens` positions needs.
    pub fn pages_for(self, tokens: usize) -> usize {
        if self.tokens_per_slot().is_some() { tokens.div_ceil(TOKENS_PER_PAGE) } else { 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// The pages of one set, by pool: what a backend needs to find a row's state. Plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable {
    pages: [Vec<PageId>; 5],
}

impl PageTable {
    pub fn pages(&self, pool: Pool) -> &[PageId] {
        &self.pages[pool.index()]
    }

    pub fn pages_mut(&mut self, pool: Pool) -> &mut Vec<PageId> {
        &mut self.pages[pool.index()]
    }
}

/// Pages that a backend holds in each pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolCapacity {
    pages: [usize; 5],
}

impl PoolCapacity {
    /// Room for `sets` requests that hold `tokens` positions between them, each rounded up to whole pages.
    pub fn for_sets(sets: usize, tokens: usize) -> Self {
        Self::with_pages(sets, tokens.div_ceil(TOKENS_PER_PAGE) + sets)
    }

    /// Pages for `tokens` positions that up to `sets` requests divide between them, and no more: a request that ends
    /// inside a page takes all of it.
    pub fn shared_by(sets: usize, tokens: usize) -> Self {
        Self::with_pages(sets, tokens.div_ceil(TOKENS_PER_PAGE))
    }

    fn with_pages(sets: usize, growing: usize) -> Self {
        PoolCapacity { pages: Pool::ALL.map(|p| if p.tokens_per_slot().is_some() { growing } else { sets }) }
    }

    pub fn pages(&self, pool: Pool) -> usize {
        self.pages[pool.index()]
    }

    /// Positions of the longest set that fits when it is alone; 0 when not even an empty one fits.
    pub fn longest_set_tokens(&self) -> usize {
        if Pool::FIXED.into_iter().any(|pool| self.pages(pool) == 0) {
            return 0;
        }
        let pages = Pool::GROWING.map(|pool| self.pages(pool)).into_iter().min().unwrap_or(0);
        pages.saturating_mul(TOKENS_PER_PAGE)
    }
}

/// A movement of bytes that a step plan carries out before its rows, in order. Allocating and freeing move
/// nothing: the page tables of the rows say it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageOp {
    /// Copy one page, all layers.
    Copy { pool: Pool, from: PageId, to: PageId },
}
