//! `overshot serve`: an OpenAI-compatible server. From flags to a running engine and what is told about it; the
//! server itself is a crate of its own.

use crate::args::{BackendChoice, ComputeFlags};
use crate::compute::{Cache, Needs, ToLower, start_backend};
use crate::failure::{bad_input, note, one_line};
use crate::model_source::ModelSource;
use crate::sampling::SamplingFlags;
use crate::serve_options::NetworkFlags;
use crate::trace_file::TraceFile;
use crate::usage::at_least_one;
use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use overshot_chat::Effort;
use overshot_engine::{Engine, Limits, StepLoop};
use overshot_kv::PoolCapacity;
use overshot_server::{App, EngineHandle, ServedModel, serve_until_signal};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  overshot serve
  overshot serve --model ~/models/DeepSeek-V4-Flash --port 8080 --max-batch 128 --kv-pool-tokens 1000000
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 6 times 4?\"}]}'

The address is printed as soon as requests are taken. Ctrl-C lets running answers end; a second one cuts them.";

/// Tokens of the cache in this machine's memory unless told otherwise: one long conversation, or many short ones. Only what is
/// used of it becomes resident.
const KV_POOL_TOKENS: usize = 131_072;

/// Serve the OpenAI API over HTTP.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Address to listen on; 0.0.0.0 takes requests from everywhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = NonEmptyStringValueParser::new())]
    host: String,

    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// What clients call the model [default: the name of its folder]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    served_model_name: Option<String>,

    /// How much to think where a request does not say: none, low, medium, high, xhigh or max
    #[arg(long, value_name = "LEVEL", default_value = "none")]
    effort: Effort,

    /// Tokens that the cache holds, over all running requests [default: 131,072; on a GPU all that fit]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    kv_pool_tokens: Option<NonZeroUsize>,

    /// Tokens that prompt and answer of one request may have together [default: what model and cache hold]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    max_context: Option<NonZeroUsize>,

    /// Requests that are computed at the same time [default: 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    max_batch: Option<NonZeroUsize>,

    /// Requests that may wait; further ones are refused [default: 1024]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    max_queue: Option<NonZeroUsize>,

    /// Tokens of one prompt that one step computes; fewer keep other answers flowing, more finish prompts sooner
    /// [default: 512]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    chunk_tokens: Option<NonZeroUsize>,

    /// Plan the next step while one is computed; the answers are the same
    #[arg(long, value_enum, default_value_t = Overlap::On)]
    overlap: Overlap,

    /// Write one JSON line a step to this file: what was computed, and where the time went
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    #[command(flatten)]
    network: NetworkFlags,

    #[command(flatten)]
    compute: ComputeFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Overlap {
    On,
    Off,
}

impl Overlap {
    pub fn step_loop(self) -> StepLoop {
        match self {
            Overlap::On => StepLoop::Overlapped,
            Overlap::Off => StepLoop::Plain,
        }
    }
}

/// # Errors
/// A flag that the model cannot take, an address that is in use.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let options = arguments.network.options()?;
    let source = arguments.compute.source()?;
    let (engine, model) = start(arguments, &source)?;
    let summary = format!(
        "serving {} as `{}` on {}, context {}",
        one_line(&source.label()),
        one_line(&model.name),
        engine.backend().name(),
        model.context
    );
    let trace = arguments.trace.as_deref().map(TraceFile::open).transpose()?;
    let observer = trace.as_ref().map(TraceFile::observer).transpose()?;
    let handle =
        EngineHandle::start(engine, options.limits, observer).context("the engine's thread cannot start")?;
    let app = App::new(handle, model, options);
    let mut told = Ok(());
    serve_until_signal(app, &arguments.host, arguments.port, |address| {
        note(&summary);
        if let Some(trace) = &trace {
            trace.clear();
        }
        // Scripts wait for this line.
        told = writeln!(out, "listening on http://{address}").and_then(|()| out.flush());
    })?;
    // Nobody who reads does not mean nobody who asks.
    drop(told);
    note("the server has ended");
    Ok(())
}

