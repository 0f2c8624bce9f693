//! The same attention in float64, row by row on all cores, and the comparison with a device's answer.

use super::inputs::{Case, HEAD_DIMS, Inputs};
use super::parallel;
use overshot_model::quant::{bf16_decode, bf16_encode, decode_entry};
use serde::Serialize;

pub const SOFTMAX_SCALE: f64 = 0.044_194_173_824_159_216; // 1 / sqrt(512)

/// How far an answer is from the reference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Distance {
    /// |answer - reference| / |reference| over all numbers.
    pub overall: f64,
    /// The largest such ratio of one head of one row.
    pub worst_head: f64,
    /// What rounding the reference to bf16 costs alone, measured as `overall`: no answer can be expected to be nearer.
    pub rounding: f64,
    /// Numbers that are NaN or infinite, unwritten ones included.
    pub not_finite: usize,
}

/// `[rows.len(), heads, 512]` for these rows.
pub fn reference(case: &Case, inputs: &Inputs, rows: &[usize]) -> Vec<f64> {
    let of_row = |at: usize| {
        let mut out = vec![0f64; case.heads * HEAD_DIMS];
        one_row(case, inputs, rows[at], &mut out);
        out
    };
    parallel::map(rows.len(), of_row).concat()
}

fn one_row(case: &Case, inputs: &Inputs, row: usize, out: &mut [f64]) {
    let entries = visible_entries(case, inputs, row);
    for head in 0..case.heads {
        let start = (row * case.heads + head) * HEAD_DIMS;
        let q: Vec<f64> =
            inputs.q[start..start + HEAD_DIMS].iter().map(|bits| f64::from(bf16_decode(*bits))).collect();
        let scores: Vec<f64> = entries
            .iter()
            .map(|entry| entry.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() * SOFTMAX_SCALE)
            .collect();
        let sink = f64::from(inputs.sink[head]);
        let top = scores.iter().copied().fold(sink, f64::max);
        if top == f64::NEG_INFINITY {
            continue;
        }
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (sink - top).exp();
        let out = &mut out[head * HEAD_DIMS..(head + 1) * HEAD_DIMS];
        for (entry, weight) in entries.iter().zip(&weights) {
            let weight = weight / sum;
            out.iter_mut().zip(entry).for_each(|(out, value)| *out += weight * value);
        }
    }
}

fn visible_entries(case: &Case, inputs: &Inputs, row: usize) -> Vec<Vec<f64>> {
    let mut entries = Vec::new();
    for (list, shape) in [case.window, case.extra].iter().enumerate() {
        let length = inputs.length[list][row] as usize;
        let index = &inputs.index[list][row * shape.capacity..][..length];
        for entry in index.iter().filter(|entry| (0..shape.entries as i32).contains(*entry)) {
            let (data, scales) = inputs.pools[list].entry(*entry as usize);
            let mut latent = [0f32; HEAD_DIMS];
            decode_entry(data, scales, &mut latent);
            entries.push(latent.iter().map(|value| f64::from(*value)).collect());
        }
    }
    entries
}

/// Compares the rows of `answer` (all rows, bf16) with `reference` (those rows only).
pub fn distance(case: &Case, answer: &[u16], reference: &[f64], rows: &[usize]) -> Distance {
    let not_finite = answer.iter().filter(|bits| *bits & 0x7f80 == 0x7f80).count();
    let (mut error, mut size, mut worst_head, mut rounding) = (0.0, 0.0, 0f64, 0.0);
    for (at, row) in rows.iter().enumerate() {
        for head in 0..case.heads {
            let answer = &answer[(row * case.heads + head) * HEAD_DIMS..][..HEAD_DIMS];
            let reference = &reference[(at * case.heads + head) * HEAD_DIMS..][..HEAD_DIMS];
            let (mut head_error, mut head_size) = (0.0, 0.0);
            for (answer, reference) in answer.iter().zip(reference) {
                head_error += (f64::from(bf16_decode(*answer)) - reference).powi(2);
                head_size += reference.powi(2);
                rounding += (f64::from(bf16_decode(bf16_encode(*reference as f32))) - reference).powi(2);
            }
            error += head_error;
            size += head_size;
            worst_head = worst_head.max(ratio(head_error, head_size));
        }
    }
    Distance { overall: ratio(error, size), worst_head, rounding: ratio(rounding, size), not_finite }
}

/// Of squares. An answer of zeros to a reference of zeros is right; NaN is as wrong as can be.
fn ratio(error: f64, size: f64) -> f64 {
    match (error, size) {
        (error, _) if error.is_nan() => f64::INFINITY,
        (0.0, _) => 0.0,
        (_, 0.0) => f64::INFINITY,
        (error, size) => (error / size).sqrt(),
    }
}

/// Largest difference of each position's logits, over the largest of all; infinite where a logit is no number.
pub fn logit_differences(ours: &[f32], theirs: &[f32], vocab: usize) -> Vec<f32> {
    let largest = theirs.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let rows = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab));
    let worst = |(a, b): (&[f32], &[f32])| {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        differences.fold(0.0_f32, |worst, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
    };
    rows.map(|row| worst(row) / largest).collect()
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{Exponents, Lengths, ListShape};
    use super::*;

    #[test]
    fn a_logit_that_is_no_number_is_no_small_difference() {
        let theirs = [1.0, 2.0, -4.0, 0.0];
        assert_eq!(logit_differences(&[1.0, 2.0, -4.0, 1.0], &theirs, 2), [0.0, 0.25]);
        assert_eq!(logit_differences(&[f32::NAN, 2.0, -4.0, 0.0], &theirs, 2), [f32::INFINITY, 0.0]);
    }

    fn small() -> Case {
        Case {
            name: "small".into(),
            rows: 3,
            heads: 2,
            window: ListShape { capacity: 5, page_entries: 4, entries: 40 },
            extra: ListShape { capacity: 7, page_entries: 2, entries: 30 },
            lengths: Lengths::Full,
            exponents: Exponents::Natural,
            q_scale: 1.0,
            masked_one_in: 4,
            sinks_off: 1,
            seed: 1,
        }
    }

    #[test]
    fn an_answer_rounded_once_is_close_and_an_unwritten_one_is_not() {
        let case = small();
        let inputs = case.inputs(&mut fastrand::Rng::with_seed(case.seed));
        let rows = [0, 1, 2];
        let exact = reference(&case, &inputs, &rows);
        let rounded: Vec<u16> = exact.iter().map(|value| bf16_encode(*value as f32)).collect();
        let near = distance(&case, &rounded, &exact, &rows);
        assert!(near.overall < 2e-3 && near.not_finite == 0, "{near:?}");
        let far = distance(&case, &vec![0xffff; rounded.len()], &exact, &rows);
        assert!(far.overall.is_infinite() && far.not_finite == rounded.len(), "{far:?}");
    }

    #[test]
    fn an_empty_row_is_zero_even_without_a_sink() {
        let case = Case { lengths: Lengths::Zero, ..small() };
        let inputs = case.inputs(&mut fastrand::Rng::with_seed(2));
        assert!(reference(&case, &inputs, &[0, 1, 2]).iter().all(|value| *value == 0.0));
    }
}
