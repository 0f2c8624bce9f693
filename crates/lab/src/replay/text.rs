//! The findings as text, for a terminal or a page.

use super::findings::{AnomalyFinding, Findings, KernelFinding, LeverFinding, NoiseFinding, StepFinding};
use crate::ledger::{Ledger, Status};
use crate::report::{Table, count, number};
use overshot_gpu_model::Resource;
use std::io::{self, Write};

const COLUMNS: usize = 100;

/// # Errors
/// As of `out`.
pub fn write(findings: &Findings, ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let Findings { campaign, card, kernel, step, anomaly, noise, levers } = findings;
    writeln!(out, "{}: {} SMs each", campaign.title, card.sms)?;
    write_kernel(kernel, out)?;
    write_step(findings, step, out)?;
    write_anomaly(findings, anomaly, out)?;
    write_noise(noise, out)?;
    write_levers(levers, out)?;
    write_ledger(ledger, out)
}

fn write_kernel(found: &KernelFinding, out: &mut dyn Write) -> io::Result<()> {
    let KernelFinding { launch, occupancy, gate } = found;
    writeln!(out, "\n1. What limits the kernel")?;
    let needs = gate.needs.iter().map(|need| match need.resource {
        Resource::SharedMemory => format!("<= {} KB of shared memory", need.at_most >> 10),
        other => format!("<= {} {other}", need.at_most),
    });
    let registers = if gate.not_in_the_way.contains(&Resource::Registers) { "not " } else { "" };
    let told = format!(
        "{} warps, {} registers, {} KB of shared memory: {} per SM, held there by {}. {} per SM need {}; registers are {registers}the \
         limit.",
        launch.warps_per_cta,
        launch.registers_per_thread,
        launch.shared_bytes_per_cta >> 10,
        ctas(occupancy.ctas_per_sm),
        listed(occupancy.binding.iter().map(ToString::to_string)),
        ctas(gate.ctas_per_sm),
        listed(needs),
    );
    paragraph(&told, out)
}

fn write_step(findings: &Findings, found: &StepFinding, out: &mut dyn Write) -> io::Result<()> {
    let StepFinding { line, at, .. } = found;
    writeln!(out, "\n2. Where the step goes")?;
    let told = format!(
        "Linear: T(B) = {} ms + {:.3} ms B ({} ms by the worst run); however many requests, no more than {} tok/s.",
        number(line.floor),
        line.slope,
        number(found.floor_ms_of_worst_run),
        count(found.asymptote_per_s.round() as u64),
    );
    paragraph(&told, out)?;
    let mut table = Table::new(&["batch", "linear ms", "concave ms", "by waves ms", "expert weights ms"]);
    for at in at {
        let cells = [at.linear_ms, at.concave_ms, at.by_waves_ms, at.expert_weights_ms];
        table.row([vec![at.batch.to_string()], cells.map(|ms| format!("{ms:.1}")).to_vec()].concat());
    }
    table.write(out)?;
    let (Some(one), Some(many)) = (at.first(), at.last()) else { return Ok(()) };
    let public = &findings.campaign.public;
    let told = format!(
        "The linear floor is wrong at small batches: most of it is reading expert weights, {:.1} ms at batch {} and {:.1} ms at \
         batch {}, where few experts are touched (on {} cards at a guessed {:.0} % of their bandwidth). A step of batch {} takes {:.1} ms by the line, {:.1} ms by the concave form, \
         {:.1} ms with attention by its waves as well, and a public report has {:.1} to {:.1} ms. The campaign itself says so: 8 \
         warps cost {:.1} to {:.1} ms of that line at batch 1, where attention takes {:.2} ms in all by the line, and {:.1} ms by \
         its waves.",
        many.expert_weights_ms,
        many.batch,
        one.expert_weights_ms,
        one.batch,
        findings.campaign.experts.cards,
        findings.campaign.experts.reached_share * 100.0,
        one.batch,
        one.linear_ms,
        one.concave_ms,
        one.by_waves_ms,
        public.step_ms_at_1_low,
        public.step_ms_at_1_high,
        found.eight_warps_ms[0],
        found.eight_warps_ms[1],
        found.attention_at_1_ms_linear,
        found.attention_at_1_ms_by_waves,
    );
    paragraph(&told, out)
}

