//! Levers as text for a terminal; as JSON they are printed whole.

use overshot_lab::ledger::{Entry, JudgedRun, Ledger, Run};
use overshot_lab::report::Table;
use std::io::{self, Write};

pub fn write_list(ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&["lever", "status", "uplift", "title"]);
    for entry in ledger.entries() {
        let uplift = entry.measured_percent().map_or("-".into(), signed);
        let title = shortened(&entry.lever.title, 52);
        table.row([entry.name.to_string(), entry.ruling.status.to_string(), uplift, title]);
    }
    table.write(out)?;
    for entry in ledger.entries() {
        for flag in &entry.flags {
            writeln!(out, "\n{}: {flag}", entry.name)?;
        }
    }
    Ok(())
}

pub fn write_entry(entry: &Entry, out: &mut dyn Write) -> io::Result<()> {
    let Entry { name, lever, ruling, flags, .. } = entry;
    writeln!(out, "{name}: {}\n{}: {}", lever.title, ruling.status, ruling.because)?;
    for flag in flags {
        writeln!(out, "{flag}")?;
    }
    writeln!(out, "\n{}", lever.hypothesis.trim())?;
    if let Some(note) = &lever.note {
        writeln!(out, "\n{}", note.trim())?;
    }
    writeln!(out)?;
    if let Some(mechanism) = &lever.mechanism {
        let unit = spaced(&mechanism.unit);
        writeln!(
            out,
            "mechanism   {}: {} -> {}{unit}",
            mechanism.what, mechanism.before, mechanism.predicted
        )?;
    }
    for projection in &lever.projections {
        let [low, middle, high] = projection.uplift_percent;
        writeln!(out, "projected   {low} / {middle} / {high} %: {}", projection.what)?;
    }
    if let Some(threshold) = &lever.threshold {
        writeln!(out, "threshold   {} %", threshold.tau_percent)?;
    }
    if let Some(days) = lever.cost_days {
        let gain =
            entry.gain_a_day_percent().map_or(String::new(), |gain| format!(", gain {gain:.1} % a day"));
        let decision = entry.decision().map_or(String::new(), |decision| format!(", {}", decision.name()));
        writeln!(out, "cost        {days} days{gain}{decision}")?;
    }
    for (field, names) in [("depends on", &lever.depends_on), ("refutes", &lever.refutes)] {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            writeln!(out, "{field:<11} {}", names.join(", "))?;
        }
    }
    for guard in &lever.guards {
        let held = match guard.holds() {
            None => "not measured",
            Some(true) => "holds",
            Some(false) => "FAILED",
        };
        writeln!(out, "guard       {}: {held}", guard.what)?;
    }
    for (run, judged) in lever.runs.iter().zip(&ruling.runs) {
        write_run(run, judged, out)?;
    }
    Ok(())
}

fn write_run(run: &Run, judged: &JudgedRun, out: &mut dyn Write) -> io::Result<()> {
    let date = run.date.map_or(String::new(), |date| format!("{date}: "));
    let interval = judged.interval_percent.map_or(", noise not known".into(), |interval| {
        format!(" ({} to {})", signed(interval.low), signed(interval.high))
    });
    writeln!(
        out,
        "run         {date}{} -> {}{}, {}{interval}: {}",
        run.before,
        run.after,
        spaced(&run.unit),
        signed(judged.uplift_percent),
        judged.word(),
    )?;
    writeln!(out, "            {}", run.what)?;
    match &run.source {
        Some(source) => writeln!(out, "            {source}"),
        None => Ok(()),
    }
}

fn signed(percent: f64) -> String {
    overshot_lab::ledger::signed_percent(percent)
}

fn spaced(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" {unit}") }
}

fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max - 3).chain("...".chars()).collect()
}
