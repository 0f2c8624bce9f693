//! From a stored tensor to a checked [`Matrix`] or vector. The stored dtype decides the format; shape, scales and
//! values are checked against it. Matrix bytes are never copied and, scales apart, never read.

use crate::checkpoint::{Checkpoint, StoredTensor};
use crate::names::{NameStyle, Names};
use crate::quant::bf16_decode;
use crate::{Bytes, Format, Matrix, ModelError};
use safetensors::Dtype;

/// Largest scale byte of an FP8 block, 2^119: 448 times that is the last weight below `f32::MAX`. It also leaves
/// kernels room to fold a factor of up to 2^8 into the scale, which half-precision decoding needs: 2^127 is finite.
pub const FP8_SCALE_BYTE_MAX: u8 = 246;
/// Largest scale byte of an FP4 row block, 2^125: 6 times that is the last weight below `f32::MAX`.
pub const FP4_SCALE_BYTE_MAX: u8 = 252;

/// Which formats a matrix may be stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// F32 only.
    Exact,
    /// BF16 or F32.
    Float,
    /// FP8, BF16 or F32.
    Linear,
    /// FP4, FP8, BF16 or F32.
    Expert,
}

impl Stored {
    fn format_of(self, dtype: Dtype) -> Option<Format> {
        match dtype {
            Dtype::F32 => Some(Format::F32),
            Dtype::BF16 if self != Stored::Exact => Some(Format::Bf16),
            Dtype::F8_E4M3 if matches!(self, Stored::Linear | Stored::Expert) => Some(Format::Fp8),
            Dtype::I8 | Dtype::U8 | Dtype::F4 if self == Stored::Expert => Some(Format::Fp4),
            _ => None,
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Stored::Exact => "F32",
            Stored::Float => "BF16 or F32",
            Stored::Linear => "F8_E4M3, BF16 or F32",
            Stored::Expert => "I8 (packed FP4), F8_E4M3, BF16 or F32",
        }
    }
}

/// Which values a vector may hold besides finite ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Finite,
    /// Minus infinity switches a sink or an expert off.
    FiniteOrMinusInfinity,
}

/// A tensor together with its stored name, for messages.
pub(crate) struct Found<'a> {
    pub name: String,
    pub tensor: &'a StoredTensor,
}

impl Found<'_> {
    pub fn value_error(&self, reason: String) -> ModelError {
        ModelError::Value { file: self.tensor.file.to_string(), tensor: self.name.clone(), reason }
    }

    pub fn check_shape(&self, expected: &[usize]) -> Result<(), ModelError> {
        if self.tensor.shape == expected {
            return Ok(());
        }
        Err(ModelError::Shape {
            file: self.tensor.file.to_string(),
            tensor: self.name.clone(),
            expected: expected.to_vec(),
            found: self.tensor.shape.clone(),
        })
    }

    pub fn dtype_error(&self, expected: &'static str) -> ModelError {
        ModelError::Dtype {
            file: self.tensor.file.to_string(),
            tensor: self.name.clone(),
            expected,
            found: format!("{:?}", self.tensor.dtype),
        }
    }
}

/// Finds tensors by the publisher's names.
pub(crate) struct Reader<'a> {
    pub checkpoint: &'a Checkpoint,
    pub names: Names,
}

