//! Matrix products: dense ones of any stored format, and the experts.
//!
//! A step calls [`Matmuls`], which has every kernel loaded and the memory that launches share: `prepare` makes activations what FP8
//! and FP4 matrices take, `dense` multiplies by up to 16 matrices at once, `experts` does a layer's routed and shared experts.
//! Nothing is repacked: weights are used as they are stored. [`Variant`] names a kernel of the ladder in
//! `kernels/matmul/` (its `args.cuh` has the interface in detail), [`plan`] says how blocks share columns.
//!
//! Inputs by format of the matrix: FP8 and FP4 take *prepared* activations, bf16 or three such terms that are as good as float32,
//! BF16 and F32 take float32. Outputs are float32.
//! Matrices that [`Matmuls::takes`] refuses (rows that are no multiple of 16 bytes, slices that begin inside of a block of scales) are
//! left to version 1 of a backend.
//!
//! Not here: attention, the router's choice, sums over ranks.

mod args;
mod check;
mod experts;
mod launch;
pub mod plan;
mod variant;

pub use args::{Expert, Matrix};
pub use check::TOKENS_MAX;
pub use experts::{ExpertsCall, ExpertsScratch, Inner};
pub use launch::{Activations, Company, MatmulError, Matmuls, Product};
pub use variant::{Family, Variant, prepare_source, shipped_sources, sort_source};
