//! From flags to a running backend.

use crate::args::{BackendChoice, ComputeFlags};
use anyhow::Context;
use overshot_backend::Backend;
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use std::sync::Arc;

/// Starts the backend that the flags ask for, with a cache of that capacity.
pub fn start_backend(
    flags: &ComputeFlags,
    model: Arc<Model>,
    capacity: PoolCapacity,
) -> anyhow::Result<Box<dyn Backend>> {
    match flags.backend {
        BackendChoice::Cpu => {
            let options = CpuOptions {
                numerics: flags.numerics(),
                capacity,
                threads: flags.threads.map(usize::from),
                isa: Isa::detect(),
            };
            Ok(Box::new(CpuBackend::new(model, options).context("the CPU backend cannot start")?))
        }
    }
}
