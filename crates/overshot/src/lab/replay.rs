//! `overshot lab replay`: the founding campaign of the lab, computed again from its numbers; needs no file. With `--out` the
//! data, the plan and this report are written where they can be played with.

use crate::failure::{bad_input, note};
use anyhow::Context;
use clap::Args;
use overshot_lab::ledger::Plan;
use overshot_lab::replay::{Findings, campaign, ledger, levers, write};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab replay
  overshot lab replay --out campaign
  overshot lab plan --levers campaign/levers

What each number means: docs/lab-tutorial.md.";

/// Replay the campaign that the lab was born from: its numbers, what they imply, and the plan that follows.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Write report, plan, plot and levers into this new folder
    #[arg(long, value_name = "DIR", conflicts_with = "json")]
    out: Option<PathBuf>,

    /// Print the findings as one JSON object
    #[arg(long)]
    json: bool,
}

/// # Errors
/// A folder that is there already, or cannot be written.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let findings = Findings::of(campaign()?)?;
    let ledger = ledger()?;
    if arguments.json {
        let levers: Vec<_> = ledger.entries().collect();
        let report = serde_json::json!({ "findings": findings, "levers": levers });
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?);
    }
    let mut report = Vec::new();
    write(&findings, &ledger, &mut report)?;
    match &arguments.out {
        None => Ok(out.write_all(&report)?),
        Some(folder) => {
            let plan = Plan::of(&ledger, "PLAN.svg");
            write_all(folder, &report, &plan)?;
            note(&format!(
                "wrote report.txt, PLAN.md, PLAN.svg and {} levers to {}",
                levers().len(),
                folder.display()
            ));
            Ok(())
        }
    }
}

fn write_all(folder: &Path, report: &[u8], plan: &Plan) -> anyhow::Result<()> {
    let shown = folder.display();
    // Somebody's own levers may be there.
    if folder.exists() {
        return Err(bad_input(format!("--out {shown}: it is there already, name a new folder")));
    }
    std::fs::create_dir_all(folder.join("levers"))
        .map_err(|error| bad_input(format!("--out {shown}: {error}")))?;
    let write = |name: &Path, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write(Path::new("report.txt"), report)?;
    write(Path::new("PLAN.md"), plan.text.as_bytes())?;
    write(Path::new("PLAN.svg"), plan.svg.as_bytes())?;
    levers().iter().try_for_each(|(name, text)| write(&Path::new("levers").join(name), text.as_bytes()))
}
