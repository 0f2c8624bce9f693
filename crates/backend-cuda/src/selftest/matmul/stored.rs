//! Random weight matrices in stored formats, their numbers in float64, and prepared activations made on the host.

use crate::gpu::{Buffer, Gpu, GpuError};
use crate::matmul::{Activations, Matrix};
use fastrand::Rng;
use overshot_model::Format;
use overshot_model::quant::{
    E2M1_VALUES, E4M3_VALUES, bf16_decode, bf16_encode, round_activations, ue8m0_decode,
};
use std::ops::Range;
use std::sync::Arc;

/// Which codes and scales a random matrix has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Scales as checkpoints have them, a few powers of two apart.
    Natural,
    /// Scales from nearly the smallest to far beyond what checkpoints have.
    Extreme,
}

impl Codes {
    fn exponents(self) -> Range<u8> {
        match self {
            Codes::Natural => 112..122,
            Codes::Extreme => 2..190,
        }
    }
}

/// A matrix on the host. All codes but NaN occur, subnormals as often as others.
pub struct Stored {
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    data: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    pub fn random(format: Format, rows: usize, cols: usize, codes: Codes, random: &mut Rng) -> Self {
        let numbers = rows * cols;
        let mut float = || (random.f32() - 0.5) * f32::powi(2.0, random.i32(-6..3));
        let data = match format {
            Format::F32 => (0..numbers).flat_map(|_| float().to_le_bytes()).collect(),
            Format::Bf16 => (0..numbers).flat_map(|_| bf16_encode(float()).to_le_bytes()).collect(),
            Format::Fp8 => (0..numbers)
                .map(|_| match random.u8(..) {
                    0x7f | 0xff => 0,
                    code => code,
                })
                .collect(),
            Format::Fp4 => (0..numbers / 2).map(|_| random.u8(..)).collect(),
        };
        let scale_rows = if format == Format::Fp8 { rows.div_ceil(Format::FP8_BLOCK) } else { rows };
        let scales = scale_rows * format.scale_row_bytes(cols);
        let scales = (0..scales).map(|_| random.u8(codes.exponents())).collect();
        Stored { format, rows, cols, data, scales }
    }

    pub fn row(&self, row: usize) -> Vec<f64> {
        let bytes = self.format.row_bytes(self.cols);
        let data = &self.data[row * bytes..][..bytes];
        let stride = self.format.scale_row_bytes(self.cols);
        let scale =
            |scale_row: usize, at: usize| f64::from(ue8m0_decode(self.scales[scale_row * stride + at]));
        let of = |col: usize| match self.format {
            Format::F32 => f64::from(f32::from_le_bytes([
                data[4 * col],
                data[4 * col + 1],
                data[4 * col + 2],
                data[4 * col + 3],
            ])),
            Format::Bf16 => f64::from(bf16_decode(u16::from_le_bytes([data[2 * col], data[2 * col + 1]]))),
            Format::Fp8 => f64::from(E4M3_VALUES[usize::from(data[col])]) * scale(row / 128, col / 128),
            Format::Fp4 => {
                let code = data[col / 2] >> (4 * (col % 2)) & 15;
                f64::from(E2M1_VALUES[usize::from(code)]) * scale(row, col / 32)
            }
        };
        (0..self.cols).map(of).collect()
    }

    pub fn upload(&self, gpu: &Arc<dyn Gpu>) -> Result<Uploaded, GpuError> {
        let data = Buffer::of(gpu, &self.data)?;
        let scales = Buffer::of(gpu, &self.scales)?;
        let matrix = Matrix::whole(self.format, self.rows, self.cols, data.address(), scales.address());
        Ok(Uploaded { matrix, _data: data, _scales: scales })
    }

    /// Whether products take prepared inputs.
    pub fn takes_prepared(&self) -> bool {
        self.format.is_quantised()
    }
}

/// The same on a device.
pub struct Uploaded {
    pub matrix: Matrix,
    _data: Buffer<u8>,
    _scales: Buffer<u8>,
}

/// Activations of usual size, a few of them large.
pub fn activations(count: usize, random: &mut Rng) -> Vec<f32> {
    (0..count).map(|_| (random.f32() - 0.5) * if random.u8(..) == 0 { 100.0 } else { 4.0 }).collect()
}

/// What the `prepare` kernel makes of rows of `cols`: the numbers that products see, and the codes, `[terms, rows, cols]`.
pub fn prepared(x: &[f32], cols: usize, activations: Activations) -> (Vec<f64>, Vec<u16>) {
    let mut rest = x.to_vec();
    if matches!(activations, Activations::F32Rounded) {
        rest.chunks_exact_mut(cols).for_each(round_activations);
    }
    let (mut numbers, mut all) = (vec![0.0; x.len()], Vec::new());
    for _ in 0..activations.terms() {
        let codes: Vec<u16> = rest.iter().map(|number| bf16_encode(*number)).collect();
        for ((number, rest), code) in numbers.iter_mut().zip(&mut rest).zip(&codes) {
            *number += f64::from(bf16_decode(*code));
            *rest -= bf16_decode(*code);
        }
        let order = [0, 4, 1, 5, 2, 6, 3, 7];
        all.extend(codes.chunks_exact(8).flat_map(|group| order.map(|column| group[column])));
    }
    (numbers, all)
}
