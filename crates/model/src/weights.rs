//! A model's parameters by role. Matrices stay in their stored format; vectors are small and held as `f32`.
//! Names follow the published checkpoint; shapes use the letters of `Spec`: d hidden size, H heads, n streams.

use crate::Matrix;

#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab, d]`
    pub embed: Matrix,
    pub layers: Vec<Layer>,
    /// Collapses the streams before the final norm: `mix [n, n*d]`, `base [n]`, `scale [1]`.
    pub hc_head: HyperConnection,
    pub norm: Vec<f32>,
    /// `[vocab, d]`
    pub head: Matrix,
}

/// Parameters of one hyper-connection site: `mix [(2+n)*n, n*d]` in float32, `base [(2+n)*n]`, `scale [3]`.
#[derive(Clone, Debug)]
pub struct HyperConnection {
    pub mix: Matrix,
    pub base: Vec<f32>,
    pub scale: Vec<f32>,
}

#[derive(Clone, Debug)]
pub struct Layer {
    pub hc_attn: HyperConnection,
    pub attn_norm: Vec<f32>,
    pub attn: Attention,
    pub hc_ffn: HyperConnection,
    pub ffn_norm: Vec<f32>,
    pub ffn: FeedForward,
}

#[derive(Clone, Debug)]
pub struct Attention {
    /// `[q_lora, d]`
    pub wq_a: Matrix,
    pub q_norm: Vec<f32>,
    /// `[H * 512, q_lora]`
    pub wq_b: Matrix,
    /// `[512, d]`
    pub wkv: Matrix,
    pub kv_norm: Vec<f32>,
    /// One logit per head, not multiplied by the softmax scale.
    pub sink: Vec<f32>,
    /// One `[o_lora, H / o_groups * 512]` block per group.
    pub wo_a: Vec<Matrix>,
    /// `[d, o_groups * o_lora]`
    pub wo_b: Matrix,
    /// CSA and HCA layers.
    pub compressor: Option<Compressor>,
    /// CSA layers.
    pub indexer: Option<Indexer>,
}

/// Pools tokens into entries of width D (512, or 128 in the indexer); c is 2 at ratio 4, else 1.
#[derive(Clone, Debug)]
pub struct Compressor {
    /// `[c * D, d]`
    pub wkv: Matrix,
    /// `[c * D, d]`
    pub wgate: Matrix,
    /// `[ratio, c * D]`, row major.
    pub ape: Vec<f32>,
    pub norm: Vec<f32>,
}

#[derive(Clone, Debug)]
pub struct Indexer {
    /// `[index_heads * 128, q_lora]`
    pub wq_b: Matrix,
    /// `[index_heads, d]`
    pub weights_proj: Matrix,
    pub compressor: Compressor,
}

#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `[experts, d]`
    pub gate: Matrix,
    pub routing: Routing,
    pub experts: Vec<Expert>,
    pub shared: Expert,
}

#[derive(Clone, Debug)]
pub enum Routing {
    /// `[vocab, experts_per_token]`, row major: the experts of each token id, checked to be in range.
    Hash { experts_of_token: Vec<u16> },
    /// Added to the scores for choosing only.
    Learned { bias: Vec<f32> },
}

/// `w2 (silu(w1 x) * w3 x)` with clamps: `w1`, `w3` are `[width, d]`, `w2` is `[d, width]`.
#[derive(Clone, Debug)]
pub struct Expert {
    pub w1: Matrix,
    pub w2: Matrix,
    pub w3: Matrix,
}

impl Weights {
    /// Every matrix once; the groups of `wo_a` one by one.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let outside = [&self.embed, &self.hc_head.mix, &self.head];
        outside.into_iter().chain(self.layers.iter().flat_map(Layer::matrices))
    }

    /// Numbers in all matrices and vectors, routing tables not counted.
    pub fn parameters(&self) -> u64 {
        let matrices: u64 = self.matrices().map(|matrix| matrix.rows as u64 * matrix.cols as u64).sum();
        matrices + self.vector_len() as u64
    }

    pub(crate) fn vector_len(&self) -> usize {
        let outside = self.norm.len() + self.hc_head.vector_len();
        outside + self.layers.iter().map(Layer::vector_len).sum::<usize>()
    }
}

impl HyperConnection {
    fn vector_len(&self) -> usize {
        self.base.len() + self.scale.len()
    }
}

impl Layer {
    /// Every matrix of the layer once.
    pub fn matrices(&self) -> Vec<&Matrix> {
        let (attn, ffn) = (&self.attn, &self.ffn);
        let mut all =
            vec![&self.hc_attn.mix, &self.hc_ffn.mix, &attn.wq_a, &attn.wq_b, &attn.wkv, &attn.wo_b];
        all.extend(&attn.wo_a);
        for compressor in self.compressors() {
            all.extend([&compressor.wkv, &compressor.wgate]);
        }
        if let Some(indexer) = &attn.indexer {
            all.extend([&indexer.wq_b, &indexer.weights_proj]);
        }
        all.push(&ffn.gate);
        for expert in ffn.experts.iter().chain([&ffn.shared]) {
            all.extend([&expert.w1, &expert.w2, &expert.w3]);
        }
        all
    }

    fn compressors(&self) -> impl Iterator<Item = &Compressor> {
        let indexer = self.attn.indexer.as_ref().map(|indexer| &indexer.compressor);
        self.attn.compressor.iter().chain(indexer)
    }

    fn vector_len(&self) -> usize {
        let attn = &self.attn;
        let norms = self.attn_norm.len() + self.ffn_norm.len() + attn.q_norm.len() + attn.kv_norm.len();
        let compressors: usize = self.compressors().map(|part| part.ape.len() + part.norm.len()).sum();
        let bias = match &self.ffn.routing {
            Routing::Learned { bias } => bias.len(),
            Routing::Hash { .. } => 0,
        };
        let streams = self.hc_attn.vector_len() + self.hc_ffn.vector_len();
        norms + compressors + bias + streams + attn.sink.len()
    }
}
