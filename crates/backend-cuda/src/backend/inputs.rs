//! What a device is told of a step: the tokens of all rows end to end, and the page tables, in one copy.

use super::arguments as args;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError};
use overshot_backend::{Row, Shard, StepPlan};
use overshot_kv::{Pool, PoolCapacity};
use overshot_model::{LayerKind, RopeFrequencies, Spec};
use std::ops::Range;
use std::sync::Arc;

/// Some consecutive tokens of a row: a step that has more tokens than the workspace is done in parts, and a row that is cut
/// goes on from its own pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub row: usize,
    /// Of the row's tokens.
    pub tokens: Range<usize>,
}

/// Cuts a plan's rows into parts of at most `tokens_max` tokens, in order.
pub fn parts(plan: &StepPlan, tokens_max: usize) -> Vec<Vec<Piece>> {
    let mut parts: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for (row, contents) in plan.rows.iter().enumerate() {
        let mut start = 0;
        while start < contents.tokens.len() {
            if room == 0 {
                parts.push(Vec::new());
                room = tokens_max;
            }
            let end = contents.tokens.len().min(start + room);
            if let Some(part) = parts.last_mut() {
                part.push(Piece { row, tokens: start..end });
            }
            room -= end - start;
            start = end;
        }
    }
    parts
}

/// Where tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawsOn {
    /// That has no peers: among its own tokens.
    Device,
    /// Of rank 0: the logits of all ranks meet on every device.
    Devices,
    /// Of rank 0, where the logits of all ranks meet.
    Host,
}

impl DrawsOn {
    /// Logits of a row on a device from which a token may be drawn.
    pub fn vocab(self, spec: &Spec, shard: &Shard) -> usize {
        match self {
            DrawsOn::Device => shard.vocab.len(),
            DrawsOn::Devices | DrawsOn::Host => spec.vocab_size,
        }
    }
}

/// One part of a plan, laid out for the device.
#[derive(Debug, Default)]
pub struct Layout {
    words: Vec<i32>,
    pub tokens: usize,
    pub rows: usize,
    /// Of the longest piece.
    pub longest_row: usize,
    /// Positions behind the last token of any piece: the longest context.
    pub longest_context: usize,
    /// Token indices whose logits go to the host.
    pub wanted: Vec<i32>,
    /// Token indices whose logits stay for a draw on the device.
    pub draws: Vec<i32>,
    /// Tokens that complete an entry: of CSA, of HCA layers.
    pub completing: [usize; 2],
    /// Where fields start among `words`, in the order of `args::Step`.
    fields: [usize; 13],
}

const GROWING: [Pool; 3] = [Pool::Csa, Pool::Hca, Pool::IndexKeys];
const COMPRESSED: [LayerKind; 2] = [LayerKind::Csa, LayerKind::Hca];

impl Layout {
    /// `drawn` is what the plan before drew, by row, for placeholders. One whose row failed becomes token 0: it has to be
    /// some token, and its row fails when it comes to drawing.
    pub fn new(plan: &StepPlan, part: &[Piece], drawn: &[Option<u32>], draws_on: DrawsOn) -> Self {
        let mut layout = Layout { rows: part.len(), ..Layout::default() };
        let (mut ids, mut positions, mut row_of, mut firsts) = (vec![], vec![], vec![], vec![0]);
        for (at, piece) in part.iter().enumerate() {
            let row = &plan.rows[piece.row];
            for index in piece.tokens.clone() {
                if row.wanted_positions().contains(&index) {
                    let stays = row.draws() && draws_on != DrawsOn::Host;
                    let list = if stays { &mut layout.draws } else { &mut layout.wanted };
                    list.push(ids.len() as i32);
                }
                ids.push(token_of(row, index, drawn) as i32);
                positions.push((row.start + index) as i32);
                row_of.push(at as i32);
            }
            firsts.push(ids.len() as i32);
            layout.longest_row = layout.longest_row.max(piece.tokens.len());
            layout.longest_context = layout.longest_context.max(row.start + piece.tokens.end);
        }
        layout.tokens = ids.len();
        let rows = || part.iter().map(|piece| (&plan.rows[piece.row], piece));
        layout.field(0, ids);
        layout.field(1, positions);
        layout.field(2, row_of);
        layout.field(3, rows().map(|(row, piece)| (row.start + piece.tokens.start) as i32));
        layout.field(4, firsts);
        for (field, pool) in [(5, Pool::Window), (6, Pool::CompressorRows)] {
            layout.field(field, rows().map(|(row, _)| row.pages.pages(pool)[0].0 as i32));
        }
        let mut pages = Vec::new();
        for (at, pool) in GROWING.into_iter().enumerate() {
            let mut starts = Vec::with_capacity(part.len());
            for (row, piece) in rows() {
                starts.push(pages.len() as i32);
                let covered = pool.pages_for(row.start + piece.tokens.end);
                pages.extend(row.pages.pages(pool)[..covered].iter().map(|page| page.0 as i32));
            }
            layout.field(7 + at, starts);
        }
        layout.field(10, pages);
        for (at, kind) in COMPRESSED.into_iter().enumerate() {
            let completes = |position: &i32| (*position as usize + 1).is_multiple_of(kind.ratio());
            let tokens = layout.positions().iter().enumerate().filter(|(_, position)| completes(position));
            let tokens: Vec<i32> = tokens.map(|(token, _)| token as i32).collect();
            layout.completing[at] = tokens.len();
            layout.field(11 + at, tokens);
        }
        layout
    }

