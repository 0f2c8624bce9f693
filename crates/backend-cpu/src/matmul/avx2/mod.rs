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

mod formats;

use super::order::STEP;
use super::{BLOCK_COLS, Block, Scratch};
use crate::simd::horizontal_sum;
use formats::{Bf16, Complete, F32, Fp4, Fp8, Stored, fp8_factor};
use overshot_model::Format;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// Rows of a tile.
const TILE_ROWS: usize = 4;
/// Inputs that pass over a panel before the next panel is unpacked: their 512 columns fill 192 KiB of the second-
/// level cache.
const PANEL_INPUTS: usize = 96;
/// Columns between prefetches: a cache line of FP4.
const PREFETCH_COLS: usize = 128;
/// Up to here unpacking the weights again for a second pass costs less than storing them.
const SKINNY_INPUTS: usize = 4;

/// All rows of a block. AVX2 and FMA must be present, and `block.cols()` a multiple of 32.
#[target_feature(enable = "avx2,fma")]
pub fn run(block: &Block, scratch: &mut Scratch) {
    match block.matrix.format {
        Format::F32 => run_format::<F32>(block, scratch),
        Format::Bf16 => run_format::<Bf16>(block, scratch),
        Format::Fp8 => run_format::<Fp8>(block, scratch),
        Format::Fp4 => run_format::<Fp4>(block, scratch),
    }
}

#[target_feature(enable = "avx2,fma")]
fn run_format<S: Stored>(block: &Block, scratch: &mut Scratch) {
    let inputs = block.inputs();
    if inputs > SKINNY_INPUTS {
        return run_panels::<S>(block, scratch);
    }
    match inputs {
        1 => run_skinny::<S, 4, 1>(block, scratch),
        2 => run_skinny::<S, 4, 2>(block, scratch),
        3 => run_skinny::<S, 2, 3>(block, scratch),
        _ => run_skinny::<S, 2, 4>(block, scratch),
    }
}

