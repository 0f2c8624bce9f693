//! How numbers are compared.

use overshot_model::Model;

/// Of the largest logit: what another order of sums may change.
const LOGITS_REL: f32 = 1e-4;

/// The first of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// The largest difference, and where.
pub fn worst(a: &[f32], b: &[f32]) -> (f32, usize) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    differences.enumerate().map(|(i, d)| (if d.is_nan() { f32::INFINITY } else { d }, i)).fold(
        (0.0, 0),
        |worst, d| {
            if d.0 > worst.0 { d } else { worst }
        },
    )
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Equal but for the order of sums, with the same likeliest tokens.
pub fn assert_near(model: &Model, ours: &[f32], alone: &[f32], label: &str) {
    let largest = alone.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let (difference, at) = worst(ours, alone);
    assert!(difference <= LOGITS_REL * largest, "{label}: logit {at} differs by {difference} of {largest}");
    let vocab = model.spec.vocab_size;
    let tokens = |logits: &[f32]| logits.chunks_exact(vocab).map(argmax).collect::<Vec<_>>();
    assert_eq!(tokens(ours), tokens(alone), "{label}: likeliest tokens");
}