impl<'a> Reader<'a> {
    /// The tensor that the publisher calls `name`.
    pub fn tensor(&self, name: &str) -> Result<Found<'a>, ModelError> {
        let name = self.names.stored(name);
        match self.checkpoint.take(&name) {
            Some(tensor) => Ok(Found { name, tensor }),
            None => Err(ModelError::MissingTensor { file: self.checkpoint.label.clone(), tensor: name }),
        }
    }

    /// A small tensor, BF16 or F32, as `f32` in row-major order.
    pub fn vector(&self, name: &str, shape: &[usize], values: Values) -> Result<Vec<f32>, ModelError> {
        let found = self.tensor(name)?;
        let bytes_each = match found.tensor.dtype {
            Dtype::F32 => 4,
            Dtype::BF16 => 2,
            _ => return Err(found.dtype_error("F32 or BF16")),
        };
        // Before anything is allocated: the stored size is not bounded by the model's.
        found.check_shape(shape)?;
        let numbers = found.tensor.bytes.chunks_exact(bytes_each);
        let vector: Vec<f32> = match bytes_each {
            4 => numbers.map(f32_of).collect(),
            _ => numbers.map(|half| bf16_decode(u16::from_le_bytes([half[0], half[1]]))).collect(),
        };
        let allowed = |value: f32| {
            value.is_finite() || (values == Values::FiniteOrMinusInfinity && value == f32::NEG_INFINITY)
        };
        if let Some(index) = vector.iter().position(|value| !allowed(*value)) {
            return Err(found.value_error(format!("holds {} at index {index}", vector[index])));
        }
        Ok(vector)
    }

    /// The matrix `stem.weight` of shape `[rows, cols]`.
    pub fn matrix(&self, stem: &str, rows: usize, cols: usize, stored: Stored) -> Result<Matrix, ModelError> {
        let found = self.tensor(&format!("{stem}.weight"))?;
        let mut matrices = self.matrices(found, None, rows, cols, stored)?;
        Ok(matrices.remove(0))
    }

    /// The matrix `name`, without a suffix: how hyper-connection parameters are named.
    pub fn bare_matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        stored: Stored,
    ) -> Result<Matrix, ModelError> {
        let mut matrices = self.matrices(self.tensor(name)?, None, rows, cols, stored)?;
        Ok(matrices.remove(0))
    }

    /// `count` matrices of shape `[rows, cols]` that one three-dimensional tensor holds.
    pub fn stack(
        &self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
        stored: Stored,
    ) -> Result<Vec<Matrix>, ModelError> {
        self.matrices(self.tensor(name)?, Some(count), rows, cols, stored)
    }

    fn matrices(
        &self,
        found: Found<'a>,
        stack: Option<usize>,
        rows: usize,
        cols: usize,
        stored: Stored,
    ) -> Result<Vec<Matrix>, ModelError> {
        let dtype = found.tensor.dtype;
        let format = stored.format_of(dtype).ok_or_else(|| found.dtype_error(stored.expected()))?;
        if format == Format::Fp4 && !cols.is_multiple_of(Format::FP4_BLOCK) {
            return Err(found.value_error(format!("is FP4 with {cols} columns, not a multiple of 32")));
        }
        let shaped =
            |rows: usize, cols: usize| -> Vec<usize> { stack.into_iter().chain([rows, cols]).collect() };
        // Two FP4 numbers in a byte, unless the dtype itself counts in half bytes.
        let packed = format == Format::Fp4 && dtype != Dtype::F4;
        found.check_shape(&shaped(rows, if packed { cols / 2 } else { cols }))?;

        let scale_rows = if format == Format::Fp8 { rows.div_ceil(Format::FP8_BLOCK) } else { rows };
        let scale_cols = format.scale_row_bytes(cols);
        let scales = match format {
            Format::F32 | Format::Bf16 => Bytes::empty(),
            Format::Fp8 => self.scales(&found, &shaped(scale_rows, scale_cols), FP8_SCALE_BYTE_MAX)?,
            Format::Fp4 => self.scales(&found, &shaped(scale_rows, scale_cols), FP4_SCALE_BYTE_MAX)?,
        };
        let (data_bytes, scale_bytes) = (rows * format.row_bytes(cols), scale_rows * scale_cols);
        let view = |index: usize| {
            let data = found.tensor.bytes.slice(index * data_bytes..(index + 1) * data_bytes);
            let scales = scales.slice(index * scale_bytes..(index + 1) * scale_bytes);
            Matrix::new(format, rows, cols, data, scales)
        };
        Ok((0..stack.unwrap_or(1)).map(view).collect())
    }

    /// The checked scale bytes that belong to `weight`.
    fn scales(&self, weight: &Found, shape: &[usize], byte_max: u8) -> Result<Bytes, ModelError> {
        let candidates = scale_names(&weight.name);
        let present = candidates.iter().find(|name| self.checkpoint.contains(name)).unwrap_or(&candidates[0]);
        let Some(tensor) = self.checkpoint.take(present) else {
            let file = weight.tensor.file.to_string();
            return Err(ModelError::MissingTensor { file, tensor: present.clone() });
        };
        let found = Found { name: present.clone(), tensor };
        if !matches!(tensor.dtype, Dtype::F8_E8M0 | Dtype::U8 | Dtype::F32) {
            return Err(found.dtype_error("F8_E8M0, or F32 powers of two"));
        }
        found.check_shape(shape)?;
        let bytes = if tensor.dtype == Dtype::F32 { exponent_bytes(&found)? } else { tensor.bytes.clone() };
        // A plain maximum compiles to a few bytes per cycle and lane; the place is looked for only when it fails.
        let largest = bytes.iter().copied().fold(0, u8::max);
        if largest > byte_max {
            let index = bytes.iter().position(|byte| *byte == largest).unwrap_or(0);
            let meaning = match largest {
                255 => "which is not a number".to_string(),
                byte => format!(
                    "which is 2^{}, above the supported 2^{}",
                    i32::from(byte) - 127,
                    byte_max as i32 - 127
                ),
            };
            return Err(
                found.value_error(format!("holds the scale byte {largest} at index {index}, {meaning}"))
            );
        }
        Ok(bytes)
    }

    pub fn is_fused(&self) -> bool {
        self.names.style == NameStyle::Transformers
    }
}

