//! Activations as matrices take them: memory for them, and the launch that makes them.
#![allow(unsafe_code)]

use super::args::{self, Prepared};
use super::check;
use super::launch::{MatmulError, Matmuls};
use super::variant::SMALL_THREADS;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid, bytes_of};
use overshot_model::Format;
use std::sync::Arc;

/// What becomes of a number before FP8 and FP4 matrices read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// The publisher's rounding: E4M3, a power of two for each 128 columns.
    Rounded,
    /// Nothing that float32 sums would notice.
    Exact,
}

impl Activations {
    /// Terms of a code.
    pub fn terms(self) -> usize {
        match self {
            Activations::Rounded => 1,
            Activations::Exact => 2,
        }
    }
}

/// What the matrices that read an input take: FP8 and FP4 codes, the others floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    pub codes: bool,
    pub floats: bool,
}

impl Forms {
    pub fn of(formats: impl IntoIterator<Item = Format>) -> Self {
        let of = |format: Format| Forms { codes: format.is_quantised(), floats: !format.is_quantised() };
        formats.into_iter().map(of).fold(Forms::default(), Forms::and)
    }

    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        Forms { codes: self.codes || other.codes, floats: self.floats || other.floats }
    }
}

/// Terms of a float.
pub(crate) const FLOAT_TERMS: usize = 3;

/// Memory for one prepared input at a time.
pub struct PreparedMemory {
    pub(crate) codes: Buffer<u16>,
    pub(crate) scales: Buffer<f32>,
    pub(crate) floats: Buffer<u16>,
}

impl PreparedMemory {
    /// For inputs of up to so many codes, all terms counted, and so many numbers as floats.
    pub fn new(gpu: &Arc<dyn Gpu>, codes: usize, floats: usize) -> Result<Self, GpuError> {
        Ok(PreparedMemory {
            codes: Buffer::new(gpu, codes)?,
            // A narrow input has more blocks of 128 for its numbers, never more than one for each 8.
            scales: Buffer::new(gpu, codes.div_ceil(8))?,
            floats: Buffer::new(gpu, FLOAT_TERMS * floats)?,
        })
    }

    /// Where an input of this size stands, in the forms that are wanted.
    pub fn at(
        &self,
        activations: Activations,
        wanted: Forms,
        [rows, cols]: [usize; 2],
    ) -> Result<Prepared, MatmulError> {
        let (numbers, terms) = (rows * cols, activations.terms());
        let room = |wanted: bool, numbers: usize, room: usize| !wanted || numbers <= room;
        if !room(wanted.codes, terms * numbers, self.codes.len())
            || !room(wanted.floats, FLOAT_TERMS * numbers, self.floats.len())
        {
            return check::refuse("rows", rows as i64, "at most those that the memory was made for");
        }
        let when = |wanted: bool, address: DeviceAddress| if wanted { address } else { DeviceAddress::NULL };
        Ok(Prepared {
            codes: when(wanted.codes, self.codes.address()),
            scales: when(wanted.codes, self.scales.address()),
            floats: when(wanted.floats, self.floats.address()),
            term_stride: numbers as i64,
            cols: cols as i32,
            terms: terms as i32,
        })
    }
}

impl Matmuls {
    /// Prepares float32 `[rows, in_stride]`, the first `cols` of each row, in the forms that are wanted.
    ///
    /// # Safety
    /// `input` holds that much until the launch has run; what was prepared in `memory` before is read by nothing but work that
    /// was queued on the same device.
    pub unsafe fn prepare(
        &self,
        activations: Activations,
        input: DeviceAddress,
        in_stride: usize,
        memory: &PreparedMemory,
        wanted: Forms,
        shape: [usize; 2],
    ) -> Result<Prepared, MatmulError> {
        let [rows, cols] = shape;
        let out = memory.at(activations, wanted, shape)?;
        if !in_stride.is_multiple_of(4) || cols > in_stride {
            return check::refuse("in_stride", in_stride as i64, "a multiple of 4, at least the columns");
        }
        check::aligned("input", input)?;
        check::forms(&out, wanted)?;
        let args = args::Prepare {
            input,
            out,
            in_stride: in_stride as i64,
            rows: check::tokens(rows)?,
            round_to_e4m3: i32::from(activations == Activations::Rounded),
        };
        let threads = rows as u32 * cols.div_ceil(128) as u32 * 16;
        // SAFETY: `Prepare` mirrors the kernel's struct; the memory is as large as `at` saw, the input is the caller's word.
        unsafe {
            self.prepare_kernel().launch(Grid(threads.div_ceil(SMALL_THREADS), 1, 1), bytes_of(&args))?;
        }
        Ok(out)
    }
}
