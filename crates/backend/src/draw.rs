//! From the logits of a step to the results of its rows, on the host.

use crate::{Choice, Row, RowFailure, RowResult, Sampler, StepMasks, StepPlan, TokenMask, Wanted};

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
        let mask = masks.rows.iter().find(|(row, _)| *row == index).map(|(_, mask)| mask);
        results.push(result_of(sampler, row, drawn, logits, mask));
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
    let before = row.placeholder.map(|named| drawn.get(named).copied().flatten());
    if before == Some(None) {
        return RowResult { failure: Some(RowFailure::NoPlaceholderToken), ..RowResult::default() };
    }
    match &row.wanted {
        Wanted::Nothing => RowResult::default(),
        Wanted::LastLogits | Wanted::AllLogits => {
            RowResult { logits: logits.to_vec(), ..RowResult::default() }
        }
        Wanted::Token { sampling, seen, choice } => {
            let position = row.start + row.tokens.len();
            let counted = before.flatten().filter(|_| sampling.has_penalties());
            let counted = counted.map(|token| with_one_more(seen, token));
            let seen = counted.as_deref().unwrap_or(seen);
            let nothing = TokenMask::default();
            let allowed = match choice {
                Choice::Free => None,
                Choice::Masked => Some(mask.unwrap_or(&nothing)),
            };
            match sampler.sample_among(logits, sampling, seen, position, allowed) {
                Ok(sampled) => RowResult { tokens: vec![sampled], ..RowResult::default() },
                Err(error) => RowResult { failure: Some(error.into()), ..RowResult::default() },
            }
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
