//! What a projection is worth, from its three points alone: half of the cases lie below the middle point, and on either
//! side they are taken as spread evenly, reaching beyond the outer points by the 5 % that lie there. And, over closed
//! levers, what projections were worth: how often the measured uplift fell inside, and how much of it came.

use super::lever::Projection;
use crate::stats::Sample;
use serde::Serialize;

/// At this chance of an uplift above the threshold a lever is worth its days.
const GO_CHANCE: f64 = 0.8;

/// Fewer closed levers than this say nothing about the next one.
const TRANSFER_LEVERS_MIN: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// The uplift exceeds the threshold in at least 4 cases of 5.
    Go,
    /// It does so in less than 1 case of 20.
    NoGo,
    /// Neither: a better projection, or a cheaper test first.
    Unclear,
}

impl Decision {
    pub fn name(self) -> &'static str {
        match self {
            Decision::Go => "go",
            Decision::NoGo => "no-go",
            Decision::Unclear => "unclear",
        }
    }
}

impl Projection {
    /// The mean of the uplift, counting losses as 0: a lever that loses is not kept.
    pub fn expected_gain_percent(&self) -> f64 {
        self.halves().map(|(low, high)| 0.5 * mean_above_zero(low, high)).iter().sum()
    }

    pub fn chance_above(&self, tau_percent: f64) -> f64 {
        self.halves().map(|(low, high)| 0.5 * share_above(low, high, tau_percent)).iter().sum()
    }

    pub fn decision(&self, tau_percent: f64) -> Decision {
        if self.chance_above(tau_percent) >= GO_CHANCE {
            Decision::Go
        } else if self.uplift_percent[2] < tau_percent {
            Decision::NoGo
        } else {
            Decision::Unclear
        }
    }

    pub fn holds(&self, uplift_percent: f64) -> bool {
        (self.uplift_percent[0]..=self.uplift_percent[2]).contains(&uplift_percent)
    }

    /// The even distributions of the lower and of the upper half.
    fn halves(&self) -> [(f64, f64); 2] {
        let [low, middle, high] = self.uplift_percent;
        // The outer points leave 5 of the 50 % outside.
        let reach = 0.5 / 0.45;
        [(middle - (middle - low) * reach, middle), (middle, middle + (high - middle) * reach)]
    }
}

fn mean_above_zero(low: f64, high: f64) -> f64 {
    if low >= 0.0 {
        f64::midpoint(low, high)
    } else if high <= 0.0 {
        0.0
    } else {
        high * high / (high - low) / 2.0
    }
}

fn share_above(low: f64, high: f64, tau: f64) -> f64 {
    if tau < low {
        1.0
    } else if tau >= high {
        0.0
    } else {
        (high - tau) / (high - low)
    }
}

/// How often a measured uplift fell between the outer points of what was projected before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub inside: usize,
    pub levers: usize,
}

/// How much of a projected uplift came, over closed levers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transfer {
    pub p05: f64,
    pub median: f64,
    pub p95: f64,
    pub levers: usize,
}

impl Coverage {
    pub fn of<'a>(closed: impl Iterator<Item = (&'a Projection, f64)>) -> Self {
        closed.fold(Coverage::default(), |sum, (projection, measured)| Coverage {
            inside: sum.inside + usize::from(projection.holds(measured)),
            levers: sum.levers + 1,
        })
    }
}

impl Transfer {
    /// `None` with too few levers. Projections of nothing cannot be divided by, and are left out.
    pub fn of<'a>(closed: impl Iterator<Item = (&'a Projection, f64)>) -> Option<Self> {
        let ratios: Vec<f64> = closed
            .filter(|(projection, _)| projection.uplift_percent[1] > 0.0)
            .map(|(projection, measured)| measured / projection.uplift_percent[1])
            .collect();
        if ratios.len() < TRANSFER_LEVERS_MIN {
            return None;
        }
        let levers = ratios.len();
        let sample = Sample::new("transfer factors", ratios).ok()?;
        let [p05, median, p95] = [0.05, 0.5, 0.95].map(|share| sample.quantile(share));
        Some(Transfer { p05, median, p95, levers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn projection(uplift_percent: [f64; 3]) -> Projection {
        Projection { what: "x".into(), uplift_percent, date: None, after: BTreeMap::new(), after_runs: 0 }
    }

    #[test]
    fn expectations_agree_with_drawn_cases() {
        let seed = 9;
        let mut random = fastrand::Rng::with_seed(seed);
        for points in
            [[0.0, 10.0, 25.0], [-20.0, -5.0, 15.0], [-9.0, 0.0, 0.0], [3.0, 3.0, 3.0], [-3.0, 4.0, 5.0]]
        {
            let projection = projection(points);
            let [lower, upper] = projection.halves();
            let cases: Vec<f64> = (0..100_000)
                .map(|_| {
                    let (low, high) = if random.bool() { lower } else { upper };
                    low + (high - low) * random.f64()
                })
                .collect();
            let drawn = Sample::new("cases", cases.clone()).unwrap();
            for (share, point) in [0.05, 0.5, 0.95].into_iter().zip(points) {
                assert!((drawn.quantile(share) - point).abs() < 0.4, "{points:?} {share}, seed {seed}");
            }
            let mean = cases.iter().map(|case| case.max(0.0)).sum::<f64>() / cases.len() as f64;
            assert!(
                (projection.expected_gain_percent() - mean).abs() < 0.1,
                "{points:?}: {mean}, seed {seed}"
            );
            let above = cases.iter().filter(|case| **case > 2.0).count() as f64 / cases.len() as f64;
            assert!((projection.chance_above(2.0) - above).abs() < 0.01, "{points:?}: {above}, seed {seed}");
        }
    }

    #[test]
    fn go_and_no_go_are_fixed_by_the_threshold() {
        assert_eq!(projection([6.0, 10.0, 20.0]).decision(5.0), Decision::Go);
        assert_eq!(projection([0.0, 2.0, 4.0]).decision(5.0), Decision::NoGo);
        assert_eq!(projection([0.0, 6.0, 20.0]).decision(5.0), Decision::Unclear);
        assert_eq!(projection([0.0, 0.0, 0.0]).decision(0.0), Decision::Unclear);
    }

    #[test]
    fn projections_are_held_against_what_came() {
        let projections: Vec<Projection> = (0..6).map(|_| projection([5.0, 10.0, 15.0])).collect();
        let measured = [10.0, 8.0, 4.0, 12.0, 6.0, 9.0];
        let pairs = || projections.iter().zip(measured);
        assert_eq!(Coverage::of(pairs()), Coverage { inside: 5, levers: 6 });
        let transfer = Transfer::of(pairs()).unwrap();
        assert!((transfer.median - 0.85).abs() < 1e-9 && transfer.levers == 6, "{transfer:?}");
        assert!(Transfer::of(pairs().take(4)).is_none());
        assert!(
            Transfer::of(projections.iter().map(|_| 1.0).zip(measured).map(|(_, m)| (&projections[0], m)))
                .is_some()
        );
    }
}
