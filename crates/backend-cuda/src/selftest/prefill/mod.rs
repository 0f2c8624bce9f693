//! Attention and the indexer of a step's tokens against float64: what is checked, on the emulator by `cargo test` and on a device by
//! `gpu-check prefill`, which also times it.
//!
//! Inputs are random, outputs are poisoned first, and so is everything that no token may see. Not here: where latents and entries
//! come from, which the whole model's tests compare with the CPU backend.

mod attention;
mod decoding;
mod device_step;
mod index;
mod run;
#[cfg(test)]
mod tests;

pub use attention::{AttentionCase, Seen};
pub use device_step::{Piece, PoolPages};
pub use index::IndexCase;
pub use run::{Options, run};
