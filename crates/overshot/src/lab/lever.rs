//! `overshot lab lever`: the ledger of performance ideas, read and appended to. Nothing here judges: what a lever's runs
//! say is computed by the lab, and what they do not support is refused there.

use super::lever_report::{write_entry, write_list};
use super::numbers::{not_negative, numbers};
use crate::failure::{bad_input, note};
use clap::{Args, Subcommand, ValueEnum};
use overshot_lab::ledger::{
    Addition, Better, Check, Closed, Date, Edited, Guard, Ledger, LeverName, Lock, Mechanism, NewLever,
    Projection, Reverted, Role, Run, Spread, Status,
};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  overshot lab lever list
  overshot lab lever show gpu-decode-persistent
  overshot lab lever new smem-49k --title \"Half-size tiles\" --hypothesis \"Two CTAs hide each other's waits\" \\
    --mechanism \"CTAs per SM\" --from 1 --to 2 --of \"tok/s at C=96\" --uplift 0:15:40 --tau 5 --days 4
  overshot lab lever run smem-49k --what \"tok/s at C=96\" --unit tok/s --better higher --before 845 --after 980 \\
    --spread 775:845:5 --moved 1:2
  overshot lab lever close smem-49k --adopted
  overshot lab lever check

A lever's status follows from its runs and is never typed in: docs/lab-ledger.md.";

/// Keep a ledger of performance ideas: what each should bring, what was measured, what follows.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,

    /// The folder of the levers, one TOML file each
    #[arg(long, value_name = "DIR", default_value = "levers", global = true)]
    levers: PathBuf,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// All levers with how they stand.
    List,
    /// Everything about one lever.
    Show { name: LeverName },
    /// Begin a lever: its mechanism, what it should bring and what it costs, before anything is measured.
    New(Box<NewFlags>),
    /// Append a run.
    Run(Box<RunFlags>),
    /// Append a guard, or what one measured.
    Guard(GuardFlags),
    /// Project a lever again, when levers that it depends on have been closed.
    Project(ProjectFlags),
    /// Close a lever. Refused where its runs do not decide, or say something else.
    Close(CloseFlags),
    /// Look for closed levers without a decision, open ones without a projection, and sources that are gone.
    Check,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  overshot lab lever new smem-49k --title \"Half-size tiles\" --hypothesis \"Shared memory is the limit\" \\\n    --mechanism \"CTAs per SM\" --from 1 --to 2 --of \"tok/s at C=96\" --uplift 0:15:40 --tau 5 --days 4"
)]
struct NewFlags {
    name: LeverName,
    /// One line
    #[arg(long)]
    title: String,
    /// Why it should work
    #[arg(long, value_name = "TEXT")]
    hypothesis: String,
    /// What it changes about the machine's work, as a number that can be looked at
    #[arg(long, value_name = "WHAT")]
    mechanism: String,
    /// The unit of that number
    #[arg(long, value_name = "UNIT", default_value = "")]
    mechanism_unit: String,
    /// The mechanism now
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    from: f64,
    /// The mechanism with the lever
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    to: f64,
    /// What the uplift is projected of, such as "tok/s at C=96"
    #[arg(long, value_name = "WHAT")]
    of: String,
    /// 5, 50 and 95 % points of the uplift, in percent
    #[arg(long, value_name = "LOW:MIDDLE:HIGH", allow_hyphen_values = true, value_parser = numbers::<3>)]
    uplift: [f64; 3],
    /// The smallest uplift worth the days, in percent
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = not_negative)]
    tau: f64,
    /// What it costs
    #[arg(long, value_name = "DAYS", allow_negative_numbers = true, value_parser = not_negative)]
    days: f64,
    /// Levers that it builds on
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    depends_on: Vec<LeverName>,
    /// Levers that cannot be right if this one is
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    refutes: Vec<LeverName>,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  overshot lab lever run smem-49k --what \"tok/s at C=96\" --unit tok/s --better higher --before 845 \\\n    --after 980 --spread 775:845:5 --moved 1:2"
)]
struct RunFlags {
    name: LeverName,
    /// What was measured where; the last run of the same words counts
    #[arg(long)]
    what: String,
    #[arg(long)]
    unit: String,
    #[arg(long, value_enum)]
    better: BetterFlag,
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    before: f64,
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    after: f64,
    /// Uplifts within this many percent are noise
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = not_negative, conflicts_with_all = ["interval", "spread"])]
    band: Option<f64>,
    /// 95 % interval of the uplift, in percent
    #[arg(long, value_name = "LOW:HIGH", allow_hyphen_values = true, value_parser = numbers::<2>, conflicts_with = "spread")]
    interval: Option<[f64; 2]>,
    /// Lowest and highest of several equal runs, and how many they were
    #[arg(long, value_name = "LOW:HIGH:COUNT", value_parser = numbers::<3>)]
    spread: Option<[f64; 3]>,
    /// What the mechanism was before and after: the manipulation check
    #[arg(long, value_name = "BEFORE:AFTER", allow_hyphen_values = true, value_parser = numbers::<2>)]
    moved: Option<[f64; 2]>,
    /// Tell it without judging the lever by it: a control, a part of the change
    #[arg(long)]
    context: bool,
    /// A file with the numbers, from the folder that holds the levers' folder
    #[arg(long, value_name = "FILE")]
    source: Option<String>,
    /// [default: today]
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<Date>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BetterFlag {
    Lower,
    Higher,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  overshot lab lever guard smem-49k --what \"tok/s at C=1, change\" --unit % --at-least -2"
)]
struct GuardFlags {
    name: LeverName,
    /// What must not get worse
    #[arg(long)]
    what: String,
    #[arg(long, default_value = "")]
    unit: String,
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, conflicts_with = "at_least")]
    at_most: Option<f64>,
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    at_least: Option<f64>,
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    measured: Option<f64>,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  overshot lab lever project smem-49k --of \"tok/s at C=96\" --uplift 0:10:30"
)]
struct ProjectFlags {
    name: LeverName,
    /// What the uplift is projected of
    #[arg(long, value_name = "WHAT")]
    of: String,
    /// 5, 50 and 95 % points of the uplift, in percent
    #[arg(long, value_name = "LOW:MIDDLE:HIGH", allow_hyphen_values = true, value_parser = numbers::<3>)]
    uplift: [f64; 3],
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  overshot lab lever close smem-49k --adopted")]
struct CloseFlags {
    name: LeverName,
    #[command(flatten)]
    claim: Claim,
    /// What else should be remembered
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["reverted", "superseded_by"])]
    note: Option<String>,
}