/// What the scale of a weight may be called, the usual name first.
fn scale_names(weight: &str) -> [String; 3] {
    match weight.strip_suffix(".weight") {
        Some(stem) => {
            [format!("{stem}.scale"), format!("{stem}.weight_scale_inv"), format!("{stem}.scale_inv")]
        }
        None => [format!("{weight}.scale"), format!("{weight}_scale_inv"), format!("{weight}_scale")],
    }
}

/// F32 scales as exponent bytes: only exact powers of two have one.
fn exponent_bytes(found: &Found) -> Result<Bytes, ModelError> {
    let mut bytes = Vec::with_capacity(found.tensor.bytes.len() / 4);
    for (index, four) in found.tensor.bytes.chunks_exact(4).enumerate() {
        let scale = f32_of(four);
        let byte = match scale.to_bits() {
            0x0040_0000 => 0, // 2^-127, below the normal range
            bits if bits & 0x807f_ffff == 0 && bits != 0 && bits >> 23 != 255 => (bits >> 23) as u8,
            _ => {
                let reason = format!("holds the scale {scale} at index {index}, which is no power of two");
                return Err(found.value_error(reason));
            }
        };
        bytes.push(byte);
    }
    Ok(Bytes::from_vec(bytes))
}

fn f32_of(four: &[u8]) -> f32 {
    f32::from_le_bytes([four[0], four[1], four[2], four[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{E2M1_VALUES, E4M3_MAX, ue8m0_decode};

    #[test]
    fn the_largest_scales_are_the_last_with_finite_weights() {
        for (largest, byte_max) in [(E4M3_MAX, FP8_SCALE_BYTE_MAX), (E2M1_VALUES[7], FP4_SCALE_BYTE_MAX)] {
            assert!((largest * ue8m0_decode(byte_max)).is_finite());
            assert!((largest * ue8m0_decode(byte_max + 1)).is_infinite());
        }
        assert!((ue8m0_decode(FP8_SCALE_BYTE_MAX) * 256.0).is_finite());
    }
}
