//! Numbers about numbers: medians and percentiles, bootstrap intervals, the noise band of repeated equal
//! measurements, and the line `T(B) = floor + slope * B`. Pure functions; randomness comes in as a seeded generator.

mod line;
mod noise;
mod nonnegative;
mod student;

pub use line::{Line, LineFit, MeasuredPoint, WeightedPoint, fit_line, fit_line_with_interval};
pub use noise::{
    AbbaBlock, Noise, NoiseBand, difference_band, minimum_detectable_effect, runs_needed, sigma_from_range,
};
pub use nonnegative::{Row, nonnegative_least_squares};
pub use student::{t_quantile, t_two_sided_p};

use crate::LabError;
use serde::Serialize;

/// At least one finite number, in ascending order.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// `what` names the numbers in the error.
    ///
    /// # Errors
    /// No numbers, or one that is not finite.
    pub fn new(what: &'static str, mut values: Vec<f64>) -> Result<Self, LabError> {
        check_finite(what, &values)?;
        if values.is_empty() {
            return Err(LabError::TooFew { what, have: 0, need: 1 });
        }
        values.sort_by(f64::total_cmp);
        Ok(Sample(values))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: there is at least one number. Here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Between the two nearest ranks, linearly; `q` outside 0 to 1 is taken as the nearer end.
    pub fn quantile(&self, q: f64) -> f64 {
        let place = q.clamp(0.0, 1.0) * (self.0.len() - 1) as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        self.0[below] + (self.0[above] - self.0[below]) * (place - below as f64)
    }

    pub fn spread(&self) -> Spread {
        Spread {
            median: self.median(),
            p10: self.quantile(0.1),
            p90: self.quantile(0.9),
            count: self.0.len(),
        }
    }
}

/// The middle of repeated measurements and how far they scatter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Half of its width, as a share of `value`.
    pub fn half_width_of(&self, value: f64) -> f64 {
        (self.high - self.low) / 2.0 / value
    }

    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The middle `confidence` (0 to 1) of what `statistic` gives for resampled data: the percentile bootstrap.
/// `statistic` draws its own resample from the generator that it is given.
pub fn bootstrap<E>(
    resamples: usize,
    confidence: f64,
    random: &mut fastrand::Rng,
    mut statistic: impl FnMut(&mut fastrand::Rng) -> Result<f64, E>,
) -> Result<Interval, E>
where
    E: From<LabError>,
{
    let mut values = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        values.push(statistic(random)?);
    }
    Ok(middle(&Sample::new("resamples", values)?, confidence))
}

/// The interval of the median of `values`, by bootstrap.
///
/// # Errors
/// No values, or one that is not finite.
pub fn median_interval(
    what: &'static str,
    values: &[f64],
    confidence: f64,
    random: &mut fastrand::Rng,
) -> Result<Interval, LabError> {
    Sample::new(what, values.to_vec())?;
    bootstrap(RESAMPLES, confidence, random, |random| {
        Ok(Sample::new(what, resample(values, random))?.median())
    })
}

/// Enough that an end of a 95 % interval moves by about a hundredth of the interval from seed to seed.
pub const RESAMPLES: usize = 2000;

fn resample(values: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    values.iter().map(|_| values[random.usize(..values.len())]).collect()
}

pub(crate) fn middle(sample: &Sample, confidence: f64) -> Interval {
    let tail = (1.0 - confidence.clamp(0.0, 1.0)) / 2.0;
    Interval { low: sample.quantile(tail), high: sample.quantile(1.0 - tail) }
}

fn check_finite(what: &'static str, values: &[f64]) -> Result<(), LabError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(LabError::NotFinite { what, index, value: values[index] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new("values", values.to_vec()).unwrap()
    }

    #[test]
    fn quantiles_lie_between_ranks() {
        let four = sample(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((four.median(), four.mean()), (2.5, 2.5));
        assert_eq!((four.quantile(0.0), four.quantile(1.0), four.quantile(7.0)), (1.0, 4.0, 4.0));
        assert!((four.quantile(0.9) - 3.7).abs() < 1e-12);
        assert_eq!(sample(&[5.0]).spread(), Spread { median: 5.0, p10: 5.0, p90: 5.0, count: 1 });
    }

    #[test]
    fn what_is_no_number_is_named() {
        let error = Sample::new("step times", vec![1.0, f64::NAN]).unwrap_err().to_string();
        assert_eq!(error, "value 1 of step times is NaN: only finite numbers can be measured with");
        assert!(Sample::new("step times", Vec::new()).is_err());
    }

    #[test]
    fn the_interval_of_a_median_holds_the_truth_as_often_as_it_says() {
        let seed = 5;
        let mut random = fastrand::Rng::with_seed(seed);
        let trials = 300;
        let held = (0..trials)
            .filter(|_| {
                let values: Vec<f64> = (0..25).map(|_| random.f64()).collect();
                let mut draws = random.fork();
                median_interval("values", &values, 0.95, &mut draws).unwrap().contains(0.5)
            })
            .count();
        assert!((270..=trials).contains(&held), "{held} of {trials}, seed {seed}");
    }
}
