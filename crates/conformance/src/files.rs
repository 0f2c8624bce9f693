//! Files of the repository that scenarios stand on: models, checkpoints to be changed, arrays of fixtures.

use overshot_model::{Bytes, Model, ModelError};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn open(path: &str) -> Arc<Model> {
    Arc::new(Model::open(repository().join(path)).unwrap())
}

/// A checkpoint taken apart, to be changed and loaded from memory.
#[derive(Clone)]
pub struct Checkpoint {
    config: String,
    pub tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Checkpoint {
    pub fn read(folder: &str) -> Self {
        let folder = repository().join(folder);
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            (name.to_owned(), Tensor { dtype, shape, data: view.data().to_vec() })
        });
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        Checkpoint { config, tensors: tensors.collect() }
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn load(&self) -> Result<Model, ModelError> {
        let views = self.tensors.iter().map(|(name, tensor)| {
            (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        Model::from_parts(&self.config, Bytes::from_vec(file))
    }
}

/// The arrays of a fixture file, integers as floats.
pub struct Arrays {
    arrays: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Arrays {
    pub fn read(path: &str) -> Self {
        let bytes = std::fs::read(repository().join(path)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let arrays = file.tensors().into_iter().map(|(name, tensor)| {
            let words = tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let values = match tensor.dtype() {
                safetensors::Dtype::F32 => words.map(f32::from_le_bytes).collect(),
                safetensors::Dtype::I32 => words.map(|b| i32::from_le_bytes(b) as f32).collect(),
                safetensors::Dtype::U8 => tensor.data().iter().map(|&b| f32::from(b)).collect(),
                other => panic!("{name} is {other:?}"),
            };
            (name, (tensor.shape().to_vec(), values))
        });
        Arrays { arrays: arrays.collect() }
    }

    pub fn has(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    pub fn get(&self, name: &str) -> &[f32] {
        &self.arrays.get(name).unwrap_or_else(|| panic!("no array {name}")).1
    }

    pub fn shape(&self, name: &str) -> &[usize] {
        &self.arrays[name].0
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&x| x as u32).collect()
    }
}
