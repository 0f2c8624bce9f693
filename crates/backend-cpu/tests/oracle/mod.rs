//! The forward pass of one whole sequence in float64, written from the formulas and not from the backend: plain
//! loops, no cache, no pages, every layer over all tokens at once. Slow, and meant to be read beside the formulas.
//!
//! Roundings are those of [`Numerics`], made by the codecs of `overshot_model::quant`. A [`Fault`] breaks one rule on
//! purpose, so that a comparison can prove that it would notice.

mod attention;
mod experts;

use overshot_backend::{Activations, Numerics};
use overshot_model::quant::{bf16_decode, bf16_encode, round_activations};
use overshot_model::{Format, HyperConnection, Matrix, Model, STREAMS};

/// One wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `wo_a` sees rounded activations like its neighbours.
    RoundsBeforeWoA,
    /// `wo_b` does not.
    ExactBeforeWoB,
    /// BF16 and F32 matrices see rounded activations too.
    RoundsBeforeEveryMatrix,
    /// The weight of an expert after its `w2`, as transformers does.
    ExpertWeightAfterW2,
    ExactRotaryDims,
    ExactEntries,
    /// Only what later tokens read is rounded.
    ExactOwnLatent,
    RoundsQueries,
    ExactIndexQueries,
    NoHadamard,
}

/// Numbers of one token.
pub type Vector = Vec<f64>;

pub struct Oracle<'a> {
    pub model: &'a Model,
    pub numerics: Numerics,
    pub fault: Option<Fault>,
}

/// What a layer did beside its streams: of every token, the scores of its visible entries and those it picked.
/// Empty without an indexer.
#[derive(Default)]
pub struct Indexed {
    pub scores: Vec<Vector>,
    pub picked: Vec<Vec<usize>>,
}

impl Oracle<'_> {
    /// Four equal streams per token, end to end.
    pub fn embed(&self, tokens: &[u32]) -> Vec<Vector> {
        let row = |token: &u32| row(&self.model.weights.embed, *token as usize);
        tokens.iter().map(|token| row(token).repeat(STREAMS)).collect()
    }

    pub fn layer(&self, index: usize, tokens: &[u32], streams: &mut [Vector]) -> Indexed {
        let layer = &self.model.weights.layers[index];
        let sites = self.enter(&layer.hc_attn, &layer.attn_norm, streams);
        let inputs: Vec<Vector> = sites.iter().map(|site| site.x.clone()).collect();
        let (outputs, indexed) = self.attention(index, &layer.attn, &inputs);
        leave(&sites, &outputs, streams);

        let sites = self.enter(&layer.hc_ffn, &layer.ffn_norm, streams);
        let inputs: Vec<Vector> = sites.iter().map(|site| site.x.clone()).collect();
        leave(&sites, &self.experts(&layer.ffn, tokens, &inputs), streams);
        indexed
    }

    pub fn logits(&self, streams: &[Vector]) -> Vec<Vector> {
        let (spec, weights) = (&self.model.spec, &self.model.weights);
        let (base, scale) = (floats(&weights.hc_head.base), f64::from(weights.hc_head.scale[0]));
        let mixes = self.project_normed(&weights.hc_head, streams);
        let collapse = |(mix, streams): (&Vector, &Vector)| {
            let pre: Vector =
                (0..STREAMS).map(|i| sigmoid(mix[i] * scale + base[i]) + f64::from(spec.hc_eps)).collect();
            let mut h = collapsed(&pre, streams);
            self.norm(&mut h, Some(&weights.norm));
            h
        };
        let hidden: Vec<Vector> = mixes.iter().zip(streams).map(collapse).collect();
        self.project(&weights.head, &hidden)
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// `W x` for every token, `x` rounded where the rule says so.
    fn project(&self, matrix: &Matrix, inputs: &[Vector]) -> Vec<Vector> {
        let quantised = matches!(matrix.format, Format::Fp8 | Format::Fp4);
        let rounds =
            self.numerics.act == Activations::E4m3 && (quantised || self.has(Fault::RoundsBeforeEveryMatrix));
        match rounds {
            true => product(matrix, &inputs.iter().map(|x| rounded_activations(x)).collect::<Vec<_>>()),
            false => product(matrix, inputs),
        }
    }

    /// `x / sqrt(mean(x^2) + eps)`, times `weight` where there is one.
    fn norm(&self, x: &mut [f64], weight: Option<&[f32]>) {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + f64::from(self.model.spec.rms_eps)).sqrt();
        for (i, x) in x.iter_mut().enumerate() {
            *x = *x / root * weight.map_or(1.0, |weight| f64::from(weight[i]));
        }
    }

    fn project_normed(&self, site: &HyperConnection, streams: &[Vector]) -> Vec<Vector> {
        let mut inputs = streams.to_vec();
        inputs.iter_mut().for_each(|x| self.norm(x, None));
        product(&site.mix, &inputs)
    }

    fn enter(&self, site: &HyperConnection, norm: &[f32], streams: &[Vector]) -> Vec<Site> {
        let mixes = self.project_normed(site, streams);
        let open = |(mix, streams): (&Vector, &Vector)| self.open(site, norm, mix, streams);
        mixes.iter().zip(streams).map(open).collect()
    }

    fn open(&self, site: &HyperConnection, norm: &[f32], mix: &[f64], streams: &[f64]) -> Site {
        let spec = &self.model.spec;
        let eps = f64::from(spec.hc_eps);
        let (base, scale) = (floats(&site.base), floats(&site.scale));
        let pre: Vector = (0..4).map(|i| sigmoid(mix[i] * scale[0] + base[i]) + eps).collect();
        let post = (4..8).map(|i| 2.0 * sigmoid(mix[i] * scale[1] + base[i])).collect();
        let mut comb = [[0.0; STREAMS]; STREAMS];
        for (j, row) in comb.iter_mut().enumerate() {
            let logits = std::array::from_fn(|k| {
                let i = 8 + j * STREAMS + k;
                mix[i] * scale[2] + base[i]
            });
            *row = softmax(logits).map(|c| c + eps);
        }
        divide_columns(&mut comb, eps);
        for _ in 1..spec.hc_sinkhorn_iterations {
            for row in &mut comb {
                let sum = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|c| *c /= sum);
            }
            divide_columns(&mut comb, eps);
        }
        let mut x = collapsed(&pre, streams);
        self.norm(&mut x, Some(norm));
        Site { x, post, comb }
    }
}

