//! Attention: cases, and their check.

use super::device_step::{DeviceStep, Piece};
use crate::backend::arguments as args;
use crate::backend::kernels::AttentionTiles;
use crate::gpu::{Buffer, Gpu, GpuError};
use crate::selftest::matmul::{Finding, find};
use crate::selftest::parallel;
use fastrand::Rng;
use overshot_model::quant::{
    ENTRY_BYTES, ENTRY_DATA_BYTES, ENTRY_SCALE_BYTES, PackedPage, decode_entry, encode_entry,
};
use overshot_model::{HEAD_DIM, WINDOW};
use std::sync::Arc;

const RING: usize = 256;
const ROTARY: usize = 448;
const SCALE: f32 = 0.044_194_174; // 1 / sqrt(512)
const RMS_EPS: f32 = 1e-6;

/// What a token sees beside its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Nothing,
    /// Entries of 128 tokens, all that are complete.
    All,
    /// So many entries of 4 tokens, at random among those that are complete.
    Selected(usize),
}

#[derive(Clone, Debug)]
pub struct AttentionCase {
    pub rows: Vec<Piece>,
    pub heads: usize,
    pub seen: Seen,
    /// How far sinks lie from 0; the scores of keys mostly lie within 8.
    pub sink_size: f32,
    /// Of the heads, so many have no sink.
    pub sinks_off: usize,
    /// The latent of the step's last token is no number.
    pub last_is_odd: bool,
}

type Latent = [f32; HEAD_DIM];

/// The inputs of a case, here and on the device.
pub struct AttentionInputs {
    pub(super) case: AttentionCase,
    pub(super) step: DeviceStep,
    q: Vec<f32>,
    sink: Vec<f32>,
    /// By row: latents of all its positions from `first_kept` on, and its entries.
    latents: Vec<Vec<Latent>>,
    entries: Vec<Vec<Latent>>,
    /// By token, ascending.
    selected: Vec<Vec<usize>>,
    pub(super) out: Buffer<f32>,
    pub(super) args: args::Attention,
    on_device: Buffer<f32>,
    _sink: Buffer<f32>,
    _bytes: [Buffer<u8>; 3],
    _lists: [Buffer<i32>; 2],
}

fn normal(random: &mut Rng) -> f32 {
    (0..4).map(|_| random.f32() - 0.5).sum::<f32>() * 1.7
}

/// As the pools store it, and what is read back.
fn entry(random: &mut Rng) -> (Vec<u8>, Latent) {
    let size = f32::powi(2.0, random.i32(-2..3));
    let latent: Latent = std::array::from_fn(|_| normal(random) * size);
    let (mut data, mut scales) = ([0; ENTRY_DATA_BYTES], [0; ENTRY_SCALE_BYTES]);
    encode_entry(&latent, &mut data, &mut scales);
    let mut read = latent;
    decode_entry(&data, &scales, &mut read);
    (data.into_iter().chain(scales).collect(), read)
}

/// Pages full of NaN.
struct PackedPool {
    page: PackedPage,
    bytes: Vec<u8>,
}

impl PackedPool {
    fn new(entries: usize, pages: usize) -> Self {
        let page = PackedPage { entries };
        PackedPool { page, bytes: vec![0xff; page.bytes() * pages] }
    }

    fn put(&mut self, page: usize, slot: usize, packed: &[u8]) {
        let (data, scales) = packed.split_at(ENTRY_DATA_BYTES);
        let start = page * self.page.bytes();
        self.bytes[start + slot * ENTRY_DATA_BYTES..][..ENTRY_DATA_BYTES].copy_from_slice(data);
        let at = start + self.page.entries * ENTRY_DATA_BYTES + slot * ENTRY_SCALE_BYTES;
        self.bytes[at..at + ENTRY_SCALE_BYTES].copy_from_slice(scales);
    }

    fn args(&self, buffer: &Buffer<u8>) -> args::Pages {
        let (page_bytes, slots) = (self.page.bytes() as i64, self.page.entries as i32);
        args::Pages { data: buffer.address(), page_bytes, slots, format: 1 }
    }
}

impl AttentionCase {
    fn ratio(&self) -> usize {
        if matches!(self.seen, Seen::All) { 128 } else { 4 }
    }

