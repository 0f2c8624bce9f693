//! `overshot lab import`: result files of other tools, added to a results file that `lab ab` compares.

use crate::failure::{bad_input, one_line};
use crate::usage::at_least_one;
use clap::Args;
use overshot_lab::import::{Group, Import, append, read};
use overshot_lab::report::{Table, number};
use overshot_lab::stats::Sample;
use overshot_lab::sweep::Results;
use overshot_lab::{Metric, Point};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  overshot lab import result.json
  overshot lab import monday/*.json --out monday.jsonl
  overshot lab import hyperfine.json --pick 2 --out new.jsonl
  overshot lab ab --a-file monday.jsonl --b-file tuesday.jsonl

Known: vLLM bench serve, SGLang bench_serving, AIPerf and genai-perf, GuideLLM, llama-bench, hyperfine.";

/// Read result files of other tools, as runs that `lab ab` can compare.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Result files; the tool is found out from what is in them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Add the runs to this file; every file is one more round of the points that it has
    #[arg(long, value_name = "RESULTS.jsonl")]
    out: Option<PathBuf>,

    /// Take the Nth of several settings in a file, such as the second command of hyperfine
    #[arg(long, value_name = "N", requires = "out", allow_negative_numbers = true, value_parser = at_least_one)]
    pick: Option<NonZeroUsize>,

    /// Requests that ran at once, for files that do not say it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    concurrency: Option<NonZeroUsize>,

    /// Print one JSON object a file instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    #[serde(flatten)]
    import: &'a Import,
    added: usize,
}

/// # Errors
/// A file of no known tool, a damaged one, or one of other settings than the results file.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    // All are read before one is added: whoever mends a bad file can then say the same command again.
    let concurrency = arguments.concurrency.map(NonZeroUsize::get);
    let imports =
        arguments.files.iter().map(|path| read(path, concurrency)).collect::<Result<Vec<_>, _>>()?;
    for (path, import) in arguments.files.iter().zip(&imports) {
        let mut added = 0;
        if let Some(results_path) = &arguments.out {
            let group = picked(arguments, path, import)?;
            // Opened for every file: that is what checks its settings.
            let mut results = Results::open(results_path, &group.settings)?;
            added = append(import, group, path, &mut results)?;
        }
        let report = Report { file: path.display().to_string(), import, added };
        if arguments.json {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
        } else {
            write_text(&report, out)?;
        }
    }
    Ok(())
}

fn picked<'a>(
    arguments: &Arguments,
    path: &std::path::Path,
    import: &'a Import,
) -> anyhow::Result<&'a Group> {
    let groups = &import.groups;
    let place = match (arguments.pick, groups.as_slice()) {
        (Some(place), _) => place.get() - 1,
        (None, [_]) => 0,
        (None, _) => {
            let shown = groups
                .iter()
                .enumerate()
                .map(|(index, group)| format!("{}: {}", index + 1, title(import, group)));
            return Err(bad_input(format!(
                "{} has {} different settings ({}): say with --pick which of them",
                path.display(),
                groups.len(),
                shown.take(8).collect::<Vec<_>>().join("; ")
            )));
        }
    };
    groups.get(place).ok_or_else(|| {
        bad_input(format!(
            "--pick {}: {} has only {} different settings",
            place + 1,
            path.display(),
            groups.len()
        ))
    })
}

/// What tells a group from the others of its file.
fn title(import: &Import, group: &Group) -> String {
    let differs = |name: &&String| {
        import.groups.iter().any(|other| other.settings.get(*name) != group.settings.get(*name))
    };
    let names = group.settings.keys().filter(differs);
    names.map(|name| format!("{name} {}", group.settings[name])).collect::<Vec<_>>().join(", ")
}

fn write_text(report: &Report<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    let Report { file, import, added } = report;
    writeln!(out, "{}: {}", one_line(file), import.tool)?;
    for (index, group) in import.groups.iter().enumerate() {
        if import.groups.len() > 1 {
            writeln!(out, "{}", one_line(&format!("{}: {}", index + 1, title(import, group))))?;
        }
        write_group(group, out)?;
    }
    if *added > 0 {
        writeln!(out, "{added} runs added")?;
    }
    Ok(())
}

/// Medians of the numbers that runs are compared in, a row for each point.
fn write_group(group: &Group, out: &mut dyn Write) -> std::io::Result<()> {
    let mut points: BTreeMap<Point, BTreeMap<Metric, Vec<f64>>> = BTreeMap::new();
    let mut runs: BTreeMap<Point, usize> = BTreeMap::new();
    for run in &group.runs {
        *runs.entry(run.point).or_default() += 1;
        for (metric, value) in &run.measurement.metrics {
            points.entry(run.point).or_default().entry(*metric).or_default().push(*value);
        }
    }
    let metrics: Vec<Metric> = Metric::ALL
        .into_iter()
        .filter(|metric| {
            metric.better().is_some() && points.values().any(|values| values.contains_key(metric))
        })
        .collect();
    let mut head = vec!["point", "runs"];
    head.extend(metrics.iter().map(|metric| metric.title()));
    let mut table = Table::new(&head);
    for (point, values) in &points {
        let median = |metric: &Metric| {
            let sample = Sample::new("runs", values.get(metric)?.clone()).ok()?;
            Some(number(sample.median()))
        };
        let cells = metrics.iter().map(|metric| median(metric).unwrap_or_else(|| "-".into()));
        table.row([point.to_string(), runs[point].to_string()].into_iter().chain(cells));
    }
    table.write(out)
}
