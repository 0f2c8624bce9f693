//! A step as kernels see it, without a model: rows of tokens, page tables over shuffled pages, rotations.

use crate::backend::arguments as args;
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError};
use fastrand::Rng;
use std::sync::Arc;

/// Tokens of one row: its sequence had `start` before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start: usize,
    pub tokens: usize,
}

impl Piece {
    pub fn end(self) -> usize {
        self.start + self.tokens
    }
}

/// Which pages of a growing pool each row has, in order; no page has two owners.
#[derive(Clone, Debug)]
pub struct PoolPages {
    pub of_rows: Vec<Vec<usize>>,
    pub slots: usize,
}

impl PoolPages {
    /// Room for an entry of every `ratio` tokens.
    fn shuffled(rows: &[Piece], slots: usize, ratio: usize, random: &mut Rng) -> Self {
        let counts: Vec<usize> = rows.iter().map(|row| row.end().div_ceil(slots * ratio)).collect();
        let mut pages: Vec<usize> = (0..counts.iter().sum()).collect();
        random.shuffle(&mut pages);
        let mut rest = pages.into_iter();
        PoolPages {
            of_rows: counts.iter().map(|count| rest.by_ref().take(*count).collect()).collect(),
            slots,
        }
    }

    pub fn pages(&self) -> usize {
        self.of_rows.iter().map(Vec::len).sum()
    }

    /// Page and slot of an entry.
    pub fn place(&self, row: usize, entry: usize) -> (usize, usize) {
        (self.of_rows[row][entry / self.slots], entry % self.slots)
    }
}

/// The step, uploaded.
pub struct DeviceStep {
    pub rows: Vec<Piece>,
    /// `(row, position)` of every token.
    pub tokens: Vec<(usize, usize)>,
    /// CSA, HCA and index keys, as `args::Step` has them.
    pub growing: [PoolPages; 3],
    /// `[tokens, 2, 64]`
    pub rotations: Vec<f32>,
    pub args: args::Step,
    _words: Buffer<i32>,
    _rotations: Buffer<f32>,
}

impl DeviceStep {
    pub fn new(gpu: &Arc<dyn Gpu>, rows: &[Piece], random: &mut Rng) -> Result<Self, GpuError> {
        let tokens: Vec<(usize, usize)> = rows
            .iter()
            .enumerate()
            .flat_map(|(row, piece)| (piece.start..piece.end()).map(move |position| (row, position)))
            .collect();
        let growing = [(64, 4), (2, 128), (64, 4)]
            .map(|(slots, ratio)| PoolPages::shuffled(rows, slots, ratio, random));
        let rotations: Vec<f32> = tokens.iter().flat_map(|_| angles(random)).collect();
        let mut words = Vec::new();
        let mut field = |values: Vec<usize>| {
            let at = words.len();
            words.extend(values.into_iter().map(|value| value as i32));
            at
        };
        let positions = field(tokens.iter().map(|token| token.1).collect());
        let row_of = field(tokens.iter().map(|token| token.0).collect());
        let starts = field(rows.iter().map(|row| row.start).collect());
        let firsts = (0..=rows.len()).map(|row| rows[..row].iter().map(|piece| piece.tokens).sum());
        let firsts = field(firsts.collect());
        let window_pages = field((0..rows.len()).collect());
        let mut pages = Vec::new();
        let tables = [0, 1, 2].map(|pool: usize| {
            let mut starts = Vec::new();
            for row in &growing[pool].of_rows {
                starts.push(pages.len());
                pages.extend(row);
            }
            field(starts)
        });
        let pages = field(pages);
        let words = Buffer::of(gpu, &words)?;
        let on_device = Buffer::of(gpu, &rotations)?;
        let args = args::Step {
            ids: DeviceAddress::NULL,
            positions: words.at(positions),
            row_of: words.at(row_of),
            starts: words.at(starts),
            firsts: words.at(firsts),
            window_pages: words.at(window_pages),
            rows_pages: words.at(window_pages),
            tables: tables.map(|at| words.at(at)),
            pages: words.at(pages),
            completing: [DeviceAddress::NULL; 2],
            rotations: on_device.address(),
            frequencies: DeviceAddress::NULL,
            tokens: tokens.len() as i32,
            rows: rows.len() as i32,
        };
        Ok(DeviceStep {
            rows: rows.to_vec(),
            tokens,
            growing,
            rotations,
            args,
            _words: words,
            _rotations: on_device,
        })
    }
}

/// Cosines and sines of both kinds of layers, of any angles: kernels only turn by them.
fn angles(random: &mut Rng) -> Vec<f32> {
    let mut both = Vec::with_capacity(128);
    for _ in 0..2 {
        let angles: Vec<f32> = (0..32).map(|_| random.f32() * std::f32::consts::TAU).collect();
        both.extend(angles.iter().map(|angle| angle.cos()));
        both.extend(angles.iter().map(|angle| angle.sin()));
    }
    both
}
