//! The order in which a format's numbers come out of the vector unit.
//!
//! Unpacking 32 stored weights into four vectors of 8 is cheapest when nothing is put back into column order. So
//! the *inputs* are permuted once, into the order the weights fall out in, and the products line up. The scalar
//! kernels use the same order: it costs them nothing.

use overshot_model::Format;

/// Weights unpacked at a time, in every format.
pub const STEP: usize = 32;

const NATURAL: [u8; STEP] = {
    let mut order = [0; STEP];
    let mut i = 0;
    while i < STEP {
        order[i] = i as u8;
        i += 1;
    }
    order
};

/// Even and odd halves of each 32-bit word, 16 columns at a time.
const BF16: [u8; STEP] = [
    0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, //
    16, 18, 20, 22, 24, 26, 28, 30, 17, 19, 21, 23, 25, 27, 29, 31,
];

/// Even and odd bytes of each 16-bit word apart, each as BF16.
const FP8: [u8; STEP] = [
    0, 4, 8, 12, 16, 20, 24, 28, 2, 6, 10, 14, 18, 22, 26, 30, //
    1, 5, 9, 13, 17, 21, 25, 29, 3, 7, 11, 15, 19, 23, 27, 31,
];

/// Low nibbles in one 128-bit half, high nibbles in the other, then as BF16.
const FP4: [u8; STEP] = [
    0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, //
    16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31,
];

/// `order(format)[i]` is the column, within a group of 32, of the i-th unpacked weight.
pub fn order(format: Format) -> &'static [u8; STEP] {
    match format {
        Format::F32 => &NATURAL,
        Format::Bf16 => &BF16,
        Format::Fp8 => &FP8,
        Format::Fp4 => &FP4,
    }
}

/// Copies `row` into `out` in a format's order; a tail of less than 32 columns keeps its own.
pub fn reorder(format: Format, row: &[f32], out: &mut [f32]) {
    let order = order(format);
    let mut groups = row.chunks_exact(STEP);
    let mut outs = out.chunks_exact_mut(STEP);
    for (group, out) in groups.by_ref().zip(outs.by_ref()) {
        for i in 0..STEP {
            out[i] = group[usize::from(order[i])];
        }
    }
    outs.into_remainder().copy_from_slice(groups.remainder());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_a_permutation() {
        for format in [Format::F32, Format::Bf16, Format::Fp8, Format::Fp4] {
            let mut seen = [false; STEP];
            for &column in order(format) {
                assert!(
                    !std::mem::replace(&mut seen[usize::from(column)], true),
                    "{format:?} column {column}"
                );
            }
        }
    }
}
