//! The summary as text, for a terminal or as Markdown: one table per kind of work, and below it in words what the line,
//! the noise and the falls are.

use super::summary::{PointSummary, Summary, WorkSummary};
use super::table::{Table, count, number, percent};
use crate::stats::{LineFit, Spread};
use crate::{Metric, Point, Work};
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Terminal,
    Markdown,
}

/// Writes all that the summary has.
pub fn write(summary: &Summary, form: Form, out: &mut dyn Write) -> io::Result<()> {
    for work in &summary.works {
        let title = title(work);
        let table = table(work);
        match form {
            Form::Terminal => {
                writeln!(out, "\n{title}")?;
                table.write(out)?;
            }
            Form::Markdown => write!(out, "\n### {title}\n\n{}\n", table.markdown())?,
        }
        for sentence in sentences(work) {
            match form {
                Form::Terminal => writeln!(out, "  {sentence}")?,
                Form::Markdown => writeln!(out, "* {sentence}")?,
            }
        }
    }
    Ok(())
}

fn title(work: &WorkSummary) -> String {
    let name = match work.work {
        Work::Decode => "Decode",
        Work::Prefill => "Prefill",
        Work::Mixed => "Mixed load",
        Work::Program => "Whole programs",
    };
    let runs = |point: &PointSummary| point.metrics.values().map(|spread| spread.count).max().unwrap_or(0);
    let (fewest, most) = work
        .points
        .iter()
        .map(runs)
        .fold((usize::MAX, 0), |(low, high), count| (low.min(count), high.max(count)));
    match (fewest, most) {
        (1, 1) => format!("{name}: one run a point"),
        _ if fewest == most => format!("{name}: medians of {most} runs a point (10th to 90th percentile)"),
        _ => format!("{name}: medians of {fewest} to {most} runs a point (10th to 90th percentile)"),
    }
}

/// Columns that some point has a number for.
fn table(work: &WorkSummary) -> Table {
    let (first, columns): (&str, &[Metric]) = match work.work {
        Work::Decode => (
            "streams",
            &[
                Metric::TokensPerS,
                Metric::StepMs,
                Metric::StepMsP99,
                Metric::HostGapMs,
                Metric::PeersWaitMs,
                Metric::FirstTokenMs,
                Metric::FirstTokenMsP99,
                Metric::TokensPerDelivery,
                Metric::PassesPerS,
                Metric::ContextTokens,
                Metric::LimitMs,
            ],
        ),
        Work::Prefill => (
            "prompt tokens",
            &[Metric::PromptTokensPerS, Metric::FirstTokenMs, Metric::PassesPerS, Metric::LimitMs],
        ),
        Work::Mixed => (
            "streams",
            &[
                Metric::TokensPerS,
                Metric::RequestsPerS,
                Metric::FirstTokenMs,
                Metric::FirstTokenMsP99,
                Metric::TokenGapMs,
                Metric::TokenGapMsP99,
                Metric::TokenMs,
                Metric::TokensPerDelivery,
                Metric::PassesPerS,
            ],
        ),
        Work::Program => ("program", &[Metric::WallS]),
    };
    let is_there = |metric: &Metric| {
        let mut medians = work.points.iter().filter_map(|point| point.median(*metric));
        // One token a delivery is what everybody expects.
        medians.any(|median| *metric != Metric::TokensPerDelivery || median > 1.0)
    };
    let columns: Vec<Metric> = columns.iter().copied().filter(is_there).collect();
    let has_limit = columns.contains(&Metric::LimitMs);
    let has_errors = work.points.iter().any(|point| !point.errors.is_empty());
    let mut head = vec![first];
    head.extend(columns.iter().map(|metric| metric.title()));
    head.extend(has_limit.then_some("of limit"));
    head.extend(has_errors.then_some("errors"));
    let mut table = Table::new(&head);
    for point in &work.points {
        let mut cells = vec![count(point.point.x() as u64)];
        cells.extend(columns.iter().map(|metric| cell(*metric, point.metrics.get(metric))));
        if has_limit {
            cells.push(of_limit(work.work, point).map_or("-".into(), percent));
        }
        if has_errors {
            cells.push(count(point.errors.values().sum()));
        }
        table.row(cells);
    }
    table
}

/// The numbers that runs are compared in come with their spread.
fn cell(metric: Metric, spread: Option<&Spread>) -> String {
    let Some(spread) = spread else { return "-".into() };
    if metric == Metric::ContextTokens {
        return count(spread.median.round() as u64);
    }
    let with_spread = [Metric::TokensPerS, Metric::PromptTokensPerS, Metric::StepMs, Metric::FirstTokenMs]
        .contains(&metric);
    if with_spread && spread.count > 1 {
        format!("{} ({} to {})", number(spread.median), number(spread.p10), number(spread.p90))
    } else {
        number(spread.median)
    }
}

