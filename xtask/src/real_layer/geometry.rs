//! The tensors of DeepSeek-V4-Flash by their published names, with sizes that a test can shrink.

use super::Tensor;
use super::tensor::Filling;
use serde_json::{Value, json};
use std::fmt;

/// Width of the latent and of a query head, and of an indexer key.
const HEAD_DIM: usize = 512;
const INDEX_DIM: usize = 128;
const STREAMS: usize = 4;
const FP8_BLOCK: usize = 128;
const FP4_BLOCK: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Window,
    Csa,
    Hca,
}

impl Kind {
    pub fn ratio(self) -> usize {
        match self {
            Kind::Window => 0,
            Kind::Csa => 4,
            Kind::Hca => 128,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Window => "window",
            Kind::Csa => "csa",
            Kind::Hca => "hca",
        })
    }
}

/// Sizes as the configuration names them.
#[derive(Clone, Debug)]
pub struct Geometry {
    pub layers: usize,
    pub kind: Kind,
    pub vocab: usize,
    pub hidden: usize,
    pub heads: usize,
    pub q_lora: usize,
    pub o_groups: usize,
    pub o_lora: usize,
    pub index_heads: usize,
    pub index_topk: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    pub expert_width: usize,
}

impl Geometry {
    /// Flash in everything but depth and vocabulary (1,024 here: the head would only hide the layers).
    pub fn flash(layers: usize, kind: Kind) -> Self {
        Geometry {
            layers,
            kind,
            vocab: 1024,
            hidden: 4096,
            heads: 64,
            q_lora: 1024,
            o_groups: 8,
            o_lora: 1024,
            index_heads: 64,
            index_topk: 512,
            experts: 256,
            experts_per_token: 6,
            expert_width: 2048,
        }
    }

    pub fn config(&self) -> Value {
        let mut config = constants();
        let sizes = json!({
            "compress_ratios": vec![self.kind.ratio(); self.layers],
            "hidden_size": self.hidden,
            "index_n_heads": self.index_heads,
            "index_topk": self.index_topk,
            "moe_intermediate_size": self.expert_width,
            "n_routed_experts": self.experts,
            "num_attention_heads": self.heads,
            "num_experts_per_tok": self.experts_per_token,
            "num_hash_layers": 0,
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": 0,
            "o_groups": self.o_groups,
            "o_lora_rank": self.o_lora,
            "q_lora_rank": self.q_lora,
            "vocab_size": self.vocab,
        });
        if let (Value::Object(config), Value::Object(sizes)) = (&mut config, sizes) {
            config.extend(sizes);
        }
        config
    }

    /// Every tensor with its name. Each has its own seed, so its bytes do not depend on the others.
    pub fn tensors(&self, seed: u64) -> Vec<(String, Tensor)> {
        let mut list = TensorList { seed, tensors: Vec::new() };
        let streams = STREAMS * self.hidden;
        list.add("embed.weight", &[self.vocab, self.hidden], Filling::Bf16Uniform { rms: 1.0 });
        list.bf16_matrix("head.weight", self.vocab, self.hidden);
        list.ones("norm.weight", self.hidden);
        list.hyper_connection("hc_head", STREAMS, streams, 1);
        for layer in 0..self.layers {
            let at = format!("layers.{layer}");
            list.ones(&format!("{at}.attn_norm.weight"), self.hidden);
            list.ones(&format!("{at}.ffn_norm.weight"), self.hidden);
            for site in ["hc_attn", "hc_ffn"] {
                list.hyper_connection(&format!("{at}.{site}"), (2 + STREAMS) * STREAMS, streams, 3);
            }
            self.attention(&format!("{at}.attn"), &mut list);
            self.feed_forward(&format!("{at}.ffn"), &mut list);
        }
        list.tensors
    }

    fn attention(&self, at: &str, list: &mut TensorList) {
        list.add(&format!("{at}.attn_sink"), &[self.heads], Filling::F32Uniform { rms: 0.5 });
        list.fp8_matrix(&format!("{at}.wq_a"), self.q_lora, self.hidden);
        list.ones(&format!("{at}.q_norm.weight"), self.q_lora);
        list.fp8_matrix(&format!("{at}.wq_b"), self.heads * HEAD_DIM, self.q_lora);
        list.fp8_matrix(&format!("{at}.wkv"), HEAD_DIM, self.hidden);
        list.ones(&format!("{at}.kv_norm.weight"), HEAD_DIM);
        let group_width = self.heads / self.o_groups * HEAD_DIM;
        list.fp8_matrix(&format!("{at}.wo_a"), self.o_groups * self.o_lora, group_width);
        list.fp8_matrix(&format!("{at}.wo_b"), self.hidden, self.o_groups * self.o_lora);
        if self.kind != Kind::Window {
            self.compressor(&format!("{at}.compressor"), HEAD_DIM, list);
        }
        if self.kind == Kind::Csa {
            list.fp8_matrix(&format!("{at}.indexer.wq_b"), self.index_heads * INDEX_DIM, self.q_lora);
            list.bf16_matrix(&format!("{at}.indexer.weights_proj.weight"), self.index_heads, self.hidden);
            self.compressor(&format!("{at}.indexer.compressor"), INDEX_DIM, list);
        }
    }

