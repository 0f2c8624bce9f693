//! What is refused, each by the sentence it gets.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Parts, TINY_BF16, TINY_FP8FP4, Tensor, one_sentence};
use overshot_model::{Bytes, Model};
use safetensors::Dtype;
use std::fs;

fn tiny() -> Parts {
    Parts::read(TINY_FP8FP4)
}

fn assert_says(message: &str, expected: &[&str]) {
    for part in expected {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn a_missing_tensor() {
    for name in [
        "embed.weight",
        "layers.1.attn.wkv.weight",
        "layers.0.attn.wkv.scale",
        "layers.0.ffn.experts.7.w2.weight",
    ] {
        let mut parts = tiny();
        parts.tensors.remove(name);
        assert_says(&parts.refusal(), &["model.safetensors: ", &format!("tensor `{name}` is missing")]);
    }
}

#[test]
fn a_surplus_tensor() {
    let mut parts = tiny();
    let extra = parts.tensor("norm.weight").clone();
    parts.tensors.insert("layers.2.attn_norm.weight".to_string(), extra.clone());
    let expected = "tensor `layers.2.attn_norm.weight` has no place in the model that config.json describes";
    assert!(parts.refusal().ends_with(expected));
    parts.tensors.insert("layers.2.ffn_norm.weight".to_string(), extra.clone());
    assert_says(&parts.refusal(), &[expected, "(1 more like it)"]);

    let mut parts = tiny();
    parts.tensors.insert("layers.0.attn.wkv.input_scale".to_string(), extra);
    assert_says(&parts.refusal(), &["`layers.0.attn.wkv.input_scale` has no place"]);
}

#[test]
fn a_wrong_shape() {
    let mut parts = tiny();
    parts.tensor("layers.0.attn.wq_b.weight").shape = vec![32, 2048];
    assert_says(
        &parts.refusal(),
        &["tensor `layers.0.attn.wq_b.weight` has shape [32, 2048], expected [2048, 32]"],
    );
    for (name, shape, expected) in [
        ("layers.0.attn.wo_a.scale", vec![8, 1], "expected [1, 8]"),
        ("layers.0.ffn.experts.0.w1.scale", vec![64, 1], "expected [32, 2]"),
        ("layers.0.hc_attn_fn", vec![256, 24], "expected [24, 256]"),
        ("layers.1.ffn.gate.bias", vec![8, 1], "expected [8]"),
        ("layers.0.attn.compressor.ape", vec![4096], "expected [4, 1024]"),
        ("layers.0.ffn.gate.tid2eid", vec![3, 192], "expected [192, 3]"),
    ] {
        let mut parts = tiny();
        parts.tensor(name).shape = shape;
        assert_says(&parts.refusal(), &[&format!("tensor `{name}` has shape"), expected]);
    }
}

#[test]
fn a_wrong_dtype() {
    for (name, dtype, expected) in [
        ("layers.0.attn.wkv.weight", Dtype::I8, "is stored as I8, expected F8_E4M3, BF16 or F32"),
        ("layers.0.attn.wkv.weight", Dtype::F8_E5M2, "is stored as F8_E5M2"),
        ("layers.0.attn.wkv.scale", Dtype::I8, "is stored as I8, expected F8_E8M0, or F32 powers of two"),
        ("layers.0.ffn.gate.weight", Dtype::F16, "is stored as F16, expected BF16 or F32"),
        (
            "layers.0.ffn.experts.0.w1.weight",
            Dtype::F8_E8M0,
            "expected I8 (packed FP4), F8_E4M3, BF16 or F32",
        ),
        ("layers.0.hc_ffn_fn", Dtype::I32, "is stored as I32, expected F32"),
        ("layers.0.ffn.gate.tid2eid", Dtype::F64, "is stored as F64, expected I64"),
        ("norm.weight", Dtype::F16, "is stored as F16, expected F32 or BF16"),
        ("embed.weight", Dtype::F16, "is stored as F16, expected BF16 or F32"),
    ] {
        let mut parts = tiny();
        parts.tensor(name).dtype = dtype;
        assert_says(&parts.refusal(), &["model.safetensors: ", &format!("tensor `{name}` "), expected]);
    }
}

#[test]
fn experts_of_two_formats() {
    let stem = "layers.1.ffn.experts";
    for (part, other, format) in [
        (format!("{stem}.3.w2"), format!("{stem}.0.w1"), "fp4"),
        (format!("{stem}.0.w2"), format!("{stem}.0.w1"), "fp4"),
        (format!("{stem}.3.w3"), format!("{stem}.3.w1"), "fp4"),
        ("layers.1.ffn.shared_experts.w3".into(), "layers.1.ffn.shared_experts.w1".into(), "fp8"),
    ] {
        let mut parts = tiny();
        parts.tensors.remove(&format!("{part}.scale"));
        let shape = if part.ends_with("w2") { vec![64, 32] } else { vec![32, 64] };
        *parts.tensor(&format!("{part}.weight")) =
            Tensor { dtype: Dtype::BF16, shape, data: vec![0; 64 * 32 * 2] };
        let expected = format!(
            "model.safetensors: tensor `{part}.weight` is stored as bf16 but `{other}.weight` as {format}: \
             they must be stored alike"
        );
        assert_eq!(parts.refusal(), expected);
    }
}

#[test]
fn scales_that_are_not_numbers_or_too_large() {
    for (name, byte, expected) in [
        ("layers.1.attn.wo_a.scale", 255, "holds the scale byte 255 at index 5, which is not a number"),
        (
            "layers.1.attn.wo_a.scale",
            247,
            "holds the scale byte 247 at index 5, which is 2^120, above the supported 2^119",
        ),
        ("layers.1.ffn.experts.2.w3.scale", 255, "which is not a number"),
        ("layers.1.ffn.experts.2.w3.scale", 253, "which is 2^126, above the supported 2^125"),
    ] {
        let mut parts = tiny();
        parts.tensor(name).data[5] = byte;
        assert_says(&parts.refusal(), &[&format!("tensor `{name}` "), expected]);
    }
    for (name, byte) in [("layers.1.attn.wo_a.scale", 246), ("layers.1.ffn.experts.2.w3.scale", 252)] {
        let mut parts = tiny();
        parts.tensor(name).data[5] = byte;
        parts.load().unwrap();
    }
}

#[test]
fn float_scales_that_are_no_powers_of_two() {
    for scale in [0.75f32, 0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 4.0] {
        let mut parts = tiny();
        let data = [1.0, 1.0, scale, 0.5].iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        *parts.tensor("layers.0.attn.wkv.scale") = Tensor { dtype: Dtype::F32, shape: vec![4, 1], data };
        let expected = format!("holds the scale {scale} at index 2, which is no power of two");
        assert_says(&parts.refusal(), &["tensor `layers.0.attn.wkv.scale` ", &expected]);
    }
}

#[test]
fn a_routing_table_beyond_the_experts() {
    for id in [8i64, -1, 65_536, i64::MAX] {
        let mut parts = tiny();
        parts.tensor("layers.0.ffn.gate.tid2eid").data[8 * 7..8 * 8].copy_from_slice(&id.to_le_bytes());
        let expected = format!("sends token 2 to expert {id}, but there are 8 experts");
        assert_says(&parts.refusal(), &["tensor `layers.0.ffn.gate.tid2eid` ", &expected]);
    }
}

#[test]
fn vectors_that_are_not_finite() {
    for (name, value, index) in [
        ("norm.weight", f32::NAN, 3),
        ("layers.0.attn.q_norm.weight", f32::INFINITY, 3),
        ("layers.1.hc_attn_base", f32::NEG_INFINITY, 1),
        ("layers.1.attn.attn_sink", f32::NAN, 1),
        ("layers.1.ffn.gate.bias", f32::INFINITY, 1),
    ] {
        let mut parts = tiny();
        let tensor = parts.tensor(name);
        match tensor.dtype {
            Dtype::BF16 => tensor.data[2 * index..][..2].copy_from_slice(&value.to_le_bytes()[2..]),
            _ => tensor.data[4 * index..][..4].copy_from_slice(&value.to_le_bytes()),
        }
        assert_says(&parts.refusal(), &[&format!("tensor `{name}` holds {value} at index {index}")]);
    }
}

#[test]
fn fp4_with_columns_that_have_no_whole_blocks() {
    let mut parts = tiny();
    parts.config["moe_intermediate_size"] = 48.into();
    assert_says(&parts.refusal(), &["field `moe_intermediate_size` is 48, not a multiple of 32"]);
    parts.config.as_object_mut().unwrap().remove("expert_dtype");
    for (w, shape) in [("w1", [48, 32]), ("w3", [48, 32]), ("w2", [64, 24])] {
        for expert in 0..8 {
            let name = format!("layers.0.ffn.experts.{expert}.{w}");
            let data = vec![0; shape[0] * shape[1]];
            *parts.tensor(&format!("{name}.weight")) =
                Tensor { dtype: Dtype::I8, shape: shape.to_vec(), data };
            *parts.tensor(&format!("{name}.scale")) =
                Tensor { dtype: Dtype::F8_E8M0, shape: vec![48, 2], data: vec![127; 96] };
        }
    }
    assert_says(&parts.refusal(), &["w2.weight` is FP4 with 48 columns, not a multiple of 32"]);
}

#[test]
fn names_of_another_model() {
    let mut parts = tiny();
    parts.tensors = [("transformer.wte.weight".to_string(), parts.tensor("embed.weight").clone())].into();
    assert_says(&parts.refusal(), &["tensor `embed.weight` is missing"]);
}

#[test]
fn a_truncated_file_names_both_lengths() {
    let folder = tempfile::tempdir().unwrap();
    tiny().write_single(folder.path());
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for kept in [0, 7, 8, 100, 20_000, whole.len() - 1] {
        fs::write(&path, &whole[..kept]).unwrap();
        let message = one_sentence(Model::open(folder.path()).err());
        assert_says(&message, &["model.safetensors", &format!("{kept} bytes")]);
        if kept == whole.len() - 1 {
            assert_says(&message, &[&format!("its header describes {}: the file is truncated", whole.len())]);
        }
    }
    fs::write(&path, [whole.as_slice(), b"tail"].concat()).unwrap();
    let message = one_sentence(Model::open(folder.path()).err());
    assert_says(
        &message,
        &[&format!("has {} bytes but its header describes {}", whole.len() + 4, whole.len())],
    );
}

#[test]
fn a_header_that_is_none() {
    let config = tiny().config.to_string();
    let refusal = |bytes: Vec<u8>| one_sentence(Model::from_parts(&config, Bytes::from_vec(bytes)).err());
    assert_says(
        &refusal(vec![b'x'; 4096]),
        &["is no safetensors file: its header would have 8680820740569200760 bytes"],
    );
    assert_says(&refusal([&8u64.to_le_bytes()[..], b"nonsense"].concat()), &["has a bad safetensors header"]);

    let with_header = |header: &str| {
        refusal([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat())
    };
    // A gap, an overlap, a shape that does not fit, a product that overflows.
    for header in [
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#,
        r#"{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}"#,
    ] {
        assert_says(&with_header(header), &["model.safetensors: has a bad safetensors header"]);
    }
    // Offsets that end near 2^64.
    let size = (1u64 << 61) - 1;
    let tensor = |i: u64| {
        format!(r#""{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{},{}]}}"#, i * size, (i + 1) * size)
    };
    let header = format!("{{{}}}", (0..8).map(tensor).collect::<Vec<_>>().join(","));
    assert_says(&with_header(&header), &["its header describes"]);
}

#[test]
fn a_missing_shard() {
    let folder = tempfile::tempdir().unwrap();
    let shards = tiny().write_shards(folder.path(), 4);
    fs::remove_file(folder.path().join(&shards[2])).unwrap();
    let expected = format!("model.safetensors.index.json: shard `{}` is not there", shards[2]);
    assert_says(&one_sentence(Model::open(folder.path()).err()), &[&expected]);
}

/// Writes shards, lets `change` edit the index, and gives back the refusal.
fn index_refusal(change: impl Fn(&mut serde_json::Value)) -> String {
    let folder = tempfile::tempdir().unwrap();
    tiny().write_shards(folder.path(), 2);
    let path = folder.path().join("model.safetensors.index.json");
    let mut index = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut index);
    fs::write(&path, index.to_string()).unwrap();
    one_sentence(Model::open(folder.path()).err())
}

#[test]
fn an_index_that_disagrees_with_its_shards() {
    let message = index_refusal(|index| {
        index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors".into()
    });
    assert_says(&message, &["model-00001-of-00002.safetensors: tensor `ghost.weight` is missing"]);
    let message = index_refusal(|index| {
        index["weight_map"].as_object_mut().unwrap().remove("embed.weight");
    });
    assert_says(&message, &["tensor `embed.weight` is not listed in", "index.json for this file"]);
    for file in ["../model-00001-of-00002.safetensors", "/dev/zero", "", ".."] {
        let message = index_refusal(|index| index["weight_map"]["embed.weight"] = file.into());
        assert_says(&message, &["maps tensor `embed.weight` to something else than a file name"]);
    }
    assert_says(&index_refusal(|index| index["weight_map"] = 3.into()), &["has no object `weight_map`"]);
    assert_says(&index_refusal(|index| index["weight_map"] = serde_json::json!({})), &["lists no tensors"]);
}

#[test]
fn a_tensor_in_two_shards() {
    let folder = tempfile::tempdir().unwrap();
    let parts = tiny();
    let shards = parts.write_shards(folder.path(), 2);
    // The second shard gets everything: half of it is in the first one too.
    fs::write(folder.path().join(&shards[1]), parts.file()).unwrap();
    let message = one_sentence(Model::open(folder.path()).err());
    assert_says(&message, &["is in two files", &shards[0], &shards[1]]);
}

#[test]
fn places_that_hold_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let refusal = |name: &str| one_sentence(Model::open(path.join(name)).err());
    assert_says(&refusal("absent"), &["cannot read", "absent", "No such file"]);
    assert_says(&refusal(""), &["is not a model: it has neither config.json nor the snapshots"]);
    let parts = Parts::read(TINY_BF16);
    fs::write(path.join("model.safetensors"), parts.file()).unwrap();
    assert_says(&refusal("model.safetensors"), &["is not a model: it has no config.json"]);
    parts.write_config(path);
    assert_says(&refusal("config.json"), &["give a folder with config.json"]);
    fs::write(path.join("hf_quant_config.json"), "{}").unwrap();
    assert_says(&refusal(""), &["hf_quant_config.json marks a ModelOpt re-quantisation (NVFP4"]);
    fs::remove_file(path.join("hf_quant_config.json")).unwrap();
    fs::remove_file(path.join("model.safetensors")).unwrap();
    assert_says(&refusal(""), &["it has neither model.safetensors nor model.safetensors.index.json"]);
    fs::create_dir(path.join("model.safetensors")).unwrap();
    assert_says(&refusal(""), &["model.safetensors is not a model: it is no regular file"]);
}

#[test]
fn a_hostile_name_is_shown_escaped_and_cut() {
    let mut parts = tiny();
    let extra = parts.tensor("norm.weight").clone();
    parts.tensors.insert(format!("\u{1b}[2J\n{}", "x".repeat(5_000)), extra);
    let message = parts.refusal();
    assert_says(&message, &["tensor `\\u{1b}[2J\\nxxx", "xxx...` has no place"]);
}
