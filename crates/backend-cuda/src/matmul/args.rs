//! What the family's kernels take, field by field as `kernels/matmul/args.cuh` and `kernels/common/matrix.cuh` declare it:
//! change both. The emulator compares sizes at every launch.

use crate::gpu::DeviceAddress;
use overshot_model::Format;

/// A stored weight matrix, `[rows, cols]`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Matrix {
    pub data: DeviceAddress,
    pub scales: DeviceAddress,
    pub rows: i32,
    pub cols: i32,
    pub format: i32,
    /// Where this slice starts in the matrix that its scales are of.
    pub first_row: i32,
    pub first_col: i32,
    /// Scales in a row of them.
    pub scale_stride: i32,
}

impl Matrix {
    /// A whole matrix.
    pub fn whole(
        format: Format,
        rows: usize,
        cols: usize,
        data: DeviceAddress,
        scales: DeviceAddress,
    ) -> Self {
        let scale_stride = format.scale_row_bytes(cols) as i32;
        Matrix {
            data,
            scales,
            rows: rows as i32,
            cols: cols as i32,
            format: code(format),
            scale_stride,
            ..Matrix::default()
        }
    }

    /// Whether products read codes, and not floats ([`Prepared`]).
    pub fn takes_codes(&self) -> bool {
        self.format().is_some_and(Format::is_quantised)
    }

    /// `None` for a number that names no format.
    pub fn format(&self) -> Option<Format> {
        [Format::F32, Format::Bf16, Format::Fp8, Format::Fp4]
            .into_iter()
            .find(|format| code(*format) == self.format)
    }
}

fn code(format: Format) -> i32 {
    match format {
        Format::F32 => 0,
        Format::Bf16 => 1,
        Format::Fp8 => 2,
        Format::Fp4 => 3,
    }
}

/// Activations `[rows, cols]` as matrices take them, in memory of the caller's; either form may be null.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Prepared {
    /// f16 `[terms, rows, cols]`, for FP8 and FP4.
    pub codes: DeviceAddress,
    /// float32 `[rows, cols / 128 rounded up]`, theirs.
    pub scales: DeviceAddress,
    /// bf16 `[3, rows, cols]`, for BF16 and F32.
    pub floats: DeviceAddress,
    /// `rows * cols`
    pub term_stride: i64,
    pub cols: i32,
    /// Of codes: 1 or 2.
    pub terms: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Job {
    pub matrix: Matrix,
    pub input: Prepared,
    pub out: DeviceAddress,
    pub out_stride: i64,
    pub first_col: i32,
    pub blocks_before: i32,
    pub splits: i32,
    pub split_bytes: i32,
    pub parts_before: i32,
    pub unused: i32,
}

pub(super) const JOBS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Dense {
    pub jobs: [Job; JOBS_MAX],
    pub partial: DeviceAddress,
    pub arrivals: DeviceAddress,
    pub count: i32,
    pub first: i32,
    pub tokens: i32,
    pub parts: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Prepare {
    pub input: DeviceAddress,
    pub out: Prepared,
    pub in_stride: i64,
    pub rows: i32,
    pub round_to_e4m3: i32,
}

/// One expert's matrices.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Expert {
    pub w1: Matrix,
    pub w3: Matrix,
    pub w2: Matrix,
}

/// Bytes of a tile of slots; only kernels look inside.
pub(super) const TILE_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Sort {
    pub ids: DeviceAddress,
    pub weights: DeviceAddress,
    pub token_of: DeviceAddress,
    pub weight_of: DeviceAddress,
    pub slot_of: DeviceAddress,
    pub tiles: DeviceAddress,
    pub tile_count: DeviceAddress,
    pub tokens: i32,
    pub per_token: i32,
    pub first_expert: i32,
    pub count: i32,
    pub tile_tokens: i32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Experts {
    pub experts: DeviceAddress,
    pub tiles: DeviceAddress,
    pub tile_count: DeviceAddress,
    pub token_of: DeviceAddress,
    pub weight_of: DeviceAddress,
    pub x: Prepared,
    pub inner: Prepared,
    pub inner_exact: DeviceAddress,
    pub products: DeviceAddress,
    pub hidden: i32,
    pub width: i32,
    pub limit: f32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Combine {
    pub products: DeviceAddress,
    pub slot_of: DeviceAddress,
    pub y: DeviceAddress,
    pub y_shared: DeviceAddress,
    pub tokens: i32,
    pub per_token: i32,
    pub hidden: i32,
    pub unused: i32,
}
