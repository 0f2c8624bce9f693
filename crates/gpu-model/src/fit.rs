//! Finds what a CTA's work costs (t0, t1, c of `splits.rs`) from measured times, and says how well the staircase describes
//! them. Least squares of relative errors, since times of a sweep differ by tens; costs cannot be negative.

use crate::least_squares::{Row, error, not_negative, solve};
use crate::splits::{BATCH_MAX, SplitLaunch, TileCosts};
use serde::Serialize;
use thiserror::Error;

/// Measured points that are taken at most.
pub const POINTS_MAX: usize = 100_000;
pub const POINTS_MIN: usize = 4;
/// Above this residual, waves do not describe the kernel: perhaps memory bounds it, and its last wave is a short one.
pub const RESIDUAL_PERCENT_HOLDS: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub batch: u32,
    pub splits: u32,
    /// In any unit: the costs come out in the same.
    pub time: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    pub costs: TileCosts,
    pub points: usize,
    /// Root of the mean square of relative errors.
    pub residual_percent: f64,
    /// The point that is described worst, and by how much the model's time differs from it.
    pub worst: Measured,
    pub worst_error_percent: f64,
}

impl Fit {
    pub fn holds(&self) -> bool {
        self.residual_percent <= RESIDUAL_PERCENT_HOLDS
    }
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    #[error(
        "{points} measured points: {POINTS_MIN} to {POINTS_MAX} are needed for three costs and a residual"
    )]
    Points { points: usize },
    #[error(
        "point {number} (batch {batch}, {splits} splits, time {time}): batches are 1 to {BATCH_MAX}, splits 1 to the number of tiles, times above 0"
    )]
    BadPoint { number: usize, batch: u32, splits: u32, time: f64 },
    #[error(
        "these points cannot tell the costs apart: measure several numbers of splits at two batches or more"
    )]
    Alike,
}

/// Fits the costs to points measured on `launch`, whose own costs do not matter.
///
/// # Errors
/// Too few points, points that cannot be, or points that leave the costs open.
pub fn fit(launch: &SplitLaunch, points: &[Measured]) -> Result<Fit, FitError> {
    if !(POINTS_MIN..=POINTS_MAX).contains(&points.len()) {
        return Err(FitError::Points { points: points.len() });
    }
    let rows: Vec<Row<3>> = points
        .iter()
        .enumerate()
        .map(|(index, point)| row(launch, point).ok_or_else(|| bad_point(index, point)))
        .collect::<Result<_, _>>()?;
    // All three must be open to question before some may turn out to be 0.
    solve(&rows, [true; 3]).ok_or(FitError::Alike)?;
    let [t0, t1, c] = not_negative(&rows).ok_or(FitError::Alike)?;
    let errors = rows.iter().map(|row| error(row, &[t0, t1, c]));
    let squares: f64 = errors.clone().map(|error| error * error).sum();
    let worst = errors.zip(points).max_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    let (worst_error, worst) = worst.ok_or(FitError::Points { points: 0 })?;
    Ok(Fit {
        costs: TileCosts { t0, t1, c },
        points: points.len(),
        residual_percent: 100.0 * (squares / points.len() as f64).sqrt(),
        worst: *worst,
        worst_error_percent: 100.0 * worst_error,
    })
}

fn bad_point(index: usize, point: &Measured) -> FitError {
    let Measured { batch, splits, time } = *point;
    FitError::BadPoint { number: index + 1, batch, splits, time }
}

fn row(launch: &SplitLaunch, point: &Measured) -> Option<Row<3>> {
    let Measured { batch, splits, time } = *point;
    let sizes_are_known = (1..=BATCH_MAX).contains(&batch) && (1..=launch.tiles.get()).contains(&splits);
    if !sizes_are_known || !time.is_normal() || time < 0.0 {
        return None;
    }
    let waves = launch.grid(batch, splits).waves as f64;
    let combined = if splits > 1 { f64::from(splits) } else { 0.0 };
    let row = [waves, waves * f64::from(launch.tiles_per_cta(splits)), combined].map(|factor| factor / time);
    row.iter().all(|factor| factor.is_finite()).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn launch(costs: TileCosts) -> SplitLaunch {
        let number = |value| NonZeroU32::new(value).unwrap();
        SplitLaunch::new(number(1), number(32), number(188), costs).unwrap()
    }

    /// Points at two batches, each time off by a factor.
    fn measured(costs: TileCosts, off: impl Fn(usize) -> f64) -> Vec<Measured> {
        let sizes = [64, 96].into_iter().flat_map(|batch| [1, 2, 4, 8].map(|splits| (batch, splits)));
        let launch = launch(costs);
        let time = |index, batch, splits| launch.time(batch, splits) * off(index);
        sizes
            .enumerate()
            .map(|(index, (batch, splits))| Measured { batch, splits, time: time(index, batch, splits) })
            .collect()
    }

    #[test]
    fn known_costs_are_found_again() {
        let costs = TileCosts { t0: 12.5, t1: 3.1, c: 0.7 };
        let fit = fit(&launch(TileCosts { t0: 0.0, t1: 1.0, c: 0.0 }), &measured(costs, |_| 1.0)).unwrap();
        for (found, true_cost) in [(fit.costs.t0, 12.5), (fit.costs.t1, 3.1), (fit.costs.c, 0.7)] {
            assert!((found - true_cost).abs() < 1e-6, "{fit:?}");
        }
        assert!(fit.holds() && fit.residual_percent < 1e-6);
    }

    #[test]
    fn noise_shows_in_the_residual_and_costs_stay_positive() {
        let costs = TileCosts { t0: 0.0, t1: 3.1, c: 0.0 };
        let noisy = measured(costs, |index| if index % 2 == 0 { 1.02 } else { 0.98 });
        let fit = fit(&launch(costs), &noisy).unwrap();
        assert!(fit.costs.t0 >= 0.0 && fit.costs.c >= 0.0 && fit.holds(), "{fit:?}");
        assert!((0.1..=2.1).contains(&fit.residual_percent), "{fit:?}");
    }

    #[test]
    fn a_kernel_without_waves_is_told() {
        let unlike = [100.0, 90.0, 300.0, 20.0, 500.0, 40.0, 44.0, 900.0];
        let mut points = measured(TileCosts { t0: 1.0, t1: 1.0, c: 0.0 }, |_| 1.0);
        points.iter_mut().zip(unlike).for_each(|(point, time)| point.time = time);
        assert!(!fit(&launch(TileCosts { t0: 0.0, t1: 1.0, c: 0.0 }), &points).unwrap().holds());
    }

    #[test]
    fn points_that_leave_costs_open_are_refused() {
        let launch = launch(TileCosts { t0: 0.0, t1: 1.0, c: 0.0 });
        let same = [Measured { batch: 8, splits: 1, time: 3.0 }; 6];
        assert_eq!(fit(&launch, &same), Err(FitError::Alike));
        assert_eq!(fit(&launch, &same[..2]), Err(FitError::Points { points: 2 }));
        for bad in [
            Measured { time: f64::NAN, ..same[0] },
            Measured { time: 0.0, ..same[0] },
            Measured { time: -1.0, ..same[0] },
            Measured { time: f64::INFINITY, ..same[0] },
            Measured { splits: 33, ..same[0] },
            Measured { batch: 0, ..same[0] },
        ] {
            assert!(matches!(
                fit(&launch, &[same[0], same[0], same[0], bad]),
                Err(FitError::BadPoint { number: 4, .. })
            ));
        }
    }
}
