//! A weight matrix in its stored format, read in place.

use crate::Bytes;
use std::ops::Range;

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    F32,
    Bf16,
    /// E4M3 bytes, one UE8M0 scale per block of 128 rows x 128 columns. The two NaN codes (0x7f and 0xff) are not
    /// looked for when a checkpoint is opened, because that would read all of it: see [`Matrix::first_nan_code`].
    /// `Matrix::decode_row` gives NaN for them, while kernels may read them as the 480 that their bits spell.
    Fp8,
    /// E2M1 nibbles (low nibble = even column), one UE8M0 scale per row and 32 columns.
    Fp4,
}

impl Format {
    pub const FP8_BLOCK: usize = 128;
    pub const FP4_BLOCK: usize = 32;

    /// Whether numbers are codes with scales; such matrices read rounded activations where a run rounds them.
    pub fn is_quantised(self) -> bool {
        matches!(self, Format::Fp8 | Format::Fp4)
    }

    /// For reports and messages, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::Fp8 => "fp8",
            Format::Fp4 => "fp4",
        }
    }

    /// Bytes of one row of `cols` numbers, scales not counted.
    #[inline]
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Format::F32 => cols * 4,
            Format::Bf16 => cols * 2,
            Format::Fp8 => cols,
            Format::Fp4 => cols / 2,
        }
    }

    /// Scale bytes that belong to one row.
    #[inline]
    pub fn scale_row_bytes(self, cols: usize) -> usize {
        match self {
            Format::F32 | Format::Bf16 => 0,
            Format::Fp8 => cols.div_ceil(Self::FP8_BLOCK),
            Format::Fp4 => cols / Self::FP4_BLOCK,
        }
    }
}

/// `[rows, cols]`, row major: `y = W x` takes `cols` inputs to `rows` outputs. Cheap to clone and to slice.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    /// `rows * format.row_bytes(cols)` bytes.
    data: Bytes,
    /// The scale tensor of the *whole* stored matrix; empty for F32 and BF16.
    scales: Bytes,
    /// Where this view begins in the stored matrix: FP8 scale blocks count from there.
    first_row: usize,
}

impl Matrix {
    /// Panics when the byte counts do not fit: the loader checks shapes and reports by name before this.
    pub fn new(format: Format, rows: usize, cols: usize, data: Bytes, scales: Bytes) -> Self {
        assert_eq!(
            data.len(),
            rows * format.row_bytes(cols),
            "data bytes of a {rows} x {cols} {format:?} matrix"
        );
        let scale_rows = if format == Format::Fp8 { rows.div_ceil(Format::FP8_BLOCK) } else { rows };
        assert_eq!(scales.len(), scale_rows * format.scale_row_bytes(cols), "scale bytes");
        Matrix { format, rows, cols, data, scales, first_row: 0 }
    }

    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.cols)
    }

    /// All rows, one after the other.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Asks the system to read this part of [`Matrix::data`] from its file soon. See [`Bytes::will_need`].
    pub fn will_need(&self, data: Range<usize>) {
        self.data.slice(data).will_need();
    }

    #[inline]
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..(row + 1) * bytes]
    }

    /// The scale bytes of one row: one per 128 columns (FP8) or per 32 (FP4); empty otherwise.
    #[inline]
    pub fn scale_row(&self, row: usize) -> &[u8] {
        &self.scales[self.scale_row_range(row)]
    }

    /// Where in [`Matrix::scales`] the bytes of [`Matrix::scale_row`] stand.
    #[inline]
    pub fn scale_row_range(&self, row: usize) -> Range<usize> {
        let bytes = self.format.scale_row_bytes(self.cols);
        let stored = match self.format {
            Format::Fp8 => (self.first_row + row) / Format::FP8_BLOCK,
            _ => self.first_row + row,
        };
        stored * bytes..(stored + 1) * bytes
    }

    /// The scale bytes of the whole stored matrix, of which this may be a view.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// Rows from `row` on, itself included, that stand in the same FP8 scale block.
    pub fn rows_to_next_scale(&self, row: usize) -> usize {
        Format::FP8_BLOCK - (self.first_row + row) % Format::FP8_BLOCK
    }

    /// A view of some rows.
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let bytes = self.row_bytes();
        Matrix {
            rows: rows.len(),
            data: self.data.slice(rows.start * bytes..rows.end * bytes),
            scales: self.scales.clone(),
            first_row: self.first_row + rows.start,
            ..*self
        }
    }

    /// Row and column of the first FP8 code that is not a number. Always `None` for other formats: FP4 has no such
    /// code, and floats are not looked at. Reads the whole matrix.
    pub fn first_nan_code(&self) -> Option<(usize, usize)> {
        if self.format != Format::Fp8 {
            return None;
        }
        let index = self.data.iter().position(|code| code & 0x7f == 0x7f)?;
        Some((index / self.cols, index % self.cols))
    }

    /// Bytes of this view as stored: its data, and each scale that it has a part in once.
    pub fn stored_bytes(&self) -> u64 {
        let scale_rows = match self.format {
            Format::Fp8 if self.rows > 0 => {
                (self.first_row + self.rows - 1) / Format::FP8_BLOCK - self.first_row / Format::FP8_BLOCK + 1
            }
            _ => self.rows,
        };
        (self.data.len() + scale_rows * self.format.scale_row_bytes(self.cols)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_codes_are_found_in_fp8_only() {
        let codes: Vec<u8> = (0..3 * 127).map(|index| (index % 127 + index % 2 * 128) as u8).collect();
        let fp8 = |data: Vec<u8>| {
            Matrix::new(Format::Fp8, 3, 127, Bytes::from_vec(data), Bytes::from_vec(vec![127]))
        };
        assert_eq!(fp8(codes.clone()).first_nan_code(), None);
        for code in [0x7f, 0xff] {
            let mut bad = codes.clone();
            bad[127 + 5] = code;
            bad[127 * 2] = code;
            assert_eq!(fp8(bad.clone()).first_nan_code(), Some((1, 5)));
            assert_eq!(fp8(bad).slice_rows(2..3).first_nan_code(), Some((0, 0)));
        }
        let packed =
            Matrix::new(Format::Fp4, 1, 32, Bytes::from_vec(vec![0xff; 16]), Bytes::from_vec(vec![127]));
        assert_eq!(packed.first_nan_code(), None);
    }
}
