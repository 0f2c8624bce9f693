//! Matmul kernels for AVX2 + FMA.
//!
//! Every output is one chain: `acc = fma(w[i], x[i], acc)` over vectors of 8 lanes in the format's order, then one
//! fixed horizontal sum. Both kernels below walk that same chain, so an output's bits do not depend on how many
//! inputs share the weights, on which kernel ran, or on where the row tiles fell.
//!
//! * `skinny`: few inputs. Weights are unpacked in registers and used at once: bound by reading them.
//!   About 5 micro-operations per 8 FP8 or FP4 weights, scale and multiply-add included.
//! * `panel`: many inputs. 4 rows x 512 columns are unpacked into an 8 KiB panel (first-level cache), then tiles of
//!   4 rows x 3 inputs (12 accumulators, 7 loads for 12 multiply-adds) pass over it: bound by arithmetic.
#![allow(unsafe_code)]

use super::order::STEP;
use super::{Block, PanelScratch};
use overshot_model::Format;
use std::arch::x86_64::*;

/// Columns of a panel.
const PANEL_COLS: usize = 512;
/// Rows of a tile.
const TILE_ROWS: usize = 4;
/// Inputs of a tile.
const TILE_INPUTS: usize = 3;
/// Inputs that pass over a panel before the next panel is unpacked: their 512 columns fill 192 KiB of the second-
/// level cache.
const PANEL_INPUTS: usize = 96;
/// Up to here unpacking the weights again for a second pass costs less than storing them.
const SKINNY_INPUTS: usize = 4;

/// One stored format: how to turn 32 weights into four vectors.
trait Stored: Copy {
    /// Stored bytes of 32 weights.
    const STEP_BYTES: usize;
    /// Columns that share a scale; 0 when there are no scales.
    const SCALE_COLS: usize;
    /// Scale byte to the factor that completes the unpacked numbers.
    const SCALES: &'static [f32; 256];

    /// # Safety
    /// `at` is readable for `STEP_BYTES`; AVX2 is present.
    unsafe fn unpack(at: *const u8) -> [__m256; 4];
}

const fn scale_table(shift: i32) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        // 2^(byte - 127 + shift), by its bits; outside the float32 range it ends in 0 or infinity. The loader
        // refuses scales for which that would matter.
        let exponent = byte as i32 + shift;
        table[byte] = f32::from_bits(if exponent >= 255 {
            0x7f80_0000
        } else if exponent > 0 {
            (exponent as u32) << 23
        } else if exponent > -23 {
            0x0040_0000 >> -exponent
        } else {
            0
        });
        byte += 1;
    }
    table
}

static UNIT_SCALES: [f32; 256] = [1.0; 256];
static FP4_SCALES: [f32; 256] = scale_table(0);
/// E4M3 bits moved into place read as value * 2^-120; the scale brings it back.
static FP8_SCALES: [f32; 256] = scale_table(120);

#[derive(Clone, Copy)]
struct F32;
#[derive(Clone, Copy)]
struct Bf16;
#[derive(Clone, Copy)]
struct Fp8;
#[derive(Clone, Copy)]
struct Fp4;

impl Stored for F32 {
    const STEP_BYTES: usize = 128;
    const SCALE_COLS: usize = 0;
    const SCALES: &'static [f32; 256] = &UNIT_SCALES;

    #[inline(always)]
    unsafe fn unpack(at: *const u8) -> [__m256; 4] {
        // SAFETY: the caller vouches for 128 readable bytes; the loads need no alignment.
        unsafe { std::array::from_fn(|i| _mm256_loadu_ps(at.add(32 * i).cast())) }
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

impl Stored for Bf16 {
    const STEP_BYTES: usize = 64;
    const SCALE_COLS: usize = 0;
    const SCALES: &'static [f32; 256] = &UNIT_SCALES;

    #[inline(always)]
    unsafe fn unpack(at: *const u8) -> [__m256; 4] {
        // SAFETY: the caller vouches for 64 readable bytes.
        unsafe { widen([_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())]) }
    }
}

impl Stored for Fp8 {
    const STEP_BYTES: usize = 32;
    const SCALE_COLS: usize = Format::FP8_BLOCK;
    const SCALES: &'static [f32; 256] = &FP8_SCALES;

    #[inline(always)]
    unsafe fn unpack(at: *const u8) -> [__m256; 4] {
        // SAFETY: the caller vouches for 32 readable bytes.
        unsafe {
            let bytes = _mm256_loadu_si256(at.cast());
            let zero = _mm256_setzero_si256();
            // seee emmm in the high byte of a word, shifted right by 4 with the sign repeated, is a BF16 with the
            // exponent's low bits in place and copies of the sign to be cleared.
            let keep = _mm256_set1_epi16(0x87f0_u16 as i16);
            let place = |words| _mm256_and_si256(_mm256_srai_epi16(words, 4), keep);
            widen([place(_mm256_unpacklo_epi8(zero, bytes)), place(_mm256_unpackhi_epi8(zero, bytes))])
        }
    }
}

impl Stored for Fp4 {
    const STEP_BYTES: usize = 16;
    const SCALE_COLS: usize = Format::FP4_BLOCK;
    const SCALES: &'static [f32; 256] = &FP4_SCALES;

