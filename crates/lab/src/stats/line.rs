//! The line through step times: `T(B) = floor + slope * B`, neither below 0, as no part of a step takes negative
//! time. Its interval comes from resampling runs, so it carries the noise of the runs and nothing else: whether a
//! line is the right form at all is told by the residual, not by the interval.

use super::{Interval, RESAMPLES, Sample, check_finite, middle, resample};
use crate::LabError;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Of `y` at `x` = 0.
    pub floor: f64,
    /// `y` per `x`.
    pub slope: f64,
}

impl Line {
    pub fn at(&self, x: f64) -> f64 {
        self.floor + self.slope * x
    }

    /// The throughput that no batch exceeds, `x` per `y`; `None` when time doesn't grow.
    pub fn asymptote(&self) -> Option<f64> {
        (self.slope > 0.0).then(|| 1.0 / self.slope)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedPoint {
    pub x: f64,
    pub y: f64,
    pub weight: f64,
}

/// All runs at one place, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredPoint {
    pub x: f64,
    pub runs: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineFit {
    pub line: Line,
    /// 95 %, by bootstrap over the runs.
    pub floor: Interval,
    pub slope: Interval,
    /// Where the medians lie farthest from the line, and by how much of the line: what the form does not explain.
    pub worst_x: f64,
    pub worst_residual: f64,
}

/// Weighted least squares with `floor >= 0` and `slope >= 0`.
///
/// # Errors
/// Fewer than two places, or numbers that are not finite.
pub fn fit_line(points: &[WeightedPoint]) -> Result<Line, LabError> {
    const WHAT: &str = "points of a line";
    if points.len() < 2 {
        return Err(LabError::TooFew { what: WHAT, have: points.len(), need: 2 });
    }
    for point in points {
        check_finite(WHAT, &[point.x, point.y, point.weight])?;
    }
    let sum =
        |term: fn(&WeightedPoint) -> f64| points.iter().map(|point| point.weight * term(point)).sum::<f64>();
    let (one, x, y) = (sum(|_| 1.0), sum(|p| p.x), sum(|p| p.y));
    let (mean_x, mean_y) = (x / one, y / one);
    let centred =
        |term: &dyn Fn(&WeightedPoint) -> f64| points.iter().map(|p| p.weight * term(p)).sum::<f64>();
    let xx = centred(&|p| (p.x - mean_x).powi(2));
    if xx <= 0.0 || xx.is_nan() {
        return Err(LabError::OnePlace { what: WHAT });
    }
    let slope = centred(&|p| (p.x - mean_x) * (p.y - mean_y)) / xx;
    let free = Line { floor: mean_y - slope * mean_x, slope };
    if free.floor >= 0.0 && free.slope >= 0.0 {
        return Ok(free);
    }
    // The problem is convex: its solution lies on one of the two edges.
    let through_zero = Line { floor: 0.0, slope: (sum(|p| p.x * p.y) / sum(|p| p.x * p.x)).max(0.0) };
    let flat = Line { floor: mean_y.max(0.0), slope: 0.0 };
    let error = |line: &Line| centred(&|p| (p.y - line.at(p.x)).powi(2));
    Ok(if error(&through_zero) <= error(&flat) { through_zero } else { flat })
}

/// Fits the medians of the runs, weighted by `1 / median^2`: the noise of step times grows with the time.
///
/// # Errors
/// Fewer than two places, a place without runs, or runs that are not above 0.
pub fn fit_line_with_interval(
    points: &[MeasuredPoint],
    random: &mut fastrand::Rng,
) -> Result<LineFit, LabError> {
    let line = fit_medians(points, |runs, _| runs.to_vec(), random)?;
    let (mut floors, mut slopes) = (Vec::with_capacity(RESAMPLES), Vec::with_capacity(RESAMPLES));
    for _ in 0..RESAMPLES {
        let drawn = fit_medians(points, resample, random)?;
        floors.push(drawn.floor);
        slopes.push(drawn.slope);
    }
    let (mut worst_x, mut worst_residual) = (points[0].x, 0.0_f64);
    for point in points {
        let residual = Sample::new(RUNS, point.runs.clone())?.median() / line.at(point.x) - 1.0;
        if residual.abs() > worst_residual.abs() {
            (worst_x, worst_residual) = (point.x, residual);
        }
    }
    Ok(LineFit {
        line,
        floor: middle(&Sample::new("resampled floors", floors)?, CONFIDENCE),
        slope: middle(&Sample::new("resampled slopes", slopes)?, CONFIDENCE),
        worst_x,
        worst_residual,
    })
}

const CONFIDENCE: f64 = 0.95;
const RUNS: &str = "runs at one place";

fn fit_medians(
    points: &[MeasuredPoint],
    draw: impl Fn(&[f64], &mut fastrand::Rng) -> Vec<f64>,
    random: &mut fastrand::Rng,
) -> Result<Line, LabError> {
    let mut medians = Vec::with_capacity(points.len());
    for point in points {
        if let Some(index) = point.runs.iter().position(|run| *run <= 0.0) {
            return Err(LabError::NotPositive { what: RUNS, index, value: point.runs[index] });
        }
        let y = Sample::new(RUNS, draw(&point.runs, random))?.median();
        medians.push(WeightedPoint { x: point.x, y, weight: y.powi(-2) });
    }
    fit_line(&medians)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(pairs: &[(f64, f64)]) -> Vec<WeightedPoint> {
        pairs.iter().map(|&(x, y)| WeightedPoint { x, y, weight: 1.0 }).collect()
    }

    /// The worked example of the step-time model: 845 tokens/s at 96, 0.79 + 0.015 ms a request.
    #[test]
    fn the_worked_example_comes_back() {
        let (slope, throughput) = (0.79 + 0.015, 845.0);
        let floor = 96e3 / throughput - slope * 96.0;
        let batches = [1.0, 8.0, 16.0, 32.0, 48.0, 64.0, 80.0, 96.0];
        let exact: Vec<_> = batches.iter().map(|&b| (b, floor + slope * b)).collect();
        let line = fit_line(&points(&exact)).unwrap();
        assert!((line.floor - 36.3).abs() < 0.05 && (line.slope - slope).abs() < 1e-9, "{line:?}");
        assert!((line.asymptote().unwrap() * 1e3 - 1242.0).abs() < 0.5, "{line:?}");
    }

    #[test]
    fn no_time_is_negative() {
        let through_zero = fit_line(&points(&[(1.0, 0.5), (2.0, 2.0), (3.0, 3.5)])).unwrap();
        assert_eq!(through_zero.floor, 0.0);
        assert!((through_zero.slope - 15.0 / 14.0).abs() < 1e-12, "{through_zero:?}");
        let flat = fit_line(&points(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])).unwrap();
        assert_eq!(flat, Line { floor: 2.0, slope: 0.0 });
        assert!(flat.asymptote().is_none());
    }

    #[test]
    fn a_line_needs_two_places() {
        assert!(matches!(fit_line(&points(&[(1.0, 1.0)])), Err(LabError::TooFew { .. })));
        assert!(matches!(fit_line(&points(&[(2.0, 1.0), (2.0, 3.0)])), Err(LabError::OnePlace { .. })));
        assert!(matches!(fit_line(&points(&[(2.0, 1.0), (f64::NAN, 3.0)])), Err(LabError::NotFinite { .. })));
        let zero = [MeasuredPoint { x: 1.0, runs: vec![0.0] }, MeasuredPoint { x: 2.0, runs: vec![1.0] }];
        let random = &mut fastrand::Rng::with_seed(1);
        assert!(matches!(fit_line_with_interval(&zero, random), Err(LabError::NotPositive { .. })));
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        let seed = 3;
        let mut random = fastrand::Rng::with_seed(seed);
        let trials = 40;
        let mut held = 0;
        for _ in 0..trials {
            let measured: Vec<MeasuredPoint> = [1.0, 4.0, 16.0, 64.0]
                .iter()
                .map(|&x| {
                    let runs = (0..9).map(|_| (5.0 + 0.5 * x) * (1.0 + 0.06 * (random.f64() - 0.5)));
                    MeasuredPoint { x, runs: runs.collect() }
                })
                .collect();
            let fit = fit_line_with_interval(&measured, &mut random.fork()).unwrap();
            held += usize::from(fit.slope.contains(0.5)) + usize::from(fit.floor.contains(5.0));
            assert!(fit.worst_residual.abs() < 0.03);
        }
        assert!(held >= trials * 2 * 85 / 100, "{held} of {}, seed {seed}", trials * 2);
    }
}
