//! When a comparison is looked at. Three looks whose nominal alphas have the shape of O'Brien and Fleming: the first asks for
//! overwhelming evidence, the last for nearly the usual. Over all three, equal things are told apart about 5 % of the time.

use crate::stats::t_quantile;

const PLAN: [(usize, f64); 3] = [(4, 0.0005), (8, 0.014), (12, 0.045)];

/// The share of true changes that must be found is 80 %; of Student's t, 20 % lie above this, and 20 % below its negative.
const TWO_SIDED_FOR_POWER: f64 = 0.4;

/// Above it a change has no number.
const LOG_RATIO_MAX: f64 = 700.0;

/// So many pairs, and what is asked of them. Quantiles are computed once, as a simulation looks a hundred thousand times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    pub pairs: usize,
    /// Two-sided.
    pub alpha: f64,
    pub critical_t: f64,
    power_t: f64,
}

impl Look {
    /// At least 2 pairs are needed for a scatter; fewer are taken as 2.
    pub fn new(pairs: usize, alpha: f64) -> Self {
        Look::with_freedom(pairs, alpha, (pairs.max(2) - 1) as f64)
    }

    pub(super) fn with_freedom(pairs: usize, alpha: f64, freedom: f64) -> Self {
        Look {
            pairs,
            alpha,
            critical_t: t_quantile(alpha, freedom),
            power_t: t_quantile(TWO_SIDED_FOR_POWER, freedom),
        }
    }

    /// The smallest true change that this look finds 4 times of 5, when the log ratio of one pair scatters by `sigma`.
    pub fn detectable(&self, sigma: f64) -> f64 {
        let log_ratio = (self.critical_t + self.power_t) * sigma / (self.pairs.max(1) as f64).sqrt();
        log_ratio.min(LOG_RATIO_MAX).exp_m1()
    }
}

pub fn planned_looks() -> [Look; 3] {
    PLAN.map(|(pairs, alpha)| Look::new(pairs, alpha))
}

/// Pairs after which a single look at `alpha` finds a change of `delta` 4 times of 5; `None` beyond a million.
pub fn pairs_needed(sigma: f64, delta: f64, alpha: f64) -> Option<usize> {
    const PAIRS_MAX: usize = 1_000_000;
    // By the normal distribution, which asks for slightly too few; Student's t then asks for a few more.
    let least = crate::stats::runs_needed(sigma, delta, 0.0)?.div_ceil(2);
    let least = usize::try_from(least).ok()?.max(2);
    (least..PAIRS_MAX.min(least.saturating_add(100)))
        .find(|pairs| Look::new(*pairs, alpha).detectable(sigma) <= delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_pairs_resolve_nine_tenths_of_a_sigma() {
        let last = planned_looks()[2];
        assert!((last.detectable(0.03) - 0.0275).abs() < 2e-4, "{}", last.detectable(0.03));
        assert_eq!(pairs_needed(0.03, last.detectable(0.03), last.alpha), Some(12));
        let for_one_percent = pairs_needed(0.03, 0.01, 0.045).unwrap();
        assert!((74..80).contains(&for_one_percent), "{for_one_percent}");
        assert_eq!(pairs_needed(0.03, 0.0, 0.045), None);
        assert_eq!(pairs_needed(1.0, 1e-9, 0.045), None);
    }
}