    #[inline(always)]
    unsafe fn unpack(at: *const u8) -> [__m256; 4] {
        // SAFETY: the caller vouches for 16 readable bytes.
        unsafe {
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()));
            let shifted = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
            let codes = _mm256_and_si256(shifted, _mm256_set1_epi8(15));
            // The BF16 of 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, low bytes and high bytes.
            let low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,
            ));
            let high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64,
            ));
            let (low, high) = (_mm256_shuffle_epi8(low, codes), _mm256_shuffle_epi8(high, codes));
            widen([_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)])
        }
    }
}

/// The scale factor of the 32 weights that begin at column `col`.
#[inline(always)]
unsafe fn scale_at<S: Stored>(scales: *const u8, col: usize) -> __m256 {
    // SAFETY: the caller's row has a scale byte for every `SCALE_COLS` columns begun.
    unsafe { _mm256_broadcast_ss(&S::SCALES[usize::from(*scales.add(col / S::SCALE_COLS))]) }
}

/// 32 finished weights of a row.
#[inline(always)]
unsafe fn weights_at<S: Stored>(row: *const u8, scales: *const u8, col: usize) -> [__m256; 4] {
    // SAFETY: `col` is a multiple of 32 below the row's columns.
    unsafe {
        let raw = S::unpack(row.add(col / STEP * S::STEP_BYTES));
        if S::SCALE_COLS == 0 {
            return raw;
        }
        let scale = scale_at::<S>(scales, col);
        raw.map(|v| _mm256_mul_ps(v, scale))
    }
}

#[inline(always)]
unsafe fn horizontal_sum(v: __m256) -> f32 {
    // SAFETY: register arithmetic only.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
    }
}

/// All rows of a block. AVX2 and FMA must be present, and `block.cols()` a multiple of 32.
#[target_feature(enable = "avx2,fma")]
pub fn run(block: &Block, scratch: &mut PanelScratch) {
    match block.matrix.format {
        Format::F32 => run_format::<F32>(block, scratch),
        Format::Bf16 => run_format::<Bf16>(block, scratch),
        Format::Fp8 => run_format::<Fp8>(block, scratch),
        Format::Fp4 => run_format::<Fp4>(block, scratch),
    }
}

#[target_feature(enable = "avx2,fma")]
fn run_format<S: Stored>(block: &Block, scratch: &mut PanelScratch) {
    let inputs = block.inputs();
    if inputs > SKINNY_INPUTS {
        return run_panels::<S>(block, scratch);
    }
    match inputs {
        1 => run_skinny::<S, 4, 1>(block),
        2 => run_skinny::<S, 4, 2>(block),
        3 => run_skinny::<S, 2, 3>(block),
        _ => run_skinny::<S, 2, 4>(block),
    }
}

#[target_feature(enable = "avx2,fma")]
fn run_skinny<S: Stored, const ROWS: usize, const INPUTS: usize>(block: &Block) {
    let mut row = block.rows.start;
    while row + ROWS <= block.rows.end {
        skinny::<S, ROWS, INPUTS>(block, row);
        row += ROWS;
    }
    while row < block.rows.end {
        skinny::<S, 1, INPUTS>(block, row);
        row += 1;
    }
}

#[target_feature(enable = "avx2,fma")]
fn skinny<S: Stored, const ROWS: usize, const INPUTS: usize>(block: &Block, row: usize) {
    let weights: [*const u8; ROWS] = std::array::from_fn(|r| block.matrix.row(row + r).as_ptr());
    let scales: [*const u8; ROWS] = std::array::from_fn(|r| block.matrix.scale_row(row + r).as_ptr());
    let inputs: [*const f32; INPUTS] = std::array::from_fn(|m| block.input(m).as_ptr());
    let ahead = ROWS * block.matrix.row_bytes();
    // SAFETY: columns are a multiple of 32, so every step lies inside the rows and inputs taken above as slices of
    // that length; prefetching never faults.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); INPUTS]; ROWS];
        for col in (0..block.cols()).step_by(STEP) {
            for r in 0..ROWS {
                // The same columns of the next rows: short rows end before a hardware prefetcher gets going.
                let next = weights[r].wrapping_add(ahead + col / STEP * S::STEP_BYTES);
                _mm_prefetch(next.cast(), _MM_HINT_T0);
                let w = weights_at::<S>(weights[r], scales[r], col);
                for m in 0..INPUTS {
                    for (i, w) in w.iter().enumerate() {
                        let x = _mm256_loadu_ps(inputs[m].add(col + 8 * i));
                        acc[r][m] = _mm256_fmadd_ps(*w, x, acc[r][m]);
                    }
                }
            }
        }
        for r in 0..ROWS {
            for m in 0..INPUTS {
                block.store(m, row + r, horizontal_sum(acc[r][m]));
            }
        }
    }
}

