//! The shapes of the published models, for those who measure or plan without a checkpoint. What a checkpoint says of itself is
//! read from its `config.json`, never from here.

use crate::{LayerKind, LayerSpec, RoutingKind, Spec, Yarn};

/// Layers that route by token id: the first ones.
const HASH_LAYERS: usize = 3;

impl Spec {
    /// DeepSeek-V4-Flash: two layers of the window alone, then CSA and HCA in turns.
    pub fn flash() -> Self {
        Spec {
            vocab_size: 129_280,
            hidden_size: 4096,
            heads: 64,
            q_lora_rank: 1024,
            o_groups: 8,
            o_lora_rank: 1024,
            index_heads: 64,
            index_topk: 512,
            experts: 256,
            experts_per_token: 6,
            expert_width: 2048,
            routed_scaling_factor: 1.5,
            swiglu_limit: Some(10.0),
            rms_eps: 1e-6,
            hc_eps: 1e-6,
            hc_sinkhorn_iterations: 20,
            rope_theta: 1e4,
            compress_rope_theta: 1.6e5,
            yarn: Yarn { factor: 16.0, original_max_positions: 65_536, beta_fast: 32.0, beta_slow: 1.0 },
            max_positions: 1 << 20,
            bos_token: 0,
            eos_token: 1,
            layers: layers(LayerKind::Window, 43),
        }
    }

    /// DeepSeek-V4-Pro: two HCA layers, then CSA and HCA in turns.
    pub fn pro() -> Self {
        Spec {
            hidden_size: 7168,
            heads: 128,
            q_lora_rank: 1536,
            o_groups: 16,
            index_topk: 1024,
            experts: 384,
            expert_width: 3072,
            routed_scaling_factor: 2.5,
            layers: layers(LayerKind::Hca, 61),
            ..Spec::flash()
        }
    }
}

fn layers(first_two: LayerKind, count: usize) -> Vec<LayerSpec> {
    let kind = |index: usize| match index {
        0 | 1 => first_two,
        _ if index.is_multiple_of(2) => LayerKind::Csa,
        _ => LayerKind::Hca,
    };
    let routing = |index| if index < HASH_LAYERS { RoutingKind::Hash } else { RoutingKind::Learned };
    (0..count).map(|index| LayerSpec { kind: kind(index), routing: routing(index) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn flash_is_what_its_configuration_says() {
        let config = Config::parse(include_str!("../tests/data/flash-config.json"), "config.json").unwrap();
        assert_eq!(Spec::flash(), config.spec);
    }

    #[test]
    fn layers_are_as_many_of_each_kind_as_published() {
        let counts = |spec: Spec| {
            [LayerKind::Window, LayerKind::Csa, LayerKind::Hca].map(|kind| spec.layers_of(kind).count())
        };
        assert_eq!(counts(Spec::flash()), [2, 21, 20]);
        assert_eq!(counts(Spec::pro()), [0, 30, 31]);
    }
}
