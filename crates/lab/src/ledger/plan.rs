//! The page that follows from a ledger: what is worth doing next, what was decided and by which numbers. It is made from
//! the levers and nothing else, so that it can be checked: a page that differs from what its levers give claims
//! something that no run says.

use super::LedgerError;
use super::book::{Entry, Ledger, read_text};
use super::lever::{Lever, Mechanism};
use super::plan_plot::plot;
use super::ruling::{JudgedRun, Standing, Status};
use super::words::{arrow, guard_limit, plain_number, signed_percent, with_unit};
use crate::report::{Table, number, percent};
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
Made by `overshot lab plan` from the files of its levers, one a performance idea: change those, not this page. An *uplift* is
the speed after over the speed before, less 1; whether a lever is adopted, refuted or not tested is computed from its runs.";

#[derive(Clone, Debug)]
pub struct Plan {
    pub text: String,
    pub svg: String,
}

impl Plan {
    /// `svg_name` is what the page calls the plot beside it.
    pub fn of(ledger: &Ledger, svg_name: &str) -> Self {
        let numbered = Numbered::of(ledger);
        let mut text = format!("# Plan\n\n{HEAD}\n\n{}\n", counts(ledger));
        open_section(&numbered, &mut text);
        for (status, heading) in [
            (Status::Adopted, "Adopted"),
            (Status::Marginal, "Marginal: a gain, below the threshold"),
            (Status::Refuted, "Refuted"),
            (Status::NotTested, "Not tested"),
            (Status::Reverted, "Reverted"),
            (Status::Superseded, "Superseded"),
        ] {
            closed_section(ledger, &numbered, status, heading, &mut text);
        }
        projections_section(ledger, &mut text);
        let _ = write!(text, "\n![Measured and projected uplifts]({svg_name})\n");
        Plan { text, svg: plot(&numbered.measured(), &numbered.open).svg() }
    }

    /// Whether the files at `path` and beside it are this plan.
    ///
    /// # Errors
    /// A file that cannot be read, or the first line that differs.
    pub fn check(&self, path: &Path, svg_path: &Path) -> Result<(), LedgerError> {
        for (path, gives) in [(path, &self.text), (svg_path, &self.svg)] {
            let says = read_text(path)?;
            if says == *gives {
                continue;
            }
            let lines = says.lines().zip(gives.lines());
            let same = lines.take_while(|(says, gives)| says == gives).count();
            let line = |text: &str| match text.lines().nth(same) {
                Some(line) => line.chars().take(200).collect(),
                None => "nothing".to_owned(),
            };
            return Err(LedgerError::Outdated {
                path: path.to_owned(),
                line: same + 1,
                says: line(&says),
                gives: line(gives),
            });
        }
        Ok(())
    }

    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path, svg_path: &Path) -> Result<(), LedgerError> {
        for (path, text) in [(path, &self.text), (svg_path, &self.svg)] {
            std::fs::write(path, text)
                .map_err(|source| LedgerError::Write { path: path.to_owned(), source })?;
        }
        Ok(())
    }
}

/// Levers with the numbers that stand for them in the plot: open ones as ranked, then the others by status.
struct Numbered<'a> {
    open: Vec<&'a Entry>,
    closed: Vec<&'a Entry>,
}

impl<'a> Numbered<'a> {
    fn of(ledger: &'a Ledger) -> Self {
        let mut closed: Vec<&Entry> =
            ledger.entries().filter(|entry| entry.ruling.status.is_closed()).collect();
        closed.sort_by_key(|entry| entry.ruling.status);
        Numbered { open: ledger.ranked(), closed }
    }

    fn number(&self, entry: &Entry) -> usize {
        let place = self.open.iter().chain(&self.closed).position(|known| known.name == entry.name);
        place.map_or(0, |place| place + 1)
    }

