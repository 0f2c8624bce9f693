//! The indexer: queries, scores and choices of many tokens, and their check.

use super::device_step::{DeviceStep, Piece};
use crate::backend::arguments as args;
use crate::backend::kernels::{IndexTiles, IndexWay, Launcher, SELECT_THREADS, index_select_source};
use crate::gpu::{Buffer, Gpu, GpuError, Grid, Shape};
use crate::selftest::matmul::{Finding, find};
use crate::selftest::parallel;
use fastrand::Rng;
use overshot_backend::IndexKeyFormat;
use overshot_model::INDEX_DIM;
use overshot_model::quant::{
    bf16_decode, bf16_encode, decode_index_key_fp4, decode_index_key_fp8, encode_index_key_fp4,
    encode_index_key_fp8, hadamard, round_index_key_fp4, round_index_key_fp8,
};
use std::sync::Arc;

type Key = [f32; INDEX_DIM];

#[derive(Clone, Debug)]
pub struct IndexCase {
    pub rows: Vec<Piece>,
    pub heads: usize,
    pub top: usize,
    /// Not float32, which version 2 leaves to version 1.
    pub format: IndexKeyFormat,
}

pub struct IndexInputs {
    case: IndexCase,
    step: DeviceStep,
    /// As products, and as they are to be rounded: `[tokens, heads]`.
    q: Vec<f32>,
    rounded: Vec<Key>,
    weights: Vec<f32>,
    /// By row.
    keys: Vec<Vec<Key>>,
    on_device: Buffer<f32>,
    scores: Buffer<f32>,
    selected: Buffer<i32>,
    counts: Buffer<i32>,
    args: args::Index,
    _inputs: (Buffer<f32>, Buffer<u8>),
}

/// Queries and scores for a number of heads, and choices.
pub struct IndexKernels {
    pub tiles: IndexTiles,
    pub select: Launcher<args::Index>,
}

impl IndexKernels {
    /// `None` for more heads than version 2 takes.
    pub fn load(gpu: &dyn Gpu, heads: usize) -> Result<Option<Self>, GpuError> {
        let shape = Shape { threads: SELECT_THREADS, shared_bytes: 0 };
        let select = Launcher::load_shaped(gpu, &index_select_source(), "index_select", shape)?;
        Ok(IndexTiles::load(gpu, heads)?.map(|tiles| IndexKernels { tiles, select }))
    }
}

/// A key's bytes in a page, and what is read back.
fn stored(key: &Key, format: IndexKeyFormat) -> (Vec<u8>, Key) {
    let mut key = *key;
    match format {
        IndexKeyFormat::F32 => (key.iter().flat_map(|x| x.to_le_bytes()).collect(), key),
        IndexKeyFormat::Bf16 => {
            let codes = key.map(bf16_encode);
            (codes.iter().flat_map(|code| code.to_le_bytes()).collect(), codes.map(bf16_decode))
        }
        IndexKeyFormat::Fp8 => {
            hadamard(&mut key);
            let mut codes = [0; INDEX_DIM];
            let scale = encode_index_key_fp8(&key, &mut codes);
            decode_index_key_fp8(&codes, scale, &mut key);
            (codes.into_iter().chain(scale.to_le_bytes()).collect(), key)
        }
        IndexKeyFormat::Fp4 => {
            hadamard(&mut key);
            let (mut packed, mut scales) = ([0; 64], [0; 4]);
            encode_index_key_fp4(&key, &mut packed, &mut scales);
            decode_index_key_fp4(&packed, &scales, &mut key);
            (packed.into_iter().chain(scales).collect(), key)
        }
    }
}

fn rotated_and_rounded(q: &Key, rotation: &[f32], format: IndexKeyFormat) -> Key {
    let mut q = *q;
    for pair in 0..32 {
        let (cosine, sine) = (rotation[pair], rotation[32 + pair]);
        let (even, odd) = (q[64 + 2 * pair], q[65 + 2 * pair]);
        q[64 + 2 * pair] = even * cosine - odd * sine;
        q[65 + 2 * pair] = even * sine + odd * cosine;
    }
    match format {
        IndexKeyFormat::F32 => {}
        IndexKeyFormat::Bf16 => q = q.map(|x| bf16_decode(bf16_encode(x))),
        IndexKeyFormat::Fp8 => {
            hadamard(&mut q);
            round_index_key_fp8(&mut q);
        }
        IndexKeyFormat::Fp4 => {
            hadamard(&mut q);
            round_index_key_fp4(&mut q);
        }
    }
    q
}

