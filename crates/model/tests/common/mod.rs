//! A checkpoint taken apart, so that tests can change it and write it back in any layout.

#![allow(dead_code, clippy::unwrap_used)]

use overshot_model::{Bytes, Layer, Matrix, Model, ModelError, Routing};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const TINY_BF16: &str = "fixtures/tiny-bf16";
pub const TINY_FP8FP4: &str = "fixtures/tiny-fp8fp4";
pub const MINI: &str = "models/dsv4-mini";

pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Parts {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

impl Parts {
    pub fn read(path: &str) -> Self {
        let folder = repository(path);
        let config = serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = tensors.iter().map(|(name, view)| {
            let tensor =
                Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() };
            (name.to_string(), tensor)
        });
        Parts { config, tensors: tensors.collect() }
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn file(&self) -> Vec<u8> {
        file_of(self.tensors.iter())
    }

    /// Loads from memory.
    pub fn load(&self) -> Result<Model, ModelError> {
        Model::from_parts(&self.config.to_string(), Bytes::from_vec(self.file()))
    }

    pub fn refusal(&self) -> String {
        one_sentence(self.load().err())
    }

    pub fn write_config(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
    }

    pub fn write_single(&self, folder: &Path) {
        self.write_config(folder);
        fs::write(folder.join("model.safetensors"), self.file()).unwrap();
    }

    /// Deals the tensors out to `count` shards and writes the index. Gives back the shard names.
    pub fn write_shards(&self, folder: &Path, count: usize) -> Vec<String> {
        self.write_config(folder);
        let names: Vec<String> =
            (1..=count).map(|shard| format!("model-{shard:05}-of-{count:05}.safetensors")).collect();
        let mut map = serde_json::Map::new();
        for (shard, name) in names.iter().enumerate() {
            let of_shard = self.tensors.iter().skip(shard).step_by(count);
            map.extend(of_shard.clone().map(|(tensor, _)| (tensor.clone(), json!(name))));
            fs::write(folder.join(name), file_of(of_shard)).unwrap();
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        names
    }
}

pub fn file_of<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let views = tensors.map(|(name, tensor)| {
        (name.as_str(), TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// The message of a refusal, after checking its form.
pub fn one_sentence(error: Option<ModelError>) -> String {
    let message = error.expect("the checkpoint was accepted").to_string();
    assert!(!message.is_empty() && message.chars().count() < 1_000, "{message}");
    assert!(!message.chars().any(char::is_control), "{message:?}");
    message
}

/// Asserts that two models have the same shape and numbers, wherever those are stored.
pub fn assert_same(a: &Model, b: &Model) {
    assert_eq!(a.spec, b.spec);
    assert_eq!(a.weights.parameters(), b.weights.parameters());
    let (left, right): (Vec<&Matrix>, Vec<&Matrix>) =
        (a.weights.matrices().collect(), b.weights.matrices().collect());
    assert_eq!(left.len(), right.len());
    for (index, (left, right)) in left.iter().zip(right).enumerate() {
        assert_eq!(
            (left.format, left.rows, left.cols),
            (right.format, right.rows, right.cols),
            "matrix {index}"
        );
        assert!(left.data() == right.data(), "data of matrix {index}");
        for row in 0..left.rows {
            assert_eq!(left.scale_row(row), right.scale_row(row), "scales of matrix {index} row {row}");
        }
    }
    assert_eq!(a.weights.norm, b.weights.norm);
    for (left, right) in a.weights.layers.iter().zip(&b.weights.layers) {
        assert_eq!(vectors(left), vectors(right));
        assert_eq!(table(left), table(right));
    }
}

fn vectors(layer: &Layer) -> Vec<&Vec<f32>> {
    let (attn, ffn) = (&layer.attn, &layer.ffn);
    let mut all = vec![&layer.attn_norm, &layer.ffn_norm, &attn.q_norm, &attn.kv_norm, &attn.sink];
    for site in [&layer.hc_attn, &layer.hc_ffn] {
        all.extend([&site.base, &site.scale]);
    }
    for compressor in attn.compressor.iter().chain(attn.indexer.iter().map(|indexer| &indexer.compressor)) {
        all.extend([&compressor.ape, &compressor.norm]);
    }
    if let Routing::Learned { bias } = &ffn.routing {
        all.push(bias);
    }
    all
}

fn table(layer: &Layer) -> Option<&[u16]> {
    match &layer.ffn.routing {
        Routing::Hash { experts_of_token } => Some(experts_of_token),
        Routing::Learned { .. } => None,
    }
}