    pub fn inputs(&self, gpu: &Arc<dyn Gpu>, random: &mut Rng) -> Result<AttentionInputs, GpuError> {
        let step = DeviceStep::new(gpu, &self.rows, random)?;
        let pool = usize::from(matches!(self.seen, Seen::All));
        let growing = step.growing[pool].clone();
        let mut ring = PackedPool::new(RING, self.rows.len());
        let mut pages = PackedPool::new(growing.slots, growing.pages());
        let (mut packed, mut latents, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for (row, piece) in self.rows.iter().enumerate() {
            let mut own = Vec::new();
            for position in first_kept(*piece)..piece.end() {
                let (mut bytes, latent) = entry(random);
                if position < piece.start {
                    ring.put(row, position % RING, &bytes);
                } else {
                    if self.last_is_odd && packed.len() + ENTRY_BYTES == step.tokens.len() * ENTRY_BYTES {
                        bytes.fill(0xff);
                    }
                    packed.extend(bytes);
                }
                own.push(latent);
            }
            latents.push(own);
            let complete = if self.seen == Seen::Nothing { 0 } else { piece.end() / self.ratio() };
            entries.push(
                (0..complete)
                    .map(|index| {
                        let (bytes, latent) = entry(random);
                        let (page, slot) = growing.place(row, index);
                        pages.put(page, slot, &bytes);
                        latent
                    })
                    .collect::<Vec<_>>(),
            );
        }
        let selected: Vec<Vec<usize>> =
            step.tokens.iter().map(|token| self.selection((token.1 + 1) / self.ratio(), random)).collect();
        let stride = if let Seen::Selected(top) = self.seen { top } else { 1 };
        let table: Vec<i32> = selected
            .iter()
            .flat_map(|list| {
                let poison = std::iter::repeat_n(i32::MAX, stride.saturating_sub(list.len()));
                list.iter().map(|entry| *entry as i32).chain(poison).take(stride).collect::<Vec<_>>()
            })
            .collect();
        let counts: Vec<i32> = selected.iter().map(|list| list.len() as i32).collect();
        let q: Vec<f32> =
            (0..step.tokens.len() * self.heads * HEAD_DIM).map(|_| normal(random) * 3.0).collect();
        let mut sink: Vec<f32> = (0..self.heads).map(|_| normal(random) * self.sink_size).collect();
        sink.iter_mut().take(self.sinks_off).for_each(|sink| *sink = f32::NEG_INFINITY);

        let (on_device, sinks) = (Buffer::of(gpu, &q)?, Buffer::of(gpu, &sink)?);
        let bytes =
            [Buffer::of(gpu, &packed)?, Buffer::of(gpu, &ring.bytes)?, Buffer::of(gpu, &pages.bytes)?];
        let lists = [Buffer::of(gpu, &table)?, Buffer::of(gpu, &counts)?];
        let out = Buffer::new(gpu, q.len())?;
        let args = args::Attention {
            step: step.args,
            q: on_device.address(),
            sink: sinks.address(),
            latents: args::Attention::default().latents,
            packed: bytes[0].address(),
            window: ring.args(&bytes[1]),
            entries: pages.args(&bytes[2]),
            selected: lists[0].address(),
            counts: lists[1].address(),
            out: out.address(),
            heads: self.heads as i32,
            selected_stride: stride as i32,
            kind: match self.seen {
                Seen::Nothing => args::Entries::None,
                Seen::All => args::Entries::All,
                Seen::Selected(_) => args::Entries::Selected,
            } as i32,
            pool: pool as i32,
            ratio: self.ratio() as i32,
            compressed: 1,
            rms_eps: RMS_EPS,
            scale: SCALE,
        };
        Ok(AttentionInputs {
            case: self.clone(),
            step,
            q,
            sink,
            latents,
            entries,
            selected,
            out,
            args,
            on_device,
            _sink: sinks,
            _bytes: bytes,
            _lists: lists,
        })
    }

    fn selection(&self, visible: usize, random: &mut Rng) -> Vec<usize> {
        match self.seen {
            Seen::Nothing => vec![],
            Seen::All => (0..visible).collect(),
            Seen::Selected(top) => {
                let mut list = random.choose_multiple(0..visible, top.min(visible));
                list.sort_unstable();
                list
            }
        }
    }
}

/// The first position that the row's tokens may see.
fn first_kept(piece: Piece) -> usize {
    (piece.start + 1).saturating_sub(WINDOW)
}

impl AttentionInputs {
    pub fn launch(&self, kernel: &AttentionTiles) -> Result<(), GpuError> {
        kernel.launch(&self.args)
    }

    /// The first number of a token's first query becomes NaN.
    #[cfg(test)]
    pub(super) fn spoil_query(&mut self, token: usize) {
        self.q[token * self.case.heads * HEAD_DIM] = f32::NAN;
    }

    /// For kernels that use them up.
    pub(super) fn upload_queries(&mut self) -> Result<(), GpuError> {
        self.on_device.copy_in(&self.q)
    }

    /// Multiply-adds count two; each of scores and values once.
    pub fn flop(&self) -> f64 {
        let keys: usize = (0..self.step.tokens.len()).map(|token| self.keys(token).len()).sum();
        (keys * self.case.heads * HEAD_DIM * 4) as f64
    }

    /// Launches over poison; the bits by token.
    pub fn bits(&mut self, kernel: &AttentionTiles) -> Result<Vec<Vec<u32>>, GpuError> {
        self.out.fill_bytes(0xff)?;
        self.launch(kernel)?;
        let out = self.out.copy_out()?;
        let of_token = self.case.heads * HEAD_DIM;
        Ok(out.chunks_exact(of_token).map(|token| token.iter().map(|x| x.to_bits()).collect()).collect())
    }

