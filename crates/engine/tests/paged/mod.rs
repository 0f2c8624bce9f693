//! A backend whose "model" is a hash of every token that a query may see, read back through the page tables: a wrong
//! page, a lost row or a stale entry changes what it draws. Quick enough for thousands of steps.
//!
//! [`Oracle`] computes the same from a plain list of tokens, with no page, plan or engine involved.

use overshot_backend::{
    Backend, BackendError, RowResult, Sampler, Sampling, SamplingError, StepMasks, StepPlan, StepResult,
    Wanted,
};
use overshot_kv::{PageId, PageOp, PageTable, Pool, PoolCapacity, TOKENS_PER_PAGE};
use overshot_model::{Spec, Yarn};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

pub const VOCAB: usize = 61;

/// Rows of the compressor rings, one after the other in a page.
const RATIO_4_ROWS: usize = 16;
const RATIO_128_ROWS: usize = 136;

pub fn spec(max_positions: usize) -> Spec {
    Spec {
        vocab_size: VOCAB,
        hidden_size: 0,
        heads: 0,
        q_lora_rank: 0,
        o_groups: 0,
        o_lora_rank: 0,
        index_heads: 0,
        index_topk: 0,
        experts: 0,
        experts_per_token: 0,
        expert_width: 0,
        routed_scaling_factor: 1.0,
        swiglu_limit: None,
        rms_eps: 0.0,
        hc_eps: 0.0,
        hc_sinkhorn_iterations: 0,
        rope_theta: 0.0,
        compress_rope_theta: 0.0,
        yarn: Yarn { factor: 1.0, original_max_positions: 1, beta_fast: 1.0, beta_slow: 1.0 },
        max_positions,
        bos_token: 0,
        eos_token: 1,
        layers: Vec::new(),
    }
}

