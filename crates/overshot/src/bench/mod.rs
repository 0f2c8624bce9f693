//! `overshot bench`: how fast, measured so that the numbers can be trusted. Sweeps over this process's engine or over any
//! server that speaks the OpenAI API; the measuring itself is the lab's, this is its command line.

mod engine_target;
mod families;
mod geometry;
mod measure;
mod output;
mod points;
mod rehearsal_target;
mod step_times;

use crate::outputs::Outputs;
use crate::usage::{at_least_one, from_1_to_1024, whole_number};
use clap::Args;
use geometry::GeometryFlags;
use output::SweepReport;
use overshot_lab::report::Summary;
use overshot_lab::sweep::NoisePlan;
use std::io::Write;
use std::num::NonZeroUsize;

pub use measure::{Measured, SweepFlags};
pub use output::subtitle;

const EXAMPLES: &str = "\
Examples:
  overshot bench --concurrency 1,4,16,64 --prompt-tokens 512 --out runs.jsonl --svg decode.svg
  overshot bench --prefill 128,512,2048
  overshot bench --url http://localhost:8000 --concurrency 1,8,32,96 --max-tokens 256
  overshot bench --url http://localhost:30000 --mixed --concurrency 32 --seconds 60 --json
  overshot bench --geometry flash --rank-of 2 --backend cuda --batch 1,8,64 --context 8192
  overshot bench --geometry flash --tp 2 --backend cuda --batch 1,8,64 --context 8192

Without --url the engine in this process is measured. What each number means: docs/bench.md.";

/// Measure decode and prefill speed, of this engine or of any OpenAI-compatible server.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Streams that decode at the same time, each number a point of the sweep [default: 1,2,4,8,16,32,64]
    #[arg(long, visible_alias = "batch", value_name = "N,N,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = from_1_to_1024)]
    concurrency: Vec<u16>,

    /// Prompt lengths whose prefill is measured, alone; without --concurrency there is no decode sweep then
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = at_least_one)]
    prefill: Vec<NonZeroUsize>,

    /// With --url: clients that send requests of mixed lengths without a pause, instead of the decode sweep
    #[arg(long, requires = "url")]
    mixed: bool,

    /// Blocks of four runs that compare the largest point of each kind with itself, to learn the noise; 0 for none
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = whole_number::<usize>)]
    noise_blocks: usize,

    #[command(flatten)]
    outputs: Outputs,

    #[command(flatten)]
    sweep: SweepFlags,

    #[command(flatten)]
    geometry: GeometryFlags,
}

/// # Errors
/// Flags that do not fit together, a model or server that cannot be measured, or results that cannot be written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    arguments.outputs.check()?;
    arguments.sweep.check()?;
    let points = points::points(arguments);
    let noise = points::largest_of_each_kind(&points);
    let noise = noise.map(|point| NoisePlan { point, blocks: arguments.noise_blocks }).collect();
    let geometry = arguments.geometry.geometry()?;
    let Measured { name, settings, results, seed } =
        arguments.sweep.measure(points, noise, geometry.as_ref())?;
    let summary = Summary::of(results.records(), seed);
    let profile = match &geometry {
        Some(geometry) => arguments.geometry.profile(geometry, &name, &settings, results.records(), seed)?,
        None => None,
    };
    let report =
        SweepReport { name: &name, settings: &settings, summary: &summary, profile: profile.as_ref() };
    arguments.outputs.write(&report, out)
}
