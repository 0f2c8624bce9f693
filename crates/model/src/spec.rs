//! The checked shape of a model: what `config.json` said, after every field was understood.

use serde::Serialize;

/// What a layer's queries can see beside the sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// The window only (compression ratio 0).
    Window,
    /// Compressed sparse attention: one entry per 4 tokens, the best `index_topk` of them chosen by an indexer.
    Csa,
    /// Heavily compressed attention: one entry per 128 tokens, all of them visible.
    Hca,
}

impl LayerKind {
    /// Tokens per compressed entry; 0 when the layer has none.
    pub const fn ratio(self) -> usize {
        match self {
            LayerKind::Window => 0,
            LayerKind::Csa => 4,
            LayerKind::Hca => 128,
        }
    }
}

/// How a layer's experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingKind {
    /// By a table from token id to experts.
    Hash,
    /// By the router's scores plus a learned bias.
    Learned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSpec {
    pub kind: LayerKind,
    pub routing: RoutingKind,
}

/// YaRN stretching of the rotary frequencies of compressed layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Yarn {
    pub factor: f32,
    pub original_max_positions: usize,
    pub beta_fast: f32,
    pub beta_slow: f32,
}

/// Everything that fixes the arithmetic of a forward pass. Dimensions that are the same in every DeepSeek-V4
/// are constants of this crate (`HEAD_DIM`, `WINDOW`, ...), not fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spec {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub heads: usize,
    pub q_lora_rank: usize,
    pub o_groups: usize,
    pub o_lora_rank: usize,
    pub index_heads: usize,
    pub index_topk: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    /// Inner width of a routed expert and of the shared one.
    pub expert_width: usize,
    pub routed_scaling_factor: f32,
    /// Clamp of the expert activation; `None` when the configuration says 0.
    pub swiglu_limit: Option<f32>,
    pub rms_eps: f32,
    pub hc_eps: f32,
    pub hc_sinkhorn_iterations: usize,
    pub rope_theta: f32,
    pub compress_rope_theta: f32,
    pub yarn: Yarn,
    pub max_positions: usize,
    pub bos_token: u32,
    pub eos_token: u32,
    pub layers: Vec<LayerSpec>,
}

impl Spec {
    /// A model of which only vocabulary and context matter: no layers, every width 0. For stand-ins that compute
    /// nothing.
    pub fn hollow(vocab_size: usize, max_positions: usize) -> Self {
        Spec {
            vocab_size,
            hidden_size: 0,
            heads: 0,
            q_lora_rank: 0,
            o_groups: 0,
            o_lora_rank: 0,
            index_heads: 0,
            index_topk: 0,
            experts: 0,
            experts_per_token: 0,
            expert_width: 0,
            routed_scaling_factor: 1.0,
            swiglu_limit: None,
            rms_eps: 0.0,
            hc_eps: 0.0,
            hc_sinkhorn_iterations: 0,
            rope_theta: 0.0,
            compress_rope_theta: 0.0,
            yarn: Yarn { factor: 1.0, original_max_positions: 1, beta_fast: 1.0, beta_slow: 1.0 },
            max_positions,
            bos_token: 0,
            eos_token: 1,
            layers: Vec::new(),
        }
    }

    /// Indices of the layers of one kind, in order: the layer-within-kind number addresses a pool's bytes.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().enumerate().filter(move |(_, layer)| layer.kind == kind).map(|(index, _)| index)
    }
}
