//! `overshot lab tune`: what launches of our decode attention cost on a card, fitted to times that the self-test measured, as the
//! table that its kernels are chosen by. Compares with the table in use and proposes; the one that is built in is only ever
//! replaced by hand.

use super::tune_plot;
use crate::failure::{bad_input, gpu_error};
use crate::table::Table as Text;
use anyhow::Context;
use clap::Args;
use overshot_backend_cuda::decode::Variant;
use overshot_backend_cuda::selftest::{self, Options};
use overshot_gpu_model::runs::RUN_BYTES_MAX;
use overshot_gpu_model::table::{Lost, Table};
use overshot_gpu_model::tune::{self, Candidate, Miss};
use overshot_gpu_model::{Run, Target};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab tune --from selftest.json
  overshot lab tune --from main.jsonl --from lists.jsonl --out decode.json
  overshot lab tune --from main.jsonl --kernel v6_m1_t64_s4_x1 --svg v6.svg
  overshot lab tune --out decode.json     (on a machine with a GPU: measures first, a few minutes)

FILE is what `overshot selftest --json` or `gpu-check run --out` wrote.";
const MISSES_SHOWN: usize = 5;

/// What our decode attention costs on a card: the table that its kernels are chosen by.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Times to fit to; may be repeated [default: measure on this machine's GPU]
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,

    /// Write the proposed table to this file, which must not exist
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,

    /// Plot measured and fitted times of one or two kernels, named with --kernel
    #[arg(long, value_name = "FILE.svg", requires = "kernel")]
    svg: Option<PathBuf>,

    /// Only kernels of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    kernel: Vec<String>,

    /// Print the proposed table instead of text
    #[arg(long)]
    json: bool,
}

/// # Errors
/// Files that hold no times, times of several devices, no GPU when there is no file, a file that is there already.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let runs = if arguments.from.is_empty() {
        vec![measured()?]
    } else {
        arguments.from.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?
    };
    let in_use = Table::built_in();
    let (_, first) = runs.first().ok_or_else(|| bad_input("there are no runs"))?;
    let card = first.device.name.trim_start_matches("NVIDIA ").to_owned();
    let candidates = candidates(&runs, &in_use, &arguments.kernel)?;
    let (table, left_out) =
        tune::tune(&candidates, &card, &runs).map_err(|error| bad_input(error.to_string()))?;
    let target = Target {
        name: first.device.name.clone(),
        sm: first.device.sm,
        multiprocessors: first.device.multiprocessors,
    };
    let text = serde_json::to_string_pretty(&table)? + "\n";
    if arguments.json {
        out.write_all(text.as_bytes())?;
    } else {
        let all: Vec<Run> = runs.iter().map(|(_, run)| run.clone()).collect();
        write_text(&table, &in_use, &target, &all, out)?;
        for reason in &left_out {
            writeln!(out, "left out: {reason}")?;
        }
    }
    if let Some(path) = &arguments.svg {
        let svg = tune_plot::plot(&table, &target, &runs)?.svg();
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    match &arguments.out {
        Some(path) => write_new(path, &text),
        None => Ok(()),
    }
}

/// All variants that a run loaded, or those asked for.
fn candidates(runs: &[(String, Run)], in_use: &Table, only: &[String]) -> anyhow::Result<Vec<Candidate>> {
    if let Some(unknown) = only.iter().find(|name| Variant::named(name).is_none()) {
        return Err(bad_input(format!("--kernel {unknown}: there is no kernel of this name")));
    }
    let ctas_per_sm = |name: &str| runs.iter().find_map(|(_, run)| run.ctas_per_sm.get(name).copied());
    let wanted = |name: &String| only.is_empty() || only.contains(name);
    let of = |variant: Variant| {
        let shape = variant.shape(ctas_per_sm(&variant.name)?);
        let serves = in_use.entry(&variant.name).and_then(|entry| entry.serves);
        Some(Candidate { shape, serves })
    };
    Ok(Variant::all().into_iter().filter(|variant| wanted(&variant.name)).filter_map(of).collect())
}

fn read(path: &Path) -> anyhow::Result<(String, Run)> {
    let shown = path.display();
    let bytes =
        std::fs::metadata(path).map_err(|error| bad_input(format!("cannot open {shown}: {error}")))?.len();
    if bytes > RUN_BYTES_MAX as u64 {
        return Err(bad_input(format!("{shown} has {bytes} bytes: a run has at most {RUN_BYTES_MAX}")));
    }
    let text =
        std::fs::read_to_string(path).map_err(|error| bad_input(format!("cannot read {shown}: {error}")))?;
    let run = Run::parse(&text).map_err(|error| bad_input(format!("{shown}: {error}")))?;
    Ok((shown.to_string(), run))
}

/// Every kind of lists, checks left out: what is fitted is what the self-test found right.
fn measured() -> anyhow::Result<(String, Run)> {
    let suites = ["main", "long", "uneven"].map(String::from).to_vec();
    let options = Options { rounds: 7, repeats: 1, suites, ..Options::default() };
    let mut report = Vec::new();
    selftest::run(&options, &mut report).map_err(gpu_error)?;
    let run = Run::parse(&String::from_utf8_lossy(&report))?;
    Ok(("measured".into(), run))
}

fn write_text(
    table: &Table,
    in_use: &Table,
    target: &Target,
    runs: &[Run],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let times: usize = runs.iter().map(|run| run.samples.len()).sum();
    writeln!(out, "{}: {times} times in {} run(s), microseconds", target.name, runs.len())?;
    let head = [
        "kernel", "serves", "points", "launch", "start", "tile", "crowded", "tile", "share", "part",
        "residual", "worst",
    ];
    let mut rows = Text::new(&head);
    for entry in &table.kernels {
        let serves = entry.serves.map_or("-".into(), |memory| format!("{memory:?}").to_lowercase());
        let costs = entry.costs.array().map(|cost| format!("{cost:.2}"));
        let residuals =
            [format!("{:.1} %", entry.residuals.percent), format!("{:+.0} %", entry.residuals.worst_percent)];
        let points = entry.residuals.points.to_string();
        rows.row([entry.shape.name.clone(), serves, points].into_iter().chain(costs).chain(residuals));
    }
    rows.write(out)?;
    let (proposed, misses) = tune::lost(table, target, runs);
    let (used, _) = tune::lost(in_use, target, runs);
    writeln!(out, "\nLost by its choices, against the best kernel timed: {}", percent(&proposed))?;
    writeln!(out, "By the table in use, of {}: {}", in_use.card, percent(&used))?;
    for Miss { question, chosen, chosen_us, best, best_us } in misses.iter().take(MISSES_SHOWN) {
        writeln!(out, "  {question}: {chosen} {chosen_us:.1}, {best} {best_us:.1}")?;
    }
    Ok(())
}

fn percent(lost: &Lost) -> String {
    match lost.shapes {
        0 => "no shape was timed with several kernels that serve this card".into(),
        shapes => {
            format!("{} % on average, {} % at worst, {shapes} shapes", lost.mean_percent, lost.worst_percent)
        }
    }
}

/// Never over a file that is there: it may be the table in use.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    match file {
        Ok(mut file) => file.write_all(text.as_bytes()).with_context(|| format!("cannot write {shown}")),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(bad_input(format!("--out {shown}: this file is there already, name a new one")))
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {shown}")),
    }
}
