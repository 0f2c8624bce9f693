//! How much better B is than A, with an interval: the mean of paired log ratios and Student's t; Welch's t where runs do not
//! come in pairs. Changes are shares of A, above 0 where B is better, whichever way the number improves.

use super::looks::Look;
use crate::stats::Interval;
use crate::{Better, LabError};
use serde::Serialize;

/// Relative rounding of an `f64`, with room: scatter below it is none.
const NO_SCATTER: f64 = 1e-12;

/// Of logarithms: B a hundred million times A, or the other way round, is no change of one thing.
const LOG_RATIO_MAX: f64 = 18.42;

/// Of logarithms: two pairs may know so little that an end of their interval is beyond all numbers.
const LOG_END_MAX: f64 = 700.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Pairing {
    /// A, B, B, A right after one another.
    Blocks { blocks: usize },
    /// Runs of the same round in two files.
    Rounds { rounds: usize },
    /// Nothing says which run belongs to which.
    Unpaired { a: usize, b: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub pairing: Pairing,
    /// Two-sided: the interval holds the truth this much short of always.
    pub alpha: f64,
    pub gain: f64,
    pub interval: Interval,
    /// Of the log ratio of one pair.
    pub sigma: f64,
    /// The smallest true change that a comparison like this one finds 4 times of 5.
    pub detectable: f64,
}

impl Comparison {
    /// # Errors
    /// Fewer than two ratios, one that is not finite, or no scatter.
    pub fn of_pairs(
        log_ratios: &[f64],
        pairing: Pairing,
        look: &Look,
        better: Better,
    ) -> Result<Self, LabError> {
        let found = Comparison::of_pairs_that_may_agree(log_ratios, pairing, look, better)?;
        check_scatter(log_ratios.len(), log_ratios[0], found.sigma)?;
        Ok(found)
    }

    /// Like `of_pairs`, of numbers that may be exact: an accuracy is the same in every run, and that is no fault.
    pub(super) fn of_pairs_that_may_agree(
        log_ratios: &[f64],
        pairing: Pairing,
        look: &Look,
        better: Better,
    ) -> Result<Self, LabError> {
        let what = "a comparison";
        let count = log_ratios.len();
        if count < 2 {
            return Err(LabError::TooFew { what, have: count, need: 2 });
        }
        let (mean, sigma) = mean_and_sigma(what, log_ratios)?;
        let look = if look.pairs == count { *look } else { Look::new(count, look.alpha) };
        Comparison::around(mean, sigma, pairing, &look, better)
    }

    /// Without pairs: two samples of at least two values above 0 each.
    ///
    /// # Errors
    /// Fewer values, values that have no logarithm, or no scatter.
    pub fn of_samples(a: &[f64], b: &[f64], alpha: f64, better: Better) -> Result<Self, LabError> {
        let what = "a side of the comparison";
        let mut sides = [(0.0, 0.0); 2];
        for (side, values) in sides.iter_mut().zip([a, b]) {
            if values.len() < 2 {
                return Err(LabError::TooFew { what, have: values.len(), need: 2 });
            }
            let (mean, sigma) = mean_and_sigma(what, &logarithms(what, values)?)?;
            *side = (mean, sigma * sigma / values.len() as f64);
        }
        let [(mean_a, error_a), (mean_b, error_b)] = sides;
        let error = error_a + error_b;
        check_scatter(a.len().min(b.len()), mean_b - mean_a, error.sqrt())?;
        let freedom =
            error.powi(2) / (error_a.powi(2) / (a.len() - 1) as f64 + error_b.powi(2) / (b.len() - 1) as f64);
        // As many pairs as the two samples are worth, so that sigma means the same as above.
        let pairs = (2.0 / (1.0 / a.len() as f64 + 1.0 / b.len() as f64)).floor().max(1.0);
        let look = Look::with_freedom(pairs as usize, alpha, freedom.max(1.0));
        let pairing = Pairing::Unpaired { a: a.len(), b: b.len() };
        Comparison::around(mean_b - mean_a, (error * pairs).sqrt(), pairing, &look, better)
    }

    fn around(
        mean: f64,
        sigma: f64,
        pairing: Pairing,
        look: &Look,
        better: Better,
    ) -> Result<Self, LabError> {
        if mean.abs() > LOG_RATIO_MAX {
            return Err(LabError::TooFarApart { power: mean / std::f64::consts::LN_10 });
        }
        let half = look.critical_t * sigma / (look.pairs as f64).sqrt();
        let gain = |log_ratio: f64| {
            let change = log_ratio.min(LOG_END_MAX).exp_m1();
            match better {
                Better::Higher => change,
                Better::Lower => -change,
            }
        };
        let ends = [gain(mean - half), gain(mean + half)];
        Ok(Comparison {
            pairing,
            alpha: look.alpha,
            gain: gain(mean),
            interval: Interval { low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) },
            sigma,
            detectable: look.detectable(sigma),
        })
    }
}

