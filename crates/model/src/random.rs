//! A model of any shape over random weights, for measuring how long its arithmetic takes where no checkpoint is at hand. What
//! it computes means nothing, but its numbers are sane: matrices have a mean square of 1 / inputs, so that what passes
//! through them keeps its size, and routing is about uniform.
//!
//! Matrices of a format are slices, from random places, of one run of numbers as long as the largest of them: a model of
//! 160 GB takes 1.5 GB of host memory, most of it for the embedding. So caches of a processor may hold weights that those of
//! a real model would not stay in; on a device every matrix has bytes of its own.

use crate::quant::{E2M1_VALUES, E4M3_VALUES, bf16_encode};
use crate::{
    Attention, Bytes, Compressor, Expert, FeedForward, Format, HEAD_DIM, HyperConnection, INDEX_DIM, Indexer,
    Layer, LayerKind, LayerSpec, Matrix, Model, Routing, RoutingKind, STREAMS, Spec, Summary, Weights,
};
use std::collections::BTreeMap;

/// Numbers that are drawn; longer runs repeat them. Odd, so that rows of a matrix, which are even, do not.
const DRAWN_MAX: usize = (16 << 20) - 3;

/// Numbers of a format, as a multiple of its largest matrix: matrices begin anywhere within.
const SPREAD: usize = 8;

/// Of where matrices begin, in bytes.
const ALIGN: usize = 64;

impl Model {
    /// In the formats of the published checkpoints: experts FP4, projections FP8, all else BF16 and float32. The widths that
    /// experts read must be multiples of 32, as FP4 has it.
    pub fn random(spec: Spec, seed: u64) -> Self {
        let weights = Maker::new(&spec, seed).weights();
        let summary = Summary::of_no_files(&spec, &weights);
        Model { spec, weights, summary, folder: None }
    }
}

struct Maker<'a> {
    spec: &'a Spec,
    random: fastrand::Rng,
    /// E4M3 without the codes that are no numbers; any byte of it is two E2M1 codes as well.
    codes: Bytes,
    /// BF16 of mean square 1 / hidden size: all such matrices read the hidden state.
    halves: Bytes,
    /// Float32 of mean square 1 / (streams x hidden size).
    floats: Bytes,
    /// By scale byte, as many of it as any matrix has.
    scales: BTreeMap<u8, Bytes>,
}

impl<'a> Maker<'a> {
    fn new(spec: &'a Spec, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let Spec { hidden_size: hidden, heads, q_lora_rank: q_lora, .. } = *spec;
        let o_width = spec.o_groups * spec.o_lora_rank;
        let group_width = heads / spec.o_groups.max(1) * HEAD_DIM;
        let codes = [
            hidden * q_lora.max(HEAD_DIM).max(spec.expert_width).max(o_width),
            q_lora * HEAD_DIM * heads,
            q_lora * INDEX_DIM * spec.index_heads,
            o_width * group_width,
        ];
        let halves = hidden * spec.vocab_size.max(2 * HEAD_DIM).max(spec.experts).max(spec.index_heads);
        let floats = (2 + STREAMS) * STREAMS * STREAMS * hidden;
        Maker {
            codes: codes_of(&mut random, SPREAD * largest(&codes)),
            halves: uniform(&mut random, halves + halves / SPREAD, unit_gain(hidden), |x| {
                bf16_encode(x).to_le_bytes()
            }),
            floats: uniform(&mut random, SPREAD * floats, unit_gain(STREAMS * hidden), f32::to_le_bytes),
            scales: BTreeMap::new(),
            spec,
            random,
        }
    }

    fn weights(&mut self) -> Weights {
        let Spec { vocab_size: vocab, hidden_size: hidden, .. } = *self.spec;
        Weights {
            embed: self.half_matrix(vocab, hidden),
            layers: self.spec.layers.iter().map(|layer| self.layer(*layer)).collect(),
            hc_head: self.hyper_connection(STREAMS, 1),
            norm: vec![1.0; hidden],
            head: self.half_matrix(vocab, hidden),
        }
    }

    fn layer(&mut self, LayerSpec { kind, routing }: LayerSpec) -> Layer {
        let (hidden, sites) = (self.spec.hidden_size, (2 + STREAMS) * STREAMS);
        Layer {
            hc_attn: self.hyper_connection(sites, 3),
            attn_norm: vec![1.0; hidden],
            attn: self.attention(kind),
            hc_ffn: self.hyper_connection(sites, 3),
            ffn_norm: vec![1.0; hidden],
            ffn: self.feed_forward(routing),
        }
    }