    /// Of all tokens.
    pub fn positions(&self) -> &[i32] {
        &self.words[self.fields[1]..][..self.tokens]
    }

    fn field(&mut self, field: usize, values: impl IntoIterator<Item = i32>) {
        self.fields[field] = self.words.len();
        self.words.extend(values);
    }
}

fn token_of(row: &Row, index: usize, drawn: &[Option<u32>]) -> u32 {
    match row.placeholder {
        Some(named) if index + 1 == row.tokens.len() => drawn.get(named).copied().flatten().unwrap_or(0),
        _ => row.tokens[index],
    }
}

/// The device's side of a [`Layout`].
pub struct Inputs {
    words: Buffer<i32>,
    frequencies: Buffer<f32>,
    pub rotations: Buffer<f32>,
}

impl Inputs {
    /// Room for any part of `tokens_max` tokens.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        spec: &Spec,
        capacity: PoolCapacity,
        tokens_max: usize,
    ) -> Result<Self, GpuError> {
        // No two rows of a plan write the same page, but they may read the same: as many tables as rows, each as long as
        // the longest.
        let rows_max = tokens_max.min(capacity.pages(Pool::Window));
        let tables: usize = GROWING.iter().map(|pool| capacity.pages(*pool)).sum();
        let words = 5 * tokens_max + 8 * rows_max + 1 + rows_max * tables;
        let kinds = [RopeFrequencies::window(spec), RopeFrequencies::compressed(spec)];
        Ok(Inputs {
            words: Buffer::new(gpu, words)?,
            frequencies: Buffer::of(gpu, &kinds.map(|kind| kind.0).concat())?,
            rotations: Buffer::new(gpu, tokens_max * 2 * 64)?,
        })
    }

    pub fn upload(&mut self, layout: &Layout) -> Result<args::Step, GpuError> {
        self.words.copy_in(&layout.words)?;
        let at = |field: usize| -> DeviceAddress { self.words.at(layout.fields[field]) };
        Ok(args::Step {
            ids: at(0),
            positions: at(1),
            row_of: at(2),
            starts: at(3),
            firsts: at(4),
            window_pages: at(5),
            rows_pages: at(6),
            tables: [at(7), at(8), at(9)],
            pages: at(10),
            completing: [at(11), at(12)],
            rotations: self.rotations.address(),
            frequencies: self.frequencies.address(),
            tokens: layout.tokens as i32,
            rows: layout.rows as i32,
        })
    }
}

/// Which table of `args::Step` a kind of layer uses.
pub fn growing_pool(kind: LayerKind) -> args::GrowingPool {
    match kind {
        LayerKind::Hca => args::GrowingPool::Hca,
        LayerKind::Csa | LayerKind::Window => args::GrowingPool::Csa,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_backend::Wanted;
    use overshot_kv::PageTable;

    fn plan(lengths: &[usize]) -> StepPlan {
        let row = |length: &usize| Row {
            tokens: vec![7; *length],
            start: 0,
            placeholder: None,
            pages: PageTable::default(),
            wanted: Wanted::Nothing,
        };
        StepPlan { rows: lengths.iter().map(row).collect(), ..StepPlan::default() }
    }

    #[test]
    fn parts_are_all_tokens_once_in_order_and_within_the_bound() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let lengths: Vec<usize> = (0..random.usize(0..6)).map(|_| random.usize(1..40)).collect();
            let most = random.usize(1..50);
            let parts = parts(&plan(&lengths), most);
            let sizes = parts.iter().map(|part| part.iter().map(|piece| piece.tokens.len()).sum::<usize>());
            assert!(sizes.clone().all(|size| (1..=most).contains(&size)), "{lengths:?}, {most}");
            let pieces: Vec<Piece> = parts.concat();
            for (row, length) in lengths.iter().enumerate() {
                let own =
                    pieces.iter().filter(|piece| piece.row == row).flat_map(|piece| piece.tokens.clone());
                assert!(own.eq(0..*length));
            }
            assert!(pieces.is_sorted_by_key(|piece| (piece.row, piece.tokens.start)));
        }
    }
}
