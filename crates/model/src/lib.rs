//! DeepSeek-V4 checkpoints: `config.json` to a checked [`Spec`], tensors to typed [`Weights`] that stay
//! memory-mapped in their stored format.
//!
//! This crate knows what the model *is*; it computes nothing and allocates nothing on a device. Start with
//! [`Spec`] (what shape the model has), then [`Weights`] (its parameters), then `load.rs` (how they are found).

mod bytes;
mod checkpoint;
mod config;
mod error;
mod fields;
mod load;
mod locate;
mod matrix;
pub mod memory;
mod names;
mod published;
pub mod quant;
mod random;
mod rope;
mod spec;
mod stored;
mod summary;
mod weights;

pub use bytes::Bytes;
pub use checkpoint::WeightFile;
pub use config::{Config, Drafter};
pub use error::ModelError;
pub use load::Model;
pub use matrix::{Format, Matrix};
pub use names::NameStyle;
pub use rope::{ROPE_PAIRS, RopeFrequencies};
pub use spec::{LayerKind, LayerSpec, RoutingKind, Spec, Yarn};
pub use stored::{FP4_SCALE_BYTE_MAX, FP8_SCALE_BYTE_MAX};
pub use summary::{Amount, LayerSummary, Summary};
pub use weights::{
    Attention, Compressor, Expert, FeedForward, HyperConnection, Indexer, Layer, Routing, Weights,
};

/// Width of the one latent that serves as key and value of all heads, and of every query head.
pub const HEAD_DIM: usize = 512;
/// The last dimensions of a head that carry the position.
pub const ROPE_DIMS: usize = 64;
/// The first dimensions of a head, which carry no position.
pub const NOPE_DIMS: usize = HEAD_DIM - ROPE_DIMS;
/// Width of an indexer key and of an indexer query head.
pub const INDEX_DIM: usize = 128;
/// Tokens a query sees uncompressed, itself included.
pub const WINDOW: usize = 128;
/// Parallel residual streams.
pub const STREAMS: usize = 4;

#[cfg(test)]
mod tests {
    //! Checkpoints that unit tests share.

    type Parts = (&'static str, &'static [u8]);

    pub const TINY_BF16: Parts = (
        include_str!("../../../fixtures/tiny-bf16/config.json"),
        include_bytes!("../../../fixtures/tiny-bf16/model.safetensors"),
    );
    pub const TINY_FP8FP4: Parts = (
        include_str!("../../../fixtures/tiny-fp8fp4/config.json"),
        include_bytes!("../../../fixtures/tiny-fp8fp4/model.safetensors"),
    );
}
