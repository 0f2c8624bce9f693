//! What runs in which order: a pure function of points, repeats and a seed.

use super::RunRecord;
use crate::{LabError, Point};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Far more than anybody waits for; bounds what a typing error can ask for.
const RUNS_MAX: usize = 100_000;

/// A, B, B, A.
const RUNS_PER_BLOCK: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Each once, however often it is named.
    pub points: Vec<Point>,
    /// Rounds over all points.
    pub repeats: usize,
    /// Points that are compared with themselves, before the rounds.
    pub noise: Vec<NoisePlan>,
    /// Of the order within the rounds.
    pub seed: u64,
}

/// A point, and how often it is compared with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoisePlan {
    pub point: Point,
    pub blocks: usize,
}

/// Names a run for good: two runs of one name are the same run, measured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum RunKey {
    /// Place 0 to 3 of an A, B, B, A block.
    Noise {
        block: usize,
        place: usize,
        point: Point,
    },
    Round {
        round: usize,
        point: Point,
    },
    /// Place 0 to 3 of an A, B, B, A block of two different things.
    Pair {
        block: usize,
        place: usize,
        point: Point,
    },
}

impl RunKey {
    pub fn point(&self) -> Point {
        match self {
            RunKey::Noise { point, .. } | RunKey::Round { point, .. } | RunKey::Pair { point, .. } => *point,
        }
    }
}

impl Plan {
    /// All runs, in order.
    ///
    /// # Errors
    /// No points, or more runs than anybody waits for.
    pub fn runs(&self) -> Result<Vec<RunKey>, LabError> {
        let points: Vec<Point> = self.points.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        if points.is_empty() {
            return Err(LabError::NoPoints);
        }
        let blocks = self.noise.iter().fold(0_usize, |sum, noise| sum.saturating_add(noise.blocks));
        let in_noise = blocks.saturating_mul(RUNS_PER_BLOCK);
        let count = in_noise.saturating_add(self.repeats.saturating_mul(points.len()));
        if count > RUNS_MAX {
            return Err(LabError::TooManyRuns { runs: count, most: RUNS_MAX });
        }
        let mut runs = Vec::with_capacity(count);
        for &NoisePlan { point, blocks } in &self.noise {
            for block in 0..blocks {
                runs.extend((0..RUNS_PER_BLOCK).map(|place| RunKey::Noise { block, place, point }));
            }
        }
        let mut random = fastrand::Rng::with_seed(self.seed);
        for round in 0..self.repeats {
            let mut order = points.clone();
            random.shuffle(&mut order);
            runs.extend(order.into_iter().map(|point| RunKey::Round { round, point }));
        }
        Ok(runs)
    }

    /// Those of `runs` that the records do not have. The runs of a block belong together in time, so a block that is not
    /// complete is missing as a whole.
    pub(super) fn missing<'a>(&self, runs: &'a [RunKey], records: &[RunRecord]) -> Vec<&'a RunKey> {
        let done: BTreeSet<RunKey> = records.iter().map(|record| record.key).collect();
        let is_whole = |block: usize, point: Point| {
            (0..RUNS_PER_BLOCK).all(|place| done.contains(&RunKey::Noise { block, place, point }))
        };
        let is_done = |key: &RunKey| match *key {
            RunKey::Noise { block, point, .. } => is_whole(block, point),
            RunKey::Round { .. } | RunKey::Pair { .. } => done.contains(key),
        };
        runs.iter().filter(|key| !is_done(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_seeds() {
        let points: Vec<Point> = (1..9).map(|streams| Point::Decode { streams }).collect();
        let plan = |seed| Plan { points: points.clone(), repeats: 4, noise: Vec::new(), seed };
        assert_eq!(plan(1).runs().unwrap(), plan(1).runs().unwrap());
        assert_ne!(plan(1).runs().unwrap(), plan(2).runs().unwrap());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let point = Point::Prefill { tokens: 1 };
        let plan =
            |points: &[Point], repeats| Plan { points: points.to_vec(), repeats, noise: Vec::new(), seed: 0 };
        assert!(matches!(plan(&[], 1).runs(), Err(LabError::NoPoints)));
        assert!(matches!(plan(&[point], usize::MAX).runs(), Err(LabError::TooManyRuns { .. })));
        assert_eq!(plan(&[point, point], 2).runs().unwrap().len(), 2);
    }
}