    fn compressor(&self, at: &str, width: usize, list: &mut TensorList) {
        let channels = if self.kind == Kind::Csa { 2 * width } else { width };
        list.bf16_matrix(&format!("{at}.wkv.weight"), channels, self.hidden);
        list.bf16_matrix(&format!("{at}.wgate.weight"), channels, self.hidden);
        list.add(&format!("{at}.ape"), &[self.kind.ratio(), channels], Filling::F32Uniform { rms: 0.5 });
        list.ones(&format!("{at}.norm.weight"), width);
    }

    fn feed_forward(&self, at: &str, list: &mut TensorList) {
        list.bf16_matrix(&format!("{at}.gate.weight"), self.experts, self.hidden);
        list.add(&format!("{at}.gate.bias"), &[self.experts], Filling::F32Uniform { rms: 0.02 });
        for expert in 0..self.experts {
            let at = format!("{at}.experts.{expert}");
            list.fp4_matrix(&format!("{at}.w1"), self.expert_width, self.hidden);
            list.fp4_matrix(&format!("{at}.w3"), self.expert_width, self.hidden);
            list.fp4_matrix(&format!("{at}.w2"), self.hidden, self.expert_width);
        }
        let at = format!("{at}.shared_experts");
        list.fp8_matrix(&format!("{at}.w1"), self.expert_width, self.hidden);
        list.fp8_matrix(&format!("{at}.w3"), self.expert_width, self.hidden);
        list.fp8_matrix(&format!("{at}.w2"), self.hidden, self.expert_width);
    }
}

/// The part of the configuration that no size changes.
fn constants() -> Value {
    json!({
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "compress_rope_theta": 160000,
        "expert_dtype": "fp4",
        "hc_eps": 1e-6,
        "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 20,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "index_head_dim": INDEX_DIM,
        "max_position_embeddings": 1048576,
        "n_shared_experts": 1,
        "norm_topk_prob": true,
        "num_key_value_heads": 1,
        "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        },
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": false,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": true,
    })
}

struct TensorList {
    seed: u64,
    tensors: Vec<(String, Tensor)>,
}

/// Matrices get a mean square of 1 / inputs, so that what passes through them keeps its size.
impl TensorList {
    fn add(&mut self, name: &str, shape: &[usize], filling: Filling) {
        let seed = self.seed.wrapping_add(self.tensors.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.tensors.push((name.to_owned(), Tensor { shape: shape.to_vec(), filling, seed }));
    }

    fn ones(&mut self, name: &str, width: usize) {
        self.add(name, &[width], Filling::Bf16Constant(1.0));
    }

    fn bf16_matrix(&mut self, name: &str, rows: usize, cols: usize) {
        self.add(name, &[rows, cols], Filling::Bf16Uniform { rms: unit_gain(cols) });
    }

    fn fp8_matrix(&mut self, name: &str, rows: usize, cols: usize) {
        let scales = [rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)];
        self.add(&format!("{name}.weight"), &[rows, cols], Filling::E4m3Codes);
        self.add(&format!("{name}.scale"), &scales, Filling::E4m3Scales { rms: unit_gain(cols) });
    }

    fn fp4_matrix(&mut self, name: &str, rows: usize, cols: usize) {
        self.add(&format!("{name}.weight"), &[rows, cols / 2], Filling::E2m1Codes);
        self.add(
            &format!("{name}.scale"),
            &[rows, cols / FP4_BLOCK],
            Filling::E2m1Scales { rms: unit_gain(cols) },
        );
    }

    fn hyper_connection(&mut self, name: &str, rows: usize, cols: usize, scales: usize) {
        self.add(&format!("{name}_fn"), &[rows, cols], Filling::F32Uniform { rms: unit_gain(cols) });
        self.add(&format!("{name}_base"), &[rows], Filling::F32Uniform { rms: 0.2 });
        self.add(&format!("{name}_scale"), &[scales], Filling::F32Constant(0.5));
    }
}

fn unit_gain(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn one_csa_layer_has_the_published_shapes_and_size() {
        let tensors: HashMap<String, Tensor> = Geometry::flash(1, Kind::Csa).tensors(0).into_iter().collect();
        let shape = |name: &str| tensors[name].shape.clone();
        assert_eq!(shape("layers.0.attn.wq_b.weight"), [32768, 1024]);
        assert_eq!(shape("layers.0.attn.wq_a.scale"), [8, 32]);
        assert_eq!(shape("layers.0.attn.wo_a.weight"), [8192, 4096]);
        assert_eq!(shape("layers.0.attn.compressor.ape"), [4, 1024]);
        assert_eq!(shape("layers.0.attn.indexer.compressor.wkv.weight"), [256, 4096]);
        assert_eq!(shape("layers.0.ffn.experts.255.w1.weight"), [2048, 2048]);
        assert_eq!(shape("layers.0.ffn.experts.0.w2.weight"), [4096, 1024]);
        assert_eq!(shape("layers.0.hc_attn_fn"), [24, 16384]);
        let total_bytes: usize = tensors.values().map(Tensor::bytes).sum();
        assert!((3_550_000_000..3_700_000_000).contains(&total_bytes), "{total_bytes} bytes");
    }
}
