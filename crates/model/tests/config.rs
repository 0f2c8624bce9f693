//! Every refusal of a configuration by its sentence, and V4-Flash in both styles.

#![allow(clippy::unwrap_used)]

use overshot_model::{Config, Drafter, LayerKind, LayerSpec, ModelError, RoutingKind, Yarn};
use serde_json::{Map, Value, json};

/// A configuration with the published values of V4-Flash.
const FLASH: &str = include_str!("data/flash-config.json");

fn flash() -> Map<String, Value> {
    serde_json::from_str(FLASH).unwrap()
}

fn parse(map: &Map<String, Value>) -> Result<Config, ModelError> {
    Config::parse(&serde_json::to_string(map).unwrap(), "config.json")
}

/// The refusal of Flash with one field changed; `Value::Null` removes it. A dotted path goes into objects.
fn refusal(path: &str, value: Value) -> String {
    let mut root = Value::Object(flash());
    let mut place = &mut root;
    for name in path.split('.') {
        place = &mut place[name];
    }
    *place = value;
    match parse(root.as_object().unwrap()) {
        Ok(_) => panic!("`{path}` was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn flash_is_read_in_full() {
    let config = parse(&flash()).unwrap();
    let spec = config.spec;
    assert_eq!(config.drafter, Drafter::Mtp { blocks: 1 });
    assert_eq!((spec.vocab_size, spec.hidden_size, spec.heads), (129_280, 4_096, 64));
    assert_eq!((spec.o_groups, spec.o_lora_rank, spec.q_lora_rank), (8, 1_024, 1_024));
    assert_eq!((spec.experts, spec.experts_per_token, spec.expert_width), (256, 6, 2_048));
    assert_eq!((spec.index_heads, spec.index_topk, spec.max_positions), (64, 512, 1 << 20));
    assert_eq!((spec.swiglu_limit, spec.routed_scaling_factor), (Some(10.0), 1.5));
    assert_eq!((spec.rope_theta, spec.compress_rope_theta), (10_000.0, 160_000.0));
    let yarn = Yarn { factor: 16.0, original_max_positions: 65_536, beta_fast: 32.0, beta_slow: 1.0 };
    assert_eq!(spec.yarn, yarn);
    let counts = [LayerKind::Window, LayerKind::Csa, LayerKind::Hca].map(|kind| spec.layers_of(kind).count());
    assert_eq!(counts, [2, 21, 20]);
    assert_eq!(spec.layers.iter().filter(|layer| layer.routing == RoutingKind::Hash).count(), 3);
    assert_eq!(spec.layers[2], LayerSpec { kind: LayerKind::Csa, routing: RoutingKind::Hash });
}

#[test]
fn the_newer_style_says_the_same() {
    let expected = parse(&flash()).unwrap();
    let mut map = flash();
    for name in ["rope_scaling", "rope_theta", "compress_rope_theta", "num_hash_layers", "qk_rope_head_dim"] {
        map.remove(name);
    }
    let ratios = map.remove("compress_ratios").unwrap();
    let kind = |ratio: &Value| match ratio.as_u64() {
        Some(4) => "compressed_sparse_attention",
        Some(128) => "heavily_compressed_attention",
        _ => "sliding_attention",
    };
    let types: Vec<_> = ratios.as_array().unwrap()[..43].iter().map(kind).collect();
    map.insert("layer_types".into(), json!(types));
    let routings: Vec<_> = (0..43).map(|layer| if layer < 3 { "hash_moe" } else { "moe" }).collect();
    map.insert("mlp_layer_types".into(), json!(routings));
    let rates = json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128});
    map.insert("compress_rates".into(), rates);
    map.insert("partial_rotary_factor".into(), json!(0.125));
    let rope = json!({
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
        "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 16.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 65536, "attention_factor": 1.0}
    });
    map.insert("rope_parameters".into(), rope);
    assert_eq!(parse(&map).unwrap(), expected);

    // The explicit lists win over whatever the older fields say.
    map.insert("compress_ratios".into(), json!([0]));
    map.insert("num_hash_layers".into(), json!(40));
    assert_eq!(parse(&map).unwrap(), expected);
    map.insert("layer_types".into(), json!(["compressed_sparse_attention"]));
    assert_eq!(
        parse(&map).unwrap_err().to_string(),
        "config.json: field `layer_types` has 1 entries for 43 layers"
    );
}

