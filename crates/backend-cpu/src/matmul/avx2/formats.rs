//! From stored bytes to vectors of float32: 32 weights become four vectors, in the order of `order.rs`.
#![allow(unsafe_code)]

use crate::matmul::order::STEP;
use overshot_model::Format;
use std::arch::x86_64::*;

/// One stored format. All weights come out exact: scales are powers of two.
pub trait Stored: Copy {
    /// Stored bytes of 32 weights.
    const STEP_BYTES: usize;
    /// Whether `raw_weights` differ from the true ones by a factor that 128 x 128 weights share. Kernels for few
    /// inputs scale those instead of the weights: both products are the same number, so the bits are too.
    const BLOCK_SCALED: bool;

    /// # Safety
    /// `row` and `scales` are a row of this format and its scale bytes, `col` is a multiple of 32 that leaves 32
    /// columns; AVX2 is present.
    unsafe fn weights(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4];

    /// The weights without their block's factor.
    ///
    /// # Safety
    /// As for `weights`.
    #[inline(always)]
    unsafe fn raw_weights(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the caller's condition.
        unsafe { Self::weights(row, scales, col) }
    }
}

/// A format whose weights get their factor before they meet an input, always.
#[derive(Clone, Copy)]
pub struct Complete<S>(std::marker::PhantomData<S>);

impl<S: Stored> Stored for Complete<S> {
    const STEP_BYTES: usize = S::STEP_BYTES;
    const BLOCK_SCALED: bool = false;

    #[inline(always)]
    unsafe fn weights(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the caller's condition.
        unsafe { S::weights(row, scales, col) }
    }
}

#[derive(Clone, Copy)]
pub struct F32;
#[derive(Clone, Copy)]
pub struct Bf16;
#[derive(Clone, Copy)]
pub struct Fp8;
#[derive(Clone, Copy)]
pub struct Fp4;

impl Stored for F32 {
    const STEP_BYTES: usize = 128;
    const BLOCK_SCALED: bool = false;

    #[inline(always)]
    unsafe fn weights(row: *const u8, _: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the row has 32 columns at `col`; the loads need no alignment.
        unsafe {
            let at = row.add(col / STEP * Self::STEP_BYTES);
            [
                _mm256_loadu_ps(at.cast()),
                _mm256_loadu_ps(at.add(32).cast()),
                _mm256_loadu_ps(at.add(64).cast()),
                _mm256_loadu_ps(at.add(96).cast()),
            ]
        }
    }
}

impl Stored for Bf16 {
    const STEP_BYTES: usize = 64;
    const BLOCK_SCALED: bool = false;

    #[inline(always)]
    unsafe fn weights(row: *const u8, _: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the row has 32 columns at `col`.
        unsafe {
            let at = row.add(col / STEP * Self::STEP_BYTES);
            widen([_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())])
        }
    }
}

/// Four vectors from two vectors of BF16 pairs: the low half of every word, then the high half.
#[inline(always)]
unsafe fn widen(words: [__m256i; 2]) -> [__m256; 4] {
    // SAFETY: register arithmetic only; AVX2 is the caller's condition.
    unsafe {
        let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32(words[0], 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words[0], high)),
            _mm256_castsi256_ps(_mm256_slli_epi32(words[1], 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words[1], high)),
        ]
    }
}

impl Stored for Fp8 {
    const STEP_BYTES: usize = 32;
    const BLOCK_SCALED: bool = true;

    #[inline(always)]
    unsafe fn weights(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the caller's condition; the row has a scale byte for every 128 columns begun.
        unsafe {
            let scale = _mm256_set1_ps(f32::from_bits(ue8m0_bits(*scales.add(col / Format::FP8_BLOCK))));
            let place = _mm256_set1_ps(f32::from_bits((127 + FP8_PLACE) << 23));
            // Two factors, because their product may exceed the range although no weight does.
            Self::raw_weights(row, scales, col).map(|w| _mm256_mul_ps(_mm256_mul_ps(w, place), scale))
        }
    }