/// A token at the door of a layer half.
struct Site {
    x: Vector,
    post: Vector,
    comb: [[f64; STREAMS]; STREAMS],
}

/// The transpose of `comb` mixes: its first index is the old stream.
fn leave(sites: &[Site], outputs: &[Vector], streams: &mut [Vector]) {
    for ((site, y), streams) in sites.iter().zip(outputs).zip(streams) {
        let (old, width) = (streams.clone(), y.len());
        for k in 0..STREAMS {
            for i in 0..width {
                let mixed: f64 = (0..STREAMS).map(|j| site.comb[j][k] * old[j * width + i]).sum();
                streams[k * width + i] = site.post[k] * y[i] + mixed;
            }
        }
    }
}

fn divide_columns(comb: &mut [[f64; STREAMS]; STREAMS], eps: f64) {
    for k in 0..STREAMS {
        let sum = comb.iter().map(|row| row[k]).sum::<f64>() + eps;
        comb.iter_mut().for_each(|row| row[k] /= sum);
    }
}

fn collapsed(pre: &[f64], streams: &[f64]) -> Vector {
    let width = streams.len() / STREAMS;
    (0..width).map(|i| (0..STREAMS).map(|s| pre[s] * streams[s * width + i]).sum()).collect()
}

fn softmax(logits: [f64; STREAMS]) -> [f64; STREAMS] {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x));
    let weights = logits.map(|x| (x - max).exp());
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rounded_activations(x: &[f64]) -> Vector {
    let mut rounded: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    round_activations(&mut rounded);
    floats(&rounded)
}

fn row(matrix: &Matrix, index: usize) -> Vector {
    let mut row = vec![0.0; matrix.cols];
    matrix.decode_row(index, &mut row);
    floats(&row)
}

fn product(matrix: &Matrix, inputs: &[Vector]) -> Vec<Vector> {
    let mut outputs = vec![vec![0.0; matrix.rows]; inputs.len()];
    for index in 0..matrix.rows {
        let row = row(matrix, index);
        for (x, y) in inputs.iter().zip(&mut outputs) {
            y[index] = dot(&row, x);
        }
    }
    outputs
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn floats(values: &[f32]) -> Vector {
    values.iter().map(|x| f64::from(*x)).collect()
}

fn to_bf16(x: f64) -> f64 {
    f64::from(bf16_decode(bf16_encode(x as f32)))
}