    /// Closed levers with their numbers.
    fn measured(&self) -> Vec<(usize, &'a Entry)> {
        self.closed.iter().map(|entry| (self.number(entry), *entry)).collect()
    }
}

fn counts(ledger: &Ledger) -> String {
    let all = [
        Status::Open,
        Status::Measuring,
        Status::Adopted,
        Status::Marginal,
        Status::Refuted,
        Status::NotTested,
        Status::Reverted,
        Status::Superseded,
    ];
    let counts = all.map(|status| (ledger.of_status(status).count(), status));
    let told =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, status)| format!("{count} {status}"));
    let told: Vec<String> = told.collect();
    if told.is_empty() { "No levers yet.".into() } else { format!("{}.", told.join(", ")) }
}

fn open_section(numbered: &Numbered, text: &mut String) {
    if numbered.open.is_empty() {
        return;
    }
    text.push_str("\n## Open, by expected gain a day\n\n");
    let head =
        ["#", "lever", "gain a day", "projected 5 / 50 / 95 %", "threshold", "chance above", "", "days"];
    let mut table = Table::new(&head);
    for entry in &numbered.open {
        let Entry { lever, .. } = entry;
        let projection = lever.projections.last();
        let tau = lever.threshold.map(|threshold| threshold.tau_percent);
        let or_dash = |cell: Option<String>| cell.unwrap_or("-".into());
        table.row([
            numbered.number(entry).to_string(),
            entry.name.to_string(),
            or_dash(entry.gain_a_day_percent().map(|gain| format!("{} %", number(gain)))),
            or_dash(projection.map(|projection| {
                projection.uplift_percent.map(|percent| plain_number(percent).to_string()).join(" / ")
            })),
            or_dash(tau.map(|tau| format!("{} %", plain_number(tau)))),
            or_dash(projection.zip(tau).map(|(projection, tau)| percent(projection.chance_above(tau)))),
            or_dash(entry.decision().map(|decision| decision.name().to_owned())),
            or_dash(lever.cost_days.map(plain_number)),
        ]);
    }
    text.push_str(&table.markdown());
    text.push('\n');
    for entry in &numbered.open {
        let _ = writeln!(text, "* **{}**: {}.{}", entry.name, entry.lever.title, details(entry));
    }
    text.push_str(
        "\nThe gain is the mean of the projected uplift with losses counted as 0; it is a *go* when the threshold is exceeded in \
         4 cases of 5, a *no-go* when in less than 1 of 20.\n",
    );
}

/// What the table has no room for.
fn details(entry: &Entry) -> String {
    let Entry { lever, ruling, flags, .. } = entry;
    let mut told = String::new();
    if let Some(mechanism) = &lever.mechanism {
        let _ = write!(told, " Moves {}.", moves(mechanism));
    }
    if let Some(projection) = lever.projections.last() {
        let _ = write!(told, " Projected: {}.", projection.what);
    }
    if ruling.status == Status::Measuring {
        let _ = write!(told, " Measured so far: {}.", ruling.because);
    }
    for flag in flags {
        let _ = write!(told, " **{flag}.**");
    }
    told
}

fn moves(mechanism: &Mechanism) -> String {
    format!("{}: {}", mechanism.what, arrow(mechanism.before, mechanism.predicted, &mechanism.unit))
}

