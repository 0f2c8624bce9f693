//! Reading a stored matrix as numbers, one row at a time: for embeddings, tests and reference code. Products read the
//! stored bytes themselves.

use super::fp4::E2M1_PAIRS;
use super::fp8::E4M3_VALUES;
use super::scale::{bf16_decode, ue8m0_decode};
use crate::{Format, Matrix};

impl Matrix {
    /// Writes the numbers of a row, scales applied, to `out`: `cols` of them, or as many as `out` has room for.
    ///
    /// # Panics
    /// When the matrix has no such row, as indexing does.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (data, scales) = (self.row(row), self.scale_row(row));
        match self.format {
            Format::F32 => {
                for (value, four) in out.iter_mut().zip(data.chunks_exact(4)) {
                    *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                }
            }
            Format::Bf16 => {
                for (value, half) in out.iter_mut().zip(data.chunks_exact(2)) {
                    *value = bf16_decode(u16::from_le_bytes([half[0], half[1]]));
                }
            }
            Format::Fp8 => {
                let blocks = out.chunks_mut(Format::FP8_BLOCK).zip(data.chunks(Format::FP8_BLOCK));
                for ((values, codes), scale) in blocks.zip(scales) {
                    let scale = ue8m0_decode(*scale);
                    for (value, code) in values.iter_mut().zip(codes) {
                        *value = E4M3_VALUES[usize::from(*code)] * scale;
                    }
                }
            }
            Format::Fp4 => {
                let blocks = out.chunks_mut(Format::FP4_BLOCK).zip(data.chunks(Format::FP4_BLOCK / 2));
                for ((values, bytes), scale) in blocks.zip(scales) {
                    let scale = ue8m0_decode(*scale);
                    for (pair, byte) in values.chunks_mut(2).zip(bytes) {
                        for (value, stored) in pair.iter_mut().zip(E2M1_PAIRS[usize::from(*byte)]) {
                            *value = stored * scale;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    #[test]
    fn fp8_blocks_count_from_the_stored_matrix() {
        // 130 rows of two blocks: 128 columns with scale 2^0 or 2^2, then one column with 2^1 or 2^3.
        let one = 0x38;
        let matrix = Matrix::new(
            Format::Fp8,
            130,
            129,
            Bytes::from_vec(vec![one; 130 * 129]),
            Bytes::from_vec(vec![127, 128, 129, 130]),
        );
        let mut row = [0.0; 129];
        matrix.decode_row(127, &mut row);
        assert_eq!((row[0], row[127], row[128]), (1.0, 1.0, 2.0));
        matrix.slice_rows(100..130).decode_row(28, &mut row);
        assert_eq!((row[0], row[127], row[128]), (4.0, 4.0, 8.0));
    }

    #[test]
    fn fp4_has_a_scale_per_row_and_32_columns() {
        let matrix = Matrix::new(
            Format::Fp4,
            2,
            64,
            Bytes::from_vec(vec![0xd2; 64]),
            Bytes::from_vec(vec![127, 128, 126, 120]),
        );
        let mut row = [0.0; 64];
        matrix.decode_row(0, &mut row);
        assert_eq!(row[..2], [1.0, -3.0]);
        assert_eq!(row[62..], [2.0, -6.0]);
        matrix.slice_rows(1..2).decode_row(0, &mut row);
        assert_eq!(row[..2], [0.5, -1.5]);
    }

    #[test]
    fn a_short_buffer_takes_the_first_columns() {
        let stored: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let matrix = Matrix::new(Format::F32, 1, 3, Bytes::from_vec(stored), Bytes::empty());
        let mut two = [0.0; 2];
        matrix.decode_row(0, &mut two);
        assert_eq!(two, [1.0, 2.0]);
    }
}
