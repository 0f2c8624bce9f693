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