/// The `top` largest, of equal ones the lower, ascending.
pub fn best(scores: &[f32], top: usize) -> Vec<i32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(top);
    order.sort_unstable();
    order.into_iter().map(|entry| entry as i32).collect()
}

impl IndexCase {
    pub fn inputs(&self, gpu: &Arc<dyn Gpu>, random: &mut Rng) -> Result<IndexInputs, GpuError> {
        let step = DeviceStep::new(gpu, &self.rows, random)?;
        let (tokens, longest) = (step.tokens.len(), self.rows.iter().map(|row| row.end() / 4).max());
        let stride = longest.unwrap_or(0).max(1);
        let mut key = || -> Key { std::array::from_fn(|_| (random.f32() - 0.5) * 4.0) };
        let q: Vec<Key> = (0..tokens * self.heads).map(|_| key()).collect();
        let keys: Vec<Vec<_>> = self
            .rows
            .iter()
            .map(|row| (0..row.end() / 4).map(|_| stored(&key(), self.format)).collect())
            .collect();
        let pages = &step.growing[2];
        let bytes_each = stored(&[0.0; INDEX_DIM], self.format).0.len();
        let mut bytes = vec![0xff; pages.pages() * pages.slots * bytes_each];
        for (row, keys) in keys.iter().enumerate() {
            for (index, (key, _)) in keys.iter().enumerate() {
                let (page, slot) = pages.place(row, index);
                bytes[(page * pages.slots + slot) * bytes_each..][..bytes_each].copy_from_slice(key);
            }
        }
        let rounded = q
            .iter()
            .enumerate()
            .map(|(at, q)| {
                let rotation = &step.rotations[(at / self.heads * 2 + 1) * 64..][..64];
                rotated_and_rounded(q, rotation, self.format)
            })
            .collect();
        let weights: Vec<f32> = (0..tokens * self.heads).map(|_| random.f32() - 0.3).collect();
        let inputs = (Buffer::of(gpu, &weights)?, Buffer::of(gpu, &bytes)?);
        let (q, on_device) = (q.concat(), Buffer::new(gpu, tokens * self.heads * INDEX_DIM)?);
        let scores = Buffer::new(gpu, tokens * stride)?;
        let (selected, counts) = (Buffer::new(gpu, tokens * self.top)?, Buffer::new(gpu, tokens)?);
        let args = args::Index {
            step: step.args,
            q: on_device.address(),
            weights: inputs.0.address(),
            scores: scores.address(),
            selected: selected.address(),
            counts: counts.address(),
            keys: args::Pages {
                data: inputs.1.address(),
                page_bytes: (pages.slots * bytes_each) as i64,
                slots: pages.slots as i32,
                format: match self.format {
                    IndexKeyFormat::F32 => 0,
                    IndexKeyFormat::Bf16 => 1,
                    IndexKeyFormat::Fp8 => 2,
                    IndexKeyFormat::Fp4 => 3,
                },
            },
            heads: self.heads as i32,
            top: self.top as i32,
            score_stride: stride as i32,
            first: 0,
            end: tokens as i32,
            scale: 0.01,
        };
        Ok(IndexInputs {
            case: self.clone(),
            step,
            q,
            rounded,
            weights,
            keys: keys.into_iter().map(|row| row.into_iter().map(|key| key.1).collect()).collect(),
            on_device,
            scores,
            selected,
            counts,
            args,
            _inputs: inputs,
        })
    }
}

impl IndexInputs {
    /// Multiply-adds count two.
    pub fn flop(&self) -> f64 {
        let visible: usize = self.step.tokens.iter().map(|token| (token.1 + 1) / 4).sum();
        (visible * self.case.heads * INDEX_DIM * 2) as f64
    }

    pub fn upload_queries(&mut self) -> Result<(), GpuError> {
        self.on_device.copy_in(&self.q)
    }

    pub fn launch_scores(&self, kernels: &IndexKernels) -> Result<(), GpuError> {
        kernels.tiles.queries(&self.args)?;
        kernels.tiles.scores(&self.args, IndexWay::of_step(&self.args.step))
    }

    pub fn launch_select(&self, kernels: &IndexKernels) -> Result<(), GpuError> {
        kernels.select.launch(Grid(self.step.tokens.len() as u32, 1, 1), &self.args)
    }

