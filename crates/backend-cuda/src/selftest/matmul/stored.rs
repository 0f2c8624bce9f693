//! Random weight matrices in stored formats, their numbers in float64, and prepared activations made on the host.

use crate::gpu::{Buffer, Gpu, GpuError};
use crate::matmul::{Activations, FLOAT_TERMS, Forms, Matrix, PreparedMemory};
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

    /// Whether products take codes, and not floats.
    pub fn takes_codes(&self) -> bool {
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

/// What products see of rows of `cols`, where FP8 and FP4 get them so.
pub fn seen(x: &[f32], cols: usize, activations: Activations) -> Vec<f64> {
    let mut seen = x.to_vec();
    if activations == Activations::Rounded {
        seen.chunks_exact_mut(cols).for_each(round_activations);
    }
    seen.into_iter().map(f64::from).collect()
}

/// Numbers of `memory` that are not what `prepare` has to make of `x`: codes and floats, whichever are wanted. Rounded codes are
/// exact; terms of others leave a millionth part of a number, and less than that of their block's largest.
pub fn unprepared(
    memory: &PreparedMemory,
    x: &[f32],
    cols: usize,
    activations: Activations,
    wanted: Forms,
) -> Result<usize, GpuError> {
    let (codes, scales) = (memory.codes.copy_out()?, memory.scales.copy_out()?);
    let floats = memory.floats.copy_out()?;
    let (len, blocks) = (x.len(), cols.div_ceil(128));
    let expected = seen(x, cols, activations);
    let mut wrong = 0;
    for (at, (x, expected)) in x.iter().zip(&expected).enumerate() {
        let (row, col) = (at / cols, at % cols);
        if wanted.codes {
            let place = at / 8 * 8 + [0, 4, 1, 5, 2, 6, 3, 7][col % 8];
            let sum: f64 = (0..activations.terms()).map(|term| f16_decode(codes[term * len + place])).sum();
            let code = sum * f64::from(scales[row * blocks + col / 128]);
            let allowed = match activations {
                Activations::Rounded => 0.0,
                Activations::Exact => expected.abs() * f64::powi(2.0, -22) + f64::powi(2.0, -30),
            };
            wrong += usize::from((code - expected).abs() > allowed || code.is_nan());
        }
        if wanted.floats {
            let terms = (0..FLOAT_TERMS).map(|term| f64::from(bf16_decode(floats[term * len + at])));
            wrong += usize::from(terms.sum::<f64>() != f64::from(*x));
        }
    }
    Ok(wrong)
}

fn f16_decode(code: u16) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 10 & 31), f64::from(code & 1023));
    let size = match exponent {
        0 => fraction * f64::powi(2.0, -24),
        31 => f64::NAN,
        _ => (1024.0 + fraction) * f64::powi(2.0, exponent - 25),
    };
    if code >> 15 == 1 { -size } else { size }
}
