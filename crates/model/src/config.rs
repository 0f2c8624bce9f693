//! `config.json` to a checked [`Spec`], in the publisher's style or in the newer one of transformers.
//!
//! Every field that the arithmetic depends on is read, bounded and compared with its neighbours, so that code
//! behind a `Spec` needs no checks of its own. What the engine does not implement is refused by name here. The
//! fields that only training uses are ignored.

use crate::error::shown;
use crate::fields::{Fields, brief};
use crate::{
    Format, HEAD_DIM, INDEX_DIM, LayerKind, LayerSpec, ModelError, ROPE_DIMS, RoutingKind, STREAMS, Spec,
    WINDOW, Yarn,
};
use serde_json::{Map, Value};

/// Bounds on what a configuration may ask for. They are an order of magnitude above the largest published model
/// and keep every product of dimensions far from overflow.
mod bounds {
    use std::ops::RangeInclusive;

    pub const VOCAB: RangeInclusive<u64> = 2..=4_194_304;
    pub const WIDTH: RangeInclusive<u64> = 1..=65_536;
    pub const HEADS: RangeInclusive<u64> = 1..=1_024;
    pub const LAYERS: RangeInclusive<u64> = 1..=512;
    pub const EXPERTS: RangeInclusive<u64> = 1..=4_096;
    pub const EXPERTS_PER_TOKEN: RangeInclusive<u64> = 1..=64;
    /// Positions beyond 2^24 are not exact in `f32`, in which angles are computed.
    pub const POSITIONS: RangeInclusive<u64> = 1..=16_777_216;
    pub const SINKHORN: RangeInclusive<u64> = 1..=1_000;
    pub const MTP: RangeInclusive<u64> = 0..=64;
    pub const EPSILON: RangeInclusive<f32> = 1e-30..=0.1;
    /// The correction range of YaRN divides by the logarithm of the base, which is 0 at 1.
    pub const THETA: RangeInclusive<f32> = 2.0..=1e12;
    pub const SCALING: RangeInclusive<f32> = 1e-6..=1e6;
    pub const LIMIT: RangeInclusive<f32> = 0.0..=1e30;
}

/// What drafts tokens in a checkpoint. Recognised and reported; nothing uses it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drafter {
    None,
    /// Multi-token-prediction blocks, each an ordinary layer with its own head.
    Mtp {
        blocks: usize,
    },
    /// The staged block drafter of the July 2026 revision; its tensors are no MTP blocks.
    DSpark,
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub spec: Spec,
    /// What the configuration announces; a checkpoint may carry less, see `Summary::drafter`.
    pub drafter: Drafter,
}

impl Config {
    /// Reads the text of a `config.json`; `file` is its name in messages.
    pub fn parse(json: &str, file: &str) -> Result<Config, ModelError> {
        let value: Value = serde_json::from_str(json).map_err(|error| ModelError::Malformed {
            file: file.to_string(),
            reason: format!("is not valid JSON: {}", shown(&error.to_string())),
        })?;
        let Value::Object(map) = &value else {
            let reason = format!("holds {}, expected an object", brief(&value));
            return Err(ModelError::Malformed { file: file.to_string(), reason });
        };
        let fields = Fields::new(file, "", map);
        check_family(&fields, file)?;
        check_quantization(&fields)?;
        check_constants(&fields)?;
        let drafter = drafter(&fields, map)?;
        let spec = spec(&fields)?;
        check_consistency(&fields, &spec)?;
        Ok(Config { spec, drafter })
    }
}

/// Refuses other models and other revisions, each in a sentence of its own.
fn check_family(fields: &Fields, file: &str) -> Result<(), ModelError> {
    let unsupported = |reason: String| Err(ModelError::Unsupported { file: file.to_string(), reason });
    let model_type = fields.text("model_type")?.ok_or_else(|| fields.error("model_type", "is missing"))?;
    match model_type {
        "deepseek_v4" => {}
        "deepseek_v41" | "deepseek_v4_1" => return unsupported(v41(&format!("model_type `{model_type}`"))),
        "deepseek_v2" | "deepseek_v3" | "deepseek_v32" => {
            let reason =
                format!("model_type `{model_type}` is an earlier DeepSeek: only deepseek_v4 runs here");
            return unsupported(reason);
        }
        other => {
            let reason =
                format!("model_type `{}` is another model family: only deepseek_v4 runs here", shown(other));
            return unsupported(reason);
        }
    }
    let v41_sign = |name: &&str| {
        name.contains("engram")
            || ["text_config", "vision_config", "kv_source_layer_ids", "index_source_layer_ids"]
                .contains(name)
    };
    if let Some(name) = fields.names().find(v41_sign) {
        return unsupported(v41(&format!("field `{}`", shown(name))));
    }
    match fields.list("architectures")? {
        Some(names) if !names.iter().any(|name| name == "DeepseekV4ForCausalLM") => {
            Err(fields.error("architectures", "does not name DeepseekV4ForCausalLM"))
        }
        _ => Ok(()),
    }
}

