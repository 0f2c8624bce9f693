//! The matmul for processors without AVX2 and for columns that it does not take: 8 partial sums, as the vector
//! kernels keep them, in plain Rust.

use super::order::reorder;
use super::{BLOCK_COLS, Block};
use crate::simd::sum_of_lanes;

pub fn run(block: &Block) {
    let mut natural = vec![0.0; block.matrix.cols];
    let mut weights = vec![0.0; block.cols()];
    for row in block.rows.clone() {
        block.matrix.decode_row(row, &mut natural);
        reorder(block.matrix.format, &natural[block.job.columns.clone()], &mut weights);
        for m in 0..block.inputs() {
            let sums = weights.chunks(BLOCK_COLS).enumerate().fold([0.0; 8], |sums, (index, weights)| {
                add_products(sums, weights, block.input(m, index * BLOCK_COLS))
            });
            block.store(m, row, sum_of_lanes(sums));
        }
    }
}

fn add_products(mut sums: [f32; 8], a: &[f32], b: &[f32]) -> [f32; 8] {
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums
}
