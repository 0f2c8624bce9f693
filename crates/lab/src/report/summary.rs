//! What all runs of a sweep show: medians and spread per point, the line through the step times, the noise band, and
//! where throughput falls by more than noise.

use crate::stats::{
    AbbaBlock, LineFit, MeasuredPoint, Noise, NoiseBand, Sample, Spread, fit_line_with_interval,
};
use crate::sweep::{RunKey, RunRecord, whole_blocks};
use crate::{Metric, Point, Work};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub works: Vec<WorkSummary>,
}

/// One kind of points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkSummary {
    pub work: Work,
    /// Ascending.
    pub points: Vec<PointSummary>,
    /// Through the times of `work`, where there are at least two points with times above 0.
    pub fit: Option<LineFit>,
    /// What of a difference is chance, where a point was compared with itself.
    pub noise: Option<NoiseSummary>,
    /// Neighbouring points whose throughput falls by more than the noise band. Empty as well when no band is known.
    pub falls: Vec<Fall>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PointSummary {
    pub point: Point,
    pub metrics: BTreeMap<Metric, Spread>,
    /// Over all runs.
    pub errors: BTreeMap<String, u64>,
    /// Each once.
    pub notes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoiseSummary {
    /// That was compared with itself.
    pub point: Point,
    /// For medians of as many runs as the points have. The metrics that points are compared in.
    pub bands: BTreeMap<Metric, NoiseBand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fall {
    pub from: Point,
    pub to: Point,
    /// Of the throughput before, below 0.
    pub change: f64,
}

impl Summary {
    /// `seed` is that of the resampling for intervals. Numbers that cannot be had are left out, not guessed.
    pub fn of(records: &[RunRecord], seed: u64) -> Self {
        let mut runs: BTreeMap<Point, Vec<&RunRecord>> = BTreeMap::new();
        for record in records.iter().filter(|record| matches!(record.key, RunKey::Round { .. })) {
            runs.entry(record.key.point()).or_default().push(record);
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let works = Work::ALL.into_iter().filter_map(|work| {
            let of_work: Vec<(&Point, &Vec<&RunRecord>)> =
                runs.iter().filter(|(point, _)| point.work() == work).collect();
            let points: Vec<PointSummary> =
                of_work.iter().map(|(point, records)| PointSummary::of(**point, records)).collect();
            let fit = work.time().and_then(|metric| fit(&of_work, metric, &mut random));
            let fewest = of_work.iter().map(|(_, records)| records.len()).min().unwrap_or(1);
            let noise = noise(records, work, fewest);
            let falls = falls(&points, work.metric(), noise.as_ref());
            (!points.is_empty()).then_some(WorkSummary { work, points, fit, noise, falls })
        });
        Summary { works: works.collect() }
    }
}

impl PointSummary {
    fn of(point: Point, records: &[&RunRecord]) -> Self {
        let mut summary =
            PointSummary { point, metrics: BTreeMap::new(), errors: BTreeMap::new(), notes: BTreeSet::new() };
        for metric in Metric::ALL {
            let values = records.iter().filter_map(|record| record.measurement.get(metric)).collect();
            if let Ok(sample) = Sample::new("runs", values) {
                summary.metrics.insert(metric, sample.spread());
            }
        }
        for record in records {
            for (kind, count) in &record.measurement.errors {
                *summary.errors.entry(kind.clone()).or_default() += count;
            }
            summary.notes.extend(record.measurement.notes.iter().cloned());
        }
        summary
    }

    pub fn median(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).map(|spread| spread.median)
    }
}

fn fit(points: &[(&Point, &Vec<&RunRecord>)], metric: Metric, random: &mut fastrand::Rng) -> Option<LineFit> {
    let measured: Vec<MeasuredPoint> = points
        .iter()
        .map(|(point, records)| MeasuredPoint {
            x: point.x() as f64,
            runs: records.iter().filter_map(|record| record.measurement.get(metric)).collect(),
        })
        .filter(|point| !point.runs.is_empty())
        .collect();
    fit_line_with_interval(&measured, random).ok()
}

/// From whole A/A blocks of the point that has most of them. `runs`: of a median that the band is for.
fn noise(records: &[RunRecord], work: Work, runs: usize) -> Option<NoiseSummary> {
    let of_noise = whole_blocks(records, |key| match *key {
        RunKey::Noise { block, place, point } if point.work() == work => Some(((point, block), place)),
        _ => None,
    });
    let mut blocks: BTreeMap<Point, Vec<[&RunRecord; 4]>> = BTreeMap::new();
    for ((point, _), block) in of_noise {
        blocks.entry(point).or_default().push(block);
    }
    let (point, blocks) = blocks.into_iter().max_by_key(|(_, blocks)| blocks.len())?;
    let metrics = [Some(work.metric()), work.time()].into_iter().flatten();
    let bands = metrics.filter_map(|metric| {
        let ratios = blocks.iter().filter_map(|block| {
            let [a1, b1, b2, a2] = block.map(|record| record.measurement.get(metric));
            AbbaBlock::in_order([a1?, b1?, b2?, a2?]).log_ratio().ok()
        });
        Some((metric, Noise::new(ratios.collect()).ok()?.band(runs)))
    });
    Some(NoiseSummary { point, bands: bands.collect() })
}

fn falls(points: &[PointSummary], metric: Metric, noise: Option<&NoiseSummary>) -> Vec<Fall> {
    let Some(band) = noise.and_then(|noise| noise.bands.get(&metric)) else { return Vec::new() };
    let pairs = points.windows(2).filter_map(|pair| {
        let (before, after) = (pair[0].median(metric)?, pair[1].median(metric)?);
        let fall = Fall { from: pair[0].point, to: pair[1].point, change: after / before - 1.0 };
        ((after / before).ln() < -band.share).then_some(fall)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measurement;

    fn record(key: RunKey, noise: f64) -> RunRecord {
        let streams = key.point().x() as f64;
        let mut step_ms = (4.0 + 0.5 * streams) * (1.0 + noise);
        if streams == 8.0 {
            // A cliff: slower than a fall by noise explains.
            step_ms *= 2.0;
        }
        let mut measurement = Measurement::default();
        measurement.set(Metric::StepMs, step_ms);
        measurement.set(Metric::TokensPerS, streams / step_ms * 1e3);
        measurement.errors.insert("silent".into(), 1);
        measurement.notes.push("slow today".into());
        RunRecord { key, measurement }
    }

    fn records() -> Vec<RunRecord> {
        let mut random = fastrand::Rng::with_seed(9);
        let mut noise = move || 0.02 * (random.f64() - 0.5);
        let point = |streams| Point::Decode { streams };
        let mut records = Vec::new();
        for block in 0..3 {
            for place in 0..4 {
                records.push(record(RunKey::Noise { block, place, point: point(16) }, noise()));
            }
        }
        // Cut off: does not count.
        records.push(record(RunKey::Noise { block: 3, place: 0, point: point(16) }, 0.5));
        for round in 0..5 {
            for streams in [4, 1, 2, 8, 16] {
                records.push(record(RunKey::Round { round, point: point(streams) }, noise()));
            }
        }
        records
    }

    #[test]
    fn points_noise_and_cliffs_are_found() {
        let summary = Summary::of(&records(), 1);
        let [decode] = summary.works.as_slice() else { panic!("{summary:?}") };
        let streams: Vec<usize> = decode.points.iter().map(|point| point.point.x()).collect();
        assert_eq!(streams, [1, 2, 4, 8, 16]);
        let one = &decode.points[0];
        assert!((one.median(Metric::StepMs).unwrap() - 4.5).abs() < 0.05);
        assert_eq!(one.metrics[&Metric::StepMs].count, 5);
        assert_eq!((one.errors["silent"], one.notes.len()), (5, 1));
        let noise = decode.noise.as_ref().unwrap();
        let band = noise.bands[&Metric::TokensPerS];
        assert_eq!((noise.point.x(), band.blocks, band.runs), (16, 3, 5));
        assert!((0.001..0.03).contains(&band.share), "{band:?}");
        let [fall] = decode.falls.as_slice() else { panic!("{:?}", decode.falls) };
        assert_eq!((fall.from.x(), fall.to.x()), (4, 8));
        assert!((fall.change + 0.25).abs() < 0.03, "{fall:?}");
        let fit = decode.fit.as_ref().unwrap();
        assert_eq!(fit.worst_x, 8.0);
        assert_eq!(Summary::of(&records(), 1), summary);
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        let summary = Summary::of(&[], 1);
        assert!(summary.works.is_empty());
        let alone = RunKey::Round { round: 0, point: Point::Decode { streams: 1 } };
        let summary = Summary::of(&[record(alone, 0.0)], 1);
        assert!(summary.works[0].fit.is_none() && summary.works[0].noise.is_none());
    }
}
