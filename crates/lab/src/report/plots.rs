//! Which plots a summary gives: times against streams or prompt tokens, with the line and the machine's limit, and
//! throughput.

use super::plot::{Look, Mark, Panel, Plot, PlotPoint, Series};
use super::summary::{PointSummary, Summary, WorkSummary};
use super::table::{number, percent};
use crate::{Metric, Work};

/// All kinds of work, one below the other. `subtitle` says what was measured where.
pub fn plot(summary: &Summary, title: &str, subtitle: &str) -> Plot {
    let panels = summary.works.iter().flat_map(|work| {
        let time = work.work.time().map(|metric| time_panel(work, metric));
        time.into_iter().chain([throughput_panel(work)])
    });
    Plot { title: title.to_owned(), subtitle: subtitle.to_owned(), panels: panels.collect() }
}

fn time_panel(work: &WorkSummary, metric: Metric) -> Panel {
    let mut series = limit_series(work, |point| point.median(Metric::LimitMs));
    let mut title = match work.work {
        Work::Decode => "Decode step".to_owned(),
        Work::Prefill | Work::Mixed | Work::Program => "Prefill, time to the first token".to_owned(),
    };
    if let Some(fit) = &work.fit {
        let last = work.points.last().map_or(1.0, |point| point.point.x() as f64);
        let ends = [0.0, last].map(|x| PlotPoint { x, y: fit.line.at(x), spread: None });
        series.push(Series { name: "floor + slope".into(), look: Look::Fitted, points: ends.to_vec() });
        title += &format!(": floor {} ms + {} ms each", number(fit.line.floor), number(fit.line.slope));
    }
    series.push(measured(work, metric));
    Panel {
        title,
        x_label: x_label(work.work).into(),
        y_label: "ms, median".into(),
        series,
        marks: Vec::new(),
    }
}

fn throughput_panel(work: &WorkSummary) -> Panel {
    let metric = work.work.metric();
    let mut series = limit_series(work, |point| {
        let tokens = point.point.x() as f64;
        Some(tokens / point.median(Metric::LimitMs)? * 1e3)
    });
    if let (Some(fit), Some(last)) = (&work.fit, work.points.last()) {
        // A curve from one stream or token on: enough points that its corners are not seen.
        let length = last.point.x() as f64 - 1.0;
        let curve = (0..=100).map(|index| 1.0 + length * f64::from(index) / 100.0);
        let points = curve.map(|x| PlotPoint { x, y: x / fit.line.at(x) * 1e3, spread: None });
        series.push(Series { name: "from the line".into(), look: Look::Fitted, points: points.collect() });
    }
    series.push(measured(work, metric));
    let marks = work.falls.iter().map(|fall| Mark {
        x: fall.to.x() as f64,
        text: format!("{} streams: {} less than {}", fall.to.x(), percent(-fall.change), fall.from.x()),
    });
    Panel {
        title: match work.work {
            Work::Decode => "Decode throughput".into(),
            Work::Prefill => "Prefill throughput".into(),
            Work::Mixed => "Throughput of a mixed load".into(),
            Work::Program => "Whole programs".into(),
        },
        x_label: x_label(work.work).into(),
        y_label: if work.work == Work::Program { "seconds" } else { "tokens/s" }.into(),
        series,
        marks: marks.collect(),
    }
}

fn x_label(work: Work) -> &'static str {
    match work {
        Work::Decode => "streams that decode at the same time",
        Work::Prefill => "prompt tokens",
        Work::Mixed => "clients that send without a pause",
        Work::Program => "program",
    }
}

fn measured(work: &WorkSummary, metric: Metric) -> Series {
    let points = work.points.iter().filter_map(|point| {
        let spread = point.metrics.get(&metric)?;
        Some(PlotPoint {
            x: point.point.x() as f64,
            y: spread.median,
            spread: Some((spread.p10, spread.p90)),
        })
    });
    Series { name: "measured, p10 to p90".into(), look: Look::Measured, points: points.collect() }
}

/// None or one.
fn limit_series(work: &WorkSummary, value: impl Fn(&PointSummary) -> Option<f64>) -> Vec<Series> {
    let points: Vec<PlotPoint> = work
        .points
        .iter()
        .filter_map(|point| Some(PlotPoint { x: point.point.x() as f64, y: value(point)?, spread: None }))
        .collect();
    if points.is_empty() {
        return Vec::new();
    }
    vec![Series { name: "the machine's limit".into(), look: Look::Limit, points }]
}
