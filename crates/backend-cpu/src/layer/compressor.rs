//! Compressors: from the tokens of a window to one entry, as the window completes.
//!
//! Tokens of a sequence pass one at a time in order of position, so chunking cannot matter. Rows live in a ring by
//! position; what makes an entry is gathered from it, and nothing ever needs clearing.

use super::LayerPlace;
use crate::Isa;
use crate::norm::rms_norm;
use crate::pools::{CompressorRows, RowsOf};
use crate::rope::Frequencies;
use crate::simd::PoolRows;
use crate::step::Step;
use overshot_kv::{PageId, Pool};
use overshot_model::{Compressor, LayerKind};

/// Takes the tokens of one row (their products `k` and `s`, `[tokens, channels]`) and hands every entry that
/// completes to `emit(entry index, entry)`, rotated, not yet rounded.
pub struct Advance<'a> {
    pub compressor: &'a Compressor,
    pub kind: LayerKind,
    pub start: usize,
    pub k: &'a [f32],
    pub s: &'a [f32],
    pub rms_eps: f32,
}

impl Advance<'_> {
    pub fn run(
        self,
        isa: Isa,
        ring: &mut [f32],
        frequencies: &Frequencies,
        mut emit: impl FnMut(usize, &[f32]),
    ) {
        let ratio = self.kind.ratio();
        let width = self.compressor.norm.len();
        let channels = self.compressor.wkv.rows;
        let ring_rows = ring.len() / (2 * channels);
        let mut entry = vec![0.0; width];
        for (i, (k, s)) in self.k.chunks_exact(channels).zip(self.s.chunks_exact(channels)).enumerate() {
            let position = self.start + i;
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
                let rows: Vec<_> = match self.kind {
                    // The first half of the previous window's channels, the second half of this one's.
                    LayerKind::Csa => {
                        let previous = first.saturating_sub(ratio)..first;
                        previous.map(|p| row(p, 0)).chain(window.map(|p| row(p, 1))).collect()
                    }
                    _ => window.map(|p| row(p, 0)).collect(),
                };
                isa.run(PoolRows { rows: &rows, out: &mut entry });
                rms_norm(isa, &mut entry, &self.compressor.norm, self.rms_eps);
                frequencies.at(first).apply(&mut entry);
                emit(index, &entry);
            }
        }
    }
}

/// Runs a layer's main compressor over all rows of the step and appends the entries to its pool.
pub fn forward(step: &mut Step, at: LayerPlace, compressor: &Compressor, k: &[f32], s: &[f32]) {
    let (kind, layer) = (at.spec.kind, at.index_in_kind);
    let (pool, rows_of) = match kind {
        LayerKind::Hca => (Pool::Hca, RowsOf::Hca(layer)),
        _ => (Pool::Csa, RowsOf::Csa(layer)),
    };
    let channels = compressor.wkv.rows;
    let mut done = 0;
    for row in step.rows {
        let tokens = row.tokens.len() * channels;
        let advance = Advance {
            compressor,
            kind,
            start: row.start,
            k: &k[done..done + tokens],
            s: &s[done..done + tokens],
            rms_eps: step.spec.rms_eps,
        };
        done += tokens;
        let ring = step.pools.compressor_rows.ring(rows_of, row.pages.pages(Pool::CompressorRows)[0]);
        let entries = if pool == Pool::Hca { &mut step.pools.hca } else { &mut step.pools.csa };
        let pages = row.pages.pages(pool);
        advance.run(step.isa, ring, &step.rope.compressed, |index, entry| {
            let (page, slot) = entry_address(pages, index, entries.slots_per_page);
            entries.write(layer, page, slot, entry);
            if let Some(capture) = &mut step.capture {
                capture.append(at.index, "compressed", entry);
            }
        });
    }
}

/// Page and slot of an entry.
pub fn entry_address(pages: &[PageId], index: usize, slots_per_page: usize) -> (PageId, usize) {
    (pages[index / slots_per_page], index % slots_per_page)
}

const _: () = assert!(CompressorRows::CSA_RING >= 8 && CompressorRows::HCA_RING >= 128);
