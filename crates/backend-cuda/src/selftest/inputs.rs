//! Random inputs: paged pools of packed entries, index lists, queries and sinks, on the host.

use overshot_model::quant::{ENTRY_DATA_BYTES, ENTRY_SCALE_BYTES, PackedPage, bf16_encode, encode_entry};

use serde::Serialize;

pub const HEAD_DIMS: usize = 512;

/// How long the rows' lists are, out of their capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    Full,
    /// Uniform in 0..=capacity.
    Uneven,
    /// One row whole, all others a sixteenth.
    OneLong,
    Zero,
}

/// What scales of entries look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exponents {
    /// As the encoder chooses them, tokens and groups differing by a few powers of two.
    Natural,
    /// All moved by this much.
    Moved(i32),
    /// Any from 60 to 190, each group of each entry its own; scores then pick one entry.
    Wild,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListShape {
    pub capacity: usize,
    pub page_entries: usize,
    /// Entries of the pool.
    pub entries: usize,
}

/// One input to check or time.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub rows: usize,
    pub heads: usize,
    pub window: ListShape,
    pub extra: ListShape,
    pub lengths: Lengths,
    pub exponents: Exponents,
    pub q_scale: f32,
    /// One index in this many is -1 or out of range; 0 for none.
    pub masked_one_in: usize,
    pub sinks_off: usize,
    pub seed: u64,
}

/// A pool's bytes: pages as `PackedPage` lays them out.
pub struct HostPool {
    pub shape: ListShape,
    pub bytes: Vec<u8>,
}

/// Everything a launch reads, as the device sees it.
pub struct Inputs {
    pub q: Vec<u16>,
    pub sink: Vec<f32>,
    pub pools: [HostPool; 2],
    /// `[rows, capacity]` each.
    pub index: [Vec<i32>; 2],
    pub length: [Vec<i32>; 2],
}

impl HostPool {
    pub fn page(&self) -> PackedPage {
        PackedPage { entries: self.shape.page_entries }
    }

    /// Data and scales of an entry.
    pub fn entry(&self, entry: usize) -> (&[u8; ENTRY_DATA_BYTES], &[u8; ENTRY_SCALE_BYTES]) {
        let (page, slot) = (entry / self.shape.page_entries, entry % self.shape.page_entries);
        let page = &self.bytes[page * self.page().bytes()..];
        let data = &page[slot * ENTRY_DATA_BYTES..];
        let scales = &page[self.shape.page_entries * ENTRY_DATA_BYTES + slot * ENTRY_SCALE_BYTES..];
        (
            data.first_chunk().expect("a page holds all its entries"),
            scales.first_chunk().expect("a page holds all its scales"),
        )
    }

    /// `distinct` entries are drawn, the rest repeats them: the device cannot tell, and the host is quick.
    pub fn random(
        shape: ListShape,
        exponents: Exponents,
        distinct: usize,
        random: &mut fastrand::Rng,
    ) -> Self {
        let page = PackedPage { entries: shape.page_entries };
        let pages = shape.entries.div_ceil(shape.page_entries.max(1));
        let drawn = pages.min(distinct.div_ceil(shape.page_entries.max(1)));
        let mut bytes = vec![0u8; drawn * page.bytes()];
        for at in 0..drawn * shape.page_entries {
            let (data, scales) = random_entry(exponents, random);
            let start = at / shape.page_entries * page.bytes();
            let slot = at % shape.page_entries;
            let data_at = start + slot * ENTRY_DATA_BYTES;
            bytes[data_at..data_at + ENTRY_DATA_BYTES].copy_from_slice(&data);
            let scale_at = start + shape.page_entries * ENTRY_DATA_BYTES + slot * ENTRY_SCALE_BYTES;
            bytes[scale_at..scale_at + ENTRY_SCALE_BYTES].copy_from_slice(&scales);
        }
        let once = bytes.len();
        while bytes.len() < pages * page.bytes() {
            let more = once.min(pages * page.bytes() - bytes.len());
            bytes.extend_from_within(..more);
        }
        HostPool { shape, bytes }
    }
}

fn random_entry(
    exponents: Exponents,
    random: &mut fastrand::Rng,
) -> ([u8; ENTRY_DATA_BYTES], [u8; ENTRY_SCALE_BYTES]) {
    let token = f32::powi(2.0, random.i32(-2..3));
    let mut latent = [0f32; HEAD_DIMS];
    for group in latent.chunks_exact_mut(64) {
        let size = token * f32::powi(2.0, random.i32(-1..2));
        group.iter_mut().for_each(|value| *value = normal(random) * size);
    }
    let (mut data, mut scales) = ([0; ENTRY_DATA_BYTES], [0; ENTRY_SCALE_BYTES]);
    encode_entry(&latent, &mut data, &mut scales);
    for scale in &mut scales[..7] {
        *scale = match exponents {
            Exponents::Natural => *scale,
            Exponents::Moved(by) => (i32::from(*scale) + by).clamp(1, 254) as u8,
            Exponents::Wild => random.u8(60..190),
        };
    }
    (data, scales)
}

impl Case {
    pub fn inputs(&self, random: &mut fastrand::Rng) -> Inputs {
        let pools =
            [self.window, self.extra].map(|shape| HostPool::random(shape, self.exponents, 4096, random));
        let mut sink: Vec<f32> = (0..self.heads).map(|_| normal(random)).collect();
        sink.iter_mut().take(self.sinks_off).for_each(|value| *value = f32::NEG_INFINITY);
        let length = [self.window, self.extra].map(|shape| self.lengths(shape.capacity, random));
        let index = [self.window_indices(random), self.extra_indices(random)];
        let q = (0..self.rows * self.heads * HEAD_DIMS)
            .map(|_| bf16_encode(normal(random) * self.q_scale))
            .collect();
        Inputs { q, sink, pools, index, length }
    }

    fn lengths(&self, capacity: usize, random: &mut fastrand::Rng) -> Vec<i32> {
        (0..self.rows)
            .map(|row| match self.lengths {
                Lengths::Full => capacity,
                Lengths::Uneven => random.usize(0..=capacity),
                Lengths::OneLong if row == self.rows / 2 => capacity,
                Lengths::OneLong => capacity / 16,
                Lengths::Zero => 0,
            } as i32)
            .collect()
    }

    /// Consecutive entries from a random start, as a window is.
    pub fn window_indices(&self, random: &mut fastrand::Rng) -> Vec<i32> {
        let ListShape { capacity, entries, .. } = self.window;
        let mut index = Vec::with_capacity(self.rows * capacity);
        for _ in 0..self.rows {
            let start = random.usize(0..entries.saturating_sub(capacity).max(1));
            index.extend((0..capacity).map(|at| self.mask((start + at) as i32, entries, random)));
        }
        index
    }

    /// Scattered entries, as top-k picks them.
    pub fn extra_indices(&self, random: &mut fastrand::Rng) -> Vec<i32> {
        let ListShape { capacity, entries, .. } = self.extra;
        (0..self.rows * capacity)
            .map(|_| {
                let entry = random.usize(0..entries) as i32;
                self.mask(entry, entries, random)
            })
            .collect()
    }

    fn mask(&self, entry: i32, entries: usize, random: &mut fastrand::Rng) -> i32 {
        if self.masked_one_in == 0 || random.usize(0..self.masked_one_in) > 0 {
            return entry;
        }
        if random.bool() { -1 } else { entries as i32 + random.i32(0..1000) }
    }
}

/// Box and Muller, one of the pair.
fn normal(random: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * random.f64()).cos()) as f32
}
