//! Measuring points of an engine or a server: the flags that say what and how often, and the course of it. Shared by all
//! commands that sweep.

use super::engine_target::{EngineOptions, EngineTarget};
use super::geometry::Geometry;
use super::output;
use super::rehearsal_target::{RehearsalOptions, RehearsalTarget};
use crate::args::ComputeFlags;
use crate::doctor::cpu_name;
use crate::failure::{bad_input, note};
use crate::serve::Overlap;
use crate::usage::{at_least_one, seconds, whole_number};
use clap::{Args, ValueEnum};
use overshot_lab::load::{Api, ServerOptions, ServerTarget, Sharing};
use overshot_lab::sweep::{NoisePlan, Plan, Results, sweep};
use overshot_lab::{Point, Settings, Target};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub struct SweepFlags {
    /// Measure the server at this address; --model then names one of its models [default: the first that it lists]
    #[arg(long, value_name = "http://HOST:PORT")]
    url: Option<String>,

    /// Tokens of every prompt in front of the answers; of a mixed load the mean
    #[arg(long, visible_alias = "context", value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    prompt_tokens: NonZeroUsize,

    /// Tokens of every answer; of a mixed load the mean. In this process: the most steps of a run
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    max_tokens: NonZeroUsize,

    /// How long one run measures: steps in this process [default: 2], mixed load on a server [default: 10]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    seconds: Option<Duration>,

    /// Runs of every point, interleaved
    #[arg(long, value_name = "N", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one)]
    repeats: NonZeroUsize,

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

/// All runs that were asked for, and what they are runs of.
pub struct Measured {
    pub name: String,
    pub settings: Settings,
    pub results: Results,
    /// Of the order of the runs, and for whatever is drawn from them.
    pub seed: u64,
}

impl SweepFlags {
    /// Of one run in this process.
    fn run_time(&self) -> Duration {
        self.seconds.unwrap_or(Duration::from_secs(2))
    }

    /// # Errors
    /// Flags that contradict each other: told before any file is opened.
    pub fn check(&self) -> anyhow::Result<()> {
        self.compute.ranks().map(drop)
    }

    /// A model of some geometry where one is given. Points of it that do not fit are left out.
    ///
    /// # Errors
    /// A model or server that cannot be measured, or results that cannot be written.
    pub fn measure(
        &self,
        mut points: Vec<Point>,
        mut noise: Vec<NoisePlan>,
        geometry: Option<&Geometry>,
    ) -> anyhow::Result<Measured> {
        let mut target: Box<dyn Target> = match (&self.url, geometry) {
            (Some(url), _) => Box::new(server(self, url)?),
            (None, None) => Box::new(engine(self, &points)?),
            (None, Some(geometry)) => {
                let (target, fitting) = rehearsal(self, &points, geometry)?;
                points = fitting;
                noise.retain(|noise| points.contains(&noise.point));
                Box::new(target)
            }
        };
        let mut settings = target.settings();
        settings.extend(machine());
        let mut results = match &self.out {
            Some(path) => Results::open(path, &settings)?,
            None => Results::in_memory(),
        };
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
        let plan = Plan { points, repeats: self.repeats.get(), noise, seed };
        note(&format!("measuring {}, {} runs, order by seed {seed}", target.name(), plan.runs()?.len()));
        sweep(&plan, target.as_mut(), &mut results, output::progress)?;
        Ok(Measured { name: target.name(), settings, results, seed })
    }
}

fn server(arguments: &SweepFlags, url: &str) -> anyhow::Result<ServerTarget> {
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

fn engine(arguments: &SweepFlags, points: &[Point]) -> anyhow::Result<EngineTarget> {
    warn_of_debug_build();
    EngineTarget::start(EngineOptions {
        compute: &arguments.compute,
        points,
        context: arguments.prompt_tokens.get(),
        most_steps: arguments.max_tokens.get(),
        time: arguments.run_time(),
        step_loop: arguments.overlap.step_loop(),
    })
}

fn rehearsal(
    arguments: &SweepFlags,
    points: &[Point],
    geometry: &Geometry,
) -> anyhow::Result<(RehearsalTarget, Vec<Point>)> {
    warn_of_debug_build();
    RehearsalTarget::start(RehearsalOptions {
        compute: &arguments.compute,
        geometry,
        points,
        context: arguments.prompt_tokens.get(),
        most_steps: arguments.max_tokens.get(),
        time: arguments.run_time(),
        step_loop: arguments.overlap.step_loop(),
    })
}

fn warn_of_debug_build() {
    if cfg!(debug_assertions) {
        note("warning: this is a debug build: measure with one made by --release");
    }
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