#[test]
fn other_models_are_refused_by_name() {
    for (model_type, expected) in [
        ("deepseek_v41", "model_type `deepseek_v41` belongs to DeepSeek-V4.1, another architecture"),
        ("deepseek_v3", "model_type `deepseek_v3` is an earlier DeepSeek: only deepseek_v4 runs here"),
        ("deepseek_v32", "model_type `deepseek_v32` is an earlier DeepSeek"),
        ("llama", "model_type `llama` is another model family: only deepseek_v4 runs here"),
        ("a\u{1b}[2J\nb", "model_type `a\\u{1b}[2J\\nb` is another model family"),
    ] {
        let message = refusal("model_type", json!(model_type));
        assert!(message.contains(expected), "{message}");
    }
    for field in ["text_config", "vision_config", "engram_layers", "kv_source_layer_ids"] {
        let message = refusal(field, json!({}));
        let expected = format!("field `{field}` belongs to DeepSeek-V4.1");
        assert!(message.contains(&expected), "{message}");
    }
    let message = refusal("compress_ratios", json!(vec![2; 43]));
    assert!(message.contains("says 2 for layer 0: that ratio belongs to DeepSeek-V4.1"), "{message}");
    let message = refusal("architectures", json!(["DeepseekV4Model"]));
    assert!(message.contains("does not name DeepseekV4ForCausalLM"), "{message}");
}

#[test]
fn requantised_checkpoints_are_refused_by_name() {
    for method in ["modelopt", "nvfp4", "compressed-tensors", "awq", "gptq", "bitsandbytes"] {
        let message = refusal("quantization_config", json!({"quant_method": method}));
        let expected = format!("field `quantization_config.quant_method` is `{method}`: re-quantised");
        assert!(message.contains(&expected), "{message}");
    }
    let message = refusal("quantization_config", json!({"quant_algo": "NVFP4"}));
    assert!(message.contains("is `NVFP4`: re-quantised"), "{message}");
    let message = refusal("quantization_config.weight_block_size", json!([32, 32]));
    assert!(message.contains("`quantization_config.weight_block_size`"), "{message}");
    assert!(
        refusal("quantization_config.fmt", json!("e5m2")).contains("is `e5m2`, every DeepSeek-V4 has `e4m3`")
    );
    assert!(refusal("expert_dtype", json!("nvfp4")).contains("is `nvfp4`, expected fp4, fp8 or bf16"));
}

