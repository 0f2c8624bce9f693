//! One set of words for every comparison, and what each of them needs. Order matters: a proven loss is a loss whatever the
//! threshold says.

use crate::stats::Interval;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B is better, by at least the threshold in the estimate, and nothing that is guarded suffers.
    Win,
    /// B is worse, or breaks what is guarded.
    Loss,
    /// Whatever B changes, it is less than counts.
    BelowThreshold,
    /// The interval holds both nothing and enough: more runs are needed.
    Inconclusive,
}

/// What the metrics that must not get worse say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Guards {
    /// None is worse than its limit in the estimate.
    Hold,
    /// One is, but chance may have done it.
    Doubtful,
    /// One is, by its whole interval.
    Broken,
}

/// `threshold`: changes below it do not count.
pub fn judge(gain: f64, interval: Interval, threshold: f64, guards: Guards) -> Verdict {
    let Interval { low, high } = interval;
    match guards {
        Guards::Broken => Verdict::Loss,
        _ if high < 0.0 => Verdict::Loss,
        Guards::Hold if low > 0.0 && gain >= threshold => Verdict::Win,
        Guards::Doubtful if low > 0.0 && gain >= threshold => Verdict::Inconclusive,
        _ if high < threshold || low > 0.0 => Verdict::BelowThreshold,
        _ => Verdict::Inconclusive,
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Win => "win",
            Verdict::Loss => "loss",
            Verdict::BelowThreshold => "below-threshold",
            Verdict::Inconclusive => "inconclusive",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_case() {
        for (low, high, guards, verdict) in [
            (0.04, 0.08, Guards::Hold, Verdict::Win),
            (0.01, 0.07, Guards::Hold, Verdict::Win), // 4 % in the estimate, the threshold being 3 %
            (0.01, 0.03, Guards::Hold, Verdict::BelowThreshold),
            (0.01, 0.04, Guards::Hold, Verdict::BelowThreshold),
            (-0.01, 0.02, Guards::Hold, Verdict::BelowThreshold),
            (-0.01, 0.04, Guards::Hold, Verdict::Inconclusive),
            (-0.04, 0.09, Guards::Hold, Verdict::Inconclusive),
            (-0.04, -0.01, Guards::Hold, Verdict::Loss),
            (-0.001, -0.0005, Guards::Hold, Verdict::Loss),
            (0.04, 0.08, Guards::Doubtful, Verdict::Inconclusive),
            (0.01, 0.03, Guards::Doubtful, Verdict::BelowThreshold),
            (0.04, 0.08, Guards::Broken, Verdict::Loss),
            (-0.04, -0.01, Guards::Doubtful, Verdict::Loss),
        ] {
            let gain = f64::midpoint(low, high);
            assert_eq!(judge(gain, Interval { low, high }, 0.03, guards), verdict, "{low} {high} {guards:?}");
        }
        let words: Vec<String> =
            [Verdict::Win, Verdict::Loss, Verdict::BelowThreshold, Verdict::Inconclusive]
                .map(|v| v.to_string())
                .into();
        assert_eq!(words, ["win", "loss", "below-threshold", "inconclusive"]);
        assert_eq!(serde_json::to_string(&Verdict::BelowThreshold).unwrap(), "\"below-threshold\"");
    }

    /// Without a threshold the words say only on which side of 0 the interval lies.
    #[test]
    fn no_threshold_leaves_the_interval() {
        let of = |low, high| judge(f64::midpoint(low, high), Interval { low, high }, 0.0, Guards::Hold);
        assert_eq!(of(1e-6, 0.01), Verdict::Win);
        assert_eq!(of(-0.01, -1e-6), Verdict::Loss);
        assert_eq!(of(-0.01, 0.01), Verdict::Inconclusive);
    }
}
