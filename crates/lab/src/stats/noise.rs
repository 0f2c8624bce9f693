//! How far two measurements of the same thing lie apart. The unit is the block: the same point measured as A, B, B, A
//! right after one another, so that a drift of the machine falls on both labels alike. Blocks in which A and B are
//! equal say what a difference must exceed before it means anything.

use super::{Sample, check_finite, t_quantile};
use crate::LabError;
use serde::Serialize;

/// 97.5 % and 80 % of the normal distribution: 5 % of false alarms on both sides, 80 % of real effects found.
const Z_95: f64 = 1.959_964;
const Z_80: f64 = 0.841_621;

const ALPHA: f64 = 0.05;

/// The history of which the fence is made: older deltas belong to another state of the machine.
const FENCE_DELTAS: usize = 30;
/// Quartiles of fewer say nothing.
const FENCE_DELTAS_MIN: usize = 8;

/// One A, B, B, A block of a metric that is above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AbbaBlock {
    pub a: [f64; 2],
    pub b: [f64; 2],
}

impl AbbaBlock {
    /// Of four runs in the order in which they were measured.
    pub fn in_order([a1, b1, b2, a2]: [f64; 4]) -> Self {
        AbbaBlock { a: [a1, a2], b: [b1, b2] }
    }

    /// The same runs with one of each label on both sides: whatever A and B differ in cancels, so this is an A/A block,
    /// though one in which half of a drift remains.
    pub fn mixed(&self) -> Self {
        AbbaBlock { a: [self.a[0], self.b[1]], b: [self.b[0], self.a[1]] }
    }

    /// How much larger B is: the difference of the means of the logarithms.
    ///
    /// # Errors
    /// A value that is not finite or not above 0.
    pub fn log_ratio(&self) -> Result<f64, LabError> {
        let values = [self.a[0], self.a[1], self.b[0], self.b[1]];
        let what = "a block of A, B, B, A";
        check_finite(what, &values)?;
        if let Some(index) = values.iter().position(|value| *value <= 0.0) {
            return Err(LabError::NotPositive { what, index, value: values[index] });
        }
        let [a1, a2, b1, b2] = values.map(f64::ln);
        Ok((b1 + b2 - a1 - a2) / 2.0)
    }
}

/// The log ratios of A/A blocks, oldest first, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise(Vec<f64>);

impl Noise {
    /// # Errors
    /// No ratios, or one that is not finite.
    pub fn new(log_ratios: Vec<f64>) -> Result<Self, LabError> {
        let what = "A/A blocks";
        check_finite(what, &log_ratios)?;
        if log_ratios.is_empty() {
            return Err(LabError::TooFew { what, have: 0, need: 1 });
        }
        Ok(Noise(log_ratios))
    }

    pub fn blocks(&self) -> usize {
        self.0.len()
    }

    /// What one run scatters beyond what its neighbours share with it, `sigma * sqrt(1 - rho)`, as a share. The truth of
    /// an A/A block is 0 and not its mean, so nothing is taken off the degrees of freedom.
    pub fn sigma(&self) -> f64 {
        (self.0.iter().map(|ratio| ratio * ratio).sum::<f64>() / self.0.len() as f64).sqrt()
    }

    /// What a difference between two medians of `runs` runs each must exceed.
    pub fn band(&self, runs: usize) -> NoiseBand {
        let blocks = self.blocks();
        // Few blocks know their sigma badly: Student's t says how badly.
        let quantile = if blocks < 10 { t_quantile(ALPHA, blocks as f64) } else { Z_95 };
        // A block is two runs a side: what it lies off shrinks or grows with the number of runs as sigma does.
        let share = difference_sigma((quantile * self.sigma()).max(self.fence().unwrap_or(0.0)), runs);
        NoiseBand { share, sigma: self.sigma(), blocks, runs }
    }

    /// `Q3 + 3 IQR` of how far the newest blocks lay off: what a single block does not exceed even on a bad day.
    fn fence(&self) -> Option<f64> {
        let recent = &self.0[self.0.len().saturating_sub(FENCE_DELTAS)..];
        if recent.len() < FENCE_DELTAS_MIN {
            return None;
        }
        let sample = Sample::new("A/A blocks", recent.iter().map(|ratio| ratio.abs()).collect()).ok()?;
        let (q1, q3) = (sample.quantile(0.25), sample.quantile(0.75));
        Some(q3 + 3.0 * (q3 - q1))
    }
}

/// Differences within `share` (0.03 is 3 %) mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NoiseBand {
    pub share: f64,
    /// Of one run.
    pub sigma: f64,
    /// That it was learned from.
    pub blocks: usize,
    /// Per side of the comparison that it is meant for.
    pub runs: usize,
}

/// What a difference between two medians of `runs` runs each must exceed when one run is known to scatter by `sigma`.
pub fn difference_band(sigma: f64, runs: usize) -> f64 {
    Z_95 * difference_sigma(sigma, runs)
}

fn difference_sigma(sigma: f64, runs: usize) -> f64 {
    sigma * (2.0 / runs.max(1) as f64).sqrt()
}

