//! Checkpoints opened through the public door, in every layout and naming that is accepted.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MINI, Parts, TINY_BF16, TINY_FP8FP4, Tensor, assert_same, repository};
use overshot_model::{Drafter, Format, LayerKind, Matrix, Model, NameStyle, Routing};
use safetensors::Dtype;
use serde_json::json;
use std::fs;

fn decoded(matrix: &Matrix, row: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; matrix.cols];
    matrix.decode_row(row, &mut out);
    out
}

#[test]
fn the_three_checkpoints_open() {
    for (path, layers, drafter, formats) in [
        (TINY_BF16, 4, Drafter::None, vec!["bf16", "f32"]),
        (TINY_FP8FP4, 2, Drafter::Mtp { blocks: 1 }, vec!["bf16", "f32", "fp4", "fp8"]),
        (MINI, 7, Drafter::None, vec!["bf16", "f32", "fp4", "fp8"]),
    ] {
        let model = Model::open(repository(path)).unwrap();
        let summary = &model.summary;
        assert_eq!((model.spec.layers.len(), model.weights.layers.len()), (layers, layers));
        assert_eq!((summary.drafter, summary.name_style), (drafter, NameStyle::Publisher));
        assert_eq!(summary.formats.keys().copied().collect::<Vec<_>>(), formats);
        assert_eq!(
            summary.files[0].bytes,
            fs::metadata(repository(path).join("model.safetensors")).unwrap().len()
        );
        assert_eq!(summary.dtypes.values().map(|amount| amount.bytes).sum::<u64>(), summary.tensor_bytes);
        assert_eq!(model.folder, Some(repository(path)));
    }
}

#[test]
fn the_mini_model_has_the_parameters_of_its_card() {
    let model = Model::open(repository(MINI)).unwrap();
    let biases = model.weights.layers.iter().map(|layer| match &layer.ffn.routing {
        Routing::Learned { bias } => bias.len() as u64,
        Routing::Hash { .. } => 0,
    });
    // The card's figure leaves out the 64 router biases.
    let summary = &model.summary;
    assert_eq!((summary.parameters - biases.sum::<u64>(), summary.tensors), (26_624_439, 922));
    let expert_bytes = 16 * 3 * (128 * 256 / 2 + 128 * 256 / 32);
    assert!(
        summary.layers.iter().all(|layer| layer.expert_bytes == expert_bytes && layer.bytes > expert_bytes)
    );
}

#[test]
fn layers_carry_what_their_kind_needs() {
    let model = Model::open(repository(MINI)).unwrap();
    let spec = &model.spec;
    for (layer, weights) in spec.layers.iter().zip(&model.weights.layers) {
        assert_eq!(weights.attn.compressor.is_some(), layer.kind != LayerKind::Window);
        assert_eq!(weights.attn.indexer.is_some(), layer.kind == LayerKind::Csa);
        assert_eq!((weights.attn.wo_a.len(), weights.ffn.experts.len()), (spec.o_groups, spec.experts));
        if let Some(compressor) = &weights.attn.compressor {
            let channels = if layer.kind == LayerKind::Csa { 1024 } else { 512 };
            assert_eq!(
                (compressor.wkv.rows, compressor.ape.len()),
                (channels, layer.kind.ratio() * channels)
            );
        }
        if let Routing::Hash { experts_of_token } = &weights.ffn.routing {
            assert_eq!(experts_of_token.len(), spec.vocab_size * spec.experts_per_token);
        }
    }
}