    fn attention(&mut self, kind: LayerKind) -> Attention {
        let Spec { hidden_size: hidden, heads, q_lora_rank: q_lora, o_groups, o_lora_rank, .. } = *self.spec;
        let wo_a = self.matrix(Format::Fp8, o_groups * o_lora_rank, heads / o_groups * HEAD_DIM);
        Attention {
            wq_a: self.matrix(Format::Fp8, q_lora, hidden),
            q_norm: vec![1.0; q_lora],
            wq_b: self.matrix(Format::Fp8, heads * HEAD_DIM, q_lora),
            wkv: self.matrix(Format::Fp8, HEAD_DIM, hidden),
            kv_norm: vec![1.0; HEAD_DIM],
            sink: self.vector(heads, 0.5),
            wo_a: (0..o_groups).map(|i| wo_a.slice_rows(i * o_lora_rank..(i + 1) * o_lora_rank)).collect(),
            wo_b: self.matrix(Format::Fp8, hidden, o_groups * o_lora_rank),
            compressor: (kind != LayerKind::Window).then(|| self.compressor(kind, HEAD_DIM)),
            indexer: (kind == LayerKind::Csa).then(|| self.indexer()),
        }
    }

    fn compressor(&mut self, kind: LayerKind, width: usize) -> Compressor {
        let channels = if kind == LayerKind::Csa { 2 * width } else { width };
        let hidden = self.spec.hidden_size;
        Compressor {
            wkv: self.half_matrix(channels, hidden),
            wgate: self.half_matrix(channels, hidden),
            ape: self.vector(kind.ratio() * channels, 0.5),
            norm: vec![1.0; width],
        }
    }

    fn indexer(&mut self) -> Indexer {
        let Spec { hidden_size: hidden, index_heads, q_lora_rank, .. } = *self.spec;
        Indexer {
            wq_b: self.matrix(Format::Fp8, index_heads * INDEX_DIM, q_lora_rank),
            weights_proj: self.half_matrix(index_heads, hidden),
            compressor: self.compressor(LayerKind::Csa, INDEX_DIM),
        }
    }

    fn feed_forward(&mut self, routing: RoutingKind) -> FeedForward {
        let Spec { hidden_size: hidden, experts, .. } = *self.spec;
        FeedForward {
            gate: self.half_matrix(experts, hidden),
            routing: match routing {
                RoutingKind::Hash => Routing::Hash { experts_of_token: self.experts_of_token() },
                RoutingKind::Learned => Routing::Learned { bias: vec![0.0; experts] },
            },
            experts: (0..experts).map(|_| self.expert(Format::Fp4)).collect(),
            shared: self.expert(Format::Fp8),
        }
    }

    fn expert(&mut self, format: Format) -> Expert {
        let (hidden, width) = (self.spec.hidden_size, self.spec.expert_width);
        Expert {
            w1: self.matrix(format, width, hidden),
            w2: self.matrix(format, hidden, width),
            w3: self.matrix(format, width, hidden),
        }
    }

    /// Different ones for each token, ascending.
    fn experts_of_token(&mut self) -> Vec<u16> {
        let Spec { vocab_size, experts, experts_per_token, .. } = *self.spec;
        let mut table = Vec::with_capacity(vocab_size * experts_per_token);
        for _ in 0..vocab_size {
            let mut chosen = self.random.choose_multiple(0..experts as u16, experts_per_token);
            chosen.sort_unstable();
            table.extend(chosen);
        }
        table
    }

    fn hyper_connection(&mut self, rows: usize, scales: usize) -> HyperConnection {
        let cols = STREAMS * self.spec.hidden_size;
        let data = slice(&self.floats, Format::F32.row_bytes(cols) * rows, &mut self.random);
        HyperConnection {
            mix: Matrix::new(Format::F32, rows, cols, data, Bytes::empty()),
            base: self.vector(rows, 0.2),
            scale: vec![0.5; scales],
        }
    }

    fn half_matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        let data = slice(&self.halves, Format::Bf16.row_bytes(cols) * rows, &mut self.random);
        Matrix::new(Format::Bf16, rows, cols, data, Bytes::empty())
    }

    /// FP8 or FP4.
    fn matrix(&mut self, format: Format, rows: usize, cols: usize) -> Matrix {
        let data = slice(&self.codes, format.row_bytes(cols) * rows, &mut self.random);
        let values = if format == Format::Fp4 { &E2M1_VALUES[..] } else { &E4M3_VALUES[..] };
        let numbers = || values.iter().filter(|value| value.is_finite());
        let mean_square = numbers().map(|x| x * x).sum::<f32>() / numbers().count() as f32;
        let exponent = (unit_gain(cols) / mean_square.sqrt()).log2().round() as i32;
        let scale_rows = if format == Format::Fp8 { rows.div_ceil(Format::FP8_BLOCK) } else { rows };
        let count = scale_rows * format.scale_row_bytes(cols);
        let scales = self.scales((127 + exponent) as u8, count);
        Matrix::new(format, rows, cols, data, scales)
    }

    fn scales(&mut self, byte: u8, count: usize) -> Bytes {
        let known = self.scales.entry(byte).or_insert_with(Bytes::empty);
        if known.len() < count {
            *known = Bytes::from_vec(vec![byte; count]);
        }
        known.slice(0..count)
    }

    /// Of this mean square's root.
    fn vector(&mut self, len: usize, rms: f32) -> Vec<f32> {
        (0..len).map(|_| between(&mut self.random, rms)).collect()
    }
}