fn closed_section(ledger: &Ledger, numbered: &Numbered, status: Status, heading: &str, text: &mut String) {
    let entries: Vec<&Entry> = ledger.of_status(status).collect();
    if entries.is_empty() {
        return;
    }
    let _ = write!(text, "\n## {heading}\n\n");
    for entry in &entries {
        let _ = writeln!(text, "* **{}** (#{}): {}.", entry.name, numbered.number(entry), entry.lever.title);
        for sentence in reasons(ledger, entry) {
            let _ = writeln!(text, "  {}", sentence.trim());
        }
    }
    let mut table = Table::new(&["#", "measured", "before", "after", "unit", "uplift", "95 %", "verdict"]);
    for entry in &entries {
        for (run, judged) in entry.lever.runs.iter().zip(&entry.ruling.runs) {
            let interval = judged.interval_percent;
            table.row([
                numbered.number(entry).to_string(),
                run.what.clone(),
                plain_number(run.before),
                plain_number(run.after),
                run.unit.clone(),
                signed_percent(judged.uplift_percent),
                interval.map_or("-".into(), |interval| {
                    format!("{} to {}", signed_percent(interval.low), signed_percent(interval.high))
                }),
                judged.word().into(),
            ]);
        }
    }
    if entries.iter().any(|entry| !entry.lever.runs.is_empty()) {
        let _ = write!(text, "\n{}", table.markdown());
    }
}

/// Why a closed lever stands where it does, and what would change that.
fn reasons(ledger: &Ledger, entry: &Entry) -> Vec<String> {
    let Entry { lever, ruling, .. } = entry;
    let mut told = vec![format!("{}.", capital(&ruling.because))];
    told.extend(lever.mechanism.as_ref().and_then(|mechanism| checked(mechanism, &ruling.runs)));
    if ruling.status == Status::NotTested {
        told.extend(lever.mechanism.as_ref().map(|mechanism| what_would_test(ledger, lever, mechanism)));
    }
    told.extend(lever.guards.iter().map(|guard| {
        let measured =
            guard.measured.map_or("not measured".into(), |measured| with_unit(measured, &guard.unit));
        format!("Guard {}: {measured}, {} allowed.", guard.what, guard_limit(guard))
    }));
    let note = lever.closed.as_ref().and_then(|closed| closed.note.as_deref());
    told.extend(note.into_iter().chain(lever.note.as_deref()).map(one_paragraph));
    told
}

/// The manipulation check, where it came out well; where it did not, the reason says so.
fn checked(mechanism: &Mechanism, runs: &[JudgedRun]) -> Option<String> {
    let counting = runs.iter().rev().find(|run| run.standing == Standing::Counts)?;
    let check = counting.check?;
    let measured = arrow(check.before, check.after, &mechanism.unit);
    Some(format!("Mechanism, {}: {measured}.", mechanism.what))
}

fn what_would_test(ledger: &Ledger, lever: &Lever, mechanism: &Mechanism) -> String {
    let mut told = format!(
        "A run would test it in which {} goes {}",
        mechanism.what,
        arrow(mechanism.before, mechanism.predicted, &mechanism.unit)
    );
    let same = |entry: &&Entry| {
        !entry.ruling.status.is_closed()
            && entry.lever.title != lever.title
            && entry.lever.mechanism.as_ref().is_some_and(|other| other.what == mechanism.what)
    };
    let movers: Vec<String> = ledger.entries().filter(same).map(|entry| entry.name.to_string()).collect();
    if !movers.is_empty() {
        let _ = write!(told, ": {} is to move it", movers.join(", "));
    }
    told + "."
}

fn projections_section(ledger: &Ledger, text: &mut String) {
    text.push_str("\n## What projections were worth\n\n");
    let coverage = ledger.coverage();
    let _ = match coverage.levers {
        0 => writeln!(
            text,
            "No closed lever had a projection before its first run, so nothing is known about projections yet."
        ),
        levers => writeln!(
            text,
            "Of {levers} closed levers with a projection, the measured uplift of {} fell between its 5 and 95 % points.",
            coverage.inside
        ),
    };
    if let Some(transfer) = ledger.transfer() {
        let _ = writeln!(
            text,
            "Of a projected uplift, {} came in the median of {} levers ({} to {}). Such a share is what `overshot lab project \
             --transfer LOW..HIGH` takes, 0.7..1 unless told; a projection that was made with one has it in it: multiply both.",
            number(transfer.median),
            transfer.levers,
            number(transfer.p05),
            number(transfer.p95)
        );
    }
}

fn one_paragraph(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
