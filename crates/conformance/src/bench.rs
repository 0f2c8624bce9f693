//! A backend under test: how it is started, and one with real accounting of its cache.

use overshot_backend::{Backend, Choice, Numerics, Row, RowResult, Sampling, StepPlan, Wanted};
use overshot_kv::{Kv, PageOp, PoolCapacity, SetId};
use overshot_model::Model;
use std::sync::Arc;

/// What is tested.
pub trait Subject {
    type Backend: Backend;

    /// Panics where it does not start: no test asks for what a backend may refuse.
    fn start(&self, model: &Arc<Model>, setup: Setup) -> Self::Backend;

    fn extent(&self) -> Extent;
}

/// How much of a scenario a subject can afford. Every scenario runs either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// A few of its cases, short ones: for a backend of which a token takes tens of milliseconds.
    Part,
}

impl Extent {
    pub fn choose<T>(self, whole: T, part: T) -> T {
        match self {
            Extent::Whole => whole,
            Extent::Part => part,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub numerics: Numerics,
    pub capacity: PoolCapacity,
    pub tp: usize,
    /// Chooses among what may not change a bit: threads and their order, tokens computed at a time. 0 is the plain
    /// choice.
    pub variation: u64,
}

impl Setup {
    /// Room for so many sequences of so many tokens together.
    pub fn new(numerics: Numerics, sets: usize, tokens: usize) -> Self {
        Setup { numerics, capacity: PoolCapacity::for_sets(sets, tokens), tp: 1, variation: 0 }
    }

    pub fn ranks(self, tp: usize) -> Self {
        Setup { tp, ..self }
    }

    pub fn varied(self, variation: u64) -> Self {
        Setup { variation, ..self }
    }
}

/// A backend with its accounting.
pub struct Bench<B> {
    pub backend: B,
    pub kv: Kv,
    number: u64,
}

impl<B: Backend> Bench<B> {
    pub fn start(subject: &impl Subject<Backend = B>, model: &Arc<Model>, setup: Setup) -> Self {
        Self::over(subject.start(model, setup))
    }

    pub fn over(backend: B) -> Self {
        let kv = Kv::new(backend.capacity());
        Bench { backend, kv, number: 0 }
    }

    /// One step over several sequences at once; returns each row's logits.
    pub fn step(&mut self, rows: &[(SetId, &[u32])], wanted: Wanted) -> Vec<Vec<f32>> {
        self.results(rows, wanted).into_iter().map(|row| row.logits).collect()
    }

    /// Feeds tokens and draws the likeliest one after them.
    pub fn draw(&mut self, set: SetId, tokens: &[u32]) -> RowResult {
        let wanted =
            Wanted::Token { sampling: Arc::new(Sampling::greedy()), seen: Vec::new(), choice: Choice::Free };
        self.results(&[(set, tokens)], wanted).remove(0)
    }

    fn results(&mut self, rows: &[(SetId, &[u32])], wanted: Wanted) -> Vec<RowResult> {
        let rows: Vec<_> = rows.iter().map(|(set, tokens)| (*set, *tokens, wanted.clone())).collect();
        let plan = self.plan(&rows);
        self.backend.step(plan).unwrap().rows
    }

    /// The next plan, of rows without placeholders. It must be submitted.
    pub fn plan(&mut self, rows: &[(SetId, &[u32], Wanted)]) -> StepPlan {
        let mut plan = StepPlan { number: self.number, ..StepPlan::default() };
        self.number += 1;
        for (set, tokens, wanted) in rows {
            let start = self.kv.len(*set).unwrap();
            plan.page_ops.extend(self.kv.extend(*set, tokens.len()).unwrap());
            let pages = self.kv.table(*set).unwrap().clone();
            let (tokens, wanted) = (tokens.to_vec(), wanted.clone());
            plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted });
        }
        assert_eq!(self.kv.check(), Vec::<String>::new());
        plan
    }

    /// Carries out page copies in a step of their own.
    pub fn copy(&mut self, page_ops: Vec<PageOp>) {
        let plan = StepPlan { number: self.number, page_ops, ..StepPlan::default() };
        self.number += 1;
        self.backend.step(plan).unwrap();
    }

    /// Feeds tokens in chunks of the given sizes (cycled); returns the logits of every position, end to end.
    pub fn feed(&mut self, set: SetId, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let mut logits = Vec::new();
        let mut rest = tokens;
        for &size in chunks.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, others) = rest.split_at(size.min(rest.len()));
            logits.extend(self.step(&[(set, chunk)], Wanted::AllLogits).remove(0));
            rest = others;
        }
        logits
    }

    /// [`Bench::feed`] to a sequence of its own.
    pub fn feed_new(&mut self, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let set = self.kv.create().unwrap();
        self.feed(set, tokens, chunks)
    }
}