fn write_anomaly(findings: &Findings, found: &AnomalyFinding, out: &mut dyn Write) -> io::Result<()> {
    let (from, to) = (findings.campaign.anomaly.from_batch, findings.campaign.anomaly.to_batch);
    writeln!(out, "\n3. Why C={to} was slower than C={from}")?;
    let told = format!(
        "A step took {:.1} ms at {to}: attention must have taken {:.3}x as long as at {from}, for {:.2}x the requests.",
        found.step_ms_before,
        found.time_ratio_needed,
        f64::from(to) / f64::from(from),
    );
    paragraph(&told, out)?;
    let (from_ctas, to_ctas) = (format!("CTAs at {from}"), format!("CTAs at {to}"));
    let mut table = Table::new(&["CTAs a request", &from_ctas, "waves", &to_ctas, "waves", "time ratio"]);
    for row in &found.explanations {
        table.row([
            row.ctas_per_request.to_string(),
            row.from_grid.ctas.to_string(),
            row.from_grid.waves.to_string(),
            row.to_grid.ctas.to_string(),
            row.to_grid.waves.to_string(),
            format!("{:.2}", row.time_ratio),
        ]);
    }
    table.write(out)?;
    let told = match &found.simplest {
        Some(simplest) => format!(
            "Simplest explanation: {} CTAs per request; the last of {} waves at C={to} is for {}.",
            simplest.ctas_per_request,
            simplest.to_grid.waves,
            ctas_of(simplest.to_grid.ctas - (simplest.to_grid.waves - 1) * u64::from(findings.card.sms)),
        ),
        None => "No number of CTAs per request explains it by waves alone.".to_owned(),
    };
    paragraph(&told, out)
}

fn write_noise(found: &NoiseFinding, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n4. What is noise")?;
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let by_runs = found.bands_by_runs.iter().map(|(runs, band)| format!("{} if {runs}", share(*band)));
    let told = format!(
        "Equal runs gave {} to {} tok/s. If they were {} runs, one scatters by {}, and two single runs differ by up to {} by \
         chance ({}).",
        number(found.low),
        number(found.high),
        found.runs_assumed,
        share(found.sigma),
        share(found.single_run_band),
        listed(by_runs),
    );
    paragraph(&told, out)?;
    for claim in &found.claims {
        let runs =
            claim.runs_needed.map_or(String::new(), |runs| format!(" ({runs} runs a side would tell)"));
        let verdict = if claim.inside_band {
            format!("inside the single-run band: not shown{runs}")
        } else {
            "outside the single-run band".into()
        };
        paragraph(&format!("+{} ({}) is {verdict}.", share(claim.uplift), claim.what), out)?;
    }
    Ok(())
}

fn write_levers(found: &[LeverFinding], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n5. What would be worth doing: 5 / 50 / 95 % of the uplift, in percent, by the line")?;
    let batches = found.first().map_or(&[][..], |lever| &lever.rows);
    let mut head = vec!["lever".to_owned(), "CTAs".into()];
    head.extend(batches.iter().map(|row| format!("C={}", row.batch)));
    head.push(String::new());
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    let rounded = |share: f64| {
        let percent = share * 100.0;
        if percent >= 9.95 { format!("{percent:.0}") } else { format!("{percent:.1}") }
    };
    for lever in found {
        let moved = lever.ctas_per_sm.map_or("-".into(), |(before, after)| format!("{before} -> {after}"));
        let mut cells = vec![lever.lever.clone(), moved];
        cells.extend(lever.rows.iter().map(|row| match (row.p5, row.p95) {
            (0.0, 0.0) => "0".to_owned(),
            _ => [row.p5, row.p50, row.p95].map(rounded).join(" / "),
        }));
        cells.push(lever.decision.verdict.text().into());
        table.row(cells);
    }
    table.write(out)?;
    for lever in found {
        let Some((before, after)) = lever.ctas_per_sm.filter(|(before, after)| before == after) else {
            continue;
        };
        let told = format!(
            "{}: an SM holds {} as before ({before} -> {after}), so the projected uplift is 0: {}.",
            lever.lever,
            ctas(after),
            lever.decision.verdict.text()
        );
        paragraph(&told, out)?;
    }
    Ok(())
}

fn write_ledger(ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n6. What the ledger makes of it")?;
    let mut table = Table::new(&["lever", "status", "title"]);
    for entry in ledger.entries() {
        table.row([entry.name.to_string(), entry.ruling.status.to_string(), entry.lever.title.clone()]);
    }
    table.write(out)?;
    for entry in ledger.of_status(Status::NotTested) {
        paragraph(&format!("{}: {}.", entry.name, entry.ruling.because), out)?;
    }
    if let Some(next) = ledger.ranked().first() {
        let gain = number(next.gain_a_day_percent().unwrap_or(0.0));
        writeln!(out, "\nNext: {}, {gain} % a day expected.", next.name)?;
    }
    Ok(())
}

fn ctas(number: u32) -> String {
    ctas_of(u64::from(number))
}

fn ctas_of(number: u64) -> String {
    if number == 1 { "1 CTA".into() } else { format!("{number} CTAs") }
}

/// Words in lines that are easy to read, a little to the right.
fn paragraph(words: &str, out: &mut dyn Write) -> io::Result<()> {
    const INDENT: &str = "  ";
    let mut line = String::new();
    for word in words.split_whitespace() {
        if !line.is_empty() && INDENT.len() + line.chars().count() + 1 + word.chars().count() > COLUMNS {
            writeln!(out, "{INDENT}{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{INDENT}{line}")
}

fn listed(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "nothing".into() } else { items.join(", ") }
}
