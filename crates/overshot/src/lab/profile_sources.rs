//! Where a profile comes from: the flags, and what they give.

use super::profile_tables::{BatchFile, batch_file};
use crate::bench::{Measured, SweepFlags};
use crate::usage::from_1_to_1024;
use clap::Args;
use overshot_lab::Point;
use overshot_lab::profile::Profile;
use overshot_lab::profile::families::{FamilyRules, Pattern};
use overshot_lab::profile::runs::profile_of_runs;
use overshot_lab::profile::trace::{
    StepRule, TraceOptions, TracedSteps, pattern, profile_of_traces, read_trace,
};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Seed of the resampling where nothing was measured: the same files give the same intervals.
const SEED_OF_FILES: u64 = 1;

/// More kernel time than this without a family is worth a note.
const UNKNOWN_NOTED: f64 = 0.05;

const CONCURRENCY_UNLESS_TOLD: [u16; 5] = [1, 2, 4, 8, 16];

#[derive(Args, Clone, Debug)]
pub struct SourceFlags {
    /// Read a profiler's trace of steps at batch B; give two batches or more
    #[arg(long, value_name = "B=FILE", value_parser = batch_file, conflicts_with_all = ["url", "concurrency", "out"])]
    trace: Vec<BatchFile>,

    /// Read a profile that --save wrote
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["trace", "url", "concurrency", "out"])]
    from: Option<PathBuf>,

    /// What to call what was profiled [default: the names of the files]
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,

    /// Each trace holds so many steps [default: steps are found]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = super::numbers::at_least_one, requires = "trace")]
    steps: Option<NonZeroU32>,

    /// Steps begin where an annotation begins whose name has this in it
    #[arg(long, value_name = "PART", value_parser = pattern, conflicts_with = "steps", requires = "trace")]
    step_name: Option<Pattern>,

    /// Steps begin where a kernel begins whose name has this in it; it must run once a step
    #[arg(long, value_name = "PART", value_parser = pattern, conflicts_with_all = ["steps", "step_name"], requires = "trace")]
    step_kernel: Option<Pattern>,

    /// Count events of this category instead of kernels, such as cpu_op
    #[arg(long, value_name = "NAME", requires = "trace")]
    category: Option<String>,

    /// Rules of which kernel belongs to which family; --print-families prints those that are used otherwise
    #[arg(long, value_name = "FILE.toml", requires = "trace")]
    families: Option<PathBuf>,

    /// Streams that decode at the same time, each number a batch [default: 1,2,4,8,16]
    #[arg(long, visible_alias = "batch", value_name = "N,N,..", value_delimiter = ',', allow_negative_numbers = true, value_parser = from_1_to_1024)]
    concurrency: Vec<u16>,

    #[command(flatten)]
    sweep: SweepFlags,
}

pub struct Source {
    pub profile: Profile,
    /// Of the card, where a trace says.
    pub sms: Option<NonZeroU32>,
    /// What a reader must know about how the numbers were made.
    pub notes: Vec<String>,
    pub seed: u64,
}

/// # Errors
/// Files that are not what they should be, or an engine or server that cannot be measured.
pub fn read_source(flags: &SourceFlags) -> anyhow::Result<Source> {
    if let Some(path) = &flags.from {
        return Ok(Source {
            profile: Profile::read(path)?,
            sms: None,
            notes: Vec::new(),
            seed: SEED_OF_FILES,
        });
    }
    if flags.trace.is_empty() { measured(flags) } else { traced(flags) }
}

fn measured(flags: &SourceFlags) -> anyhow::Result<Source> {
    let concurrency =
        if flags.concurrency.is_empty() { &CONCURRENCY_UNLESS_TOLD[..] } else { &flags.concurrency };
    let points = concurrency.iter().map(|streams| Point::Decode { streams: usize::from(*streams) });
    let Measured { name, settings, results, seed } = flags.sweep.measure(points.collect(), Vec::new())?;
    let subject = flags.name.clone().unwrap_or(name);
    let profile = profile_of_runs(&subject, settings, results.records())?;
    let notes = results.records().iter().flat_map(|record| record.measurement.notes.iter().cloned());
    let mut notes: Vec<String> = notes.collect();
    notes.sort();
    notes.dedup();
    Ok(Source { profile, sms: None, notes, seed })
}

fn traced(flags: &SourceFlags) -> anyhow::Result<Source> {
    let rules = flags.families.as_deref().map_or_else(|| Ok(FamilyRules::default()), FamilyRules::read)?;
    let steps = match (flags.steps, &flags.step_name, &flags.step_kernel) {
        (Some(steps), _, _) => StepRule::Count(steps),
        (_, Some(pattern), _) => StepRule::Annotation(pattern.clone()),
        (_, _, Some(pattern)) => StepRule::Kernel(pattern.clone()),
        (None, None, None) => StepRule::Found,
    };
    let options = TraceOptions { rules, steps, category: flags.category.clone() };
    let mut traces: Vec<(u32, PathBuf, TracedSteps)> = Vec::new();
    for BatchFile { batch, path } in &flags.trace {
        traces.push((batch.get(), path.clone(), read_trace(path, &options)?));
    }
    let names = || traces.iter().map(|(batch, path, _)| format!("{batch}={}", path.display()));
    let subject = flags.name.clone().unwrap_or_else(|| names().collect::<Vec<_>>().join(", "));
    let profile = profile_of_traces(&subject, &traces)?;
    let sms = traces.iter().find_map(|(_, _, steps)| steps.sms).and_then(NonZeroU32::new);
    let notes = traces.iter().flat_map(|(batch, _, steps)| notes(*batch, steps)).collect();
    Ok(Source { profile, sms, notes, seed: SEED_OF_FILES })
}

fn notes(batch: u32, steps: &TracedSteps) -> Vec<String> {
    let mut notes: Vec<String> = steps.notes.iter().map(|note| format!("at B={batch} {note}")).collect();
    let unknown: f64 = steps.unknown.iter().map(|(_, share)| share).sum();
    if let Some((kernel, share)) = steps.unknown.first().filter(|_| unknown > UNKNOWN_NOTED) {
        let shown: String = kernel.chars().take(60).collect();
        notes.push(format!(
            "at B={batch} no family has {:.0} % of the kernels' time, most of it `{shown}` ({:.0} %): add patterns with \
             --families",
            unknown * 100.0,
            share * 100.0
        ));
    }
    notes
}
