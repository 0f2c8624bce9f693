//! Intermediate values of a forward pass, for tests and for finding where two backends part.

use std::collections::BTreeMap;

/// Arrays by name (`"layers.3.attn_out"`), grown row by row as tokens pass. Integers are stored as floats.
#[derive(Debug, Default)]
pub struct Capture {
    arrays: BTreeMap<String, Vec<f32>>,
}

impl Capture {
    pub fn append(&mut self, layer: usize, what: &str, values: &[f32]) {
        self.arrays.entry(format!("layers.{layer}.{what}")).or_default().extend_from_slice(values);
    }

    pub fn append_global(&mut self, what: &str, values: &[f32]) {
        self.arrays.entry(what.to_owned()).or_default().extend_from_slice(values);
    }

    /// Everything captured under a name, in token order; empty when there is none.
    pub fn get(&self, name: &str) -> &[f32] {
        self.arrays.get(name).map_or(&[], Vec::as_slice)
    }
}
