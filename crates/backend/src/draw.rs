//! From the logits of a step to the results of its rows, on the host.

use crate::{
    Choice, Row, RowFailure, RowResult, Sampled, Sampler, Sampling, SamplingError, StepMasks, StepPlan,
    TokenMask, Wanted,
};
use std::borrow::Cow;

/// What every row of `plan` gets. `logits` has those that the rows want, `[positions, vocab]`, row after row; `drawn`
/// what the plan before drew, by row, for placeholders.
pub fn draw_rows(
    sampler: &mut Sampler,
    plan: &StepPlan,
    masks: &StepMasks,
    drawn: &[Option<u32>],
    logits: &[f32],
    vocab_size: usize,
) -> Vec<RowResult> {
    let mut rest = logits;
    let mut results = Vec::with_capacity(plan.rows.len());
    for (index, row) in plan.rows.iter().enumerate() {
        let (logits, others) = rest.split_at(row.wanted_positions().len() * vocab_size);
        rest = others;
        results.push(result_of(sampler, row, drawn, logits, masks.of_row(index)));
    }
    results
}

fn result_of(
    sampler: &mut Sampler,
    row: &Row,
    drawn: &[Option<u32>],
    logits: &[f32],
    mask: Option<&TokenMask>,
) -> RowResult {
    match RowDraw::of(row, drawn, mask) {
        Err(failure) => RowResult { failure: Some(failure), ..RowResult::default() },
        Ok(None) => RowResult { logits: logits.to_vec(), ..RowResult::default() },
        Ok(Some(RowDraw { sampling, seen, position, mask })) => {
            RowResult::of_draw(sampler.sample_among(logits, sampling, &seen, position, mask))
        }
    }
}

/// What a sampler is told of a row that draws, beside its logits.
#[derive(Clone, Debug)]
pub struct RowDraw<'a> {
    pub sampling: &'a Sampling,
    /// A placeholder's token included.
    pub seen: Cow<'a, [(u32, u32)]>,
    pub position: usize,
    pub mask: Option<&'a TokenMask>,
}

impl<'a> RowDraw<'a> {
    /// `None` for a row that draws nothing. `mask` is the row's own; one that never came allows nothing.
    ///
    /// # Errors
    /// A row that goes on from a token which was not drawn fails, whatever it wants.
    pub fn of(
        row: &'a Row,
        drawn: &[Option<u32>],
        mask: Option<&'a TokenMask>,
    ) -> Result<Option<Self>, RowFailure> {
        let before = row.placeholder.map(|named| drawn.get(named).copied().flatten());
        if before == Some(None) {
            return Err(RowFailure::NoPlaceholderToken);
        }
        let Wanted::Token { sampling, seen, choice } = &row.wanted else { return Ok(None) };
        let counted = before.flatten().filter(|_| sampling.has_penalties());
        Ok(Some(RowDraw {
            sampling,
            seen: counted.map_or(Cow::Borrowed(seen), |token| Cow::Owned(with_one_more(seen, token))),
            position: row.start + row.tokens.len(),
            mask: match choice {
                Choice::Free => None,
                Choice::Masked => Some(mask.unwrap_or(TokenMask::NOTHING)),
            },
        }))
    }
}

impl RowResult {
    pub fn of_draw(drawn: Result<Sampled, SamplingError>) -> Self {
        match drawn {
            Ok(sampled) => RowResult { tokens: vec![sampled], ..RowResult::default() },
            Err(error) => RowResult { failure: Some(error.into()), ..RowResult::default() },
        }
    }
}

/// Seen tokens with their times in the output, and one of them once more.
fn with_one_more(seen: &[(u32, u32)], token: u32) -> Vec<(u32, u32)> {
    let mut seen = seen.to_vec();
    match seen.iter_mut().find(|(other, _)| *other == token) {
        Some((_, times)) => *times += 1,
        None => seen.push((token, 1)),
    }
    seen
}
