//! The inner loops of attention and of the indexer.

use super::{Kernel, Lanes, WIDTH};

/// `out[i * out_stride + j] = a_i · b_j` for `[rows, width]` inputs, `width` a multiple of 8. Each product is one
/// chain over the width: its bits depend on its two vectors alone.
pub struct Dots<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub width: usize,
    pub out: &'a mut [f32],
    pub out_stride: usize,
}

/// Rows of `a` and of `b` in a tile: 12 accumulators.
const TILE_A: usize = 4;
const TILE_B: usize = 3;

impl Kernel for Dots<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Dots { a, b, width, out, out_stride } = self;
        let (rows_a, rows_b) = (a.len() / width, b.len() / width);
        for i in (0..rows_a).step_by(TILE_A) {
            for j in (0..rows_b).step_by(TILE_B) {
                let out = &mut out[i * out_stride + j..];
                let (left_a, left_b) = (rows_a - i, rows_b - j);
                let (a, b) = (&a[i * width..], &b[j * width..]);
                match (left_a >= TILE_A, left_b) {
                    (true, 3..) => dot_tile::<L, TILE_A, 3>(a, b, width, out, out_stride),
                    (true, 2) => dot_tile::<L, TILE_A, 2>(a, b, width, out, out_stride),
                    (true, _) => dot_tile::<L, TILE_A, 1>(a, b, width, out, out_stride),
                    (false, _) => {
                        for row in 0..left_a {
                            for col in 0..left_b.min(TILE_B) {
                                let (a, b) = (&a[row * width..], &b[col * width..]);
                                dot_tile::<L, 1, 1>(a, b, width, &mut out[row * out_stride + col..], 0);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn dot_tile<L: Lanes, const A: usize, const B: usize>(
    a: &[f32],
    b: &[f32],
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let (mut a_rows, mut b_rows) = ([&[] as &[f32]; A], [&[] as &[f32]; B]);
    for i in 0..A {
        a_rows[i] = &a[i * width..(i + 1) * width];
    }
    for j in 0..B {
        b_rows[j] = &b[j * width..(j + 1) * width];
    }
    let mut acc = [[L::splat(0.0); B]; A];
    for at in (0..width).step_by(WIDTH) {
        let mut b = [L::splat(0.0); B];
        for j in 0..B {
            b[j] = L::load(b_rows[j], at);
        }
        for i in 0..A {
            let a = L::load(a_rows[i], at);
            for j in 0..B {
                acc[i][j] = a.mul_add(b[j], acc[i][j]);
            }
        }
    }
    for i in 0..A {
        for j in 0..B {
            out[i * out_stride + j] = acc[i][j].sum();
        }
    }
}

/// `out_h += sum_j weights[h * weights_stride + j] * values_j`, keys in order: `values` is `[keys, width]`, `out`
/// `[heads, width]`, `width` a multiple of 16.
pub struct WeightedSum<'a> {
    pub weights: &'a [f32],
    pub weights_stride: usize,
    pub values: &'a [f32],
    pub width: usize,
    pub out: &'a mut [f32],
}

/// Heads that share a load of values: with two vectors each, 12 accumulators.
const TILE_HEADS: usize = 6;

impl Kernel for WeightedSum<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let heads = self.out.len() / self.width;
        let mut head = 0;
        while head + TILE_HEADS <= heads {
            self.heads_tile::<L, TILE_HEADS>(head);
            head += TILE_HEADS;
        }
        while head + 2 <= heads {
            self.heads_tile::<L, 2>(head);
            head += 2;
        }
        if head < heads {
            self.heads_tile::<L, 1>(head);
        }
    }
}

impl WeightedSum<'_> {
    #[inline(always)]
    fn heads_tile<L: Lanes, const HEADS: usize>(&mut self, head: usize) {
        let keys = self.values.len() / self.width;
        let mut weights = [&[] as &[f32]; HEADS];
        for h in 0..HEADS {
            weights[h] = &self.weights[(head + h) * self.weights_stride..][..keys];
        }
        for at in (0..self.width).step_by(2 * WIDTH) {
            let width = self.width;
            let place = |h: usize| (head + h) * width + at;
            let mut acc = [[L::splat(0.0); 2]; HEADS];
            for h in 0..HEADS {
                acc[h] = [L::load(self.out, place(h)), L::load(self.out, place(h) + WIDTH)];
            }
            for key in 0..keys {
                let value = key * self.width + at;
                let value = [L::load(self.values, value), L::load(self.values, value + WIDTH)];
                for h in 0..HEADS {
                    let weight = L::splat(weights[h][key]);
                    acc[h] = [weight.mul_add(value[0], acc[h][0]), weight.mul_add(value[1], acc[h][1])];
                }
            }
            for h in 0..HEADS {
                acc[h][0].store(self.out, place(h));
                acc[h][1].store(self.out, place(h) + WIDTH);
            }
        }
    }
}

/// Turns scores into weights in place: `exp(s * scale - max)` over their sum, where `sink` is one more logit (not
/// scaled) that takes its share and has no value.
pub struct Softmax<'a> {
    pub scores: &'a mut [f32],
    pub scale: f32,
    pub sink: f32,
}

impl Kernel for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let scores = self.scores;
        let mut max = self.sink;
        for score in scores.iter_mut() {
            *score *= self.scale;
            max = max.max(*score);
        }
        let whole = scores.len() / WIDTH * WIDTH;
        let mut sums = L::splat(0.0);
        for at in (0..whole).step_by(WIDTH) {
            let weight = L::load(scores, at).sub(L::splat(max)).exp();
            weight.store(scores, at);
            sums = sums.add(weight);
        }
        // The tail and the sink go through the same exponential, padded with lanes that weigh nothing.
        let mut tail = [f32::NEG_INFINITY; 2 * WIDTH];
        let rest = scores.len() - whole;
        tail[..rest].copy_from_slice(&scores[whole..]);
        tail[rest] = self.sink;
        for at in [0, WIDTH] {
            let weight = L::load(&tail, at).sub(L::splat(max)).exp();
            weight.store(&mut tail, at);
            sums = sums.add(weight);
        }
        scores[whole..].copy_from_slice(&tail[..rest]);
        let inverse = 1.0 / sums.sum();
        for score in scores.iter_mut() {
            *score *= inverse;
        }
    }
}