/// The smallest true change (as a share) that `runs` runs a side find 4 times of 5, with 5 % of false alarms. `rho` is the
/// correlation of neighbouring runs.
pub fn minimum_detectable_effect(sigma: f64, runs: usize, rho: f64) -> f64 {
    (Z_95 + Z_80) * sigma * (2.0 * (1.0 - rho) / runs.max(1) as f64).sqrt()
}

/// Runs a side that find a true change of `delta`, by the same rule. `None` when no number of runs does.
pub fn runs_needed(sigma: f64, delta: f64, rho: f64) -> Option<u64> {
    let runs = (2.0 * (1.0 - rho) * ((Z_95 + Z_80) * sigma / delta).powi(2)).ceil();
    (runs.is_finite() && runs < 1e15).then_some(runs as u64)
}

/// The sigma (as a share of the middle) that `runs` runs between `low` and `high` suggest, for the numbers of runs that
/// the table of expected ranges has.
pub fn sigma_from_range(low: f64, high: f64, runs: usize) -> Option<f64> {
    const EXPECTED_RANGE: [(usize, f64); 7] =
        [(2, 1.128), (3, 1.693), (4, 2.059), (5, 2.326), (6, 2.534), (8, 2.847), (10, 3.078)];
    let (_, range) = EXPECTED_RANGE.iter().find(|(count, _)| *count == runs)?;
    Some((high - low) / range / f64::midpoint(low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the worked example: 775 to 845 tokens/s seen at one concurrency.
    #[test]
    fn the_worked_example_comes_back() {
        for (runs, sigma, effects, needed, needed_paired) in [
            (3, 5.1, [20.2, 11.7, 9.0, 6.4], 46, 10),
            (5, 3.7, [14.7, 8.5, 6.6, 4.7], 25, 5),
            (8, 3.0, [12.0, 6.9, 5.4, 3.8], 17, 4),
        ] {
            let found = sigma_from_range(775.0, 845.0, runs).unwrap();
            assert!((found * 100.0 - sigma).abs() < 0.051, "{runs}: {found}");
            for (arm, effect) in [1, 3, 5, 10].into_iter().zip(effects) {
                let found = minimum_detectable_effect(found, arm, 0.0) * 100.0;
                assert!((found - effect).abs() < 0.051, "{runs} {arm}: {found}");
            }
            assert_eq!(runs_needed(found, 0.03, 0.0), Some(needed));
            assert_eq!(runs_needed(found, 0.03, 0.8), Some(needed_paired));
        }
        assert_eq!(runs_needed(0.03, 0.0, 0.0), None);
        assert_eq!(sigma_from_range(1.0, 2.0, 7), None);
    }

    #[test]
    fn a_drift_falls_on_both_labels() {
        // 1 % slower from run to run, on a logarithmic scale.
        let run = |index: i32| 1.01_f64.powi(index);
        let block = AbbaBlock { a: [run(0), run(3)], b: [run(1), run(2)] };
        assert!(block.log_ratio().unwrap().abs() < 1e-12);
        assert!(AbbaBlock { a: [1.0, 0.0], b: [1.0, 1.0] }.log_ratio().is_err());
    }

    fn normal(random: &mut fastrand::Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    /// Blocks of runs with 3 % noise: sigma comes back, and equal medians of means differ beyond the band about 1 time
    /// in 20.
    #[test]
    fn the_band_is_left_as_rarely_as_it_says() {
        let seed = 17;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut run = move || (0.03 * normal(&mut random)).exp();
        let mut ratios = || -> Vec<f64> {
            (0..5).map(|_| AbbaBlock { a: [run(), run()], b: [run(), run()] }.log_ratio().unwrap()).collect()
        };
        let many = Noise::new((0..200).flat_map(|_| ratios()).collect()).unwrap();
        assert!((many.sigma() - 0.03).abs() < 0.002, "{}", many.sigma());
        let trials = 2000;
        let outside = (0..trials)
            .filter(|_| {
                let band = Noise::new(ratios()).unwrap().band(2);
                // One more block is a comparison of two runs a side.
                ratios()[0].abs() > band.share
            })
            .count();
        let share = outside as f64 / f64::from(trials);
        assert!((0.035..0.065).contains(&share), "{share}, seed {seed}");
    }

    #[test]
    fn few_blocks_widen_the_band() {
        let ratios = [0.01, -0.02, 0.015, -0.01, 0.02, -0.015, 0.01, -0.01, 0.02, -0.02];
        let few = Noise::new(ratios[..3].to_vec()).unwrap().band(3);
        let more = Noise::new(ratios[..6].to_vec()).unwrap().band(3);
        assert!(few.share / few.sigma > more.share / more.sigma);
        // With ten the fence takes part: Q3 + 3 IQR of the sizes.
        let all = Noise::new(ratios.to_vec()).unwrap();
        assert!((all.fence().unwrap() - (0.02 + 3.0 * 0.01)).abs() < 1e-3, "{:?}", all.fence());
    }
}