fn fold(sum: u64, value: u64) -> u64 {
    (sum.rotate_left(11) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Logits after a query that saw `visible`.
fn logits(visible: u64) -> Vec<f32> {
    (0..VOCAB as u64).map(|token| (fold(fold(visible, token), 3) >> 40) as f32 / (1 << 22) as f32).collect()
}

/// The whole model, over a list of tokens.
pub struct Oracle;

impl Oracle {
    /// Continues `prompt` by `count` tokens.
    pub fn continues(prompt: &[u32], sampling: &Sampling, count: usize) -> Vec<u32> {
        let mut sampler = Sampler::default();
        let mut tokens = prompt.to_vec();
        let mut times: BTreeMap<u32, u32> = prompt.iter().map(|token| (*token, 0)).collect();
        while tokens.len() < prompt.len() + count {
            let seen: Vec<_> = times.iter().map(|(token, times)| (*token, *times)).collect();
            let logits = logits(Self::visible(&tokens));
            let drawn = sampler.sample(&logits, sampling, &seen, tokens.len()).unwrap().token;
            *times.entry(drawn).or_default() += 1;
            tokens.push(drawn);
        }
        tokens.split_off(prompt.len())
    }

    fn visible(tokens: &[u32]) -> u64 {
        let pooled = |last: usize, reach: usize| {
            tokens[(last + 1).saturating_sub(reach)..=last]
                .iter()
                .fold(1, |sum, token| fold(sum, u64::from(*token)))
        };
        let len = tokens.len();
        let window =
            tokens[len.saturating_sub(128)..].iter().fold(7, |sum, token| fold(sum, u64::from(*token)));
        let overlapped = (3..len).step_by(4).map(|last| pooled(last, 8));
        let heavy = (127..len).step_by(128).map(|last| pooled(last, 128));
        overlapped.clone().chain(overlapped).chain(heavy).fold(window, fold)
    }
}

/// What the backend does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Refuses the plan with this number.
    RefusesPlan(u64),
    /// Answers the plan with this number with a row too few.
    LosesRow(u64),
    /// Draws nothing in the plan with this number.
    DrawsNothing(u64),
    /// Finds a broken logit in the first row of the plan with this number.
    BreaksFirstRow(u64),
}

pub struct PagedBackend {
    spec: Spec,
    capacity: PoolCapacity,
    fault: Fault,
    slots: HashMap<(Pool, PageId), Vec<Option<u64>>>,
    sampler: Sampler,
    expected: u64,
    results: VecDeque<StepResult>,
}

impl PagedBackend {
    pub fn new(capacity: PoolCapacity, max_positions: usize, fault: Fault) -> Box<Self> {
        Box::new(PagedBackend {
            spec: spec(max_positions),
            capacity,
            fault,
            slots: HashMap::new(),
            sampler: Sampler::default(),
            expected: 0,
            results: VecDeque::new(),
        })
    }

    fn page(&mut self, pool: Pool, page: PageId) -> &mut Vec<Option<u64>> {
        assert!((page.0 as usize) < self.capacity.pages(pool), "{pool:?} has no {page:?}");
        let slots = match pool {
            Pool::Window => TOKENS_PER_PAGE,
            Pool::CompressorRows => RATIO_4_ROWS + RATIO_128_ROWS,
            _ => TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap(),
        };
        self.slots.entry((pool, page)).or_insert_with(|| vec![None; slots])
    }

    fn write(&mut self, table: &PageTable, position: usize, token: u32) {
        let token = Some(u64::from(token));
        self.page(Pool::Window, table.pages(Pool::Window)[0])[position % TOKENS_PER_PAGE] = token;
        let rows = self.page(Pool::CompressorRows, table.pages(Pool::CompressorRows)[0]);
        rows[position % RATIO_4_ROWS] = token;
        rows[RATIO_4_ROWS + position % RATIO_128_ROWS] = token;
        let pooled = |first: usize, ring: usize, reach: usize| {
            ((position + 1).saturating_sub(reach)..=position)
                .fold(1, |sum, p| fold(sum, rows[first + p % ring].expect("a row was never written")))
        };
        let ends = |ratio: usize| (position + 1).is_multiple_of(ratio);
        let overlapped = ends(4).then(|| pooled(0, RATIO_4_ROWS, 8));
        let heavy = ends(128).then(|| pooled(RATIO_4_ROWS, RATIO_128_ROWS, 128));
        for (pool, entry) in [(Pool::Csa, overlapped), (Pool::IndexKeys, overlapped), (Pool::Hca, heavy)] {
            if entry.is_some() {
                let page = table.pages(pool)[position / TOKENS_PER_PAGE];
                let slot = position % TOKENS_PER_PAGE / pool.tokens_per_slot().unwrap();
                self.page(pool, page)[slot] = entry;
            }
        }
    }

    fn visible(&mut self, table: &PageTable, len: usize) -> u64 {
        let ring = self.page(Pool::Window, table.pages(Pool::Window)[0]);
        let mut sum = (len.saturating_sub(128)..len)
            .fold(7, |sum, p| fold(sum, ring[p % TOKENS_PER_PAGE].expect("a window slot was never written")));
        for pool in [Pool::Csa, Pool::IndexKeys, Pool::Hca] {
            let ratio = pool.tokens_per_slot().unwrap();
            for entry in 0..len / ratio {
                let (page, slot) = (entry * ratio / TOKENS_PER_PAGE, entry % (TOKENS_PER_PAGE / ratio));
                let value = self.page(pool, table.pages(pool)[page])[slot];
                sum = fold(sum, value.expect("an entry was never written"));
            }
        }
        sum
    }

    fn run(&mut self, plan: &StepPlan) -> StepResult {
        for &PageOp::Copy { pool, from, to } in &plan.page_ops {
            *self.page(pool, to) = self.page(pool, from).clone();
        }
        let mut written = HashSet::new();
        let mut rows = Vec::new();
        for row in &plan.rows {
            assert!(!row.tokens.is_empty());
            let end = row.start + row.tokens.len();
            for pool in Pool::ALL {
                let pages = row.pages.pages(pool);
                assert_eq!(pages.len(), pool.pages_for(end), "{pool:?}");
                let first = if pool.tokens_per_slot().is_some() { row.start / TOKENS_PER_PAGE } else { 0 };
                assert!(
                    pages[first..].iter().all(|page| written.insert((pool, *page))),
                    "two rows, one page"
                );
            }
            for (index, token) in row.tokens.iter().enumerate() {
                self.write(&row.pages, row.start + index, *token);
            }
            let mut result = RowResult::default();
            if let Wanted::Token { sampling, seen, .. } = &row.wanted {
                let logits = logits(self.visible(&row.pages, end));
                result.tokens.push(self.sampler.sample(&logits, sampling, seen, end).unwrap());
            }
            rows.push(result);
        }
        StepResult { number: plan.number, rows, ..StepResult::default() }
    }
}

impl Backend for PagedBackend {
    fn name(&self) -> String {
        "hash of what is seen".into()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        let number = plan.number;
        if number != self.expected {
            return Err(BackendError::OutOfOrder { number, expected: self.expected });
        }
        self.expected += 1;
        if self.fault == Fault::RefusesPlan(number) {
            return Err(BackendError::BadPlan { number, what: "refused on purpose".into() });
        }
        let mut result = self.run(&plan);
        if self.fault == Fault::LosesRow(number) {
            result.rows.pop();
        }
        if self.fault == Fault::DrawsNothing(number) {
            result.rows.iter_mut().for_each(|row| row.tokens.clear());
        }
        if self.fault == Fault::BreaksFirstRow(number) {
            let failure = Some(SamplingError::BadLogit { token: 7, value: f32::NAN }.into());
            result.rows[0] = RowResult { failure, ..RowResult::default() };
        }
        self.results.push_back(result);
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        let supplied = masks.rows.iter().map(|(row, _)| *row).collect();
        Err(BackendError::WrongMasks { number: masks.number, rows: Vec::new(), supplied })
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        self.results.pop_front().ok_or(BackendError::NothingSubmitted)
    }
}
