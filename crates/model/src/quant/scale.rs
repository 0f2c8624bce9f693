//! Power-of-two scales as exponent bytes, and BF16.

use super::fp8::E4M3_MAX;

/// Smallest block maximum that FP8 scales are made for.
const E4M3_AMAX_FLOOR: f32 = 1e-4;
const E2M1_MAX: f32 = 6.0;

/// `2^(byte - 127)`; 255 is NaN.
#[inline]
pub const fn ue8m0_decode(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        byte => f32::from_bits((byte as u32) << 23),
    }
}

/// `2^(127 - byte)`, exactly; NaN for 255.
#[inline]
pub const fn ue8m0_reciprocal(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        byte => ue8m0_decode(254 - byte),
    }
}

/// The byte of the smallest power of two that is at least `value`, for `value` in the normal range. Works on the
/// exponent bits: a logarithm is off by one at some powers of two.
#[inline]
fn ue8m0_at_least(value: f32) -> u8 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) + u32::from(bits & 0x007f_ffff != 0);
    exponent.min(254) as u8
}

/// Scale byte of an E4M3 block whose largest magnitude is `amax`: `2^ceil(log2(max(amax, 1e-4) / 448))`.
#[inline]
pub fn e4m3_scale(amax: f32) -> u8 {
    ue8m0_at_least(amax.max(E4M3_AMAX_FLOOR) / E4M3_MAX)
}

/// Scale byte of an E2M1 block whose largest magnitude is `amax`: `2^ceil(log2(max(amax, 6 * 2^-126) / 6))`.
#[inline]
pub fn e2m1_scale(amax: f32) -> u8 {
    ue8m0_at_least(amax.max(E2M1_MAX * f32::MIN_POSITIVE) / E2M1_MAX)
}

/// Largest magnitude of a block; a NaN in it is passed over.
#[inline]
pub(super) fn amax(block: &[f32]) -> f32 {
    block.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()))
}

/// The upper half of the nearest `f32` that has no lower half.
#[inline]
pub fn bf16_encode(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Rounding could carry a NaN's payload over into infinity.
        return ((bits >> 16) | 0x0040) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[inline]
pub const fn bf16_decode(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_byte_decodes_to_its_power() {
        for byte in 0..=254u8 {
            assert_eq!(f64::from(ue8m0_decode(byte)), 2f64.powi(i32::from(byte) - 127));
            assert_eq!(f64::from(ue8m0_reciprocal(byte)), 2f64.powi(127 - i32::from(byte)));
        }
        assert!(ue8m0_decode(255).is_nan() && ue8m0_reciprocal(255).is_nan());
    }

    #[test]
    fn scales_step_exactly_at_powers_of_two() {
        for exponent in -12i32..100 {
            let (edge8, edge4) = (E4M3_MAX * 2f32.powi(exponent), E2M1_MAX * 2f32.powi(exponent));
            let byte = (127 + exponent) as u8;
            assert_eq!((e4m3_scale(edge8), e4m3_scale(edge8.next_up())), (byte, byte + 1));
            assert_eq!((e2m1_scale(edge4), e2m1_scale(edge4.next_up())), (byte, byte + 1));
            assert_eq!((e4m3_scale(edge8.next_down()), e2m1_scale(edge4.next_down())), (byte, byte));
        }
        assert_eq!((e4m3_scale(0.0), e2m1_scale(0.0)), (105, 1));
        assert_eq!((e4m3_scale(f32::INFINITY), e2m1_scale(f32::INFINITY)), (254, 254));
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for bits in 0..=u16::MAX {
            let value = bf16_decode(bits);
            if value.is_nan() {
                assert!(bf16_decode(bf16_encode(value)).is_nan());
                continue;
            }
            assert_eq!(bf16_encode(value), bits);
            if value.is_finite() {
                let half = f32::from_bits((u32::from(bits) << 16) | 0x8000);
                assert_eq!(bf16_encode(half), bits + (bits & 1), "tie above {value}");
                assert_eq!(bf16_encode(f32::from_bits(half.to_bits() - 1)), bits);
                assert_eq!(bf16_encode(f32::from_bits(half.to_bits() + 1)), bits + 1);
            }
        }
    }
}