fn v41(sign: &str) -> String {
    format!("{sign} belongs to DeepSeek-V4.1, another architecture that is not supported yet")
}

/// The publisher's FP8 or none. What is really stored is read from the tensors, this only refuses conversions whose
/// tensors could be mistaken for it.
fn check_quantization(fields: &Fields) -> Result<(), ModelError> {
    let dtype = fields.text("expert_dtype")?;
    if let Some(other) = dtype.filter(|name| !["fp4", "fp8", "bf16", "bfloat16"].contains(name)) {
        let reason = format!("is `{}`, expected fp4, fp8 or bf16", shown(other));
        return Err(fields.error("expert_dtype", reason));
    }
    let Some(quantization) = fields.object("quantization_config", "quantization_config.")? else {
        return Ok(());
    };
    let method = quantization.text("quant_method")?.unwrap_or("");
    if method != "fp8" {
        let algorithm = quantization.text("quant_algo")?.unwrap_or("");
        let name = if method.is_empty() { algorithm } else { method };
        let reason = format!(
            "is `{}`: re-quantised checkpoints are not supported, use the publisher's FP8 and FP4 files",
            shown(name)
        );
        return Err(quantization.error("quant_method", reason));
    }
    if let Some(algorithm) = quantization.text("quant_algo")? {
        let reason = format!("is `{}`: re-quantised checkpoints are not supported", shown(algorithm));
        return Err(quantization.error("quant_algo", reason));
    }
    quantization.expect("fmt", "e4m3")?;
    quantization.expect("scale_fmt", "ue8m0")?;
    quantization.expect("activation_scheme", "dynamic")?;
    quantization.expect("weight_block_size", vec![128, 128])
}

/// What is the same in every DeepSeek-V4. Flags that the newer style leaves out when they have their usual value
/// may be absent; a dimension may not.
fn check_constants(fields: &Fields) -> Result<(), ModelError> {
    fields.require("head_dim", HEAD_DIM)?;
    fields.require("num_key_value_heads", 1)?;
    fields.require("sliding_window", WINDOW)?;
    fields.require("index_head_dim", INDEX_DIM)?;
    fields.require("hc_mult", STREAMS)?;
    fields.require("n_shared_experts", 1)?;
    fields.require("scoring_func", "sqrtsoftplus")?;
    fields.require("norm_topk_prob", true)?;
    fields.expect("topk_method", "noaux_tc")?;
    fields.expect("hidden_act", "silu")?;
    fields.expect("attention_bias", false)?;
    fields.expect("mlp_bias", false)?;
    fields.expect("tie_word_embeddings", false)?;
    fields.expect("qk_rope_head_dim", ROPE_DIMS)?;
    fields.expect("partial_rotary_factor", ROPE_DIMS as f64 / HEAD_DIM as f64)?;
    fields.expect("compress_rate_csa", LayerKind::Csa.ratio())?;
    fields.expect("compress_rate_hca", LayerKind::Hca.ratio())?;
    if let Some(rates) = fields.object("compress_rates", "compress_rates.")? {
        rates.expect("compressed_sparse_attention", LayerKind::Csa.ratio())?;
        rates.expect("heavily_compressed_attention", LayerKind::Hca.ratio())?;
    }
    Ok(())
}

fn drafter(fields: &Fields, map: &Map<String, Value>) -> Result<Drafter, ModelError> {
    if map.keys().any(|name| name.starts_with("dspark_")) {
        return Ok(Drafter::DSpark);
    }
    let blocks = match fields.optional("num_nextn_predict_layers") {
        Some(_) => fields.integer("num_nextn_predict_layers", bounds::MTP)?,
        None => 0,
    };
    Ok(if blocks == 0 { Drafter::None } else { Drafter::Mtp { blocks } })
}