/// The root of the mean square that weights need for outputs as large as `cols` inputs.
fn unit_gain(cols: usize) -> f32 {
    (cols.max(1) as f32).powf(-0.5)
}

/// Uniform around 0, with this root of its mean square.
fn between(random: &mut fastrand::Rng, rms: f32) -> f32 {
    (2.0 * random.f32() - 1.0) * 3.0_f32.sqrt() * rms
}

fn largest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or(0)
}

fn codes_of(random: &mut fastrand::Rng, len: usize) -> Bytes {
    let mut codes = vec![0; len.min(DRAWN_MAX)];
    random.fill(&mut codes);
    for code in &mut codes {
        *code ^= u8::from(*code & 0x7f == 0x7f);
    }
    Bytes::from_vec(repeated(codes, len))
}

/// So many numbers.
fn uniform<const N: usize>(
    random: &mut fastrand::Rng,
    count: usize,
    rms: f32,
    encode: impl Fn(f32) -> [u8; N],
) -> Bytes {
    let drawn: Vec<u8> = (0..count.min(DRAWN_MAX)).flat_map(|_| encode(between(random, rms))).collect();
    Bytes::from_vec(repeated(drawn, count * N))
}

fn repeated(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.reserve_exact(len - bytes.len());
    let drawn = bytes.len();
    while bytes.len() < len {
        // Whole copies only, or the numbers at the seams would be cut.
        let count = drawn.min(len - bytes.len());
        bytes.extend_from_within(..count);
    }
    bytes
}

/// So many bytes from a random place on.
fn slice(bytes: &Bytes, len: usize, random: &mut fastrand::Rng) -> Bytes {
    let start = random.usize(0..=(bytes.len() - len) / ALIGN) * ALIGN;
    bytes.slice(start..start + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn tiny() -> Spec {
        Config::parse(crate::tests::TINY_FP8FP4.0, "config.json").unwrap().spec
    }

    #[test]
    fn shapes_and_formats_are_those_of_a_checkpoint() {
        let (config, weights) = crate::tests::TINY_FP8FP4;
        let stored = Model::from_parts(config, Bytes::from_static(weights)).unwrap();
        let random = Model::random(tiny(), 1);
        assert_eq!(random.weights.parameters(), stored.weights.parameters());
        let shape = |matrix: &Matrix| (matrix.rows, matrix.cols, matrix.scales().len());
        let shapes = |model: &Model| model.weights.matrices().map(shape).collect::<Vec<_>>();
        assert_eq!(shapes(&random), shapes(&stored));
        assert!(random.weights.matrices().all(|matrix| matrix.first_nan_code().is_none()));
        for (layer, experts) in random.weights.layers.iter().map(|layer| (layer, &layer.ffn.experts)) {
            assert_eq!((layer.attn.wq_a.format, experts[0].w2.format), (Format::Fp8, Format::Fp4));
        }
    }

    #[test]
    fn rows_keep_the_size_of_what_they_read() {
        let spec = Spec { hidden_size: 256, expert_width: 128, ..tiny() };
        let model = Model::random(spec, 2);
        let ffn = &model.weights.layers[0].ffn;
        for matrix in [&ffn.experts[3].w1, &ffn.experts[3].w2, &ffn.shared.w1, &ffn.gate, &model.weights.head]
        {
            let mut row = vec![0.0; matrix.cols];
            let squares = (0..matrix.rows).map(|index| {
                matrix.decode_row(index, &mut row);
                row.iter().map(|x| x * x).sum::<f32>()
            });
            let gain = (squares.sum::<f32>() / matrix.rows as f32).sqrt();
            // Scales are powers of two: half of one off at most.
            assert!((0.65..1.5).contains(&gain), "{:?}: {gain}", matrix.format);
        }
    }

    #[test]
    fn a_seed_is_a_model() {
        let bytes = |seed| Model::random(tiny(), seed).weights.layers[1].ffn.experts[2].w3.data().to_vec();
        assert_eq!(bytes(5), bytes(5));
        assert_ne!(bytes(5), bytes(6));
    }
}
