//! Sparse decode attention: for each query token, all heads over two short lists of packed cache entries.
//!
//! [`Variant`] names a kernel (a version of the ladder in `kernels/decode/` and its parameters), `choose` of
//! `overshot-gpu-model` says which one and how many blocks share a row, [`launch`] puts it on a stream. Nothing here reads a
//! length or an index on the host, so a captured launch stays valid while a sequence grows.

mod args;
mod launch;
mod schedule;
mod variant;

pub use args::{Args, Pool, RUN_BYTES, ScheduleArgs};
pub use launch::{DecodeKernel, LaunchError};
pub use schedule::{Schedule, WORKERS_MAX};
pub use variant::{Knobs, Query, Scale, Variant, Version};
