//! The outcome of a comparison as text: what was measured, by how much B differs, what counts, and the verdict.

use crate::failure::one_line;
use overshot_lab::ab::{BandSource, Difference, GuardOutcome, Guards, Outcome, Pairing, Verdict};
use overshot_lab::report::{Table, number, percent};
use overshot_lab::{Better, Settings};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Debug, Serialize)]
pub struct Report {
    pub a: Told,
    pub b: Told,
    pub differences: Vec<Difference>,
    pub outcomes: Vec<Outcome>,
}

/// One side, for people and for scripts.
#[derive(Debug, Serialize)]
pub struct Told {
    pub name: String,
    pub settings: Settings,
}

pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "A  {}\nB  {}", one_line(&report.a.name), one_line(&report.b.name))?;
    for Difference { field, a, b } in
        report.differences.iter().filter(|difference| difference.field != "command")
    {
        writeln!(out, "{}", one_line(&format!("   {field}: {a} in A, {b} in B")))?;
    }
    for outcome in &report.outcomes {
        writeln!(out)?;
        write_outcome(outcome, out)?;
    }
    if report.outcomes.iter().any(|outcome| !matches!(outcome.comparison.pairing, Pairing::Blocks { .. })) {
        writeln!(
            out,
            "\nFiles were measured one after the other: what the machine did between them is in no interval."
        )?;
    }
    Ok(())
}

fn write_outcome(outcome: &Outcome, out: &mut dyn Write) -> io::Result<()> {
    let better = match outcome.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let Outcome { point, comparison, .. } = outcome;
    writeln!(out, "{point}: {}, {better}; {}", one_line(&outcome.title), paired(comparison.pairing))?;
    let mut table = Table::new(&["side", "median", "p10", "p90", "runs"]);
    for (side, spread) in [("A", outcome.a), ("B", outcome.b)] {
        let values = [spread.median, spread.p10, spread.p90].map(number);
        table.row([side.to_owned()].into_iter().chain(values).chain([spread.count.to_string()]));
    }
    table.write(out)?;
    let interval = comparison.interval;
    writeln!(
        out,
        "B is {} ({} % interval: {} to {})",
        change(comparison.gain),
        confidence(comparison.alpha),
        change(interval.low),
        change(interval.high)
    )?;
    writeln!(out, "gains below {} do not count: {}", percent(outcome.counts_from), what_counts(outcome))?;
    writeln!(
        out,
        "a comparison like this finds a true change of {} 4 times of 5",
        percent(comparison.detectable)
    )?;
    for guard in &outcome.guards {
        writeln!(out, "{}", one_line(&guard_line(guard)))?;
    }
    writeln!(out, "verdict: {}", verdict(outcome))
}

/// In percent. The first planned look is at 99.95, which must not read as certainty.
fn confidence(alpha: f64) -> String {
    let text = format!("{:.3}", (1.0 - alpha) * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn paired(pairing: Pairing) -> String {
    match pairing {
        Pairing::Blocks { blocks } => format!("{blocks} blocks of A, B, B, A"),
        Pairing::Rounds { rounds } => format!("{rounds} rounds, paired"),
        Pairing::Unpaired { a, b } => format!("{a} runs against {b}, not paired"),
    }
}

fn change(gain: f64) -> String {
    format!("{} {}", percent(gain.abs()), if gain < 0.0 { "worse" } else { "better" })
}

fn what_counts(outcome: &Outcome) -> String {
    let threshold = format!("threshold {}", percent(outcome.threshold));
    match outcome.band {
        None => format!("{threshold}; no noise band is known"),
        Some(band) => {
            let source = match band.source {
                BandSource::History => format!("{} A/A blocks of the history", band.blocks),
                BandSource::TheseBlocks => "the scatter within these blocks".to_owned(),
            };
            format!("{threshold}, noise band {} (from {source})", percent(band.share))
        }
    }
}

fn guard_line(guard: &GuardOutcome) -> String {
    let state = match guard.state {
        Guards::Hold => "holds",
        Guards::Doubtful => "is exceeded, perhaps by chance",
        Guards::Broken => "is broken",
    };
    format!(
        "guard {} {state}: {} ({} to {}), {} worse is allowed",
        guard.quantity,
        change(guard.comparison.gain),
        change(guard.comparison.interval.low),
        change(guard.comparison.interval.high),
        percent(guard.limit)
    )
}

fn verdict(outcome: &Outcome) -> String {
    let why = match (outcome.verdict, outcome.pairs_needed) {
        (Verdict::Inconclusive, Some(pairs)) => {
            let unit = match outcome.comparison.pairing {
                Pairing::Blocks { .. } => "blocks",
                Pairing::Rounds { .. } | Pairing::Unpaired { .. } => "runs a side",
            };
            format!(": about {pairs} {unit} would tell; longer runs or a quieter machine need fewer")
        }
        (Verdict::Inconclusive, None) => ": no number of runs at this noise would tell".to_owned(),
        _ => String::new(),
    };
    format!("{}{why}", outcome.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interval_claims_to_be_certain() {
        let told = [0.0005, 0.014, 0.045, 0.05, 0.05 / 3.0].map(confidence);
        assert_eq!(told, ["99.95", "98.6", "95.5", "95", "98.333"]);
    }
}
