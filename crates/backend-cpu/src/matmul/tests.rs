//! Every kernel against the exact sum, and against itself with other inputs beside.

use super::*;
use overshot_model::{Bytes, FP4_SCALE_BYTE_MAX, FP8_SCALE_BYTE_MAX};

const SEED: u64 = 5;

/// A matrix of random numbers, its FP8 codes one in eight a subnormal, its scales out of `scales`.
fn matrix(random: &mut fastrand::Rng, format: Format, rows: usize, cols: usize, scales: Range<u8>) -> Matrix {
    let mut data: Vec<u8> = (0..rows * format.row_bytes(cols)).map(|_| random.u8(..)).collect();
    match format {
        Format::F32 => data.chunks_exact_mut(4).for_each(|b| b[3] = 0x3c | b[3] & 0x80),
        Format::Bf16 => data.chunks_exact_mut(2).for_each(|b| b[1] = 0x3c | b[1] & 0x80),
        Format::Fp8 => data.iter_mut().for_each(|b| *b &= 0xbf),
        Format::Fp4 => {}
    }
    let scale_rows = if format == Format::Fp8 { rows.div_ceil(Format::FP8_BLOCK) } else { rows };
    let scale_bytes = scale_rows * format.scale_row_bytes(cols);
    let scales = (0..scale_bytes).map(|_| random.u8(scales.clone())).collect();
    Matrix::new(format, rows, cols, Bytes::from_vec(data), Bytes::from_vec(scales))
}

fn product(matrix: &Matrix, x: &[f32], isa: Isa) -> Vec<f32> {
    let count = x.len() / matrix.cols;
    let input = Input::new(matrix.format, x, matrix.cols, 0..matrix.cols);
    let mut y = vec![f32::NAN; count * matrix.rows];
    let output = Output::new(&mut y, matrix.rows);
    run(isa, vec![Job { matrix, columns: 0..matrix.cols, input: &input, rows: Rows::First(count), output }]);
    y
}

/// Every kernel gives an input the same bits, whatever stands beside it, and they are those of the sum.
fn check(random: &mut fastrand::Rng, matrix: &Matrix, size: f32) {
    const INPUTS: usize = 9;
    let x: Vec<f32> = (0..INPUTS * matrix.cols).map(|_| (random.f32() - 0.5) * size).collect();
    let together = product(matrix, &x, Isa::detect());
    for count in 1..INPUTS {
        let some = product(matrix, &x[..count * matrix.cols], Isa::detect());
        let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(&some),
            bits(&together[..some.len()]),
            "{:?}, {count} inputs, seed {SEED}",
            matrix.format
        );
    }
    let mut weights = vec![0.0; matrix.cols];
    for row in 0..matrix.rows {
        matrix.decode_row(row, &mut weights);
        for (m, x) in x.chunks_exact(matrix.cols).enumerate() {
            let products = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let found = f64::from(together[m * matrix.rows + row]);
            assert!(
                (found - sum).abs() <= 1e-6 * size,
                "{:?}: {found} for {sum}, seed {SEED}",
                matrix.format
            );
        }
    }
}

#[test]
fn an_input_gets_the_same_bits_whatever_stands_beside_it() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for format in [Format::F32, Format::Bf16, Format::Fp8, Format::Fp4] {
        for (rows, cols) in [(1, 32), (7, 96), (130, 512), (35, 544), (256, 1184)] {
            let matrix = matrix(&mut random, format, rows, cols, 110..128);
            check(&mut random, &matrix, 2.0);
        }
    }
}

/// Scaled inputs leave the range of float32 where scaled weights do not.
#[test]
fn large_scales_change_nothing() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for scales in [120..150, 134..136, 200..FP8_SCALE_BYTE_MAX + 1] {
        let matrix = matrix(&mut random, Format::Fp8, 200, 640, scales);
        check(&mut random, &matrix, 1e-20);
        check(&mut random, &matrix, 1e-3);
    }
    let matrix = matrix(&mut random, Format::Fp4, 40, 640, 200..FP4_SCALE_BYTE_MAX - 10);
    check(&mut random, &matrix, 1e-3);
}
