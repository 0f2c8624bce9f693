//! The packed cache entry of 584 bytes: 448 E4M3 in blocks of 64, then 64 rotary dims in BF16, and apart from them
//! seven scale bytes. Inside a page all scales follow all data, the layout that FlashMLA reads.

use super::fp8::{E4M3_VALUES, encode_block, round_block};
use super::scale::{bf16_decode, bf16_encode, ue8m0_decode};
use crate::{HEAD_DIM, NOPE_DIMS, ROPE_DIMS};

/// E4M3 and BF16 bytes of an entry.
pub const ENTRY_DATA_BYTES: usize = NOPE_DIMS + 2 * ROPE_DIMS;
/// Seven scales and a pad byte that is 0.
pub const ENTRY_SCALE_BYTES: usize = 8;
/// What one entry occupies.
pub const ENTRY_BYTES: usize = ENTRY_DATA_BYTES + ENTRY_SCALE_BYTES;

/// Dims that share a scale.
const BLOCK: usize = 64;

/// Packs a latent: the first 448 dims rounded to E4M3, the last 64 to BF16.
pub fn encode_entry(
    latent: &[f32; HEAD_DIM],
    data: &mut [u8; ENTRY_DATA_BYTES],
    scales: &mut [u8; ENTRY_SCALE_BYTES],
) {
    let (plain, rotary) = latent.split_at(NOPE_DIMS);
    let (codes, halves) = data.split_at_mut(NOPE_DIMS);
    let blocks = plain.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK));
    scales[ENTRY_SCALE_BYTES - 1] = 0;
    for ((values, codes), scale) in blocks.zip(scales) {
        *scale = encode_block(values, codes);
    }
    for (value, half) in rotary.iter().zip(halves.chunks_exact_mut(2)) {
        half.copy_from_slice(&bf16_encode(*value).to_le_bytes());
    }
}

pub fn decode_entry(
    data: &[u8; ENTRY_DATA_BYTES],
    scales: &[u8; ENTRY_SCALE_BYTES],
    latent: &mut [f32; HEAD_DIM],
) {
    let (plain, rotary) = latent.split_at_mut(NOPE_DIMS);
    let (codes, halves) = data.split_at(NOPE_DIMS);
    let blocks = plain.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK));
    for ((values, codes), scale) in blocks.zip(scales) {
        let scale = ue8m0_decode(*scale);
        for (value, code) in values.iter_mut().zip(codes) {
            *value = E4M3_VALUES[usize::from(*code)] * scale;
        }
    }
    for (value, half) in rotary.iter_mut().zip(halves.chunks_exact(2)) {
        *value = bf16_decode(u16::from_le_bytes([half[0], half[1]]));
    }
}

/// [`encode_entry`] followed by [`decode_entry`], in place.
pub fn round_entry(latent: &mut [f32; HEAD_DIM]) {
    let (plain, rotary) = latent.split_at_mut(NOPE_DIMS);
    plain.chunks_exact_mut(BLOCK).for_each(round_block);
    for value in rotary {
        *value = bf16_decode(bf16_encode(*value));
    }
}

/// Addresses inside a page of packed entries: first all data, then all scales, then a pad up to a multiple of one
/// entry's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPage {
    pub entries: usize,
}

impl PackedPage {
    pub const fn bytes(self) -> usize {
        (self.entries * ENTRY_BYTES).next_multiple_of(ENTRY_DATA_BYTES)
    }

    /// Where the `ENTRY_DATA_BYTES` of a slot begin.
    pub const fn entry_offset(self, slot: usize) -> usize {
        slot * ENTRY_DATA_BYTES
    }

    /// Where the `ENTRY_SCALE_BYTES` of a slot begin.
    pub const fn scale_offset(self, slot: usize) -> usize {
        self.entries * ENTRY_DATA_BYTES + slot * ENTRY_SCALE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_its_entries_and_rounds_up() {
        for (entries, bytes) in [(64, 37_440), (2, 1_728), (256, 149_760), (1, 1_152)] {
            let page = PackedPage { entries };
            assert_eq!(page.bytes(), bytes);
            assert!(page.scale_offset(entries) <= bytes);
            assert_eq!(page.entry_offset(entries), page.scale_offset(0));
        }
    }

    #[test]
    fn rounding_in_place_is_encoding_and_decoding() {
        let mut latent: [f32; HEAD_DIM] = std::array::from_fn(|i| ((i * 193 % 509) as f32 - 254.0) * 0.013);
        let (mut data, mut scales, mut decoded) =
            ([0; ENTRY_DATA_BYTES], [9; ENTRY_SCALE_BYTES], [0.0; HEAD_DIM]);
        encode_entry(&latent, &mut data, &mut scales);
        decode_entry(&data, &scales, &mut decoded);
        round_entry(&mut latent);
        assert_eq!(latent, decoded);
        assert_eq!(scales[7], 0);
        // What is rounded already stays as it is.
        round_entry(&mut latent);
        assert_eq!(latent, decoded);
    }
}
