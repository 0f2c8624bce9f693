//! What the black-box tests share: fixtures, and one sequence at a time through a backend with real accounting.
#![allow(dead_code)]

use overshot_backend::{Backend, Choice, Numerics, Row, RowResult, Sampling, StepPlan, Wanted};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_kv::{Kv, PageOp, PoolCapacity, SetId};
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

/// A backend with its accounting.
pub struct Bench {
    pub backend: CpuBackend,
    pub kv: Kv,
    number: u64,
}

impl Bench {
    pub fn new(model: &Arc<Model>, numerics: Numerics, sets: usize, tokens: usize) -> Self {
        Self::with(model, numerics, sets, tokens, None, Isa::detect())
    }

    pub fn with(
        model: &Arc<Model>,
        numerics: Numerics,
        sets: usize,
        tokens: usize,
        threads: Option<usize>,
        isa: Isa,
    ) -> Self {
        let capacity = PoolCapacity::for_sets(sets, tokens);
        Self::open(model, CpuOptions { numerics, capacity, tp: 1, threads, isa })
    }

    /// A rank for each of `tp`, with a thread each.
    pub fn ranks(model: &Arc<Model>, numerics: Numerics, sets: usize, tokens: usize, tp: usize) -> Self {
        let capacity = PoolCapacity::for_sets(sets, tokens);
        Self::open(model, CpuOptions { numerics, capacity, tp, threads: Some(tp), isa: Isa::detect() })
    }

    fn open(model: &Arc<Model>, options: CpuOptions) -> Self {
        let backend = CpuBackend::new(model.clone(), options).unwrap();
        Bench { backend, kv: Kv::new(options.capacity), number: 0 }
    }

    /// One step over several sequences at once; returns each row's logits.
    pub fn step(&mut self, rows: &[(SetId, &[u32])], wanted: Wanted) -> Vec<Vec<f32>> {
        self.results(rows, wanted).into_iter().map(|row| row.logits).collect()
    }

    /// Feeds tokens and draws the likeliest one after them.
    pub fn draw(&mut self, set: SetId, tokens: &[u32]) -> RowResult {
        let wanted =
            Wanted::Token { sampling: Arc::new(Sampling::greedy()), seen: Vec::new(), choice: Choice::Free };
        self.results(&[(set, tokens)], wanted).remove(0)
    }

    fn results(&mut self, rows: &[(SetId, &[u32])], wanted: Wanted) -> Vec<RowResult> {
        let rows: Vec<_> = rows.iter().map(|(set, tokens)| (*set, *tokens, wanted.clone())).collect();
        let plan = self.plan(&rows);
        self.backend.step(plan).unwrap().rows
    }

    /// The next plan, of rows without placeholders. It must be submitted.
    pub fn plan(&mut self, rows: &[(SetId, &[u32], Wanted)]) -> StepPlan {
        let mut plan = StepPlan { number: self.number, ..StepPlan::default() };
        self.number += 1;
        for (set, tokens, wanted) in rows {
            let start = self.kv.len(*set).unwrap();
            plan.page_ops.extend(self.kv.extend(*set, tokens.len()).unwrap());
            let pages = self.kv.table(*set).unwrap().clone();
            let (tokens, wanted) = (tokens.to_vec(), wanted.clone());
            plan.rows.push(Row { tokens, start, placeholder: None, pages, wanted });
        }
        assert_eq!(self.kv.check(), Vec::<String>::new());
        plan
    }

    /// Carries out page copies in a step of their own.
    pub fn copy(&mut self, page_ops: Vec<PageOp>) {
        let plan = StepPlan { number: self.number, page_ops, ..StepPlan::default() };
        self.number += 1;
        self.backend.step(plan).unwrap();
    }

    /// Feeds tokens in chunks of the given sizes (cycled); returns the logits of every position, end to end.
    pub fn feed(&mut self, set: SetId, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
        let mut logits = Vec::new();
        let mut rest = tokens;
        for &size in chunks.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, others) = rest.split_at(size.min(rest.len()));
            logits.extend(self.step(&[(set, chunk)], Wanted::AllLogits).remove(0));
            rest = others;
        }
        logits
    }
}

pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// The largest difference, and where.
pub fn worst(a: &[f32], b: &[f32]) -> (f32, usize) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    differences.enumerate().map(|(i, d)| (if d.is_nan() { f32::INFINITY } else { d }, i)).fold(
        (0.0, 0),
        |worst, d| {
            if d.0 > worst.0 { d } else { worst }
        },
    )
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
