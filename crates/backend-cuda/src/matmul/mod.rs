//! Matrix products: dense ones of any stored format, and the experts.
//!
//! A step calls [`Matmuls`], which has every kernel loaded and the memory that launches share: `prepare` makes activations what
//! matrices take, `dense` multiplies by up to 16 matrices at once, `experts` does a layer's routed and shared experts.
//! Nothing is repacked: weights are used as they are stored. [`Variant`] names a kernel of the ladder in
//! `kernels/matmul/` (its `args.cuh` has the interface in detail), [`plan`] says how blocks share columns.
//!
//! Inputs by format of the matrix ([`Prepared`]): FP8 and FP4 take codes, f16 with a power of two for each 128 columns, one where
//! they are rounded and else two that are as good as float32; BF16 and F32 take floats, three bf16 terms. Outputs are float32.
//! Matrices that [`Matmuls::takes`] refuses (rows that are no multiple of 16 bytes, slices that begin inside of a block of scales) are
//! left to version 1 of a backend.
//!
//! Not here: attention, the router's choice, sums over ranks.

mod args;
mod check;
mod experts;
mod launch;
pub mod plan;
mod prepared;
mod variant;

pub use args::{Expert, Matrix, Prepared};
pub use check::TOKENS_MAX;
pub use experts::{ExpertsCall, ExpertsScratch};
pub use launch::{Company, MatmulError, Matmuls, Product};
pub(crate) use prepared::FLOAT_TERMS;
pub use prepared::{Activations, Forms, PreparedMemory};
pub use variant::{Family, Tiling, Variant, prepare_source, shipped, shipped_sources, sort_source};