fn start(arguments: &Arguments, source: &ModelSource) -> anyhow::Result<(Engine, ServedModel)> {
    let mut model = source.open()?;
    if let (BackendChoice::Scripted(_), Some(context)) = (&arguments.compute.backend, arguments.max_context) {
        // A script stands in for a model of any context.
        model.spec.max_positions = context.get();
    }
    let model = Arc::new(model);
    let tokenizer = source.tokenizer(&model)?;
    let texts = source.prompt_texts(&model)?;
    let spec = &model.spec;
    let sampling = SamplingFlags::default().resolve(&source.generation_defaults(&model)?, spec.vocab_size)?;
    let limits = limits(arguments);
    let most = checked_context(arguments.max_context, spec.max_positions)?;
    let (bos_token, eos_token, vocab_size) = (spec.bos_token, spec.eos_token, spec.vocab_size);
    let backend = start_backend(&arguments.compute, source, model, needs(arguments, limits))?.backend;
    let pool_tokens = arguments.kv_pool_tokens.map(NonZeroUsize::get);
    let pool_tokens = pool_tokens.unwrap_or_else(|| backend.capacity().longest_set_tokens());
    let served = ServedModel {
        name: served_name(arguments, source),
        bos_token,
        eos_token,
        vocab_size,
        context: arguments.max_context.map_or(most.min(pool_tokens), NonZeroUsize::get),
        sampling,
        effort: arguments.effort,
        tokenizer,
        texts,
    };
    let engine = Engine::new(backend, limits, arguments.overlap.step_loop())?;
    for warning in served.texts.warnings() {
        note(&format!("warning: {warning}"));
    }
    Ok((engine, served))
}

fn needs(arguments: &Arguments, limits: Limits) -> Needs {
    let requests = limits.running_requests;
    let cache = match arguments.kv_pool_tokens {
        Some(tokens) => Cache::Fixed(PoolCapacity::shared_by(requests, tokens.get())),
        None => Cache::Rest { requests, tokens_in_host_memory: KV_POOL_TOKENS },
    };
    let to_lower = ToLower { requests: Some("--max-batch or --chunk-tokens"), cache: "--kv-pool-tokens" };
    Needs { cache, step_tokens: limits.step_tokens, to_lower, rehearsal: None }
}

fn limits(arguments: &Arguments) -> Limits {
    let or = |given: Option<NonZeroUsize>, default: usize| given.map_or(default, NonZeroUsize::get);
    let standard = Limits::default();
    let running_requests = or(arguments.max_batch, standard.running_requests);
    let chunk_tokens = or(arguments.chunk_tokens, standard.chunk_tokens);
    Limits {
        waiting_requests: or(arguments.max_queue, standard.waiting_requests),
        ..Limits::for_batch(running_requests, chunk_tokens)
    }
}

/// The most tokens that a request can have, whatever the cache holds.
fn checked_context(asked: Option<NonZeroUsize>, most: usize) -> anyhow::Result<usize> {
    match asked.map(NonZeroUsize::get) {
        Some(context) if context > most => {
            Err(bad_input(format!("--max-context {context} is more than the model's {most} positions")))
        }
        asked => Ok(asked.unwrap_or(most)),
    }
}

fn served_name(arguments: &Arguments, source: &ModelSource) -> String {
    if let Some(name) = &arguments.served_model_name {
        return name.clone();
    }
    match source {
        ModelSource::BuiltIn(model) => model.name.to_owned(),
        ModelSource::Path(path) => folder_name(path),
        ModelSource::Random { name, .. } => name.clone(),
    }
}

fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    whole.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_bounded_by_the_model() {
        assert_eq!(checked_context(None, 16_384).unwrap(), 16_384);
        assert_eq!(checked_context(NonZeroUsize::new(200_000), 1_048_576).unwrap(), 200_000);
        let error = checked_context(NonZeroUsize::new(16_385), 16_384).unwrap_err().to_string();
        assert!(error.contains("--max-context 16385"), "{error}");
    }
}