fn spec(fields: &Fields) -> Result<Spec, ModelError> {
    let (rope_theta, compress_rope_theta, yarn) = rope(fields)?;
    let swiglu_limit = fields.number("swiglu_limit", bounds::LIMIT)?;
    let vocab_size = fields.integer("vocab_size", bounds::VOCAB)?;
    Ok(Spec {
        vocab_size,
        hidden_size: fields.integer("hidden_size", bounds::WIDTH)?,
        heads: fields.integer("num_attention_heads", bounds::HEADS)?,
        q_lora_rank: fields.integer("q_lora_rank", bounds::WIDTH)?,
        o_groups: fields.integer("o_groups", bounds::HEADS)?,
        o_lora_rank: fields.integer("o_lora_rank", bounds::WIDTH)?,
        index_heads: fields.integer("index_n_heads", bounds::HEADS)?,
        index_topk: fields.integer("index_topk", bounds::WIDTH)?,
        experts: fields.integer("n_routed_experts", bounds::EXPERTS)?,
        experts_per_token: fields.integer("num_experts_per_tok", bounds::EXPERTS_PER_TOKEN)?,
        expert_width: fields.integer("moe_intermediate_size", bounds::WIDTH)?,
        routed_scaling_factor: fields.number("routed_scaling_factor", bounds::SCALING)?,
        swiglu_limit: (swiglu_limit > 0.0).then_some(swiglu_limit),
        rms_eps: fields.number("rms_norm_eps", bounds::EPSILON)?,
        hc_eps: fields.number("hc_eps", bounds::EPSILON)?,
        hc_sinkhorn_iterations: fields.integer("hc_sinkhorn_iters", bounds::SINKHORN)?,
        rope_theta,
        compress_rope_theta,
        yarn,
        max_positions: fields.integer("max_position_embeddings", bounds::POSITIONS)?,
        bos_token: token(fields, "bos_token_id", vocab_size)?,
        eos_token: token(fields, "eos_token_id", vocab_size)?,
        layers: layers(fields)?,
    })
}

/// A token id, alone or as a list of one.
fn token(fields: &Fields, name: &str, vocab_size: usize) -> Result<u32, ModelError> {
    let value = match fields.required(name)? {
        Value::Array(ids) if ids.len() == 1 => &ids[0],
        other => other,
    };
    let id = value.as_u64().filter(|id| *id < vocab_size as u64);
    let id = id.and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| fields.mismatch(name, value, &format!("one token id below vocab_size {vocab_size}")))
}

/// The two bases and the stretching of the second one.
fn rope(fields: &Fields) -> Result<(f32, f32, Yarn), ModelError> {
    if let Some(nested) = fields.object("rope_parameters", "rope_parameters.")? {
        let missing = |name| nested.error(name, "is missing");
        let main = nested.object("main", "rope_parameters.main.")?.ok_or_else(|| missing("main"))?;
        let compress =
            nested.object("compress", "rope_parameters.compress.")?.ok_or_else(|| missing("compress"))?;
        main.expect("rope_type", "default")?;
        for part in [&main, &compress] {
            part.expect("partial_rotary_factor", ROPE_DIMS as f64 / HEAD_DIM as f64)?;
        }
        let main_theta = main.number("rope_theta", bounds::THETA)?;
        return Ok((main_theta, compress.number("rope_theta", bounds::THETA)?, yarn(&compress)?));
    }
    let scaling = fields.object("rope_scaling", "rope_scaling.")?;
    let scaling =
        scaling.ok_or_else(|| fields.error("rope_scaling", "is missing, and so is `rope_parameters`"))?;
    let rope_theta = fields.number("rope_theta", bounds::THETA)?;
    Ok((rope_theta, fields.number("compress_rope_theta", bounds::THETA)?, yarn(&scaling)?))
}

fn yarn(fields: &Fields) -> Result<Yarn, ModelError> {
    let key = if fields.optional("rope_type").is_some() { "rope_type" } else { "type" };
    fields.require(key, "yarn")?;
    // The model rotates without YaRN's magnitude and with whole-numbered band edges.
    fields.expect("attention_factor", 1)?;
    fields.expect("truncate", true)?;
    let yarn = Yarn {
        factor: fields.number("factor", 1.0..=1e6)?,
        original_max_positions: fields.integer("original_max_position_embeddings", bounds::POSITIONS)?,
        beta_fast: fields.number("beta_fast", 1e-3..=1e6)?,
        beta_slow: fields.number("beta_slow", 1e-3..=1e6)?,
    };
    if yarn.beta_fast <= yarn.beta_slow {
        return Err(fields.error("beta_fast", "is not above `beta_slow`"));
    }
    Ok(yarn)
}

