//! The "model": a hash of every token that a query may see. [`Oracle`] computes it from a plain list of tokens, with
//! no page, plan or engine involved.

use super::grammar::Grammar;
use overshot_backend::{Sampler, Sampling};
use std::collections::BTreeMap;

pub const VOCAB: usize = 61;

pub fn fold(sum: u64, value: u64) -> u64 {
    (sum.rotate_left(11) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Logits after a query that saw `visible`.
pub fn logits(visible: u64) -> Vec<f32> {
    (0..VOCAB as u64).map(|token| (fold(fold(visible, token), 3) >> 40) as f32 / (1 << 22) as f32).collect()
}

/// The whole model, over a list of tokens.
pub struct Oracle;

impl Oracle {
    /// Continues `prompt` by `count` tokens.
    pub fn continues(prompt: &[u32], sampling: &Sampling, count: usize) -> Vec<u32> {
        Self::continues_within(prompt, sampling, None, count)
    }

    /// Continues `prompt` by `count` tokens, fewer where the grammar ends it.
    pub fn continues_within(
        prompt: &[u32],
        sampling: &Sampling,
        mut grammar: Option<Grammar>,
        count: usize,
    ) -> Vec<u32> {
        let mut sampler = Sampler::default();
        let mut tokens = prompt.to_vec();
        let mut times: BTreeMap<u32, u32> = prompt.iter().map(|token| (*token, 0)).collect();
        while tokens.len() < prompt.len() + count {
            let seen: Vec<_> = times.iter().map(|(token, times)| (*token, *times)).collect();
            let mask = match grammar.as_mut().map(Grammar::allowed) {
                Some(Err(_)) => break,
                mask => mask.and_then(Result::unwrap),
            };
            let logits = logits(Self::visible(&tokens));
            let drawn =
                sampler.sample_among(&logits, sampling, &seen, tokens.len(), mask.as_ref()).unwrap().token;
            *times.entry(drawn).or_default() += 1;
            tokens.push(drawn);
            if grammar.as_mut().is_some_and(|grammar| grammar.take(drawn).is_err()) {
                break;
            }
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
