//! What one step does and what comes back, as plain data.

use crate::{Family, Sampled, Sampling, SamplingError, Timing, TokenMask};
use overshot_kv::{PageOp, PageTable};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One step of the engine. `number` counts from 0 and is checked on arrival: a plan out of turn is
/// refused with both numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    pub number: u64,
    /// Done in order, before the rows.
    pub page_ops: Vec<PageOp>,
    /// No two rows write the same page.
    pub rows: Vec<Row>,
    pub timing: Timing,
}

impl StepPlan {
    /// Rows whose draw waits for a mask, ascending.
    pub fn masked_rows(&self) -> Vec<usize> {
        let masked = |row: &Row| matches!(row.wanted, Wanted::Token { choice: Choice::Masked, .. });
        self.rows.iter().enumerate().filter(|(_, row)| masked(row)).map(|(index, _)| index).collect()
    }
}

/// Consecutive tokens of one sequence: a chunk of a prompt, or the newest token of a decode.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Position of `tokens[0]`; everything before it is already in the pages.
    pub start: usize,
    /// `Some(r)`: the last of `tokens` is not known yet. It is what row `r` of the plan before draws, and the value
    /// that stands in `tokens` for it means nothing. Where that row fails, this one fails too.
    pub placeholder: Option<usize>,
    /// Covers positions `0 .. start + tokens.len()`.
    pub pages: PageTable,
    pub wanted: Wanted,
}

impl Row {
    pub fn draws(&self) -> bool {
        matches!(self.wanted, Wanted::Token { .. })
    }

    /// Positions, counted from the row's first token, whose logits it takes to give what is wanted.
    pub fn wanted_positions(&self) -> Range<usize> {
        let end = self.tokens.len();
        match self.wanted {
            Wanted::Nothing => end..end,
            Wanted::Token { .. } | Wanted::LastLogits => end - 1..end,
            Wanted::AllLogits => 0..end,
        }
    }
}

/// Which results of a row the engine needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// Cache state only: a chunk that does not end its prompt.
    Nothing,
    /// A token drawn for the position after the last. `seen` has each token of prompt and output, once, with the
    /// times it is in the output (0 when only in the prompt); empty when there are no penalties. A placeholder's
    /// token is not in it: the backend counts it itself.
    Token { sampling: Arc<Sampling>, seen: Vec<(u32, u32)>, choice: Choice },
    /// The logits after the last position.
    LastLogits,
    /// The logits after every position of the row.
    AllLogits,
}

/// Which tokens a draw may choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Free,
    /// Those of a mask that comes by [`crate::Backend::supply`], at the latest before the plan is collected: it may
    /// depend on a token that an earlier plan is still drawing. The forward pass does not wait for it.
    Masked,
}

/// The masks of all masked rows of one plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMasks {
    pub number: u64,
    /// Row and mask, rows ascending.
    pub rows: Vec<(usize, TokenMask)>,
}

impl StepMasks {
    pub fn of_row(&self, row: usize) -> Option<&TokenMask> {
        self.rows.iter().find(|(other, _)| *other == row).map(|(_, mask)| mask)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    pub number: u64,
    /// In the order of the plan's rows.
    pub rows: Vec<RowResult>,
    /// From the start of the step's work to its end, on the device; waiting for masks not included.
    pub device_time: Duration,
    /// On the device, of rank 0, where the plan asked for it and the backend can tell; each at most once.
    pub families: Vec<(Family, Duration)>,
    /// Told with them, of several ranks: how long another than rank 0 waited for its peers, the one that waited longest.
    pub peers_wait: Option<Duration>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowResult {
    /// What was drawn: empty, or one token (several once drafts are verified).
    pub tokens: Vec<Sampled>,
    /// `[positions, vocab]`, where logits were wanted.
    pub logits: Vec<f32>,
    /// Why nothing could be drawn: this row's trouble alone, the others have theirs.
    pub failure: Option<RowFailure>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RowFailure {
    /// A NaN logit, most often.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("the row of the step before, whose token this row goes on from, failed")]
    NoPlaceholderToken,
}
