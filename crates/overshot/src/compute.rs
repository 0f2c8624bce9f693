//! From flags to a running backend.

use crate::args::{BackendChoice, ComputeFlags};
use crate::failure::bad_input;
use crate::model_source::ModelSource;
use crate::scripted::read_scripts;
use anyhow::Context;
use overshot_backend::{Backend, ScriptedBackend, ShardError};
use overshot_backend_cpu::{CpuBackend, CpuError, CpuOptions, Isa};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use std::path::Path;
use std::sync::Arc;

/// Faults to inject, for tests: see `crates/backend/src/faults.rs`.
const FAULT_VARIABLE: &str = "OVERSHOT_FAULT";

/// Starts the backend that the flags ask for, with a cache of that capacity.
pub fn start_backend(
    flags: &ComputeFlags,
    model: Arc<Model>,
    capacity: PoolCapacity,
) -> anyhow::Result<Box<dyn Backend>> {
    let backend: Box<dyn Backend> = match &flags.backend {
        BackendChoice::Cpu => {
            let options = CpuOptions {
                numerics: flags.numerics(),
                capacity,
                tp: flags.tp,
                threads: flags.threads.map(usize::from),
                isa: Isa::detect(),
            };
            match CpuBackend::new(model, options) {
                Ok(backend) => Box::new(backend),
                Err(error @ CpuError::Shard(ShardError::NotDivisible { .. })) => {
                    return Err(bad_input(error.to_string()));
                }
                Err(error) => return Err(error).context("the CPU backend cannot start"),
            }
        }
        BackendChoice::Scripted(path) => Box::new(scripted(flags, &model, path, capacity)?),
    };
    with_faults(backend)
}

/// Plays a file. The model lends its spec, the longest context included, and its tokenizer; its weights are not read.
fn scripted(
    flags: &ComputeFlags,
    model: &Model,
    path: &Path,
    capacity: PoolCapacity,
) -> anyhow::Result<ScriptedBackend> {
    let tokenizer = ModelSource::from_flag(flags.model.as_deref())?.tokenizer(model)?;
    let scripts = read_scripts(path, &tokenizer)?;
    ScriptedBackend::new(model.spec.clone(), capacity, scripts).context("the scripted backend cannot start")
}

#[cfg(feature = "fault-injection")]
fn with_faults(backend: Box<dyn Backend>) -> anyhow::Result<Box<dyn Backend>> {
    use crate::failure::note;
    let Some(text) = std::env::var_os(FAULT_VARIABLE) else { return Ok(backend) };
    let text = text.to_string_lossy();
    let faults = text.parse().map_err(|error| bad_input(format!("{FAULT_VARIABLE}: {error}")))?;
    note(&format!("warning: faults will be injected: {text}"));
    Ok(Box::new(overshot_backend::FaultyBackend::new(backend, faults)))
}

#[cfg(not(feature = "fault-injection"))]
fn with_faults(backend: Box<dyn Backend>) -> anyhow::Result<Box<dyn Backend>> {
    if std::env::var_os(FAULT_VARIABLE).is_some() {
        crate::failure::note(&format!(
            "warning: {FAULT_VARIABLE} changes nothing: this binary was built without the feature fault-injection"
        ));
    }
    Ok(backend)
}
