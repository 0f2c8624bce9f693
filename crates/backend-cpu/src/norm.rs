//! Root-mean-square normalisation.

use crate::Isa;
use crate::simd::SumOfSquares;
use rayon::prelude::*;

/// `1 / sqrt(mean(x^2) + eps)`
pub fn inverse_rms(isa: Isa, x: &[f32], eps: f32) -> f32 {
    1.0 / (isa.run(SumOfSquares(x)) / x.len() as f32 + eps).sqrt()
}

/// `x = x / rms(x) * gain`
pub fn rms_norm(isa: Isa, x: &mut [f32], gain: &[f32], eps: f32) {
    let inverse = inverse_rms(isa, x, eps);
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = *x * inverse * gain;
    }
}

/// [`rms_norm`] of every row of `[rows, gain.len()]`.
pub fn rms_norm_rows(isa: Isa, x: &mut [f32], gain: &[f32], eps: f32) {
    x.par_chunks_exact_mut(gain.len())
        .with_min_len(crate::min_parallel_rows(gain.len()))
        .for_each(|row| rms_norm(isa, row, gain, eps));
}
