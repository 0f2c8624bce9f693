//! From flags to a running backend. What concerns GPUs is in `compute_gpu.rs`.

use crate::args::{BackendChoice, ComputeFlags};
use crate::compute_gpu;
use crate::display::spinner;
use crate::failure::{bad_input, note, one_line};
use crate::model_source::ModelSource;
use crate::scripted::read_scripts;
use crate::table::bytes;
use anyhow::Context;
use overshot_backend::{Backend, Rehearsal, ScriptedBackend, ShardError};
use overshot_backend_cpu::{CpuBackend, CpuError, CpuOptions, Isa};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use std::path::Path;
use std::sync::Arc;

/// Faults to inject, for tests: see `crates/backend/src/faults.rs`.
const FAULT_VARIABLE: &str = "OVERSHOT_FAULT";

/// What a command wants of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub cache: Cache,
    /// Tokens of its largest step.
    pub step_tokens: usize,
    pub to_lower: ToLower,
    /// Where only its speed is wanted.
    pub rehearsal: Option<Rehearsal>,
}

#[derive(Clone, Copy, Debug)]
pub enum Cache {
    Fixed(PoolCapacity),
    /// What a GPU has left beside all else, for so many requests; so many tokens where the memory is this machine's.
    Rest {
        requests: usize,
        tokens_in_host_memory: usize,
    },
}

impl Cache {
    fn in_host_memory(self) -> PoolCapacity {
        match self {
            Cache::Fixed(capacity) => capacity,
            Cache::Rest { requests, tokens_in_host_memory } => {
                PoolCapacity::shared_by(requests, tokens_in_host_memory)
            }
        }
    }
}

/// A command's flags that make it take less memory, for whoever has too little.
#[derive(Clone, Copy, Debug)]
pub struct ToLower {
    /// Of what requests take however short they are, and steps; `None` where that is as little as it can be.
    pub requests: Option<&'static str>,
    /// Of what grows with tokens.
    pub cache: &'static str,
}

pub struct Started {
    pub backend: Box<dyn Backend>,
    /// Whether this machine's processor computes.
    pub on_processor: bool,
    /// What a GPU's memory gives, measured where only speed is wanted.
    pub read_bytes_per_s: Option<f64>,
}

/// Starts the backend that the flags ask for, with a spinner on a terminal.
pub fn start_backend(
    flags: &ComputeFlags,
    source: &ModelSource,
    model: Arc<Model>,
    needs: Needs,
) -> anyhow::Result<Started> {
    let mapped_bytes = model.summary.files.iter().map(|file| file.bytes).sum();
    let waiting = spinner(&format!("starting {}, {} mapped", one_line(&source.label()), bytes(mapped_bytes)));
    let ranks = flags.ranks()?;
    let gpus = match &flags.backend {
        BackendChoice::Cuda => Some(compute_gpu::open(flags, ranks)?),
        // Whoever names devices asks for them.
        BackendChoice::Auto if flags.devices.is_some() => Some(compute_gpu::open(flags, ranks)?),
        BackendChoice::Auto => compute_gpu::open_unasked(ranks, &waiting)?,
        #[cfg(feature = "gpu-emulator")]
        BackendChoice::CudaEmulator => Some(compute_gpu::emulated(ranks)?),
        BackendChoice::Cpu | BackendChoice::Scripted(_) => None,
    };
    let (mut on_processor, mut read_bytes_per_s) = (false, None);
    let backend: Box<dyn Backend> = match (gpus, &flags.backend) {
        (Some(gpus), _) => {
            read_bytes_per_s = compute_gpu::read_rate(&gpus, needs)?;
            compute_gpu::start(gpus, flags, &model, needs, &waiting)?
        }
        (None, BackendChoice::Scripted(path)) => {
            Box::new(scripted(source, &model, path, needs.cache.in_host_memory())?)
        }
        (None, _) => {
            on_processor = true;
            cpu(flags, model, ranks, needs)?
        }
    };
    waiting.finish_and_clear();
    Ok(Started { backend: with_faults(backend)?, on_processor, read_bytes_per_s })
}

fn cpu(flags: &ComputeFlags, model: Arc<Model>, tp: usize, needs: Needs) -> anyhow::Result<Box<dyn Backend>> {
    let options = CpuOptions {
        numerics: flags.numerics(),
        capacity: needs.cache.in_host_memory(),
        tp,
        threads: flags.threads.map(usize::from),
        isa: Isa::detect(),
        rehearsal: needs.rehearsal,
    };
    match CpuBackend::new(model, options) {
        Ok(backend) => Ok(Box::new(backend)),
        Err(error @ CpuError::Shard(ShardError::NotDivisible { .. })) => Err(bad_input(error.to_string())),
        Err(error) => Err(error).context("the CPU backend cannot start"),
    }
}

/// Plays a file. The model lends its spec, the longest context included, and its tokenizer; its weights are not read.
fn scripted(
    source: &ModelSource,
    model: &Model,
    path: &Path,
    capacity: PoolCapacity,
) -> anyhow::Result<ScriptedBackend> {
    let scripts = read_scripts(path, &source.tokenizer(model)?)?;
    ScriptedBackend::new(model.spec.clone(), capacity, scripts).context("the scripted backend cannot start")
}

#[cfg(feature = "fault-injection")]
fn with_faults(backend: Box<dyn Backend>) -> anyhow::Result<Box<dyn Backend>> {
    let Some(text) = std::env::var_os(FAULT_VARIABLE) else { return Ok(backend) };
    let text = text.to_string_lossy();
    let faults = text.parse().map_err(|error| bad_input(format!("{FAULT_VARIABLE}: {error}")))?;
    note(&format!("warning: faults will be injected: {text}"));
    Ok(Box::new(overshot_backend::FaultyBackend::new(backend, faults)))
}

#[cfg(not(feature = "fault-injection"))]
fn with_faults(backend: Box<dyn Backend>) -> anyhow::Result<Box<dyn Backend>> {
    if std::env::var_os(FAULT_VARIABLE).is_some() {
        note(&format!(
            "warning: {FAULT_VARIABLE} changes nothing: this binary was built without the feature fault-injection"
        ));
    }
    Ok(backend)
}
