//! What a checkpoint holds, in numbers: the data behind `overshot inspect`. Computes nothing that needs the tensors'
//! values.

use crate::checkpoint::{Checkpoint, WeightFile};
use crate::config::Drafter;
use crate::names::{NameStyle, Names};
use crate::{LayerKind, LayerSpec, RoutingKind, Spec, Weights};
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes are as stored; nothing is rounded to pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub files: Vec<WeightFile>,
    pub name_style: NameStyle,
    pub drafter: Drafter,
    /// Tensors in the files, drafter and scales included.
    pub tensors: usize,
    pub tensor_bytes: u64,
    /// Tensors that are recognised and not used: the drafter's.
    pub ignored_tensors: usize,
    pub ignored_bytes: u64,
    /// Numbers that the forward pass uses, scales and routing tables not counted.
    pub parameters: u64,
    /// By the name of the dtype in the files.
    pub dtypes: BTreeMap<String, Amount>,
    /// By the format that a matrix is read in; scales apart.
    pub formats: BTreeMap<&'static str, Amount>,
    /// In layer order.
    pub layers: Vec<LayerSummary>,
}

/// How many things, and their bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub count: usize,
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSummary {
    pub kind: LayerKind,
    pub routing: RoutingKind,
    /// All tensors of the layer.
    pub bytes: u64,
    /// Its routed experts, scales included.
    pub expert_bytes: u64,
}

impl Summary {
    pub(crate) fn new(
        spec: &Spec,
        weights: &Weights,
        checkpoint: &Checkpoint,
        names: Names,
        drafter: Drafter,
    ) -> Self {
        let mut summary = Summary {
            files: checkpoint.files.clone(),
            name_style: names.style,
            drafter,
            ..Summary::of_no_files(spec, weights)
        };
        for (name, tensor) in checkpoint.iter() {
            let bytes = tensor.bytes.len();
            summary.tensors += 1;
            summary.tensor_bytes += bytes as u64;
            summary.dtypes.entry(format!("{:?}", tensor.dtype)).or_default().add(bytes);
            if Names::is_drafter(name) {
                summary.ignored_tensors += 1;
                summary.ignored_bytes += bytes as u64;
            }
            if let Some(layer) = names.layer_of(name).and_then(|layer| summary.layers.get_mut(layer)) {
                layer.bytes += bytes as u64;
                if name.contains(".experts.") {
                    layer.expert_bytes += bytes as u64;
                }
            }
        }
        summary
    }

    /// Of weights that no file holds.
    pub(crate) fn of_no_files(spec: &Spec, weights: &Weights) -> Self {
        let mut formats: BTreeMap<&'static str, Amount> = BTreeMap::new();
        for matrix in weights.matrices() {
            formats.entry(matrix.format.name()).or_default().add(matrix.data().len());
        }
        Summary {
            files: Vec::new(),
            name_style: NameStyle::Publisher,
            drafter: Drafter::None,
            tensors: 0,
            tensor_bytes: 0,
            ignored_tensors: 0,
            ignored_bytes: 0,
            parameters: weights.parameters(),
            dtypes: BTreeMap::new(),
            formats,
            layers: layers(spec),
        }
    }
}

fn layers(spec: &Spec) -> Vec<LayerSummary> {
    let summary =
        |&LayerSpec { kind, routing }: &LayerSpec| LayerSummary { kind, routing, bytes: 0, expert_bytes: 0 };
    spec.layers.iter().map(summary).collect()
}