/// What the runs are expected to say; they are asked.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct Claim {
    #[arg(long)]
    adopted: bool,
    #[arg(long)]
    marginal: bool,
    #[arg(long)]
    refuted: bool,
    #[arg(long)]
    not_tested: bool,
    /// It was in and was taken out, for a reason that runs do not show
    #[arg(long, value_name = "REASON")]
    reverted: Option<String>,
    /// Another lever takes its place
    #[arg(long, value_name = "NAME")]
    superseded_by: Option<LeverName>,
}

/// # Errors
/// A ledger that cannot be read, an addition that does not fit, an end that the runs do not support; of `check` also
/// anything that it finds.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let (_lock, ledger) = read(arguments)?;
    let edited = match &arguments.action {
        Action::List if arguments.json => return json(&ledger.entries().collect::<Vec<_>>(), out),
        Action::List => return Ok(write_list(&ledger, out)?),
        Action::Show { name } if arguments.json => return json(ledger.entry(name)?, out),
        Action::Show { name } => return Ok(write_entry(ledger.entry(name)?, out)?),
        Action::Check => return check(&ledger, arguments, out),
        Action::New(flags) => (&flags.name, ledger.create(&flags.name, &new_lever(flags))?),
        Action::Run(flags) => (&flags.name, ledger.append(&flags.name, Addition::Run(a_run(flags)?))?),
        Action::Guard(flags) => (&flags.name, ledger.append(&flags.name, Addition::Guard(guard(flags)))?),
        Action::Project(flags) => {
            let projection = projection(&flags.of, flags.uplift);
            (&flags.name, ledger.append(&flags.name, Addition::Projection(projection))?)
        }
        Action::Close(flags) => (&flags.name, ledger.append(&flags.name, ending(flags))?),
    };
    let (name, edited) = edited;
    edited.save()?;
    tell(&ledger, name, &edited, arguments, out)
}

/// The ledger, locked when something will be added to it. One that is begun has no folder yet.
fn read(arguments: &Arguments) -> anyhow::Result<(Option<Lock>, Ledger)> {
    let folder = &arguments.levers;
    if matches!(arguments.action, Action::New(_)) && !folder.exists() {
        std::fs::create_dir_all(folder)
            .map_err(|error| bad_input(format!("--levers {}: {error}", folder.display())))?;
    }
    let only_reads = matches!(arguments.action, Action::List | Action::Show { .. } | Action::Check);
    let lock = if only_reads { None } else { Some(Lock::of(folder)?) };
    Ok((lock, Ledger::read(folder)?))
}

