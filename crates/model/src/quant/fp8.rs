//! E4M3 (bias 7, largest 448, no infinity, 0x7f and 0xff NaN) and the publisher's activation rounding.

use super::scale::{amax, e4m3_scale, ue8m0_decode, ue8m0_reciprocal};

pub const E4M3_MAX: f32 = 448.0;

/// Inputs of a quantised matrix that share a scale.
pub const ACTIVATION_BLOCK: usize = 128;

/// The value of every E4M3 byte.
pub static E4M3_VALUES: [f32; 256] = values();

const fn values() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code as u32 >> 3) & 15, code as u32 & 7);
        let magnitude = if code & 0x7f == 0x7f {
            f32::NAN
        } else if exponent == 0 {
            mantissa as f32 / 512.0
        } else {
            f32::from_bits(((exponent + 127 - 7) << 23) | (mantissa << 20))
        };
        table[code] = if code >= 128 { -magnitude } else { magnitude };
        code += 1;
    }
    table
}

/// The nearest E4M3 number, ties to even; beyond 448 the largest. NaN stays NaN, the sign of zero is kept.
#[inline]
pub fn e4m3_encode(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    let magnitude = value.abs();
    let code = if magnitude >= E4M3_MAX {
        0x7e
    } else if magnitude >= 1.0 / 64.0 {
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7ffff + ((bits >> 20) & 1);
        ((rounded >> 20) - ((127 - 7) << 3)) as u8
    } else if magnitude.is_nan() {
        0x7f
    } else {
        // Subnormals count in steps of 2^-9; eight of them are the first normal code.
        (magnitude * 512.0).round_ties_even() as u8
    };
    sign | code
}

/// Encodes `values` with one scale from `codes` and returns its byte; as long as the shorter slice.
#[inline]
pub(super) fn encode_block(values: &[f32], codes: &mut [u8]) -> u8 {
    let scale = e4m3_scale(amax(values));
    let reciprocal = ue8m0_reciprocal(scale);
    for (code, value) in codes.iter_mut().zip(values) {
        *code = e4m3_encode(value * reciprocal);
    }
    scale
}

#[inline]
pub(super) fn round_block(values: &mut [f32]) {
    let scale = e4m3_scale(amax(values));
    let (reciprocal, scale) = (ue8m0_reciprocal(scale), ue8m0_decode(scale));
    for value in values {
        *value = E4M3_VALUES[usize::from(e4m3_encode(*value * reciprocal))] * scale;
    }
}

/// The publisher's dynamic activation rounding: blocks of 128 (the last may be shorter), each with its scale.
/// `codes` is as long as `values`, `scales` has one byte per block; what goes beyond is left alone.
pub fn encode_activations(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let blocks = values.chunks(ACTIVATION_BLOCK).zip(codes.chunks_mut(ACTIVATION_BLOCK));
    for ((values, codes), scale) in blocks.zip(scales) {
        *scale = encode_block(values, codes);
    }
}

/// [`encode_activations`] followed by decoding, in place.
pub fn round_activations(values: &mut [f32]) {
    values.chunks_mut(ACTIVATION_BLOCK).for_each(round_block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            let value = E4M3_VALUES[usize::from(code)];
            if value.is_nan() {
                assert_eq!(code & 0x7f, 0x7f);
                assert_eq!(e4m3_encode(value) & 0x7f, 0x7f);
            } else {
                assert_eq!(e4m3_encode(value), code);
            }
        }
        assert_eq!(E4M3_VALUES[0x7e], E4M3_MAX);
        assert_eq!(E4M3_VALUES[0x08], 1.0 / 64.0);
        assert_eq!((e4m3_encode(1e9), e4m3_encode(f32::NEG_INFINITY)), (0x7e, 0xfe));
    }

    #[test]
    fn midpoints_go_to_the_even_code() {
        for code in 0..0x7eu8 {
            let (below, above) = (E4M3_VALUES[usize::from(code)], E4M3_VALUES[usize::from(code + 1)]);
            let middle = (below + above) / 2.0;
            assert_eq!(e4m3_encode(middle), code + (code & 1), "between {below} and {above}");
            assert_eq!(e4m3_encode(-middle), (code + (code & 1)) | 0x80);
            assert_eq!((e4m3_encode(middle.next_down()), e4m3_encode(middle.next_up())), (code, code + 1));
        }
    }

    #[test]
    fn rounding_in_place_is_encoding_and_decoding() {
        let mut values: Vec<f32> = (0..300).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let (mut codes, mut scales) = ([0; 300], [0; 3]);
        encode_activations(&values, &mut codes, &mut scales);
        round_activations(&mut values);
        for (index, value) in values.iter().enumerate() {
            let decoded = E4M3_VALUES[usize::from(codes[index])] * ue8m0_decode(scales[index / 128]);
            assert_eq!(*value, decoded);
        }
    }
}
