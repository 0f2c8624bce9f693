//! `overshot lab plan`: the page that follows from a ledger, printed, written with its plot, or checked against its levers.

use crate::failure::{bad_input, note};
use clap::Args;
use overshot_lab::ledger::{Ledger, Plan};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab plan
  overshot lab plan --out levers/PLAN.md
  overshot lab plan --check

The plot is written beside the page, as .svg. --check ends with exit code 1 when page or plot differ from what the levers give.";

/// What is worth doing next and what was decided by which numbers: a page made from the ledger.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The folder of the levers, one TOML file each
    #[arg(long, value_name = "DIR", default_value = "levers")]
    levers: PathBuf,

    /// Write the page to this file instead of printing it [with --check: DIR/PLAN.md]
    #[arg(long, value_name = "FILE.md")]
    out: Option<PathBuf>,

    /// Write nothing: fail when the page no longer follows from the levers
    #[arg(long)]
    check: bool,

    /// Print the ranking and the decisions as JSON
    #[arg(long, conflicts_with_all = ["out", "check"])]
    json: bool,
}

/// # Errors
/// A ledger that cannot be read, a page that cannot be written; with `--check` a page that is not what the levers give.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let ledger = Ledger::read(&arguments.levers)?;
    if arguments.json {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&Report::of(&ledger))?)?);
    }
    let default = arguments.check.then(|| arguments.levers.join("PLAN.md"));
    match arguments.out.clone().or(default) {
        None => Ok(write!(out, "{}", Plan::of(&ledger, "PLAN.svg").text)?),
        Some(path) => {
            let svg_path = beside(&path)?;
            let svg_name = svg_path.file_name().unwrap_or_default().to_string_lossy();
            let plan = Plan::of(&ledger, &svg_name);
            if arguments.check {
                plan.check(&path, &svg_path)?;
                note(&format!("{}: every claim follows from the runs", path.display()));
            } else {
                plan.write(&path, &svg_path)?;
                note(&format!("wrote {} and {}", path.display(), svg_path.display()));
            }
            Ok(())
        }
    }
}

fn beside(path: &Path) -> anyhow::Result<PathBuf> {
    if path.extension().is_some_and(|ending| ending == "md") && path.file_stem().is_some() {
        return Ok(path.with_extension("svg"));
    }
    Err(bad_input(format!("--out {}: name a file that ends with .md", path.display())))
}

#[derive(Serialize)]
pub struct Report<'a> {
    open: Vec<Ranked<'a>>,
    closed: Vec<&'a overshot_lab::ledger::Entry>,
    coverage: overshot_lab::ledger::Coverage,
    transfer: Option<overshot_lab::ledger::Transfer>,
}

#[derive(Serialize)]
struct Ranked<'a> {
    gain_a_day_percent: Option<f64>,
    decision: Option<overshot_lab::ledger::Decision>,
    #[serde(flatten)]
    entry: &'a overshot_lab::ledger::Entry,
}

impl<'a> Report<'a> {
    pub fn of(ledger: &'a Ledger) -> Self {
        let ranked = ledger.ranked().into_iter().map(|entry| Ranked {
            gain_a_day_percent: entry.gain_a_day_percent(),
            decision: entry.decision(),
            entry,
        });
        Report {
            open: ranked.collect(),
            closed: ledger.entries().filter(|entry| entry.ruling.status.is_closed()).collect(),
            coverage: ledger.coverage(),
            transfer: ledger.transfer(),
        }
    }
}