fn new_lever(flags: &NewFlags) -> NewLever {
    NewLever {
        title: flags.title.clone(),
        hypothesis: flags.hypothesis.clone(),
        cost_days: flags.days,
        depends_on: flags.depends_on.clone(),
        refutes: flags.refutes.clone(),
        mechanism: Mechanism {
            what: flags.mechanism.clone(),
            unit: flags.mechanism_unit.clone(),
            before: flags.from,
            predicted: flags.to,
        },
        projection: projection(&flags.of, flags.uplift),
        tau_percent: flags.tau,
    }
}

/// What it was made after is filled in where the other levers are known.
fn projection(of: &str, uplift_percent: [f64; 3]) -> Projection {
    Projection {
        what: of.to_owned(),
        uplift_percent,
        date: Some(Date::today()),
        after: BTreeMap::new(),
        after_runs: 0,
    }
}

fn a_run(flags: &RunFlags) -> anyhow::Result<Run> {
    let spread = flags.spread.map(|[low, high, count]| {
        if count.fract() != 0.0 || !(0.0..=1e6).contains(&count) {
            return Err(bad_input(format!("--spread ends with {count}: give the number of runs there")));
        }
        Ok(Spread { low, high, count: count as usize })
    });
    Ok(Run {
        date: Some(flags.date.unwrap_or_else(Date::today)),
        what: flags.what.clone(),
        unit: flags.unit.clone(),
        better: match flags.better {
            BetterFlag::Lower => Better::Lower,
            BetterFlag::Higher => Better::Higher,
        },
        before: flags.before,
        after: flags.after,
        band_percent: flags.band,
        interval_percent: flags.interval,
        spread: spread.transpose()?,
        role: if flags.context { Role::Context } else { Role::Verdict },
        mechanism: flags.moved.map(|[before, after]| Check { before, after }),
        source: flags.source.clone(),
    })
}

fn guard(flags: &GuardFlags) -> Guard {
    Guard {
        what: flags.what.clone(),
        unit: flags.unit.clone(),
        at_most: flags.at_most,
        at_least: flags.at_least,
        measured: flags.measured,
    }
}

fn ending(flags: &CloseFlags) -> Addition {
    let Claim { adopted, marginal, refuted, not_tested, reverted, superseded_by } = &flags.claim;
    let date = Date::today();
    if let Some(reason) = reverted {
        return Addition::Reverted(Reverted { date: Some(date), reason: reason.clone() });
    }
    if let Some(by) = superseded_by {
        return Addition::SupersededBy(by.clone());
    }
    let claims = [
        (*adopted, Status::Adopted),
        (*marginal, Status::Marginal),
        (*refuted, Status::Refuted),
        (*not_tested, Status::NotTested),
    ];
    let claim = claims.into_iter().find_map(|(is_claimed, status)| is_claimed.then_some(status));
    Addition::Closed { claim, closed: Closed { date: Some(date), note: flags.note.clone() } }
}

/// How the lever stands now, and what that means for others.
fn tell(
    before: &Ledger,
    name: &LeverName,
    edited: &Edited,
    arguments: &Arguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let entry = edited.ledger.entry(name)?;
    if arguments.json {
        return json(entry, out);
    }
    writeln!(out, "{name}: {}: {}", entry.ruling.status, entry.ruling.because)?;
    for other in edited.ledger.entries() {
        let known = before.entry(&other.name).map(|entry| entry.flags.clone()).unwrap_or_default();
        for flag in other.flags.iter().filter(|flag| !known.contains(flag)) {
            writeln!(out, "{}: {flag}", other.name)?;
        }
    }
    Ok(())
}

fn check(ledger: &Ledger, arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut problems = ledger.problems();
    problems.extend(ledger.missing_sources());
    if arguments.json {
        json(&problems, out)?;
    } else {
        for (name, problem) in &problems {
            writeln!(out, "{name}: {problem}")?;
        }
    }
    let levers = ledger.entries().count();
    match problems.len() {
        0 => {
            note(&format!("{levers} levers, nothing to report"));
            Ok(())
        }
        count => Err(anyhow::anyhow!("{count} of the ledger's claims do not hold, in {levers} levers")),
    }
}

fn json(value: &impl serde::Serialize, out: &mut dyn Write) -> anyhow::Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(value)?)?)
}
