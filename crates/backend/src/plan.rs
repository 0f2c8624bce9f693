//! What one step does and what comes back, as plain data.

use crate::{Sampled, Sampling, SamplingError};
use overshot_kv::{PageOp, PageTable};
use std::sync::Arc;

/// One step of the engine. `number` counts from 0 and is checked on arrival: a plan out of turn is
/// refused with both numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    pub number: u64,
    /// Done in order, before the rows.
    pub page_ops: Vec<PageOp>,
    /// No two rows write the same page.
    pub rows: Vec<Row>,
}

/// Consecutive tokens of one sequence: a chunk of a prompt, or the newest token of a decode.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Position of `tokens[0]`; everything before it is already in the pages.
    pub start: usize,
    /// Covers positions `0 .. start + tokens.len()`.
    pub pages: PageTable,
    pub wanted: Wanted,
}

/// Which results of a row the engine needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// Cache state only: a chunk that does not end its prompt.
    Nothing,
    /// A token drawn for the position after the last. `seen` has each token of prompt and output, once, with the
    /// times it is in the output (0 when only in the prompt); empty when there are no penalties.
    Token { sampling: Arc<Sampling>, seen: Vec<(u32, u32)> },
    /// The logits after the last position.
    LastLogits,
    /// The logits after every position of the row.
    AllLogits,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    pub number: u64,
    /// In the order of the plan's rows.
    pub rows: Vec<RowResult>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowResult {
    /// What was drawn: empty, or one token (several once drafts are verified).
    pub tokens: Vec<Sampled>,
    /// `[positions, vocab]`, where logits were wanted.
    pub logits: Vec<f32>,
    /// Why nothing could be drawn (a NaN logit): this row's trouble alone, the others have theirs.
    pub failure: Option<SamplingError>,
}
