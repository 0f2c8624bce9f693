//! `overshot bench`: how fast, measured so that the numbers can be trusted. Sweeps over this process's engine or over any
//! server that speaks the OpenAI API; the measuring itself is the lab's, this is its command line.

mod engine_target;
mod output;
mod points;

use crate::args::ComputeFlags;
use crate::doctor::cpu_name;
use crate::failure::{bad_input, note};
use crate::serve::Overlap;
use crate::usage::{at_least_one, from_1_to_1024, seconds, whole_number};
use clap::{Args, ValueEnum};
use engine_target::{EngineOptions, EngineTarget};
use output::Outputs;
use overshot_lab::load::{Api, ServerOptions, ServerTarget, Sharing};
use overshot_lab::report::Summary;
use overshot_lab::sweep::{NoisePlan, Plan, Results, sweep};
use overshot_lab::{Settings, Target};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  overshot bench --concurrency 1,4,16,64 --prompt-tokens 512 --out runs.jsonl --svg decode.svg
  overshot bench --prefill 128,512,2048
  overshot bench --url http://localhost:8000 --concurrency 1,8,32,96 --max-tokens 256
  overshot bench --url http://localhost:30000 --mixed --concurrency 32 --seconds 60 --json

Without --url the engine in this process is measured. What each number means: docs/bench.md.";

/// Measure decode and prefill speed, of this engine or of any OpenAI-compatible server.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Measure the server at this address; --model then names one of its models [default: the first that it lists]
    #[arg(long, value_name = "http://HOST:PORT")]
    url: Option<String>,

    /// Streams that decode at the same time, each number a point of the sweep [default: 1,2,4,8,16,32,64]
    #[arg(long, visible_alias = "batch", value_name = "N,N,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = from_1_to_1024)]
    concurrency: Vec<u16>,

    /// Prompt lengths whose prefill is measured, alone; without --concurrency there is no decode sweep then
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = at_least_one)]
    prefill: Vec<NonZeroUsize>,

    /// With --url: clients that send requests of mixed lengths without a pause, instead of the decode sweep
    #[arg(long, requires = "url")]
    mixed: bool,

    /// Tokens of every prompt in front of the answers; with --mixed the mean
    #[arg(long, visible_alias = "context", value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    prompt_tokens: NonZeroUsize,

    /// Tokens of every answer; with --mixed the mean. In this process: the most steps of a run
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    max_tokens: NonZeroUsize,

    /// How long one run measures: steps in this process [default: 2], mixed load on a server [default: 10]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    seconds: Option<Duration>,

    /// Runs of every point, interleaved
    #[arg(long, value_name = "N", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one)]
    repeats: NonZeroUsize,

    /// Blocks of four runs that compare the largest point of each kind with itself, to learn the noise; 0 for none
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = whole_number::<usize>)]
    noise_blocks: usize,

    /// Seed of the order of the runs [default: random]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number::<u64>)]
    seed: Option<u64>,

    /// Append every run to this file as it ends; what it already has is not measured again
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,

    /// Plan the next step while one is computed, as the server does
    #[arg(long, value_enum, default_value_t = Overlap::On, conflicts_with = "url")]
    overlap: Overlap,

    #[command(flatten)]
    outputs: Outputs,

    #[command(flatten)]
    server: ServerFlags,

    #[command(flatten)]
    compute: ComputeFlags,
}

/// What only servers have.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Servers")]
struct ServerFlags {
    /// The endpoint that is asked
    #[arg(long, value_enum, default_value_t = ApiFlag::Chat, requires = "url")]
    api: ApiFlag,

    /// The environment variable that holds the key
    #[arg(long, value_name = "NAME", requires = "url")]
    api_key_env: Option<String>,

    /// Let all prompts begin alike, for servers that cache prefixes; otherwise every prompt is its own
    #[arg(long, requires = "url")]
    shared_prefix: bool,

    /// The longest silence of the server that is not a failure
    #[arg(long, value_name = "S", default_value = "120", allow_negative_numbers = true, value_parser = seconds, requires = "url")]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ApiFlag {
    Chat,
    Completions,
}

/// # Errors
/// Flags that do not fit together, a model or server that cannot be measured, or results that cannot be written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    arguments.outputs.check()?;
    let points = points::points(arguments);
    let mut target: Box<dyn Target> = match &arguments.url {
        Some(url) => Box::new(server(arguments, url)?),
        None => Box::new(engine(arguments, &points)?),
    };
    let mut settings = target.settings();
    settings.extend(machine());
    let mut results = match &arguments.out {
        Some(path) => Results::open(path, &settings)?,
        None => Results::in_memory(),
    };
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let noise = points::largest_of_each_kind(&points);
    let plan = Plan {
        noise: noise.map(|point| NoisePlan { point, blocks: arguments.noise_blocks }).collect(),
        points,
        repeats: arguments.repeats.get(),
        seed,
    };
    note(&format!("measuring {}, {} runs, order by seed {seed}", target.name(), plan.runs()?.len()));
    sweep(&plan, target.as_mut(), &mut results, output::progress)?;
    let summary = Summary::of(results.records(), seed);
    arguments.outputs.write(&target.name(), &settings, &summary, out)
}

fn server(arguments: &Arguments, url: &str) -> anyhow::Result<ServerTarget> {
    let flags = &arguments.server;
    let key = match &flags.api_key_env {
        None => None,
        Some(name) => Some(std::env::var(name).map_err(|_| {
            bad_input(format!("the environment has no {name}, which --api-key-env says holds the key"))
        })?),
    };
    let target = ServerTarget::connect(ServerOptions {
        url: url.to_owned(),
        api: match flags.api {
            ApiFlag::Chat => Api::Chat,
            ApiFlag::Completions => Api::Completions,
        },
        model: arguments.compute.model.as_ref().map(|name| name.to_string_lossy().into_owned()),
        key,
        prompt_tokens: arguments.prompt_tokens.get(),
        answer_tokens: arguments.max_tokens.get(),
        mixed_time: arguments.seconds.unwrap_or(Duration::from_secs(10)),
        sharing: if flags.shared_prefix { Sharing::Prefix } else { Sharing::Nothing },
        idle: flags.timeout,
    })?;
    for finding in target.findings() {
        note(&format!("note: {finding}"));
    }
    Ok(target)
}

fn engine(arguments: &Arguments, points: &[overshot_lab::Point]) -> anyhow::Result<EngineTarget> {
    if cfg!(debug_assertions) {
        note("warning: this is a debug build: measure with one made by --release");
    }
    EngineTarget::start(EngineOptions {
        compute: &arguments.compute,
        points,
        context: arguments.prompt_tokens.get(),
        most_steps: arguments.max_tokens.get(),
        time: arguments.seconds.unwrap_or(Duration::from_secs(2)),
        step_loop: arguments.overlap.step_loop(),
    })
}

/// What runs are only comparable on.
fn machine() -> Settings {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pairs = [
        ("machine", format!("{}, {cores} cores", cpu_name().as_deref().unwrap_or("unknown processor"))),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("build", if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