#[test]
fn matrices_hold_the_stored_numbers() {
    let mut parts = Parts::read(TINY_FP8FP4);
    let model = parts.load().unwrap();

    // BF16: the upper half of an f32.
    let embed = &parts.tensor("embed.weight").data[5 * 64 * 2..][..128];
    let expected: Vec<f32> = embed.chunks(2).map(|two| f32::from_le_bytes([0, 0, two[0], two[1]])).collect();
    assert_eq!(decoded(&model.weights.embed, 5), expected);

    // FP8: group 1 of wo_a begins at stored row 32; its 1024 columns have eight scales.
    let attn = &model.weights.layers[0].attn;
    assert_eq!((attn.wo_a[1].format, attn.wo_a[1].rows, attn.wo_a[1].cols), (Format::Fp8, 32, 1024));
    let codes = parts.tensor("layers.0.attn.wo_a.weight").data[(32 + 3) * 1024..][..1024].to_vec();
    let scales = parts.tensor("layers.0.attn.wo_a.scale").data.clone();
    for (col, value) in decoded(&attn.wo_a[1], 3).into_iter().enumerate() {
        let (sign, exponent, mantissa) = (codes[col] >> 7, (codes[col] >> 3) & 15, codes[col] & 7);
        let magnitude = match exponent {
            0 => f64::from(mantissa) / 512.0,
            exponent => (1.0 + f64::from(mantissa) / 8.0) * 2f64.powi(i32::from(exponent) - 7),
        };
        let scale = 2f64.powi(i32::from(scales[col / 128]) - 127);
        assert_eq!(f64::from(value), if sign == 1 { -magnitude } else { magnitude } * scale);
    }

    // FP4: two numbers in a byte, a scale per row and 32 columns.
    let expert = &model.weights.layers[1].ffn.experts[6].w1;
    let packed = parts.tensor("layers.1.ffn.experts.6.w1.weight").data[9 * 32..][..32].to_vec();
    let scales = parts.tensor("layers.1.ffn.experts.6.w1.scale").data[9 * 2..][..2].to_vec();
    for (col, value) in decoded(expert, 9).into_iter().enumerate() {
        let code = (packed[col / 2] >> (4 * (col % 2))) & 15;
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        let scale = 2f64.powi(i32::from(scales[col / 32]) - 127);
        assert_eq!(f64::from(value), if code & 8 == 0 { magnitude } else { -magnitude } * scale);
    }

    let Routing::Hash { experts_of_token } = &model.weights.layers[0].ffn.routing else {
        panic!("hash routing")
    };
    let stored = &parts.tensor("layers.0.ffn.gate.tid2eid").data;
    let ids = stored.chunks(8).map(|eight| i64::from_le_bytes(eight.try_into().unwrap()));
    assert!(ids.eq(experts_of_token.iter().map(|id| i64::from(*id))));
}

#[test]
fn matrices_are_read_in_place() {
    let bytes: &'static [u8] = Vec::leak(Parts::read(TINY_FP8FP4).file());
    let config = Parts::read(TINY_FP8FP4).config.to_string();
    let model = Model::from_parts(&config, overshot_model::Bytes::from_static(bytes)).unwrap();
    let file = bytes.as_ptr_range();
    for matrix in model.weights.matrices() {
        assert!(file.contains(&matrix.data().as_ptr()), "a {:?} matrix was copied", matrix.format);
        let scales = matrix.scale_row(0);
        assert!(scales.is_empty() || file.contains(&scales.as_ptr()));
    }
}

#[test]
fn shards_load_like_one_file() {
    for path in [TINY_BF16, TINY_FP8FP4] {
        let parts = Parts::read(path);
        let folder = tempfile::tempdir().unwrap();
        parts.write_shards(folder.path(), 7);
        let model = Model::open(folder.path()).unwrap();
        assert_same(&model, &Model::open(repository(path)).unwrap());
        assert_eq!(model.summary.files.len(), 7);
    }
}

#[test]
fn a_file_beside_its_config_opens_under_any_name() {
    let parts = Parts::read(TINY_BF16);
    let folder = tempfile::tempdir().unwrap();
    parts.write_config(folder.path());
    fs::write(folder.path().join("weights.safetensors"), parts.file()).unwrap();
    let model = Model::open(folder.path().join("weights.safetensors")).unwrap();
    assert_same(&model, &parts.load().unwrap());
}

