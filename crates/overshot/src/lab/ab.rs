//! `overshot lab ab`: is B better than A? Two commands, two servers or two sets of flags of our own bench, run in turn; or two
//! results files. The measuring and the judging are the lab's; this is the command line.

use super::ab_report::{self, Report, Told};
use super::noise::line;
use super::numbers::not_negative;
use super::subjects::{GuardFlag, LoadFlags, MetricFlags, Source, Subject, direction, guard, named};
use crate::failure::{bad_input, note};
use crate::interrupt::{give_way_to_ctrl_c, say_on_ctrl_c};
use clap::Args;
use overshot_lab::ab::{
    Course, Guard, Phase, Progress, Question, ResultsFile, Side, Unlike, check_alike, compare, compare_files,
    planned_looks,
};
use overshot_lab::noise::History;
use overshot_lab::stats::Noise;
use overshot_lab::sweep::Results;
use overshot_lab::{Point, Quantity, Settings};
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  overshot lab ab --a './old --batch 96' --b './new --batch 96' --out ab.jsonl --noise noise.jsonl
  overshot lab ab --a './bench old' --b './bench new' --metric results.0.ms --better lower
  overshot lab ab --a-url http://localhost:8000 --b-url http://localhost:8001 --concurrency 32
  overshot lab ab --a-flags '--overlap off' --b-flags '--overlap on' --concurrency 8
  overshot lab ab --a-file monday.jsonl --b-file tuesday.jsonl

Files are those of `overshot bench --out` and `overshot lab import`. What is measured is looked at after 4, 8 and 12
blocks of A, B, B, A, and judged: win, loss, below-threshold or inconclusive. How: docs/lab-ab.md.";

/// Judge whether B is better than A: two commands, servers, sets of flags or results files.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Two shell commands: their wall time, or a number that they print
    #[arg(long, value_name = "CMD", requires = "b", group = "sides")]
    a: Option<String>,
    /// B of --a
    #[arg(long, value_name = "CMD", requires = "a")]
    b: Option<String>,

    /// Two servers that speak the OpenAI API
    #[arg(long, value_name = "http://HOST:PORT", requires = "b_url", group = "sides")]
    a_url: Option<String>,
    /// B of --a-url
    #[arg(long, value_name = "http://HOST:PORT", requires = "a_url")]
    b_url: Option<String>,

    /// Two sets of flags of this program's own bench
    #[arg(long, value_name = "FLAGS", requires = "b_flags", group = "sides", allow_hyphen_values = true)]
    a_flags: Option<String>,
    /// B of --a-flags
    #[arg(long, value_name = "FLAGS", requires = "a_flags", allow_hyphen_values = true)]
    b_flags: Option<String>,

    /// Two results files, measured before
    #[arg(long, value_name = "FILE.jsonl", requires = "b_file", group = "sides", conflicts_with_all = ["out", "noise", "guard"])]
    a_file: Option<PathBuf>,
    /// B of --a-file
    #[arg(long, value_name = "FILE.jsonl", requires = "a_file")]
    b_file: Option<PathBuf>,

    #[command(flatten)]
    metric: MetricFlags,

    /// Gains below this are not worth having
    #[arg(long, value_name = "PERCENT", default_value = "0", allow_negative_numbers = true, value_parser = not_negative)]
    threshold: f64,

    /// Another number that must not get worse by more than so much; several may be given
    #[arg(long, value_name = "NAME:PERCENT", value_parser = guard)]
    guard: Vec<GuardFlag>,

    /// The history that `overshot lab noise` wrote: what chance does to A on this machine
    #[arg(long, value_name = "FILE.jsonl")]
    noise: Option<PathBuf>,

    /// Append every run to this file as it ends; what it already has is not measured again
    #[arg(long, value_name = "FILE.jsonl")]
    out: Option<PathBuf>,

    /// Compare although machine, model or lengths differ
    #[arg(long)]
    allow_unlike: bool,

    #[command(flatten)]
    load: LoadFlags,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// # Errors
/// Nothing to compare, sides that are not alike or cannot be measured, files that are none.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let report = match (&arguments.a_file, &arguments.b_file) {
        (Some(a), Some(b)) => of_files(arguments, a, b)?,
        _ => of_sources(arguments)?,
    };
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    Ok(ab_report::write(&report, out)?)
}

fn unlike(arguments: &Arguments) -> Unlike {
    if arguments.allow_unlike { Unlike::Allow } else { Unlike::Refuse }
}

fn of_files(arguments: &Arguments, a: &Path, b: &Path) -> anyhow::Result<Report> {
    let (a, b) = (ResultsFile::read(a)?, ResultsFile::read(b)?);
    let differences = check_alike(&a.settings, &b.settings, unlike(arguments))?;
    let quantity = match &arguments.metric.metric {
        None => None,
        Some(_) => Some(arguments.metric.quantity(Point::Decode { streams: 1 })?),
    };
    let outcomes = compare_files(&a, &b, quantity, arguments.threshold / 100.0, &[])?;
    let told =
        |file: &ResultsFile| Told { name: file.path.display().to_string(), settings: file.settings.clone() };
    Ok(Report { a: told(&a), b: told(&b), differences, outcomes })
}

