//! What the kernels do not take, each with its reason. Launches ask here first.

use super::args::{Matrix, Prepared};
use super::launch::{MatmulError, Product};
use super::prepared::Forms;
use crate::gpu::DeviceAddress;
use overshot_model::Format;

/// Numbers and tokens are counted in 32 bits on the device.
const COUNT_MAX: i32 = 1 << 20;

/// Of tokens in a call; for experts, each counts once for each of its choices and once more.
pub const TOKENS_MAX: usize = 65_536;

pub(super) fn refuse<T>(field: &'static str, given: i64, limit: &'static str) -> Result<T, MatmulError> {
    Err(MatmulError::Argument { field, given, limit })
}

/// Whether the tile kernels take this matrix; those that they do not take are right, but stored otherwise.
pub(super) fn matrix(matrix: &Matrix) -> Result<Format, MatmulError> {
    let Some(format) = matrix.format() else {
        return refuse("format", matrix.format.into(), "0 to 3: F32, BF16, FP8, FP4");
    };
    if !(1..=COUNT_MAX).contains(&matrix.rows) || !(1..=COUNT_MAX).contains(&matrix.cols) {
        return refuse("rows", matrix.rows.into(), "1 to 1,048,576, as columns");
    }
    let row_bytes = format.row_bytes(matrix.cols as usize) as i64;
    if row_bytes % 16 != 0 || !matrix.data.0.is_multiple_of(16) {
        return refuse("bytes of a row", row_bytes, "a multiple of 16, as the matrix's address");
    }
    if matrix.cols % 8 != 0 {
        return refuse("cols", matrix.cols.into(), "a multiple of 8");
    }
    let (rows_step, cols_step) = match format {
        Format::F32 | Format::Bf16 => (1, 1),
        Format::Fp8 => (16, Format::FP8_BLOCK as i32),
        Format::Fp4 => (1, Format::FP4_BLOCK as i32),
    };
    if matrix.first_row < 0 || matrix.first_row % rows_step != 0 {
        return refuse("first_row", matrix.first_row.into(), "a multiple of 16 where scales are of blocks");
    }
    if matrix.first_col < 0 || matrix.first_col % cols_step != 0 {
        return refuse("first_col", matrix.first_col.into(), "where a block of scales begins");
    }
    Ok(format)
}

pub(super) fn product(product: &Product) -> Result<(), MatmulError> {
    let Product { matrix, input, first_col, .. } = product;
    self::matrix(matrix)?;
    if !first_col.is_multiple_of(128) || *first_col as i64 + i64::from(matrix.cols) > i64::from(input.cols) {
        return refuse(
            "first_col",
            *first_col as i64,
            "a multiple of 128, and the matrix's columns from there on",
        );
    }
    if product.out_stride < i64::from(matrix.rows) {
        return refuse("out_stride", product.out_stride, "at least the rows of the matrix");
    }
    prepared(input, matrix.takes_codes())
}

/// Whether the input has the form that a matrix takes.
pub(super) fn prepared(input: &Prepared, codes: bool) -> Result<(), MatmulError> {
    if input.cols <= 0 || input.cols % 8 != 0 || input.cols > COUNT_MAX {
        return refuse("cols", input.cols.into(), "a multiple of 8 up to 1,048,576");
    }
    if codes && !(1..=2).contains(&input.terms) {
        return refuse("terms", input.terms.into(), "1 or 2");
    }
    aligned("input", if codes { input.codes } else { input.floats })
}

pub(super) fn forms(input: &Prepared, wanted: Forms) -> Result<(), MatmulError> {
    if wanted.codes {
        prepared(input, true)?;
    }
    if wanted.floats {
        prepared(input, false)?;
    }
    Ok(())
}

pub(super) fn aligned(field: &'static str, address: DeviceAddress) -> Result<(), MatmulError> {
    if address == DeviceAddress::NULL || !address.0.is_multiple_of(16) {
        return refuse(field, address.0 as i64, "an address that is a multiple of 16");
    }
    Ok(())
}

pub(super) fn tokens(tokens: usize) -> Result<i32, MatmulError> {
    match i32::try_from(tokens) {
        Ok(count @ 1..) if tokens <= TOKENS_MAX => Ok(count),
        _ => refuse("tokens", tokens as i64, "1 to 65,536"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(format: Format, rows: usize, cols: usize) -> Matrix {
        Matrix::whole(format, rows, cols, DeviceAddress(256), DeviceAddress(512))
    }

    #[test]
    fn matrices_whose_rows_or_scales_lie_across_are_refused_by_name() {
        assert!(matrix(&whole(Format::Fp4, 3, 32)).is_ok());
        let field = |matrix: Matrix| super::matrix(&matrix).unwrap_err().to_string();
        assert!(field(whole(Format::Fp8, 8, 40)).starts_with("bytes of a row is 40"));
        let fp8 = whole(Format::Fp8, 64, 256);
        assert!(field(Matrix { first_row: 8, ..fp8 }).starts_with("first_row is 8"));
        assert!(field(Matrix { first_col: 64, ..fp8 }).starts_with("first_col is 64"));
        assert!(field(Matrix { format: 4, ..fp8 }).starts_with("format is 4"));
        assert!(field(Matrix { rows: 0, ..fp8 }).starts_with("rows is 0"));
    }

    #[test]
    fn strides_and_addresses_are_looked_at() {
        let input = Prepared {
            codes: DeviceAddress(1024),
            scales: DeviceAddress(4096),
            term_stride: 256,
            cols: 256,
            terms: 2,
            ..Prepared::default()
        };
        let good = Product {
            matrix: whole(Format::Fp8, 64, 256),
            input,
            first_col: 0,
            out: DeviceAddress(2048),
            out_stride: 64,
        };
        assert!(product(&good).is_ok());
        assert!(product(&Product { first_col: 128, ..good }).is_err());
        assert!(product(&Product { input: Prepared { terms: 3, ..input }, ..good }).is_err());
        assert!(product(&Product { input: Prepared { cols: 260, ..input }, ..good }).is_err());
        assert!(product(&Product { out_stride: 63, ..good }).is_err());
        assert!(
            product(&Product { input: Prepared { codes: DeviceAddress(1032), ..input }, ..good }).is_err()
        );
        assert!(product(&Product { matrix: whole(Format::Bf16, 64, 256), ..good }).is_err());
        assert!(tokens(0).is_err() && tokens(65_537).is_err() && tokens(1).is_ok());
    }
}