#[cfg(unix)]
#[test]
fn a_hugging_face_cache_folder_opens() {
    let parts = Parts::read(TINY_BF16);
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("models--org--name");
    let (blobs, snapshot, old) =
        (cache.join("blobs"), cache.join("snapshots/abc123"), cache.join("snapshots/old"));
    for folder in [&blobs, &snapshot, &old, &cache.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    for name in parts
        .write_shards(&blobs, 3)
        .iter()
        .map(String::as_str)
        .chain(["config.json", "model.safetensors.index.json"])
    {
        let blob = format!("{name}.blob");
        fs::rename(blobs.join(name), blobs.join(&blob)).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    fs::write(cache.join("refs/main"), "abc123\n").unwrap();
    let model = Model::open(&cache).unwrap();
    assert_same(&model, &parts.load().unwrap());
    assert_eq!(model.folder, Some(snapshot.clone()));

    // Without refs/main the only snapshot is taken, several are a question for the user.
    fs::remove_file(cache.join("refs/main")).unwrap();
    let message = common::one_sentence(Model::open(&cache).err());
    assert!(message.contains("it has 2 snapshots and no refs/main"), "{message}");
    fs::remove_dir(old).unwrap();
    assert_same(&Model::open(&cache).unwrap(), &model);

    fs::write(cache.join("refs/main"), "../../elsewhere").unwrap();
    let message = common::one_sentence(Model::open(&cache).err());
    assert!(message.contains("names revision `../../elsewhere`, which is not in snapshots"), "{message}");
}

/// The same checkpoint as transformers would write it. Says the names in its own way, not by the loader's table.
fn transformers(parts: &Parts, prefix: &str) -> Parts {
    let mut renamed = Parts { config: parts.config.clone(), tensors: Default::default() };
    let mut fused = std::collections::BTreeMap::<String, Vec<(usize, usize, Tensor)>>::new();
    for (name, tensor) in &parts.tensors {
        if name.starts_with("layers.") && name.contains(".experts.") {
            let (layer, rest) = name.split_once(".ffn.experts.").unwrap();
            let (expert, part) = rest.split_once('.').unwrap();
            let (matrix, kind) = part.split_once('.').unwrap();
            let (stem, order) = match matrix {
                "w1" => ("gate_up_proj", 0),
                "w3" => ("gate_up_proj", 1),
                _ => ("down_proj", 0),
            };
            let suffix = if kind == "scale" { "_scale_inv" } else { "" };
            let target = format!("{prefix}{layer}.mlp.experts.{stem}{suffix}");
            fused.entry(target).or_default().push((expert.parse().unwrap(), order, tensor.clone()));
            continue;
        }
        renamed.tensors.insert(transformers_name(name, prefix), tensor.clone());
    }
    for (name, mut pieces) in fused {
        pieces.sort_by_key(|(expert, order, _)| (*expert, *order));
        let experts = pieces.last().unwrap().0 + 1;
        let (dtype, cols) = (pieces[0].2.dtype, pieces[0].2.shape[1]);
        let rows = pieces.iter().map(|(_, _, tensor)| tensor.shape[0]).sum::<usize>() / experts;
        let data = pieces.into_iter().flat_map(|(_, _, tensor)| tensor.data).collect();
        renamed.tensors.insert(name, Tensor { dtype, shape: vec![experts, rows, cols], data });
    }
    renamed
}

fn transformers_name(name: &str, prefix: &str) -> String {
    if name == "head.weight" {
        return "lm_head.weight".to_string();
    }
    if name.starts_with("mtp.") {
        return name.to_string();
    }
    let mut name = name.to_string();
    for (from, to) in [
        ("embed.", "embed_tokens."),
        ("hc_head_", "hc_head.hc_"),
        ("hc_attn_", "attn_hc."),
        ("hc_ffn_", "ffn_hc."),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        (".attn.indexer.compressor.", ".self_attn.compressor.indexer."),
        (".attn.indexer.weights_proj", ".self_attn.compressor.indexer.scorer.weights_proj"),
        (".attn.indexer.", ".self_attn.compressor.indexer."),
        (".attn.attn_sink", ".self_attn.sinks"),
        (".attn.", ".self_attn."),
        (".wq_a", ".q_a_proj"),
        (".wq_b", ".q_b_proj"),
        (".wkv", ".kv_proj"),
        (".wgate", ".gate_proj"),
        (".wo_a", ".o_a_proj"),
        (".wo_b", ".o_b_proj"),
        (".q_norm", ".q_a_norm"),
        ("compressor.norm", "compressor.kv_norm"),
        ("indexer.norm", "indexer.kv_norm"),
        (".ape", ".position_bias"),
        (".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"),
        (".ffn.", ".mlp."),
        ("shared_experts.w1", "shared_experts.gate_proj"),
        ("shared_experts.w3", "shared_experts.up_proj"),
        ("shared_experts.w2", "shared_experts.down_proj"),
        (".scale", ".weight_scale_inv"),
    ] {
        if !(from == ".scale" && name.contains("_hc.")) {
            name = name.replace(from, to);
        }
    }
    format!("{prefix}{name}")
}

#[test]
fn transformers_names_load_like_the_publishers() {
    for path in [TINY_BF16, TINY_FP8FP4] {
        let parts = Parts::read(path);
        for prefix in ["model.", ""] {
            let model = transformers(&parts, prefix).load().unwrap();
            assert_eq!(model.summary.name_style, NameStyle::Transformers);
            assert_same(&model, &parts.load().unwrap());
        }
    }
}

#[test]
fn fused_experts_of_two_formats_are_refused() {
    let mut parts = transformers(&Parts::read(TINY_FP8FP4), "model.");
    let name = "model.layers.1.mlp.experts.down_proj";
    parts.tensors.remove(&format!("{name}_scale_inv"));
    let shape = vec![8, 64, 32];
    *parts.tensor(name) = Tensor { dtype: Dtype::BF16, shape, data: vec![0; 8 * 64 * 32 * 2] };
    let message = parts.refusal();
    let other = "model.layers.1.mlp.experts.gate_up_proj";
    let expected =
        format!("tensor `{name}` is stored as bf16 but `{other}` as fp4: they must be stored alike");
    assert!(message.ends_with(&expected), "{message}");
}

#[test]
fn publishers_names_may_carry_a_prefix() {
    let parts = Parts::read(TINY_FP8FP4);
    let tensors = parts.tensors.iter().map(|(name, tensor)| (format!("model.{name}"), tensor.clone()));
    let prefixed = Parts { config: parts.config.clone(), tensors: tensors.collect() };
    let model = prefixed.load().unwrap();
    assert_same(&model, &parts.load().unwrap());
    assert_eq!(model.summary.layers, parts.load().unwrap().summary.layers);
}

#[test]
fn power_of_two_float_scales_and_byte_dtypes_are_accepted() {
    let mut parts = Parts::read(TINY_FP8FP4);
    let expected = parts.load().unwrap();
    for (name, tensor) in &mut parts.tensors {
        if name.starts_with("mtp.") {
            continue;
        }
        match tensor.dtype {
            Dtype::F8_E8M0 if name.contains("attn") => {
                let wide =
                    tensor.data.iter().flat_map(|byte| 2f32.powi(i32::from(*byte) - 127).to_le_bytes());
                (tensor.dtype, tensor.data) = (Dtype::F32, wide.collect());
            }
            Dtype::F8_E8M0 | Dtype::I8 => tensor.dtype = Dtype::U8,
            Dtype::I64 => {
                let narrow = tensor.data.chunks(8).flat_map(|eight| eight[..4].to_vec());
                (tensor.dtype, tensor.data) = (Dtype::I32, narrow.collect());
            }
            _ => {}
        }
    }
    assert_same(&parts.load().unwrap(), &expected);

    // FP4 under the dtype of its own counts numbers, not bytes.
    for (name, tensor) in &mut parts.tensors {
        if name.contains(".experts.") && name.ends_with(".weight") {
            tensor.dtype = Dtype::F4;
            tensor.shape[1] *= 2;
        }
    }
    assert_same(&parts.load().unwrap(), &expected);
}

#[test]
fn the_stored_dtype_decides_not_the_config() {
    let mut parts = Parts::read(TINY_FP8FP4);
    // The configuration says FP4 experts: these are FP8, all of 2^-7.
    for expert in 0..8 {
        for (matrix, shape) in [("w1", vec![32, 64]), ("w2", vec![64, 32]), ("w3", vec![32, 64])] {
            let name = format!("layers.1.ffn.experts.{expert}.{matrix}");
            *parts.tensor(&format!("{name}.scale")) =
                Tensor { dtype: Dtype::F8_E8M0, shape: vec![1, 1], data: vec![120] };
            *parts.tensor(&format!("{name}.weight")) =
                Tensor { dtype: Dtype::F8_E4M3, shape, data: vec![0x38; 64 * 32] };
        }
    }
    // w2 of the shared expert is used alone.
    let name = "layers.1.ffn.shared_experts.w2";
    parts.tensors.remove(&format!("{name}.scale"));
    *parts.tensor(&format!("{name}.weight")) =
        Tensor { dtype: Dtype::BF16, shape: vec![64, 32], data: vec![0; 64 * 32 * 2] };
    let ffn = &parts.load().unwrap().weights.layers[1].ffn;
    assert_eq!((ffn.experts[3].w1.format, ffn.experts[4].w2.format), (Format::Fp8, Format::Fp8));
    assert_eq!((ffn.shared.w1.format, ffn.shared.w2.format), (Format::Fp8, Format::Bf16));
    assert_eq!(decoded(&ffn.experts[4].w2, 63), [2f32.powi(-7); 32]);
}

#[test]
fn minus_infinity_switches_sinks_and_experts_off() {
    let mut parts = Parts::read(TINY_BF16);
    for name in ["layers.2.ffn.gate.bias", "layers.2.attn.attn_sink"] {
        parts.tensor(name).data[4..8].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    }
    let model = parts.load().unwrap();
    assert_eq!(model.weights.layers[2].attn.sink[1], f32::NEG_INFINITY);
}

#[test]
fn drafters_are_recognised_and_left_alone() {
    let mut parts = Parts::read(TINY_FP8FP4);
    let ignored = parts.load().unwrap().summary.ignored_tensors;
    assert_eq!(ignored, parts.tensors.keys().filter(|name| name.starts_with("mtp.")).count());

    // Drafter tensors of any name and dtype are not looked at.
    parts.tensors.insert(
        "mtp.markov.head".to_string(),
        Tensor { dtype: Dtype::F16, shape: vec![3], data: vec![0xff; 6] },
    );
    parts.config["dspark_block_size"] = json!(5);
    let model = parts.load().unwrap();
    assert_eq!(model.summary.drafter, Drafter::DSpark);
    assert_eq!(model.summary.ignored_tensors, ignored + 1);

    // A conversion that dropped the block but kept the field has none.
    parts.tensors.retain(|name, _| !name.starts_with("mtp."));
    parts.config.as_object_mut().unwrap().remove("dspark_block_size");
    let model = parts.load().unwrap();
    assert_eq!(model.summary.drafter, Drafter::None);
}

#[test]
fn the_summary_is_json() {
    let model = Model::open(repository(TINY_FP8FP4)).unwrap();
    let json = serde_json::to_value(&model.summary).unwrap();
    assert_eq!(json["drafter"], json!({"mtp": {"blocks": 1}}));
    assert_eq!((&json["layers"][0]["kind"], &json["layers"][0]["routing"]), (&json!("csa"), &json!("hash")));
    assert_eq!(serde_json::to_value(&model.spec).unwrap()["yarn"]["factor"], 16.0);
    assert_eq!(json["name_style"], "publisher");
}