    #[inline(always)]
    unsafe fn raw_weights(row: *const u8, _: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the row has 32 columns at `col`.
        unsafe {
            let bytes = _mm256_loadu_si256(row.add(col).cast());
            // seee emmm in the high byte of a word, shifted right by 4 and without the copies of the sign, is a BF16
            // number: value * 2^-120. The 14 subnormal codes become float32 subnormals, which multiply exactly but
            // slowly; trained weights have one in some thousands.
            let keep = _mm256_set1_epi16(0x87f0_u16 as i16);
            let even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 4), keep);
            let odd = _mm256_and_si256(_mm256_srai_epi16(bytes, 4), keep);
            widen([even, odd])
        }
    }
}

/// Powers of two that E4M3 bits in BF16's places lack.
const FP8_PLACE: u32 = 120;

/// What completes raw FP8 weights: the block's scale and 2^120. Infinite when that is out of range.
#[inline(always)]
pub fn fp8_factor(scale: u8) -> f32 {
    f32::from_bits((u32::from(scale) + FP8_PLACE).min(255) << 23)
}

/// 2^(scale - 127) as float32, for scales from 1 on; 2^-127 is a subnormal.
#[inline(always)]
fn ue8m0_bits(scale: u8) -> u32 {
    (u32::from(scale) << 23).max(1 << 22)
}

impl Stored for Fp4 {
    const STEP_BYTES: usize = 16;
    const BLOCK_SCALED: bool = false;

    #[inline(always)]
    unsafe fn weights(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4] {
        // SAFETY: the row has 32 columns at `col` and a scale byte for them.
        unsafe {
            let table = &FP4_TABLES[usize::from(*scales.add(col / Format::FP4_BLOCK))];
            let low = _mm256_broadcastsi128_si256(_mm_load_si128(table.low.as_ptr().cast()));
            let high = _mm256_broadcastsi128_si256(_mm_load_si128(table.high.as_ptr().cast()));
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(row.add(col / 2).cast()));
            let shifted = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
            let codes = _mm256_and_si256(shifted, _mm256_set1_epi8(15));
            let (low, high) = (_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes));
            widen([_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)])
        }
    }
}

/// The 16 E2M1 numbers under one scale, as the low and the high bytes of BF16.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Fp4Table {
    low: [u8; 16],
    high: [u8; 16],
}

/// By scale byte: looking scaled numbers up costs no more than looking them up, and saves the multiplication. A
/// checkpoint uses a dozen of these 32-byte tables.
static FP4_TABLES: [Fp4Table; 256] = {
    let mut tables = [Fp4Table { low: [0; 16], high: [0; 16] }; 256];
    let mut scale = 0;
    while scale < 256 {
        let mut code = 0;
        while code < 16 {
            let bits = scaled_e2m1(code, scale as i32);
            tables[scale].low[code] = bits as u8;
            tables[scale].high[code] = (bits >> 8) as u8;
            code += 1;
        }
        scale += 1;
    }
    tables
};

/// BF16 bits of an E2M1 number times 2^(scale - 127): exact, subnormals included; infinity above the range.
const fn scaled_e2m1(code: usize, scale: i32) -> u16 {
    // 0, .5, 1, 1.5, 2, 3, 4, 6 as (exponent, has the half bit).
    const PARTS: [(i32, u16); 8] = [(0, 0), (-1, 0), (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)];
    let sign = (code as u16 >> 3) << 15;
    if code & 7 == 0 {
        return sign;
    }
    let (exponent, half) = PARTS[code & 7];
    let exponent = exponent + scale;
    sign | if exponent >= 255 {
        0x7f80
    } else if exponent > 0 {
        (exponent as u16) << 7 | half << 6
    } else {
        (0x80 | half << 6) >> (1 - exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_model::quant::{E2M1_VALUES, bf16_decode, ue8m0_decode};

    #[test]
    fn scaled_e2m1_numbers_are_exact_for_every_scale_the_loader_takes() {
        for scale in 0..=overshot_model::FP4_SCALE_BYTE_MAX {
            for code in 0..16 {
                let expected = E2M1_VALUES[code] * ue8m0_decode(scale);
                let actual = bf16_decode(scaled_e2m1(code, i32::from(scale)));
                assert_eq!(actual.to_bits(), expected.to_bits(), "code {code}, scale {scale}");
            }
        }
    }
}
