//! Loops over one or a few vectors.

use super::{Kernel, Lanes, WIDTH};

/// The sum of squares of a vector: 8 partial sums, the tail added last.
pub struct SumOfSquares<'a>(pub &'a [f32]);

impl Kernel for SumOfSquares<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let whole = self.0.len() / WIDTH * WIDTH;
        let mut sums = L::splat(0.0);
        for at in (0..whole).step_by(WIDTH) {
            let x = L::load(self.0, at);
            sums = x.mul_add(x, sums);
        }
        self.0[whole..].iter().fold(sums.sum(), |sum, x| sum + x * x)
    }
}

/// The expert activation: `out = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight`.
pub struct GatedActivation<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub limit: Option<f32>,
    pub weight: f32,
    pub out: &'a mut [f32],
}

impl Kernel for GatedActivation<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let limit = self.limit.unwrap_or(f32::INFINITY);
        let mut at = 0;
        while at < self.out.len() {
            // A short tail is computed in a padded vector, by the same instructions.
            let count = (self.out.len() - at).min(WIDTH);
            let (mut gate, mut up, mut out) = ([0.0; WIDTH], [0.0; WIDTH], [0.0; WIDTH]);
            gate[..count].copy_from_slice(&self.gate[at..at + count]);
            up[..count].copy_from_slice(&self.up[at..at + count]);
            let gate = L::splat(limit).min(L::load(&gate, 0));
            let up = L::splat(-limit).max(L::splat(limit).min(L::load(&up, 0)));
            let one = L::splat(1.0);
            let sigmoid = one.div(one.add(L::splat(0.0).sub(gate).exp()));
            gate.mul(sigmoid).mul(up).mul(L::splat(self.weight)).store(&mut out, 0);
            self.out[at..at + count].copy_from_slice(&out[..count]);
            at += WIDTH;
        }
    }
}

/// Softmax over rows, channel by channel, and the weighted sum of the values: `out[c] = sum_i softmax_i(s_i[c]) *
/// k_i[c]`. Each row is `(k, s)`; channels a multiple of 8.
pub struct PoolRows<'a> {
    pub rows: &'a [(&'a [f32], &'a [f32])],
    pub out: &'a mut [f32],
}

impl Kernel for PoolRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.out.len()).step_by(WIDTH) {
            let mut max = L::splat(f32::NEG_INFINITY);
            for (_, score) in self.rows {
                max = max.max(L::load(score, at));
            }
            let (mut sum, mut pooled) = (L::splat(0.0), L::splat(0.0));
            for (value, score) in self.rows {
                let weight = L::load(score, at).sub(max).exp();
                sum = sum.add(weight);
                pooled = weight.mul_add(L::load(value, at), pooled);
            }
            pooled.div(sum).store(self.out, at);
        }
    }
}

/// Unpacks a 584-byte latent: 448 E4M3 numbers in blocks of 64 with a scale byte each, then 64 BF16.
pub struct UnpackEntry<'a> {
    /// 576 bytes.
    pub data: &'a [u8],
    /// 7 bytes.
    pub scales: &'a [u8],
    /// 512 numbers.
    pub out: &'a mut [f32],
}

impl Kernel for UnpackEntry<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (block, &scale) in self.scales[..7].iter().enumerate() {
            // 2^(scale - 127) and the 2^120 that the moved bits lack. Scales of this cache end at 2^119 (a latent
            // of 3e38): far above what a normed latent can reach.
            let factor = L::splat(f32::from_bits((u32::from(scale) + 120).min(254) << 23));
            for at in (block * 64..(block + 1) * 64).step_by(WIDTH) {
                L::e4m3_times_2_to_minus_120(self.data, at).mul(factor).store(self.out, at);
            }
        }
        for i in (0..64).step_by(WIDTH) {
            L::bf16(self.data, 448 + 2 * i).store(self.out, 448 + i);
        }
    }
}

/// `out = sum_i weights[i] * rows_i` over equally long rows laid end to end.
pub struct Combine<'a> {
    pub weights: &'a [f32],
    pub rows: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.out.len();
        let whole = width / WIDTH * WIDTH;
        for at in (0..whole).step_by(WIDTH) {
            let mut sum = L::splat(0.0);
            for (i, &weight) in self.weights.iter().enumerate() {
                sum = L::splat(weight).mul_add(L::load(self.rows, i * width + at), sum);
            }
            sum.store(self.out, at);
        }
        for at in whole..width {
            self.out[at] = self.weights.iter().enumerate().map(|(i, w)| w * self.rows[i * width + at]).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::Softmax;

    #[test]
    fn nan_stays_nan() {
        for isa in [Isa::detect(), Isa::Scalar] {
            let mut out = [0.0; 9];
            let gate = [1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, f32::NAN];
            let up = [1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
            isa.run(GatedActivation { gate: &gate, up: &up, limit: Some(10.0), weight: 1.0, out: &mut out });
            let bad: Vec<bool> = out.iter().map(|x| x.is_nan()).collect();
            assert_eq!(bad, [false, true, true, false, false, false, false, false, true], "{isa}");

            let mut scores = [0.5; 11];
            scores[3] = f32::NAN;
            isa.run(Softmax { scores: &mut scores, scale: 1.0, sink: 0.0 });
            assert!(scores.iter().all(|x| x.is_nan()), "{isa}");

            let (good, mut poisoned) = ([1.0; 8], [1.0; 8]);
            poisoned[5] = f32::NAN;
            for rows in [[(&poisoned, &good), (&good, &good)], [(&good, &good), (&good, &poisoned)]] {
                let rows = rows.map(|(k, s)| (k.as_slice(), s.as_slice()));
                let mut out = [0.0; 8];
                isa.run(PoolRows { rows: &rows, out: &mut out });
                assert!(out[5].is_nan() && !out[4].is_nan(), "{isa}");
            }
        }
    }

    #[test]
    fn the_exponential_is_good_to_two_units_in_the_last_place() {
        for isa in [Isa::detect(), Isa::Scalar] {
            for i in 0..=8700_i32 {
                // Two scores: their weights are e^x and 1 over the same sum.
                let x = i as f32 * -0.01;
                let mut scores = [x, 0.0];
                isa.run(Softmax { scores: &mut scores, scale: 1.0, sink: f32::NEG_INFINITY });
                let expected = f64::from(x).exp();
                let actual = f64::from(scores[0]) / f64::from(scores[1]);
                assert!((actual / expected - 1.0).abs() < 6e-7, "{isa}: e^{x} is {actual}, not {expected}");
            }
        }
    }
}