    /// Compares every `one_in`-th token.
    pub fn check(&mut self, kernel: &AttentionTiles, one_in: usize) -> Result<Finding, GpuError> {
        let answers = self.bits(kernel)?;
        let mut all = Finding { worst: 0.0, not_finite: 0, unprepared: 0, bits: vec![] };
        let heads = self.case.heads;
        let compared: Vec<usize> = (0..answers.len()).step_by(one_in.max(1)).collect();
        let of_head = |at: usize| {
            let (token, head) = (compared[at / heads], at % heads);
            let answer = &answers[token][head * HEAD_DIM..][..HEAD_DIM];
            let answer: Vec<f32> = answer.iter().map(|bits| f32::from_bits(*bits)).collect();
            let (exact, allowed) = self.reference(token, head, |q| q);
            find(&answer, &exact, |at| allowed[at])
        };
        for finding in parallel::map(compared.len() * heads, of_head) {
            all.worst = all.worst.max(finding.worst);
            all.not_finite += finding.not_finite;
        }
        all.bits = answers.concat();
        Ok(all)
    }

    fn keys(&self, token: usize) -> Vec<&Latent> {
        let (row, position) = self.step.tokens[token];
        let first = first_kept(self.step.rows[row]);
        let window = (position + 1).saturating_sub(WINDOW)..position + 1;
        let window = window.map(|position| &self.latents[row][position - first]);
        window.chain(self.selected[token].iter().map(|entry| &self.entries[row][*entry])).collect()
    }

    /// In float64, of queries as `rounded` leaves them, and how far each number may be off: what float32 sums of so many steps of 16 lose at most, each a unit of
    /// the sum of magnitudes (tensor cores cut where the emulator rounds), in scores and from there in weights, and in values.
    pub(super) fn reference(
        &self,
        token: usize,
        head: usize,
        rounded: impl Fn(f64) -> f64,
    ) -> (Vec<f64>, Vec<f64>) {
        let rotation: Vec<f64> =
            self.step.rotations[(token * 2 + 1) * 64..][..64].iter().map(|x| f64::from(*x)).collect();
        let rotate = |x: &mut [f64], direction: f64| {
            for pair in 0..32 {
                let (cosine, sine) = (rotation[pair], rotation[32 + pair] * direction);
                let (even, odd) = (x[ROTARY + 2 * pair], x[ROTARY + 2 * pair + 1]);
                x[ROTARY + 2 * pair] = even * cosine - odd * sine;
                x[ROTARY + 2 * pair + 1] = even * sine + odd * cosine;
            }
        };
        let own = &self.q[(token * self.case.heads + head) * HEAD_DIM..][..HEAD_DIM];
        let mut q: Vec<f64> = own.iter().map(|x| f64::from(*x)).collect();
        let squares: f64 = q.iter().map(|x| x * x).sum();
        let inverse = 1.0 / (squares / HEAD_DIM as f64 + f64::from(RMS_EPS)).sqrt();
        q.iter_mut().for_each(|x| *x *= inverse);
        rotate(&mut q, 1.0);
        q.iter_mut().for_each(|x| *x = rounded(*x));
        let unit = f64::powi(2.0, -23);
        let keys = self.keys(token);
        let (mut scores, mut scores_off) = (vec![], 0f64);
        for key in &keys {
            let products = q.iter().zip(key.iter()).map(|(q, k)| q * f64::from(*k));
            scores_off = scores_off.max(products.clone().map(f64::abs).sum::<f64>());
            scores.push(products.sum::<f64>() * f64::from(SCALE));
        }
        scores_off *= f64::from(SCALE) * unit * (4.0 * HEAD_DIM as f64 / 16.0 + 8.0);
        let sink = f64::from(self.sink[head]);
        let most = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
        let (mut exact, mut magnitude) = (vec![0.0; HEAD_DIM], vec![0.0; HEAD_DIM]);
        let mut all = vec![0.0; HEAD_DIM];
        for (weight, key) in weights.iter().zip(&keys) {
            for (dim, k) in key.iter().enumerate() {
                exact[dim] += weight / sum * f64::from(*k);
                magnitude[dim] += weight / sum * f64::from(*k).abs();
                all[dim] += f64::from(*k).abs() / sum;
            }
        }
        rotate(&mut exact, -1.0);
        let off = 2.0 * scores_off + unit * (keys.len() as f64 / 4.0 + 16.0);
        // What a weight loses where it is 2^-39 of the largest: it is a number of a fixed size there.
        let lost = f64::powi(2.0, -39);
        // A pair's numbers mix.
        let both = |x: &[f64], dim: usize| if dim < ROTARY { x[dim] } else { x[dim & !1] + x[dim | 1] };
        let allowed = (0..HEAD_DIM).map(|dim| off * both(&magnitude, dim) + lost * both(&all, dim));
        (exact, allowed.collect())
    }
}
