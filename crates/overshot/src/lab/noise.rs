//! `overshot lab noise`: how far two measurements of the same thing lie apart on this machine. Blocks of A, B, B, A in which A
//! and B are equal; each is written to the history as it ends, and the answer is made of all that the history has.

use super::subjects::{LoadFlags, MetricFlags, Source, Subject};
use crate::failure::{bad_input, note, one_line};
use crate::interrupt::{give_way_to_ctrl_c, say_on_ctrl_c};
use crate::usage::at_least_one;
use clap::Args;
use overshot_lab::ab::{Course, Phase, Progress, Side};
use overshot_lab::noise::{History, NoiseReport};
use overshot_lab::report::{Table, number, percent};
use overshot_lab::sweep::Results;
use overshot_lab::{Point, Quantity};
use serde::Serialize;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  overshot lab noise --command './kernel_bench --batch 96' --history noise.jsonl
  overshot lab noise --command './bench --json' --metric results.0.ms --better lower --history noise.jsonl
  overshot lab noise --url http://localhost:8000 --concurrency 32 --history noise.jsonl
  overshot lab noise --flags '--threads 2' --concurrency 8 --blocks 20 --history noise.jsonl

What the numbers mean: docs/lab-ab.md.";

/// Learn how far equal measurements lie apart: the noise band that a change must exceed.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Measure this shell command: its wall time, or a number that it prints
    #[arg(long, value_name = "CMD", group = "source")]
    command: Option<String>,

    /// Measure the server at this address
    #[arg(long, value_name = "http://HOST:PORT", group = "source")]
    url: Option<String>,

    /// Measure this program's own bench with these flags
    #[arg(long, value_name = "FLAGS", group = "source", allow_hyphen_values = true)]
    flags: Option<String>,

    /// Blocks of four runs; 10 and more make a band that comparisons can use
    #[arg(long, value_name = "N", default_value = "10", allow_negative_numbers = true, value_parser = at_least_one)]
    blocks: NonZeroUsize,

    /// Add the blocks to this file, and learn from those that it has already of the same thing on the same machine
    #[arg(long, value_name = "FILE.jsonl")]
    history: Option<PathBuf>,

    #[command(flatten)]
    metric: MetricFlags,

    #[command(flatten)]
    load: LoadFlags,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    subject: &'a str,
    point: Point,
    blocks_now: usize,
    #[serde(flatten)]
    noise: NoiseReport,
}

/// # Errors
/// Nothing to measure, a subject that cannot be measured, or a history that is none.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let source = match (&arguments.command, &arguments.url, &arguments.flags) {
        (Some(command), ..) => Source::Command(command),
        (_, Some(url), _) => Source::Url(url),
        (.., Some(flags)) => Source::BenchFlags(flags),
        (None, None, None) => {
            return Err(bad_input("nothing to measure: give --command, --url or --flags"));
        }
    };
    let point = source.point(&arguments.load);
    let (quantity, _) = arguments.metric.quantity(point)?;
    let mut history = match &arguments.history {
        Some(path) => History::open(path)?,
        None => History::in_memory(),
    };
    let mut subject = Subject::start(source, &arguments.load, std::slice::from_ref(&quantity))?;
    let key = subject.noise_key(point);
    let blocks = arguments.blocks.get();
    let before = history.blocks(&key, &quantity).len();
    if before + blocks < 2 {
        return Err(bad_input("--blocks: a noise band needs at least 2 blocks"));
    }
    note(&format!(
        "measuring {}, {point}: {blocks} blocks of 4 runs; {before} blocks are known",
        subject.name
    ));

    let mut results = Results::in_memory();
    let mut measure = |_: Side| subject.target.measure(point);
    let mut progress = |progress: Progress<'_>| note(&line(progress, &quantity, blocks));
    let mut course = Course::new(point, Phase::Noise, &mut results, &mut measure, &mut progress);
    say_on_ctrl_c(match &arguments.history {
        Some(path) => format!("interrupted: the blocks that ended are in {}", path.display()),
        None => "interrupted: nothing is kept without --history FILE.jsonl".to_owned(),
    })?;
    for block in 1..=blocks {
        let runs = course.until(block).inspect_err(|_| give_way_to_ctrl_c())?;
        if let Some(newest) = runs.last() {
            history.append(&key, *newest)?;
        }
    }
    let noise = NoiseReport::of(&quantity, &history.blocks(&key, &quantity))?;
    let report = Report { subject: &subject.name, point, blocks_now: blocks, noise };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write_text(&report, out)?;
    }
    Ok(())
}

/// `[ 5/40] block 2, A: 0.512 wall s`
pub fn line(progress: Progress<'_>, quantity: &Quantity, blocks: usize) -> String {
    match progress {
        Progress::WarmingUp(side) => format!("warming up {side:?}"),
        Progress::Ended { block, place, record } => {
            let (done, all) = (4 * block + place + 1, 4 * blocks);
            let value = quantity.of(&record.measurement).map_or("-".into(), number);
            let width = all.to_string().len();
            let side = Side::ORDER[place % 4];
            format!("[{done:>width$}/{all}] block {}, {side:?}: {value} {}", block + 1, quantity.title())
        }
    }
}

fn write_text(report: &Report<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    let Report { subject, point, blocks_now, noise } = report;
    writeln!(out, "{}, {point}", one_line(subject))?;
    writeln!(
        out,
        "{}: {} in the median; {} A/A blocks, {blocks_now} of them new; one run scatters by {}\n",
        one_line(&noise.title),
        number(noise.median),
        noise.blocks,
        percent(noise.sigma)
    )?;
    let unit = format!("the same in {}", noise.title);
    let mut table = Table::new(&["runs a side", "noise band", &unit, "detectable change"]);
    for row in &noise.runs {
        table.row([
            row.runs.to_string(),
            percent(row.band),
            number(row.band_in_unit),
            percent(row.detectable),
        ]);
    }
    table.write(out)?;
    let needed = noise.needed.iter().map(|needed| {
        let runs = needed.runs.map_or("countless".into(), |runs| runs.max(1).to_string());
        format!("{runs} for {}", percent(needed.change))
    });
    writeln!(
        out,
        "\nRuns a side that find a true change 4 times of 5: {}",
        needed.collect::<Vec<_>>().join(", ")
    )?;
    if noise.blocks < 10 {
        writeln!(out, "Fewer than 10 blocks know their noise badly: comparisons will not use this band yet")?;
    }
    Ok(())
}