fn of_sources(arguments: &Arguments) -> anyhow::Result<Report> {
    let [source_a, source_b] = sources(arguments)?;
    let point = source_a.point(&arguments.load);
    let (quantity, better) = arguments.metric.quantity(point)?;
    let guards =
        arguments.guard.iter().map(|flag| guard_of(flag, point)).collect::<anyhow::Result<Vec<Guard>>>()?;
    let history = arguments.noise.as_deref().map(History::read).transpose()?;
    let needed: Vec<Quantity> =
        std::iter::once(&quantity).chain(guards.iter().map(|guard| &guard.quantity)).cloned().collect();
    let mut a = Subject::start(source_a, &arguments.load, &needed)?;
    let mut b = Subject::start(source_b, &arguments.load, &needed)?;
    let (settings_a, settings_b) = (a.settings(), b.settings());
    let differences = check_alike(&settings_a, &settings_b, unlike(arguments))?;
    let mut results = match &arguments.out {
        Some(path) => Results::open(path, &settings_of_both(&settings_a, &settings_b))?,
        None => Results::in_memory(),
    };
    let history = known_noise(history.as_ref(), &a, &b, point, &quantity)?;
    let question = Question { quantity, better, threshold: arguments.threshold / 100.0, guards, history };
    let most = planned_looks().last().map_or(0, |look| look.pairs);
    note(&format!("comparing {} with {}, {point}: at most {most} blocks of 4 runs", b.name, a.name));
    let mut measure = |side: Side| match side {
        Side::A => a.target.measure(point),
        Side::B => b.target.measure(point),
    };
    let mut progress = |progress: Progress<'_>| note(&line(progress, &question.quantity, most));
    let mut course = Course::new(point, Phase::Pair, &mut results, &mut measure, &mut progress);
    say_on_ctrl_c(match &arguments.out {
        Some(path) => format!(
            "interrupted: the runs that ended are in {}, and the same command goes on from there",
            path.display()
        ),
        None => "interrupted: nothing is kept without --out FILE.jsonl".to_owned(),
    })?;
    let outcome = compare(&mut course, &question).inspect_err(|_| give_way_to_ctrl_c())?;
    let told = |subject: &Subject, settings| Told { name: subject.target.name(), settings };
    Ok(Report { a: told(&a, settings_a), b: told(&b, settings_b), differences, outcomes: vec![outcome] })
}

fn sources(arguments: &Arguments) -> anyhow::Result<[Source<'_>; 2]> {
    fn pair<'a>(a: &'a Option<String>, b: &'a Option<String>) -> Option<[&'a str; 2]> {
        Some([a.as_deref()?, b.as_deref()?])
    }
    let commands = pair(&arguments.a, &arguments.b).map(|pair| pair.map(Source::Command));
    let urls = pair(&arguments.a_url, &arguments.b_url).map(|pair| pair.map(Source::Url));
    let flags = pair(&arguments.a_flags, &arguments.b_flags).map(|pair| pair.map(Source::BenchFlags));
    commands.or(urls).or(flags).ok_or_else(|| {
        bad_input("nothing to compare: give --a and --b, --a-url and --b-url, --a-flags and --b-flags, or --a-file and --b-file")
    })
}

fn guard_of(flag: &GuardFlag, point: Point) -> anyhow::Result<Guard> {
    let quantity = named(&flag.name, point);
    let better = flag.better.or_else(|| direction(&quantity)).ok_or_else(|| {
        bad_input(format!(
            "--guard {}: its name does not say which way is better: write NAME:PERCENT:higher or lower",
            flag.name
        ))
    })?;
    Ok(Guard { quantity, better, limit: flag.limit })
}

/// Of either side: A, or B when only that was measured against itself.
fn known_noise(
    history: Option<&History>,
    a: &Subject,
    b: &Subject,
    point: Point,
    quantity: &Quantity,
) -> anyhow::Result<Option<Noise>> {
    let Some(history) = history else { return Ok(None) };
    for subject in [a, b] {
        if let Some(noise) = history.noise(&subject.noise_key(point), quantity)? {
            return Ok(Some(noise));
        }
    }
    note(&format!(
        "note: the history has no blocks of these two on this machine ({point}, {quantity}): the band is learned from the \
         comparison itself"
    ));
    Ok(None)
}

/// Both sides are named in one file: what differs between them is part of what was measured.
fn settings_of_both(a: &Settings, b: &Settings) -> Settings {
    let named = |side: &'static str, settings: &Settings| {
        settings.iter().map(|(name, value)| (format!("{side}_{name}"), value.clone())).collect::<Vec<_>>()
    };
    named("a", a).into_iter().chain(named("b", b)).collect()
}
