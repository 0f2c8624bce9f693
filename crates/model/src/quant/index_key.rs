//! Indexer keys and queries: the Hadamard transform that spreads outliers, and the two rounded forms after it.

use super::fp4::{E2M1_PAIRS, E2M1_VALUES, e2m1_encode};
use super::fp8::{E4M3_VALUES, encode_block, round_block};
use super::scale::{amax, e2m1_scale, ue8m0_decode, ue8m0_reciprocal};
use crate::INDEX_DIM;

/// Packed nibbles of an FP4 key.
pub const INDEX_KEY_FP4_BYTES: usize = INDEX_DIM / 2;
/// Scale bytes of an FP4 key.
pub const INDEX_KEY_FP4_SCALES: usize = INDEX_DIM / FP4_BLOCK;

const FP4_BLOCK: usize = 32;

/// The orthonormal 128-point Walsh-Hadamard transform in Sylvester order, in place. It is its own inverse.
pub fn hadamard(key: &mut [f32; INDEX_DIM]) {
    let mut half = 1;
    while half < INDEX_DIM {
        for pair in key.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let norm = (INDEX_DIM as f32).sqrt().recip();
    key.iter_mut().for_each(|value| *value *= norm);
}

/// FP8 form of a transformed key; the returned scale is a power of two.
pub fn encode_index_key_fp8(key: &[f32; INDEX_DIM], codes: &mut [u8; INDEX_DIM]) -> f32 {
    ue8m0_decode(encode_block(key, codes))
}

pub fn decode_index_key_fp8(codes: &[u8; INDEX_DIM], scale: f32, key: &mut [f32; INDEX_DIM]) {
    for (value, code) in key.iter_mut().zip(codes) {
        *value = E4M3_VALUES[usize::from(*code)] * scale;
    }
}

/// Encoding and decoding in place.
pub fn round_index_key_fp8(key: &mut [f32; INDEX_DIM]) {
    round_block(key);
}

/// FP4 form of a transformed key: low nibble first, a scale byte per 32 dims.
pub fn encode_index_key_fp4(
    key: &[f32; INDEX_DIM],
    packed: &mut [u8; INDEX_KEY_FP4_BYTES],
    scales: &mut [u8; INDEX_KEY_FP4_SCALES],
) {
    let blocks = key.chunks_exact(FP4_BLOCK).zip(packed.chunks_exact_mut(FP4_BLOCK / 2));
    for ((values, bytes), scale) in blocks.zip(scales) {
        *scale = e2m1_scale(amax(values));
        let reciprocal = ue8m0_reciprocal(*scale);
        for (pair, byte) in values.chunks_exact(2).zip(bytes) {
            *byte = e2m1_encode(pair[0] * reciprocal) | e2m1_encode(pair[1] * reciprocal) << 4;
        }
    }
}

pub fn decode_index_key_fp4(
    packed: &[u8; INDEX_KEY_FP4_BYTES],
    scales: &[u8; INDEX_KEY_FP4_SCALES],
    key: &mut [f32; INDEX_DIM],
) {
    let blocks = key.chunks_exact_mut(FP4_BLOCK).zip(packed.chunks_exact(FP4_BLOCK / 2));
    for ((values, bytes), scale) in blocks.zip(scales) {
        let scale = ue8m0_decode(*scale);
        for (pair, byte) in values.chunks_exact_mut(2).zip(bytes) {
            let [low, high] = E2M1_PAIRS[usize::from(*byte)];
            pair.copy_from_slice(&[low * scale, high * scale]);
        }
    }
}

/// Encoding and decoding in place.
pub fn round_index_key_fp4(key: &mut [f32; INDEX_DIM]) {
    for values in key.chunks_exact_mut(FP4_BLOCK) {
        let scale = e2m1_scale(amax(values));
        let (reciprocal, scale) = (ue8m0_reciprocal(scale), ue8m0_decode(scale));
        for value in values {
            *value = E2M1_VALUES[usize::from(e2m1_encode(*value * reciprocal))] * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_its_own_inverse_and_keeps_lengths() {
        let key: [f32; INDEX_DIM] = std::array::from_fn(|i| (i as f32 * 0.7).sin());
        let mut there = key;
        hadamard(&mut there);
        let length = |key: &[f32; INDEX_DIM]| key.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((length(&there) - length(&key)).abs() < 1e-5);
        hadamard(&mut there);
        for (a, b) in key.iter().zip(there) {
            assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn rounding_in_place_is_encoding_and_decoding() {
        let key: [f32; INDEX_DIM] = std::array::from_fn(|i| ((i * 31 % 127) as f32 - 63.0) * 0.11);
        let (mut packed, mut scales, mut decoded) = ([0; 64], [0; 4], [0.0; INDEX_DIM]);
        encode_index_key_fp4(&key, &mut packed, &mut scales);
        decode_index_key_fp4(&packed, &scales, &mut decoded);
        let mut rounded = key;
        round_index_key_fp4(&mut rounded);
        assert_eq!(rounded, decoded);

        let mut codes = [0; INDEX_DIM];
        let scale = encode_index_key_fp8(&key, &mut codes);
        decode_index_key_fp8(&codes, scale, &mut decoded);
        rounded = key;
        round_index_key_fp8(&mut rounded);
        assert_eq!(rounded, decoded);
    }
}
