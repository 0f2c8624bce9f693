//! An analysis as plots: the families stacked over the batch, and throughput with what the chosen form makes of it.

use super::analysis::{Analysis, FamilySummary};
use crate::report::{Look, Mark, Panel, Plot, PlotPoint, Series, number, percent};

/// Families that are drawn on their own; what is less is drawn as one.
const BANDS_MAX: usize = 8;
const SHARE_DRAWN: f64 = 0.01;

/// `subtitle` says what was measured where.
pub fn plot(analysis: &Analysis, subtitle: &str) -> Plot {
    Plot {
        title: analysis.subject.clone(),
        subtitle: subtitle.to_owned(),
        panels: vec![time_panel(analysis), throughput_panel(analysis)],
    }
}

fn time_panel(analysis: &Analysis) -> Panel {
    let mut series = bands(analysis);
    if let Some(growth) = &analysis.growth {
        let curve = growth.chosen.curve;
        series.push(fitted(analysis, curve.form.kind().name(), |batch| curve.at(batch)));
    }
    let points = analysis.batches.iter().map(|at| plain(at.batch, at.step_ms));
    series.push(Series { name: "whole step".into(), look: Look::Measured, points: points.collect() });
    Panel {
        title: "Time of a step".into(),
        x_label: "requests that decode together".into(),
        y_label: "ms, median".into(),
        series,
        marks: Vec::new(),
    }
}

/// One above the other, those that grow most on top.
fn bands(analysis: &Analysis) -> Vec<Series> {
    let growth = |family: &FamilySummary| match (family.cells.first(), family.cells.last()) {
        (Some(first), Some(last)) => last.ms - first.ms,
        _ => 0.0,
    };
    let most = |family: &FamilySummary| family.cells.iter().map(|cell| cell.share).fold(0.0, f64::max);
    let mut shares: Vec<f64> = analysis.families.iter().map(most).collect();
    shares.sort_by(|one, other| other.total_cmp(one));
    // One band is kept for all that is small.
    let least = shares.get(BANDS_MAX - 1).map_or(0.0, |share| *share).max(SHARE_DRAWN);
    let (mut drawn, small): (Vec<&FamilySummary>, Vec<&FamilySummary>) =
        analysis.families.iter().partition(|family| most(family) > least);
    drawn.sort_by(|one, other| growth(one).total_cmp(&growth(other)));
    let times = |family: &FamilySummary| family.cells.iter().map(|cell| cell.ms).collect::<Vec<f64>>();
    let mut layers: Vec<(String, Vec<f64>)> =
        drawn.into_iter().map(|family| (family.name.clone(), times(family))).collect();
    if !small.is_empty() {
        let together = (0..analysis.batches.len()).map(|place| small.iter().map(|f| f.cells[place].ms).sum());
        layers.insert(0, ("all others".into(), together.collect()));
    }
    let mut below = vec![0.0; analysis.batches.len()];
    let band = |(number, (name, times)): (usize, (String, Vec<f64>))| {
        let points = analysis.batches.iter().zip(times).zip(&mut below).map(|((at, ms), below)| {
            let spread = (*below, *below + ms);
            *below = spread.1;
            PlotPoint { x: f64::from(at.batch), y: spread.1, spread: Some(spread) }
        });
        Series { name, look: Look::Band(number as u8), points: points.collect() }
    };
    layers.into_iter().enumerate().map(band).collect()
}

fn throughput_panel(analysis: &Analysis) -> Panel {
    let mut series = Vec::new();
    let mut title = "Throughput".to_owned();
    let mut marks: Vec<Mark> = analysis
        .falls
        .iter()
        .map(|fall| Mark {
            x: f64::from(fall.to_batch),
            text: format!("{} less than at {}", percent(-fall.change), fall.from_batch),
        })
        .collect();
    let last = analysis.batches.last().map_or(1, |at| at.batch);
    if let Some(growth) = &analysis.growth {
        let curve = growth.chosen.curve;
        let throughput = |batch| f64::from(batch) / curve.at(batch) * 1e3;
        series.push(fitted(analysis, curve.form.kind().name(), throughput));
    }
    if let Some(saturation) = analysis.saturation {
        title += &format!(", at most {} tokens/s", number(saturation.tokens_per_s));
        let known = [("half", saturation.half_at_batch), ("nine tenths", saturation.nine_tenths_at_batch)];
        for (share, batch) in known {
            if let Some(batch) = batch.filter(|batch| *batch <= last) {
                let text = format!("{share} of the most, at {batch}");
                marks.push(Mark { x: f64::from(batch), text });
            }
        }
    }
    let points = analysis.batches.iter().map(|at| plain(at.batch, at.tokens_per_s));
    series.push(Series { name: "measured".into(), look: Look::Measured, points: points.collect() });
    Panel {
        title,
        x_label: "requests that decode together".into(),
        y_label: "tokens/s".into(),
        series,
        marks,
    }
}

fn plain(batch: u32, y: f64) -> PlotPoint {
    PlotPoint { x: f64::from(batch), y, spread: None }
}

/// From one request to the largest batch, at enough places that stairs and bends are seen.
fn fitted(analysis: &Analysis, name: &str, value: impl Fn(u32) -> f64) -> Series {
    const PLACES_MAX: u32 = 400;
    let last = analysis.batches.last().map_or(1, |at| at.batch);
    let step = last.div_ceil(PLACES_MAX).max(1) as usize;
    let points = (1..=last).step_by(step).chain([last]).map(|batch| plain(batch, value(batch)));
    let points = points.filter(|point| point.y.is_finite()).collect();
    Series { name: name.into(), look: Look::Fitted, points }
}