    fn visible(&self, token: usize) -> usize {
        (self.step.tokens[token].1 + 1) / 4
    }

    /// In float64, and the sums of magnitudes; of a token that has scores.
    fn reference(&self, token: usize) -> (Vec<f64>, Vec<f64>) {
        let (heads, row, visible) = (self.case.heads, self.step.tokens[token].0, self.visible(token));
        let visible = if visible <= self.case.top { 0 } else { visible };
        let (mut exact, mut magnitude) = (vec![0.0; visible], vec![0.0; visible]);
        for (index, key) in self.keys[row][..visible].iter().enumerate() {
            for (head, q) in self.rounded[token * heads..][..heads].iter().enumerate() {
                let products = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let weight = f64::from(self.weights[token * heads + head] * self.args.scale);
                exact[index] += weight * products.clone().sum::<f64>().max(0.0);
                magnitude[index] += weight.abs() * products.map(f64::abs).sum::<f64>();
            }
        }
        (exact, magnitude)
    }

    /// Compares every `one_in`-th token: queries and choices to the bit, scores within what float32 sums of so many steps of
    /// 16 lose at most, and both ways to them to the bit.
    pub fn check(&mut self, kernels: &IndexKernels, one_in: usize) -> Result<Finding, GpuError> {
        self.upload_queries()?;
        self.scores.fill_bytes(0xff)?;
        self.selected.fill_bytes(0xff)?;
        self.counts.fill_bytes(0xff)?;
        self.launch_scores(kernels)?;
        self.launch_select(kernels)?;
        let queries = self.on_device.copy_out()?;
        let (scores, selected) = (self.scores.copy_out()?, self.selected.copy_out()?);
        let counts = self.counts.copy_out()?;
        let (heads, top) = (self.case.heads, self.case.top);
        let other = match IndexWay::of_step(&self.args.step) {
            IndexWay::Keys => IndexWay::Tiles,
            IndexWay::Tiles => IndexWay::Keys,
        };
        self.scores.fill_bytes(0xff)?;
        kernels.tiles.scores(&self.args, other)?;
        let other_scores = self.scores.copy_out()?;
        let compared: Vec<usize> = (0..self.step.tokens.len()).step_by(one_in.max(1)).collect();
        let references = parallel::map(compared.len(), |at| self.reference(compared[at]));
        let mut all = Finding { worst: 0.0, not_finite: 0, unprepared: 0, bits: vec![] };
        for (token, (exact, magnitude)) in compared.into_iter().zip(references) {
            let visible = self.visible(token);
            let own = &scores[token * self.args.score_stride as usize..][..visible];
            let list = &selected[token * top..][..top.min(visible)];
            let expected = if visible <= top { (0..visible as i32).collect() } else { best(own, top) };
            all.unprepared += usize::from(list != expected || counts[token] != list.len() as i32);
            let other_own = &other_scores[token * self.args.score_stride as usize..][..visible];
            all.unprepared += own.iter().zip(other_own).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            if visible <= top {
                continue;
            }
            let rounded = &self.rounded[token * heads..][..heads];
            for (head, rounded) in rounded.iter().enumerate() {
                let words = &queries[(token * heads + head) * INDEX_DIM..][..INDEX_DIM / 2];
                let codes =
                    words.iter().flat_map(|word| [word.to_bits() as u16, (word.to_bits() >> 16) as u16]);
                let same = codes.zip(rounded).all(|(code, x)| bf16_decode(code) == *x);
                all.unprepared += usize::from(!same);
            }
            let allowed = f64::powi(2.0, -23) * (INDEX_DIM as f64 / 16.0 + heads as f64 / 4.0 + 8.0);
            let finding = find(own, &exact, |at| allowed * magnitude[at]);
            all.worst = all.worst.max(finding.worst);
            all.not_finite += finding.not_finite;
            all.bits.extend(finding.bits);
        }
        Ok(all)
    }

    /// Choices over scores of one's own, `[tokens, score_stride]`.
    pub fn choose(&mut self, kernels: &IndexKernels, scores: &[f32]) -> Result<Vec<i32>, GpuError> {
        self.scores.copy_in(scores)?;
        self.selected.fill_bytes(0xff)?;
        self.launch_select(kernels)?;
        self.selected.copy_out()
    }
}
