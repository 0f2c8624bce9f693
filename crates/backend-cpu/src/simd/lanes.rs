//! Eight float32 lanes: as an AVX2 register, or as plain Rust.

/// Lanes of a vector.
pub const WIDTH: usize = 8;

/// Arithmetic on 8 lanes. `mul_add` is fused on AVX2 and two roundings in plain Rust; everything else agrees to
/// the bit. `min` and `max` give their argument when either is NaN: `limit.min(x)` keeps a NaN `x`, so that trouble
/// stays visible instead of becoming a plausible number.
pub trait Lanes: Copy {
    fn splat(value: f32) -> Self;
    /// `from[at .. at + 8]`
    fn load(from: &[f32], at: usize) -> Self;
    fn store(self, to: &mut [f32], at: usize);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * a + b`
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn round(self) -> Self;
    /// `2^self` for integral lanes in -126..=127.
    fn exp2_integral(self) -> Self;
    /// The bits of 8 E4M3 numbers moved into place: their value times 2^-120.
    fn e4m3_times_2_to_minus_120(from: &[u8], at: usize) -> Self;
    fn bf16(from: &[u8], at: usize) -> Self;

    /// `(0 + 4) + (2 + 6)` and `(1 + 5) + (3 + 7)`, then the two together.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; WIDTH];
        self.store(&mut lanes, 0);
        sum_of_lanes(lanes)
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; WIDTH];
        self.store(&mut lanes, 0);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// e^self within 2 units in the last place; 0 below about -87, and never above e^88.
    #[inline(always)]
    fn exp(self) -> Self {
        const LN_2_HIGH: f32 = 0.693_359_4;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        // Taylor's series of e^r is good to 1e-8 on |r| <= ln(2)/2 with these terms.
        const TERMS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
        let x = Self::splat(-87.3).max(Self::splat(88.0).min(self));
        let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(Self::splat(-LN_2_HIGH), x);
        let r = n.mul_add(Self::splat(-LN_2_LOW), r);
        let mut sum = Self::splat(1.0 / 5040.0);
        for term in TERMS {
            sum = sum.mul_add(r, Self::splat(term));
        }
        let exp = sum.mul_add(r, Self::splat(1.0)).mul(n.exp2_integral());
        exp.mask_below(self, -87.3)
    }

    /// These lanes, with 0 where `x` is below `limit`.
    fn mask_below(self, x: Self, limit: f32) -> Self;
}

/// The order of every horizontal sum.
#[inline(always)]
pub fn sum_of_lanes(lanes: [f32; WIDTH]) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The fallback. Compilers vectorise most of it for whatever the build target has.
#[derive(Clone, Copy)]
pub struct Scalar([f32; WIDTH]);

impl Scalar {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Scalar(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Scalar {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Scalar([value; WIDTH])
    }

    #[inline(always)]
    fn load(from: &[f32], at: usize) -> Self {
        let from = &from[at..at + WIDTH];
        Scalar(std::array::from_fn(|i| from[i]))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], at: usize) {
        to[at..at + WIDTH].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.mul(a).add(b)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn round(self) -> Self {
        Scalar(self.0.map(f32::round_ties_even))
    }

    #[inline(always)]
    fn exp2_integral(self) -> Self {
        Scalar(self.0.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32)))
    }

    #[inline(always)]
    fn e4m3_times_2_to_minus_120(from: &[u8], at: usize) -> Self {
        let from = &from[at..at + WIDTH];
        Scalar(std::array::from_fn(|i| {
            f32::from_bits(((i32::from(from[i] as i8) << 20) as u32) & 0x87f0_0000)
        }))
    }

    #[inline(always)]
    fn bf16(from: &[u8], at: usize) -> Self {
        let from = &from[at..at + 2 * WIDTH];
        Scalar(std::array::from_fn(|i| {
            f32::from_bits(u32::from(u16::from_le_bytes([from[2 * i], from[2 * i + 1]])) << 16)
        }))
    }

    #[inline(always)]
    fn mask_below(self, x: Self, limit: f32) -> Self {
        self.zip(x, |value, x| if x < limit { 0.0 } else { value })
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, horizontal_sum};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    // Every method is register arithmetic or an access checked just before it. The processor has the instructions
    // because only `Isa::run` names this type, behind `Isa::Avx2`.
    #![allow(unsafe_code)]

    use super::{Lanes, WIDTH};
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    /// The sum of 8 lanes, in the order of [`Lanes::sum`].
    ///
    /// # Safety
    /// AVX is present.
    #[inline(always)]
    pub unsafe fn horizontal_sum(v: __m256) -> f32 {
        // SAFETY: register arithmetic only.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
        }
    }

    macro_rules! binary {
        ($($name:ident = $intrinsic:ident),+) => {$(
            #[inline(always)]
            fn $name(self, other: Self) -> Self {
                // SAFETY: see the head of this module.
                Avx2(unsafe { $intrinsic(self.0, other.0) })
            }
        )+};
    }

    impl Lanes for Avx2 {
        binary!(add = _mm256_add_ps, sub = _mm256_sub_ps, mul = _mm256_mul_ps, div = _mm256_div_ps);
        binary!(min = _mm256_min_ps, max = _mm256_max_ps);

        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: see the head of this module.
            Avx2(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        fn load(from: &[f32], at: usize) -> Self {
            let from = &from[at..at + WIDTH];
            // SAFETY: 8 numbers are there.
            Avx2(unsafe { _mm256_loadu_ps(from.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, to: &mut [f32], at: usize) {
            let to = &mut to[at..at + WIDTH];
            // SAFETY: 8 numbers are there.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: see the head of this module.
            Avx2(unsafe { _mm256_fmadd_ps(self.0, a.0, b.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: see the head of this module.
            unsafe { horizontal_sum(self.0) }
        }

        #[inline(always)]
        fn round(self) -> Self {
            // SAFETY: see the head of this module.
            Avx2(unsafe { _mm256_round_ps(self.0, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) })
        }

        #[inline(always)]
        fn exp2_integral(self) -> Self {
            // SAFETY: see the head of this module.
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
                Avx2(_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)))
            }
        }

        #[inline(always)]
        fn e4m3_times_2_to_minus_120(from: &[u8], at: usize) -> Self {
            let from = &from[at..at + WIDTH];
            // SAFETY: 8 bytes are there.
            unsafe {
                let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
                let placed = _mm256_slli_epi32(wide, 20);
                Avx2(_mm256_castsi256_ps(_mm256_and_si256(placed, _mm256_set1_epi32(0x87f0_0000_u32 as i32))))
            }
        }

        #[inline(always)]
        fn bf16(from: &[u8], at: usize) -> Self {
            let from = &from[at..at + 2 * WIDTH];
            // SAFETY: 16 bytes are there.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
                Avx2(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)))
            }
        }

        #[inline(always)]
        fn mask_below(self, x: Self, limit: f32) -> Self {
            // SAFETY: see the head of this module.
            unsafe {
                let below = _mm256_cmp_ps(x.0, _mm256_set1_ps(limit), _CMP_LT_OQ);
                Avx2(_mm256_andnot_ps(below, self.0))
            }
        }
    }
}