fn of_limit(work: Work, point: &PointSummary) -> Option<f64> {
    Some(point.median(Metric::LimitMs)? / point.median(work.time()?)?)
}

fn sentences(work: &WorkSummary) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(fit) = &work.fit {
        sentences.push(fit_sentence(work.work, fit));
    }
    let band = work.noise.as_ref().and_then(|noise| Some((noise, noise.bands.get(&work.work.metric())?)));
    if let Some((noise, band)) = band {
        sentences.push(format!(
            "noise: {} medians of {} runs each that differ by less than {} differ by chance (A/A at {}, {}; one run \
             scatters by {})",
            work.work.metric().title(),
            band.runs,
            percent(band.share),
            noise.point,
            blocks(band.blocks),
            percent(band.sigma),
        ));
        if matches!(work.work, Work::Decode | Work::Mixed) {
            if work.falls.is_empty() {
                sentences.push("throughput never falls by more than that as streams are added".into());
            }
            for fall in &work.falls {
                let change = percent(-fall.change);
                sentences.push(format!(
                    "throughput falls by {change} from {} to {}",
                    short(fall.from),
                    short(fall.to)
                ));
            }
        }
    }
    if let Some(limits) = limits(work) {
        sentences.push(limits);
    }
    let busiest = work.points.iter().filter_map(|point| point.median(Metric::GeneratorBusyShare));
    if let Some(share) = busiest.max_by(f64::total_cmp) {
        let verdict = if share > 0.8 { ": too much, the client may be what is measured" } else { "" };
        sentences
            .push(format!("the load generator was busy for at most {} of the time{verdict}", percent(share)));
    }
    for point in &work.points {
        if !point.errors.is_empty() {
            let kinds = point.errors.iter().map(|(kind, count)| format!("{count} {kind}"));
            sentences.push(format!("{}: {}", point.point, kinds.collect::<Vec<_>>().join(", ")));
        }
    }
    sentences.extend(notes(work));
    sentences
}

/// Each note once, with the points that it belongs to.
fn notes(work: &WorkSummary) -> Vec<String> {
    let all: std::collections::BTreeSet<&String> =
        work.points.iter().flat_map(|point| &point.notes).collect();
    let told = all.into_iter().map(|note| {
        let with_it: Vec<String> = work
            .points
            .iter()
            .filter(|point| point.notes.contains(note))
            .map(|point| point.point.x().to_string())
            .collect();
        if with_it.len() == work.points.len() {
            note.clone()
        } else {
            format!("{note} (at {})", with_it.join(", "))
        }
    });
    told.collect()
}

fn blocks(count: usize) -> String {
    if count == 1 { "1 block".into() } else { format!("{count} blocks") }
}

fn short(point: Point) -> String {
    format!("{} streams", point.x())
}

fn fit_sentence(work: Work, fit: &LineFit) -> String {
    let (what, per) = match work {
        Work::Decode => ("step time", "stream"),
        Work::Prefill | Work::Mixed | Work::Program => ("time to the first token", "prompt token"),
    };
    let most = fit.line.asymptote().map_or(String::new(), |per_ms| {
        format!("; however many, no more than {} tok/s", number(per_ms * 1e3))
    });
    format!(
        "{what}: floor {} ms ({} to {}) + {} ms ({} to {}) a {per}, 95 % intervals{most}; the worst point lies {} {} the line, \
         at {}",
        number(fit.line.floor),
        number(fit.floor.low),
        number(fit.floor.high),
        number(fit.line.slope),
        number(fit.slope.low),
        number(fit.slope.high),
        percent(fit.worst_residual.abs()),
        if fit.worst_residual < 0.0 { "below" } else { "above" },
        count(fit.worst_x as u64),
    )
}

fn limits(work: &WorkSummary) -> Option<String> {
    let median = |metric| {
        let values: Vec<f64> = work.points.iter().filter_map(|point| point.median(metric)).collect();
        crate::stats::Sample::new("limits", values).ok().map(|sample| sample.median())
    };
    Some(format!(
        "limit: max(bytes read / {} GB/s, operations / {} GFLOP/s), both measured between the runs",
        number(median(Metric::ReadGbPerS)?),
        number(median(Metric::MultiplyAddGflopPerS)?),
    ))
}