/// # Errors
/// A value that is not finite or not above 0.
pub fn logarithms(what: &'static str, values: &[f64]) -> Result<Vec<f64>, LabError> {
    let logarithm = |(index, value): (usize, &f64)| match *value {
        value if !value.is_finite() => Err(LabError::NotFinite { what, index, value }),
        value if value <= 0.0 => Err(LabError::NotPositive { what, index, value }),
        value => Ok(value.ln()),
    };
    values.iter().enumerate().map(logarithm).collect()
}

fn mean_and_sigma(what: &'static str, values: &[f64]) -> Result<(f64, f64), LabError> {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(LabError::NotFinite { what, index, value: values[index] });
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    Ok((mean, (squares / (count - 1.0)).sqrt()))
}

fn check_scatter(pairs: usize, log_ratio: f64, sigma: f64) -> Result<(), LabError> {
    if sigma > NO_SCATTER {
        return Ok(());
    }
    Err(LabError::NoScatter { pairs, ratio: (log_ratio.exp() * 1e6).round() / 1e6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: Pairing = Pairing::Rounds { rounds: 3 };

    /// Against a t interval worked by hand: mean 0.02, sigma 0.01, three pairs, t of 2 degrees at 5 % is 4.3027.
    #[test]
    fn the_interval_is_students() {
        let ratios = [0.01, 0.02, 0.03];
        let higher = Comparison::of_pairs(&ratios, ROUNDS, &Look::new(3, 0.05), Better::Higher).unwrap();
        assert!((higher.sigma - 0.01).abs() < 1e-12);
        let half = 4.302_653 * 0.01 / 3.0_f64.sqrt();
        assert!((higher.interval.low - (0.02 - half).exp_m1()).abs() < 1e-7, "{higher:?}");
        assert!((higher.interval.high - (0.02 + half).exp_m1()).abs() < 1e-7, "{higher:?}");
        let lower = Comparison::of_pairs(&ratios, ROUNDS, &Look::new(3, 0.05), Better::Lower).unwrap();
        assert_eq!((lower.gain, lower.interval.low), (-higher.gain, -higher.interval.high));
    }

    #[test]
    fn an_interval_that_knows_nothing_is_still_numbers() {
        let look = Look::new(2, 1e-9);
        let found = Comparison::of_pairs(&[0.0, 0.4], ROUNDS, &look, Better::Lower).unwrap();
        assert!(found.interval.low.is_finite() && found.detectable.is_finite(), "{found:?}");
    }

    #[test]
    fn samples_without_pairs_are_welchs() {
        // Logarithms 0, 0.01, 0.02 against 0.05, 0.07: errors 1e-4 / 3 and 2e-4 / 2.
        let exp = |values: &[f64]| values.iter().map(|value: &f64| value.exp()).collect::<Vec<_>>();
        let (a, b) = (exp(&[0.0, 0.01, 0.02]), exp(&[0.05, 0.07]));
        let found = Comparison::of_samples(&a, &b, 0.05, Better::Higher).unwrap();
        assert!((found.gain - 0.05_f64.exp_m1()).abs() < 1e-12);
        let error: f64 = 1e-4 / 3.0 + 1e-4;
        let freedom = error.powi(2) / ((1e-4 / 3.0_f64).powi(2) / 2.0 + 1e-8);
        let half = crate::stats::t_quantile(0.05, freedom) * error.sqrt();
        assert!((found.interval.high - (0.05 + half).exp_m1()).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_cannot_be_compared_is_told() {
        let look = Look::new(4, 0.05);
        let told = |ratios: &[f64]| {
            Comparison::of_pairs(ratios, ROUNDS, &look, Better::Higher).unwrap_err().to_string()
        };
        assert!(told(&[]).contains("needs at least 2 values and has 0"));
        assert!(told(&[0.1]).contains("needs at least 2 values and has 1"));
        assert!(told(&[0.1, f64::NAN]).contains("is NaN"));
        assert!(told(&[0.0; 4]).contains("all 4 ratios of B to A are 1:"));
        let told = |a: &[f64], b: &[f64]| {
            Comparison::of_samples(a, b, 0.05, Better::Higher).unwrap_err().to_string()
        };
        assert!(told(&[1.0], &[1.0, 2.0]).contains("has 1"));
        assert!(told(&[1.0, 0.0], &[1.0, 2.0]).contains("above 0"));
        assert!(told(&[1.0, 1.0], &[2.0, 2.0]).contains("are 2:"));
        assert!(told(&[1e-300, 2e-300], &[1.0, 2.0]).contains("B is 1e300 times A"));
    }
}
