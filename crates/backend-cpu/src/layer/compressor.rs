//! Compressors: from the tokens of a window to one entry, as the window completes.
//!
//! Tokens of a sequence pass one at a time in order of position, so chunking cannot matter. Rows live in a ring by
//! position; what makes an entry is gathered from it, and nothing ever needs clearing.

use super::LayerPlace;
use crate::norm::rms_norm;
use crate::pools::{CompressorRows, Pools, RowsOf};
use crate::rope::Rotation;
use crate::simd::PoolRows;
use crate::step::{Step, StepConstants};
use overshot_backend::Row;
use overshot_kv::{PageId, Pool};
use overshot_model::{Compressor, LayerKind};
use std::ops::Range;

/// A compressor and the products it pools: `k` and `s` of all tokens of a step, `[tokens, channels]`.
pub struct Advance<'a> {
    pub compressor: &'a Compressor,
    pub of: RowsOf,
    pub k: &'a [f32],
    pub s: &'a [f32],
}

impl Advance<'_> {
    /// Takes the tokens of every row of the step and hands each entry that completes to `emit(row, entry index,
    /// entry)`, rotated, not yet rounded.
    pub fn run(
        &self,
        fixed: &StepConstants,
        rings: &mut CompressorRows,
        mut emit: impl FnMut(&Row, usize, &[f32]),
    ) {
        let channels = self.compressor.wkv.rows;
        let mut done = 0;
        for row in fixed.rows {
            let products = done..done + row.tokens.len() * channels;
            done = products.end;
            let ring = rings.ring(self.of, row.pages.pages(Pool::CompressorRows)[0]);
            self.run_row(fixed, row.start, products, ring, |index, entry| emit(row, index, entry));
        }
    }

    fn run_row(
        &self,
        fixed: &StepConstants,
        start: usize,
        products: Range<usize>,
        ring: &mut [f32],
        mut emit: impl FnMut(usize, &[f32]),
    ) {
        let kind = self.of.kind();
        let ratio = kind.ratio();
        let width = self.compressor.norm.len();
        let channels = self.compressor.wkv.rows;
        let ring_rows = ring.len() / (2 * channels);
        let mut entry = vec![0.0; width];
        let (k, s) = (&self.k[products.clone()], &self.s[products]);
        for (i, (k, s)) in k.chunks_exact(channels).zip(s.chunks_exact(channels)).enumerate() {
            let position = start + i;
            let (to_k, to_s) =
                ring[position % ring_rows * 2 * channels..][..2 * channels].split_at_mut(channels);
            to_k.copy_from_slice(k);
            let ape = &self.compressor.ape[position % ratio * channels..][..channels];
            for ((to, s), ape) in to_s.iter_mut().zip(s).zip(ape) {
                *to = s + ape;
            }
            if (position + 1).is_multiple_of(ratio) {
                let index = position / ratio;
                let row = |position: usize, half: usize| {
                    let at = position % ring_rows * 2 * channels + half * width;
                    (&ring[at..at + width], &ring[at + channels..at + channels + width])
                };
                let first = index * ratio;
                let window = first..first + ratio;
                let rows: Vec<_> = match kind {
                    // The first half of the previous window's channels, the second half of this one's.
                    LayerKind::Csa => {
                        let previous = first.saturating_sub(ratio)..first;
                        previous.map(|p| row(p, 0)).chain(window.map(|p| row(p, 1))).collect()
                    }
                    _ => window.map(|p| row(p, 0)).collect(),
                };
                fixed.isa.run(PoolRows { rows: &rows, out: &mut entry });
                rms_norm(fixed.isa, &mut entry, &self.compressor.norm, fixed.rms_eps);
                Rotation::at(fixed.frequencies, first).apply(&mut entry);
                emit(index, &entry);
            }
        }
    }
}

/// Runs a layer's main compressor over all rows of the step and appends the entries to its pool.
pub fn forward(step: &mut Step, at: LayerPlace, compressor: &Compressor, k: &[f32], s: &[f32]) {
    let (kind, layer) = (at.spec.kind, at.index_in_kind);
    let (pool, of) = match kind {
        LayerKind::Hca => (Pool::Hca, RowsOf::Hca(layer)),
        _ => (Pool::Csa, RowsOf::Csa(layer)),
    };
    let fixed = step.constants();
    let Pools { csa, hca, compressor_rows, .. } = &mut *step.pools;
    let entries = if pool == Pool::Hca { hca } else { csa };
    Advance { compressor, of, k, s }.run(&fixed, compressor_rows, |row, index, entry| {
        let (page, slot) = entry_address(row.pages.pages(pool), index, entries.slots_per_page);
        entries.write(layer, page, slot, entry);
        if let Some(capture) = &mut step.capture {
            capture.append(at.index, "compressed", entry);
        }
    });
}

/// Page and slot of an entry.
pub fn entry_address(pages: &[PageId], index: usize, slots_per_page: usize) -> (PageId, usize) {
    (pages[index / slots_per_page], index % slots_per_page)
}

const _: () = assert!(CompressorRows::CSA_RING >= 8 && CompressorRows::HCA_RING >= 128);
