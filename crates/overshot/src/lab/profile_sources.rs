//! Where a profile comes from: the flags, and what they give.

use super::profile_tables::{BatchFile, batch_file};
use crate::bench::{Measured, SweepFlags};
use crate::failure::bad_input;
use crate::usage::from_1_to_1024;
use clap::Args;
use overshot_lab::Point;
use overshot_lab::profile::families::{FamilyRules, OTHER, Pattern};
use overshot_lab::profile::runs::profile_of_runs;
use overshot_lab::profile::trace::{
    StepRule, TraceOptions, TracedSteps, pattern, profile_of_traces, read_trace,
};
use overshot_lab::profile::{HOST_GAP, Profile};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Seed of the resampling where nothing was measured: the same files give the same intervals.
const SEED_OF_FILES: u64 = 1;

/// More kernel time than this without a family is worth a note.
const UNKNOWN_NOTED: f64 = 0.05;

const CONCURRENCY_UNLESS_TOLD: [u16; 5] = [1, 2, 4, 8, 16];

/// What a file would pass over.
const OF_MEASURING: [&str; 13] = [
    "url",
    "concurrency",
    "out",
    "prompt_tokens",
    "max_tokens",
    "seconds",
    "repeats",
    "seed",
    "overlap",
    "model",
    "backend",
    "threads",
    "tp",
];
/// What a saved profile would pass over.
const OF_TRACES: [&str; 7] = ["trace", "name", "steps", "step_name", "step_kernel", "category", "families"];

#[derive(Args, Clone, Debug)]
pub struct SourceFlags {
    /// Read a profiler's trace of steps at batch B; give two batches or more
    #[arg(long, value_name = "B=FILE", value_parser = batch_file, conflicts_with_all = OF_MEASURING)]
    trace: Vec<BatchFile>,

    /// Read a profile that --save wrote
    #[arg(long, value_name = "FILE.json", conflicts_with_all = OF_MEASURING, conflicts_with_all = OF_TRACES)]
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
    let Measured { name, settings, results, seed } =
        flags.sweep.measure(points.collect(), Vec::new(), None)?;
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
        // The same runs twice would look like more runs, and intervals like narrower ones.
        if traces.iter().any(|(_, before, _)| before == path) {
            let shown = path.display();
            return Err(bad_input(format!("--trace {batch}={shown}: this file is given twice")));
        }
        traces.push((batch.get(), path.clone(), read_trace(path, &options)?));
    }
    let subject = flags.name.clone().unwrap_or_else(|| names(&traces));
    let profile = profile_of_traces(&subject, &traces)?;
    let sms = traces.iter().find_map(|(_, _, steps)| steps.sms).and_then(NonZeroU32::new);
    Ok(Source { profile, sms, notes: notes(&traces), seed: SEED_OF_FILES })
}

/// What was noticed in the traces, each once: with the batches, or where it is worst.
fn notes(traces: &[(u32, PathBuf, TracedSteps)]) -> Vec<String> {
    let mut noticed: Vec<(&str, Vec<String>)> = Vec::new();
    for (batch, note) in
        traces.iter().flat_map(|(batch, _, steps)| steps.notes.iter().map(move |note| (batch, note)))
    {
        match noticed.iter_mut().find(|(before, _)| before == note) {
            Some((_, batches)) => batches.push(batch.to_string()),
            None => noticed.push((note, vec![batch.to_string()])),
        }
    }
    let noticed = noticed.into_iter().map(|(note, batches)| format!("at B={} {note}", batches.join(", ")));
    let unknown = traces.iter().map(|(batch, _, steps)| (batch, &steps.unknown, unknown_share(steps)));
    let worst =
        unknown.filter(|(.., share)| *share > UNKNOWN_NOTED).max_by(|one, other| one.2.total_cmp(&other.2));
    let unknown = worst.and_then(|(batch, kernels, all)| {
        let (kernel, share) = kernels.first()?;
        let shown: String = kernel.chars().take(60).collect();
        Some(format!(
            "at B={batch} no family has {:.0} % of the kernels' time, most of it `{shown}` ({:.0} %): add patterns with \
             --families",
            all * 100.0,
            share * 100.0
        ))
    });
    noticed.chain(unknown).collect()
}

/// Of the time of all kernels. `unknown` names the longest only.
fn unknown_share(steps: &TracedSteps) -> f64 {
    let kernels = steps.families.iter().filter(|(name, _)| *name != HOST_GAP);
    let (unknown, all) = kernels.fold((0.0, 0.0), |(unknown, all), (name, times)| {
        let ms: f64 = times.iter().sum();
        (if name == OTHER { unknown + ms } else { unknown }, all + ms)
    });
    if all > 0.0 { unknown / all } else { 0.0 }
}

/// `1=b1.json, 16=b16.json and 3 more`
fn names(traces: &[(u32, PathBuf, TracedSteps)]) -> String {
    const NAMED_MAX: usize = 4;
    let named = traces.iter().take(NAMED_MAX).map(|(batch, path, _)| format!("{batch}={}", path.display()));
    let named = named.collect::<Vec<_>>().join(", ");
    match traces.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_lab::profile::StepClock;

    fn trace(batch: u32, kernels: usize) -> (u32, PathBuf, TracedSteps) {
        let unknown = (0..kernels.min(8)).map(|kernel| (format!("k{kernel}"), 0.01)).collect();
        let families =
            [("attention", 1.0 - 0.01 * kernels as f64), (OTHER, 0.01 * kernels as f64), (HOST_GAP, 9.0)];
        let families = families.map(|(name, ms)| (name.to_owned(), vec![ms]));
        let steps = TracedSteps {
            clock: StepClock::Wall,
            step_ms: vec![10.0],
            families: families.into(),
            device: None,
            sms: None,
            unknown,
            notes: vec!["steps begin after the longest gaps".into()],
        };
        (batch, PathBuf::from(format!("b{batch}.json")), steps)
    }

    #[test]
    fn what_was_noticed_is_told_once_and_in_full() {
        let told = notes(&[trace(1, 20), trace(8, 30), trace(64, 2)]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0], "at B=1, 8, 64 steps begin after the longest gaps");
        assert!(told[1].starts_with("at B=8 no family has 30 % of the kernels' time, most of it `k0` (1 %)"));
        assert!(notes(&[trace(1, 0)]).len() == 1);
    }

    #[test]
    fn many_traces_are_named_in_short() {
        let traces: Vec<_> = [1, 2, 4, 8, 16, 32].map(|batch| trace(batch, 0)).into();
        assert_eq!(names(&traces[..2]), "1=b1.json, 2=b2.json");
        assert_eq!(names(&traces), "1=b1.json, 2=b2.json, 4=b4.json, 8=b8.json and 2 more");
    }
}
