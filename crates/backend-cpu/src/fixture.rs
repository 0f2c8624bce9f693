//! Unit tests' access to `fixtures/units.safetensors`.

use overshot_model::{LayerKind, LayerSpec, RoutingKind, Spec, Yarn};

pub struct Units(Vec<u8>);

impl Units {
    pub fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/units.safetensors");
        Units(std::fs::read(path).expect("the fixtures are in the repository"))
    }

    fn words<T>(&self, name: &str, from: fn([u8; 4]) -> T) -> Vec<T> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name).expect("the fixture has the tensor");
        tensor.data().chunks_exact(4).map(|b| from([b[0], b[1], b[2], b[3]])).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name, f32::from_le_bytes)
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        self.words(name, i32::from_le_bytes)
    }
}

/// V4-Flash's arithmetic constants around tiny dimensions.
pub fn flash_like_spec() -> Spec {
    Spec {
        vocab_size: 16,
        hidden_size: 16,
        heads: 4,
        q_lora_rank: 32,
        o_groups: 2,
        o_lora_rank: 32,
        index_heads: 4,
        index_topk: 8,
        experts: 4,
        experts_per_token: 2,
        expert_width: 32,
        routed_scaling_factor: 1.5,
        swiglu_limit: Some(10.0),
        rms_eps: 1e-6,
        hc_eps: 1e-6,
        hc_sinkhorn_iterations: 20,
        rope_theta: 10_000.0,
        compress_rope_theta: 160_000.0,
        yarn: Yarn { factor: 16.0, original_max_positions: 65_536, beta_fast: 32.0, beta_slow: 1.0 },
        max_positions: 1 << 20,
        bos_token: 0,
        eos_token: 1,
        layers: vec![LayerSpec { kind: LayerKind::Window, routing: RoutingKind::Learned }],
    }
}