/// Order of loops: a group of inputs, a range of columns, a tile of rows, a tile of inputs. The inputs' columns
/// stay in the second-level cache over all rows of the block.
#[target_feature(enable = "avx2,fma")]
fn run_panels<S: Stored>(block: &Block, scratch: &mut PanelScratch) {
    let rows = block.rows.len();
    let row_tiles = rows.div_ceil(TILE_ROWS);
    scratch.panel.resize(TILE_ROWS * PANEL_COLS, 0.0);
    for first in (0..block.inputs()).step_by(PANEL_INPUTS) {
        let inputs = (block.inputs() - first).min(PANEL_INPUTS);
        scratch.sums.clear();
        scratch.sums.resize(row_tiles * TILE_ROWS * inputs * 8, 0.0);
        for col in (0..block.cols()).step_by(PANEL_COLS) {
            let cols = (block.cols() - col).min(PANEL_COLS);
            for tile in 0..row_tiles {
                let row = block.rows.start + tile * TILE_ROWS;
                let tile_rows = (block.rows.end - row).min(TILE_ROWS);
                for r in 0..tile_rows {
                    unpack_panel::<S>(block, row + r, col, &mut scratch.panel[r * cols..(r + 1) * cols]);
                }
                let sums = &mut scratch.sums[tile * TILE_ROWS * inputs * 8..][..TILE_ROWS * inputs * 8];
                panel(block, &scratch.panel, first, col, cols, sums);
            }
        }
        for tile in 0..row_tiles {
            let row = block.rows.start + tile * TILE_ROWS;
            for m in 0..inputs {
                for r in 0..(block.rows.end - row).min(TILE_ROWS) {
                    let at = ((tile * inputs + m) * TILE_ROWS + r) * 8;
                    // SAFETY: `at + 8` is within `sums` by its size above; row and input are the block's.
                    unsafe {
                        let sum = horizontal_sum(_mm256_loadu_ps(scratch.sums[at..at + 8].as_ptr()));
                        block.store(first + m, row + r, sum);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
fn unpack_panel<S: Stored>(block: &Block, row: usize, first_col: usize, out: &mut [f32]) {
    let weights = block.matrix.row(row).as_ptr();
    let scales = block.matrix.scale_row(row).as_ptr();
    for (step, out) in out.chunks_exact_mut(STEP).enumerate() {
        // SAFETY: `out` covers columns of the row, 32 at a time.
        unsafe {
            let w = weights_at::<S>(weights, scales, first_col + step * STEP);
            for (i, w) in w.iter().enumerate() {
                _mm256_storeu_ps(out.as_mut_ptr().add(8 * i), *w);
            }
        }
    }
}

/// Adds `cols` columns of a panel to the sums of `sums.len() / 32` inputs, laid out `[input][row][lane]`. Rows of
/// the panel beyond the block's end hold old numbers; their sums are never stored.
#[target_feature(enable = "avx2,fma")]
fn panel(block: &Block, panel: &[f32], first: usize, col: usize, cols: usize, sums: &mut [f32]) {
    assert!(panel.len() >= TILE_ROWS * cols);
    let inputs = sums.len() / (TILE_ROWS * 8);
    let mut m = 0;
    while m + TILE_INPUTS <= inputs {
        tile::<TILE_INPUTS>(block, panel, first + m, col, cols, &mut sums[m * TILE_ROWS * 8..]);
        m += TILE_INPUTS;
    }
    match inputs - m {
        1 => tile::<1>(block, panel, first + m, col, cols, &mut sums[m * TILE_ROWS * 8..]),
        2 => tile::<2>(block, panel, first + m, col, cols, &mut sums[m * TILE_ROWS * 8..]),
        _ => {}
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const INPUTS: usize>(
    block: &Block,
    panel: &[f32],
    first: usize,
    col: usize,
    cols: usize,
    sums: &mut [f32],
) {
    let sums = &mut sums[..INPUTS * TILE_ROWS * 8];
    let inputs: [*const f32; INPUTS] =
        std::array::from_fn(|m| block.input(first + m)[col..col + cols].as_ptr());
    // SAFETY: every pointer comes from a slice that was cut to the length walked here.
    unsafe {
        let mut acc: [[__m256; TILE_ROWS]; INPUTS] = std::array::from_fn(|m| {
            std::array::from_fn(|r| _mm256_loadu_ps(sums.as_ptr().add((m * TILE_ROWS + r) * 8)))
        });
        let panel = panel.as_ptr();
        for at in (0..cols).step_by(8) {
            let x: [__m256; INPUTS] = std::array::from_fn(|m| _mm256_loadu_ps(inputs[m].add(at)));
            for r in 0..TILE_ROWS {
                let w = _mm256_loadu_ps(panel.add(r * cols + at));
                for m in 0..INPUTS {
                    acc[m][r] = _mm256_fmadd_ps(w, x[m], acc[m][r]);
                }
            }
        }
        for m in 0..INPUTS {
            for r in 0..TILE_ROWS {
                _mm256_storeu_ps(sums.as_mut_ptr().add((m * TILE_ROWS + r) * 8), acc[m][r]);
            }
        }
    }
}
