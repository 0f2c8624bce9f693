//! The plot beside a plan. Speeds are shown as a ratio, 1 for no change, so that losses have a place on an axis that
//! begins at 0. Levers stand by the numbers that the page gives them.

use super::book::Entry;
use crate::report::{Look, Panel, Plot, PlotPoint, Series};

/// `closed` with their numbers; `open` are numbered from 1 on.
pub fn plot(closed: &[(usize, &Entry)], open: &[&Entry]) -> Plot {
    let measured: Vec<PlotPoint> =
        closed.iter().flat_map(|(number, entry)| points_of(*number, entry)).collect();
    let projected: Vec<PlotPoint> =
        (1..).zip(open).filter_map(|(number, entry)| projected_point(number, entry)).collect();
    let held: Vec<PlotPoint> = closed.iter().filter_map(|(_, entry)| held_point(entry)).collect();
    let panels = [
        panel(
            "Measured, closed levers",
            "lever, by its number in the plan",
            "run that counts, 95 %",
            measured,
        ),
        panel("Projected, open levers", "lever, by its number in the plan", "middle, 5 to 95 %", projected),
        diagonal(held),
    ];
    Plot {
        title: "Speed after a lever over speed before".into(),
        subtitle: "1 is no change; whiskers show what is not ruled out".into(),
        panels: panels.into_iter().flatten().collect(),
    }
}

/// One for each run that counts; a tenth of a number apart, so that whiskers do not lie on one another.
fn points_of(number: usize, entry: &Entry) -> Vec<PlotPoint> {
    let counting: Vec<_> = entry.ruling.counting().collect();
    let middle = (counting.len().max(1) - 1) as f64 / 2.0;
    let apart = 0.1_f64.min(0.6 / counting.len().max(1) as f64);
    let points = counting.iter().enumerate().map(|(place, (_, run))| PlotPoint {
        x: number as f64 + (place as f64 - middle) * apart,
        y: ratio(run.uplift_percent),
        spread: run.interval_percent.map(|interval| (ratio(interval.low), ratio(interval.high))),
    });
    points.collect()
}

fn projected_point(number: usize, entry: &Entry) -> Option<PlotPoint> {
    let [low, middle, high] = entry.lever.projections.last()?.uplift_percent.map(ratio);
    Some(PlotPoint { x: number as f64, y: middle, spread: Some((low, high)) })
}

/// Measured against projected.
fn held_point(entry: &Entry) -> Option<PlotPoint> {
    let (projection, run) = entry.forecast()?;
    let spread = run.interval_percent.map(|interval| (ratio(interval.low), ratio(interval.high)));
    Some(PlotPoint { x: ratio(projection.uplift_percent[1]), y: ratio(run.uplift_percent), spread })
}

fn panel(title: &str, x_label: &str, name: &str, points: Vec<PlotPoint>) -> Option<Panel> {
    let last = points.iter().map(|point| point.x).fold(f64::NAN, f64::max);
    if points.is_empty() {
        return None;
    }
    let unchanged = [0.0, last + 0.5].map(|x| PlotPoint { x, y: 1.0, spread: None });
    Some(Panel {
        title: title.into(),
        x_label: x_label.into(),
        y_label: "speed, after / before".into(),
        series: vec![
            Series { name: "no change".into(), look: Look::Limit, points: unchanged.to_vec() },
            Series { name: name.into(), look: Look::Measured, points },
        ],
        marks: Vec::new(),
    })
}

fn diagonal(points: Vec<PlotPoint>) -> Option<Panel> {
    let last = points.iter().map(|point| point.x).fold(f64::NAN, f64::max);
    if points.is_empty() {
        return None;
    }
    let exact = [0.0, last].map(|x| PlotPoint { x, y: x, spread: None });
    Some(Panel {
        title: "Measured against projected".into(),
        x_label: "projected speed, after / before".into(),
        y_label: "measured speed, after / before".into(),
        series: vec![
            Series { name: "as projected".into(), look: Look::Limit, points: exact.to_vec() },
            Series { name: "closed lever, 95 %".into(), look: Look::Measured, points },
        ],
        marks: Vec::new(),
    })
}

/// A whisker may not leave the plot downwards.
fn ratio(percent: f64) -> f64 {
    (1.0 + percent / 100.0).max(0.0)
}