/// Explicit lists win over `compress_ratios` and `num_hash_layers`.
fn layers(fields: &Fields) -> Result<Vec<LayerSpec>, ModelError> {
    let count = fields.integer("num_hidden_layers", bounds::LAYERS)?;
    let kinds = match fields.list("layer_types")? {
        Some(types) => named(fields, "layer_types", types, count, |name| match name {
            "sliding_attention" => Some(LayerKind::Window),
            "compressed_sparse_attention" => Some(LayerKind::Csa),
            "heavily_compressed_attention" => Some(LayerKind::Hca),
            _ => None,
        })?,
        None => ratios(fields, count)?,
    };
    let routings = match fields.list("mlp_layer_types")? {
        Some(types) => named(fields, "mlp_layer_types", types, count, |name| match name {
            "hash_moe" => Some(RoutingKind::Hash),
            "moe" => Some(RoutingKind::Learned),
            _ => None,
        })?,
        None => {
            let hashed = fields.integer("num_hash_layers", 0..=count as u64)?;
            (0..count)
                .map(|layer| if layer < hashed { RoutingKind::Hash } else { RoutingKind::Learned })
                .collect()
        }
    };
    Ok(kinds.into_iter().zip(routings).map(|(kind, routing)| LayerSpec { kind, routing }).collect())
}

fn named<T>(
    fields: &Fields,
    field: &str,
    names: &[Value],
    count: usize,
    kind: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, ModelError> {
    if names.len() != count {
        return Err(fields.error(field, format!("has {} entries for {count} layers", names.len())));
    }
    let unknown = |layer: usize, name: &Value| {
        fields.error(field, format!("says {} for layer {layer}, which no DeepSeek-V4 has", brief(name)))
    };
    let read =
        |(layer, name): (usize, &Value)| name.as_str().and_then(&kind).ok_or_else(|| unknown(layer, name));
    names.iter().enumerate().map(read).collect()
}

fn ratios(fields: &Fields, count: usize) -> Result<Vec<LayerKind>, ModelError> {
    let missing = || fields.error("compress_ratios", "is missing, and so is `layer_types`");
    let ratios = fields.list("compress_ratios")?.ok_or_else(missing)?;
    // Entries past the layers belong to the MTP blocks.
    if ratios.len() < count {
        return Err(
            fields.error("compress_ratios", format!("has {} entries for {count} layers", ratios.len()))
        );
    }
    let read =
        |(layer, ratio): (usize, &Value)| match ratio.as_u64() {
            Some(0) => Ok(LayerKind::Window),
            Some(4) => Ok(LayerKind::Csa),
            Some(128) => Ok(LayerKind::Hca),
            Some(ratio @ (1 | 2)) => Err(fields
                .error("compress_ratios", format!("says {ratio} for layer {layer}: {}", v41("that ratio")))),
            _ => {
                let reason = format!("says {} for layer {layer}, expected 0, 4 or 128", brief(ratio));
                Err(fields.error("compress_ratios", reason))
            }
        };
    ratios[..count].iter().enumerate().map(read).collect()
}

fn check_consistency(fields: &Fields, spec: &Spec) -> Result<(), ModelError> {
    if !spec.heads.is_multiple_of(spec.o_groups) {
        let reason =
            format!("is {}, which does not divide num_attention_heads {}", spec.o_groups, spec.heads);
        return Err(fields.error("o_groups", reason));
    }
    if spec.experts_per_token > spec.experts {
        let reason = format!("is {}, more than n_routed_experts {}", spec.experts_per_token, spec.experts);
        return Err(fields.error("num_experts_per_tok", reason));
    }
    if fields.text("expert_dtype")? == Some("fp4") {
        for (name, width) in [("hidden_size", spec.hidden_size), ("moe_intermediate_size", spec.expert_width)]
        {
            if !width.is_multiple_of(Format::FP4_BLOCK) {
                return Err(
                    fields.error(name, format!("is {width}, not a multiple of 32 as FP4 experts need"))
                );
            }
        }
    }
    Ok(())
}