#[test]
fn every_field_is_checked() {
    for (path, value, expected) in [
        ("head_dim", json!(128), "is 128, every DeepSeek-V4 has 512"),
        ("head_dim", json!(null), "is missing"),
        ("qk_rope_head_dim", json!(32), "every DeepSeek-V4 has 64"),
        ("sliding_window", json!(4096), "every DeepSeek-V4 has 128"),
        ("index_head_dim", json!(64), "every DeepSeek-V4 has 128"),
        ("hc_mult", json!(2), "every DeepSeek-V4 has 4"),
        ("n_shared_experts", json!(2), "every DeepSeek-V4 has 1"),
        ("num_key_value_heads", json!(8), "every DeepSeek-V4 has 1"),
        ("scoring_func", json!("sigmoid"), "is `sigmoid`, every DeepSeek-V4 has `sqrtsoftplus`"),
        ("norm_topk_prob", json!(false), "every DeepSeek-V4 has true"),
        ("topk_method", json!("greedy"), "every DeepSeek-V4 has `noaux_tc`"),
        ("hidden_act", json!("gelu"), "every DeepSeek-V4 has `silu`"),
        ("attention_bias", json!(true), "every DeepSeek-V4 has false"),
        ("tie_word_embeddings", json!(true), "every DeepSeek-V4 has false"),
        ("vocab_size", json!(0), "is 0, outside 2 to 4194304"),
        ("vocab_size", json!("129280"), "is `129280`, expected a whole number"),
        ("hidden_size", json!(-4096), "is -4096, expected a whole number"),
        ("hidden_size", json!(1e300), "expected a whole number"),
        ("hidden_size", json!(4100), "is 4100, not a multiple of 32 as FP4 experts need"),
        ("moe_intermediate_size", json!(2050), "is 2050, not a multiple of 32"),
        ("num_hidden_layers", json!(100_000), "outside 1 to 512"),
        ("num_hidden_layers", json!(60), "has 44 entries for 60 layers"),
        ("num_attention_heads", json!(63), "is 8, which does not divide num_attention_heads 63"),
        ("o_groups", json!(0), "is 0, outside"),
        ("o_lora_rank", json!(18_446_744_073_709_551_615u64), "outside 1 to 65536"),
        ("q_lora_rank", json!(null), "is missing"),
        ("index_n_heads", json!(1_000_000), "outside 1 to 1024"),
        ("index_topk", json!(0), "is 0, outside"),
        ("n_routed_experts", json!(5), "is 6, more than n_routed_experts 5"),
        ("num_experts_per_tok", json!(300), "outside 1 to 64"),
        ("routed_scaling_factor", json!(0), "is 0, outside"),
        ("swiglu_limit", json!(-1), "is -1, outside 0 to"),
        ("rms_norm_eps", json!(0), "is 0, outside"),
        ("rms_norm_eps", json!(1e-300), "outside"),
        ("hc_eps", json!("1e-6"), "is `1e-6`, expected a number"),
        ("hc_sinkhorn_iters", json!(0), "is 0, outside 1 to 1000"),
        ("max_position_embeddings", json!(1u64 << 40), "outside 1 to 16777216"),
        ("num_hash_layers", json!(44), "is 44, outside 0 to 43"),
        ("num_nextn_predict_layers", json!(1000), "outside 0 to 64"),
        ("rope_theta", json!(null), "is missing"),
        ("compress_rope_theta", json!(1e40), "outside"),
        ("compress_rope_theta", json!(1.0), "is 1.0, outside 2 to 1000000000000"),
        ("rope_theta", json!(1), "is 1, outside 2 to"),
        ("rope_scaling", json!(null), "is missing, and so is `rope_parameters`"),
        ("rope_scaling.type", json!("linear"), "field `rope_scaling.type` is `linear`"),
        ("rope_scaling.factor", json!(0.5), "is 0.5, outside 1 to"),
        ("rope_scaling.beta_fast", json!(1), "is not above `beta_slow`"),
        ("rope_scaling.attention_factor", json!(1.28), "every DeepSeek-V4 has 1"),
        ("rope_parameters", json!({"main": {}}), "field `rope_parameters.compress` is missing"),
        ("compress_ratios", json!(null), "is missing, and so is `layer_types`"),
        ("compress_ratios", json!(vec![8; 43]), "says 8 for layer 0, expected 0, 4 or 128"),
        ("compress_ratios", json!(7), "is 7, expected a list"),
        ("layer_types", json!(vec!["full_attention"; 43]), "says `full_attention` for layer 0"),
        ("mlp_layer_types", json!(vec![1; 43]), "says 1 for layer 0"),
        ("compress_rates", json!({"compressed_sparse_attention": 8}), "`compress_rates.compressed_sparse"),
        ("eos_token_id", json!(129_280), "expected one token id below vocab_size 129280"),
        ("eos_token_id", json!([1, 2]), "is a list, expected one token id"),
        ("bos_token_id", json!(null), "is missing"),
        ("model_type", json!(null), "field `model_type` is missing"),
        ("model_type", json!(4), "is 4, expected a string"),
    ] {
        let message = refusal(path, value.clone());
        assert!(message.contains(expected), "{path} = {value}: {message}");
        assert!(message.starts_with("config.json: ") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn text_that_is_no_object_is_refused() {
    for (text, expected) in [
        ("", "config.json: is not valid JSON: EOF"),
        ("[]", "config.json: holds a list, expected an object"),
        ("{\"a\": NaN}", "is not valid JSON"),
    ] {
        let message = Config::parse(text, "config.json").unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    // Deeply nested text must not exhaust the stack.
    assert!(Config::parse(&"[".repeat(1 << 20), "config.json").is_err());
}

#[test]
fn variants_that_mean_something_are_kept() {
    let mut map = flash();
    map.insert("swiglu_limit".into(), json!(0));
    map.insert("eos_token_id".into(), json!([1]));
    map.insert("dspark_block_size".into(), json!(5));
    map.remove("quantization_config");
    let config = parse(&map).unwrap();
    assert_eq!((config.spec.swiglu_limit, config.spec.eos_token), (None, 1));
    assert_eq!(config.drafter, Drafter::DSpark);
    map.remove("dspark_block_size");
    map.remove("num_nextn_predict_layers");
    assert_eq!(parse(&map).unwrap().drafter, Drafter::None);
}