#[target_feature(enable = "avx2,fma")]
fn run_skinny<S: Stored, const ROWS: usize, const INPUTS: usize>(block: &Block, scratch: &mut Scratch) {
    if !S::BLOCK_SCALED {
        return skinny_rows::<S, ROWS, INPUTS>(block, block.rows.clone(), &[]);
    }
    let mut next = block.rows.start;
    while next < block.rows.end {
        let rows = next..block.scale_block_end(next);
        next = rows.end;
        if scale_inputs(block, rows.start, &mut scratch.inputs) {
            skinny_rows::<S, ROWS, INPUTS>(block, rows, &scratch.inputs);
        } else {
            skinny_rows::<Complete<S>, ROWS, INPUTS>(block, rows, &[]);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
fn skinny_rows<S: Stored, const ROWS: usize, const INPUTS: usize>(
    block: &Block,
    rows: Range<usize>,
    scaled: &[f32],
) {
    let whole_tiles = rows.start + rows.len() / ROWS * ROWS;
    for row in (rows.start..whole_tiles).step_by(ROWS) {
        skinny::<S, ROWS, INPUTS>(block, row, scaled);
    }
    for row in whole_tiles..rows.end {
        skinny::<S, 1, INPUTS>(block, row, scaled);
    }
}

/// All inputs times the FP8 factors of the block that `row` is in: `[input][column]`. `false` when one of them leaves
/// the range, so that the weights must be scaled instead.
#[target_feature(enable = "avx2,fma")]
fn scale_inputs(block: &Block, row: usize, out: &mut Vec<f32>) -> bool {
    let scales = block.scale_row(row);
    // As bits, whose largest the compiler finds eight at a time: not so floats', with their rules for what is no number.
    let mut largest = 0;
    out.resize(block.inputs() * block.cols(), 0.0);
    for (m, out) in out.chunks_exact_mut(block.cols()).enumerate() {
        for (index, out) in out.chunks_mut(BLOCK_COLS).enumerate() {
            let input = block.input(m, index * BLOCK_COLS);
            for (group, (out, input)) in
                out.chunks_mut(Format::FP8_BLOCK).zip(input.chunks(Format::FP8_BLOCK)).enumerate()
            {
                let factor = fp8_factor(scales[index * BLOCK_COLS / Format::FP8_BLOCK + group]);
                for (out, x) in out.iter_mut().zip(input) {
                    *out = x * factor;
                    largest = out.abs().to_bits().max(largest);
                }
            }
        }
    }
    largest < f32::INFINITY.to_bits()
}

#[target_feature(enable = "avx2,fma")]
fn skinny<S: Stored, const ROWS: usize, const INPUTS: usize>(block: &Block, row: usize, scaled: &[f32]) {
    let weights: [*const u8; ROWS] = std::array::from_fn(|r| block.row(row + r).as_ptr());
    let scales: [*const u8; ROWS] = std::array::from_fn(|r| block.scale_row(row + r).as_ptr());
    let ahead = ROWS * block.matrix.row_bytes();
    // SAFETY: columns are a multiple of 32, so every step lies inside the rows and inputs taken as slices of that
    // length; prefetching never faults.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); INPUTS]; ROWS];
        for start in (0..block.cols()).step_by(BLOCK_COLS) {
            let cols = (block.cols() - start).min(BLOCK_COLS);
            let mut inputs = [&[] as &[f32]; INPUTS];
            for m in 0..INPUTS {
                inputs[m] = match S::BLOCK_SCALED {
                    true => &scaled[m * block.cols() + start..][..cols],
                    false => block.input(m, start),
                };
            }
            for group in (0..cols).step_by(PREFETCH_COLS) {
                // The same columns of the next rows: short rows end before a hardware prefetcher gets going.
                for weights in weights {
                    let next = weights.wrapping_add(ahead + (start + group) / STEP * S::STEP_BYTES);
                    for line in (0..PREFETCH_COLS / STEP * S::STEP_BYTES).step_by(64) {
                        _mm_prefetch(next.wrapping_add(line).cast(), _MM_HINT_T0);
                    }
                }
                for at in (group..cols.min(group + PREFETCH_COLS)).step_by(STEP) {
                    let x = |m: usize, i: usize| _mm256_loadu_ps(inputs[m].as_ptr().add(at + 8 * i));
                    // Of a lone input, as much stays in registers for all rows as fits beside the sums.
                    let kept = [x(0, 0), x(0, 1)];
                    for r in 0..ROWS {
                        let w = S::raw_weights(weights[r], scales[r], start + at);
                        for m in 0..INPUTS {
                            for (i, w) in w.iter().enumerate() {
                                let x = if INPUTS == 1 && i < kept.len() { kept[i] } else { x(m, i) };
                                acc[r][m] = _mm256_fmadd_ps(*w, x, acc[r][m]);
                            }
                        }
                        // One row at a time: left alone, the compiler unpacks all rows first and runs out of
                        // registers.
                        compiler_fence(Ordering::SeqCst);
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
fn run_panels<S: Stored>(block: &Block, scratch: &mut Scratch) {
    let rows = block.rows.len();
    let row_tiles = rows.div_ceil(TILE_ROWS);
    scratch.panel.resize(TILE_ROWS * BLOCK_COLS, 0.0);
    for first in (0..block.inputs()).step_by(PANEL_INPUTS) {
        let inputs = (block.inputs() - first).min(PANEL_INPUTS);
        scratch.sums.clear();
        scratch.sums.resize(row_tiles * TILE_ROWS * inputs * 8, 0.0);
        for col in (0..block.cols()).step_by(BLOCK_COLS) {
            let cols = (block.cols() - col).min(BLOCK_COLS);
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
    let weights = block.row(row).as_ptr();
    let scales = block.scale_row(row).as_ptr();
    let ahead = TILE_ROWS * block.matrix.row_bytes() + first_col / STEP * S::STEP_BYTES;
    let next = weights.wrapping_add(ahead);
    for line in (0..out.len() / STEP * S::STEP_BYTES).step_by(64) {
        // The next tile begins elsewhere in memory: fetched while this one is computed with.
        _mm_prefetch(next.wrapping_add(line).cast(), _MM_HINT_T0);
    }
    for (step, out) in out.chunks_exact_mut(STEP).enumerate() {
        // SAFETY: `out` covers columns of the row, 32 at a time.
        unsafe {
            let w = S::weights(weights, scales, first_col + step * STEP);
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
    while m < inputs {
        let sums = &mut sums[m * TILE_ROWS * 8..];
        // Four inputs are two pairs: a lone one waits for its own additions.
        m += match inputs - m {
            1 => tile::<1>(block, panel, first + m, col, cols, sums),
            2 | 4 => tile::<2>(block, panel, first + m, col, cols, sums),
            _ => tile::<3>(block, panel, first + m, col, cols, sums),
        };
    }
}

/// Returns the number of inputs it dealt with.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const INPUTS: usize>(
    block: &Block,
    panel: &[f32],
    first: usize,
    col: usize,
    cols: usize,
    sums: &mut [f32],
) -> usize {
    let sums = &mut sums[..INPUTS * TILE_ROWS * 8];
    let mut inputs = [std::ptr::null(); INPUTS];
    for m in 0..INPUTS {
        inputs[m] = block.input(first + m, col)[..cols].as_ptr();
    }
    // SAFETY: every pointer comes from a slice that was cut to the length walked here.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); TILE_ROWS]; INPUTS];
        for m in 0..INPUTS {
            for r in 0..TILE_ROWS {
                acc[m][r] = _mm256_loadu_ps(sums.as_ptr().add((m * TILE_ROWS + r) * 8));
            }
        }
        let panel = panel.as_ptr();
        for at in (0..cols).step_by(8) {
            let mut x = [_mm256_setzero_ps(); INPUTS];
            for m in 0..INPUTS {
                x[m] = _mm256_loadu_ps(inputs[m].add(at));
            }
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
    INPUTS
}
