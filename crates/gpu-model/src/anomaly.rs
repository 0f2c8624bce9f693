//! "It is slower with more requests": which numbers of CTAs a request would explain a throughput that falls when the batch
//! grows. Each number gives, by waves alone, how the kernel's time changes between the two batches; with the step's
//! other time known that is a change of tokens a second. It explains, and does not prove: a profile of both batches does.

use crate::waves::Waves;
use serde::Serialize;
use std::num::NonZeroU32;
use thiserror::Error;

/// CTAs a request that are tried.
pub const CTAS_PER_REQUEST_MAX: u32 = 64;

/// What was seen: at `to_batch` a step takes `to_step_ms`, and fewer tokens a second come out than at `from_batch`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Anomaly {
    pub slots: NonZeroU32,
    pub from_batch: u32,
    pub to_batch: u32,
    pub to_step_ms: f64,
    /// What a step takes outside this kernel: at any batch, and for every request.
    pub other_ms: f64,
    pub other_ms_per_request: f64,
    /// A fall by less than this would not have been noticed.
    pub noise_percent: f64,
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum AnomalyError {
    #[error("batches {from} and {to}: the second must be larger, and both at least 1")]
    Batches { from: u32, to: u32 },
    #[error("{what} is {given}: use a finite number of at least 0")]
    BadNumber { what: &'static str, given: f64 },
    #[error(
        "nothing of the step of {step_ms} ms is left for the kernel: the rest takes {other_ms} ms; check the units"
    )]
    NothingLeft { step_ms: f64, other_ms: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The fall is larger than the noise.
    Explains,
    /// There is a fall, but the noise would have hidden it.
    HiddenByNoise,
    /// Tokens a second do not fall.
    DoesNotExplain,
}

/// What one number of CTAs a request would have done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub ctas_per_request: u32,
    pub from_grid: Waves,
    pub to_grid: Waves,
    /// The kernel's time at the second batch over that at the first.
    pub time_ratio: f64,
    pub from_tokens_per_s: f64,
    pub to_tokens_per_s: f64,
    /// By how much tokens a second fall; negative when they grow.
    pub fall_percent: f64,
    pub verdict: Verdict,
}

impl Anomaly {
    /// The kernel's time must grow by more than this between the batches for tokens a second to fall.
    ///
    /// # Errors
    /// Numbers that describe no step.
    pub fn time_ratio_needed(&self) -> Result<f64, AnomalyError> {
        let kernel_ms = self.kernel_ms_at_to()?;
        let (from, to) = (f64::from(self.from_batch), f64::from(self.to_batch));
        let from_step_ms = self.to_step_ms * from / to;
        let from_kernel_ms = from_step_ms - self.other_ms_at(self.from_batch);
        // With a step that is nearly all other time, no growth of the kernel is enough.
        Ok(if from_kernel_ms > 0.0 { kernel_ms / from_kernel_ms } else { f64::INFINITY })
    }

    /// One explanation for each number of CTAs a request, least first.
    ///
    /// # Errors
    /// As `time_ratio_needed`.
    pub fn explanations(&self, most: u32) -> Result<Vec<Explanation>, AnomalyError> {
        let kernel_ms = self.kernel_ms_at_to()?;
        let explanation = |ctas_per_request: u32| {
            let grid = |batch: u32| Waves::of(u64::from(batch) * u64::from(ctas_per_request), self.slots);
            let (from_grid, to_grid) = (grid(self.from_batch), grid(self.to_batch));
            let time_ratio = to_grid.waves as f64 / from_grid.waves as f64;
            let from_step_ms = kernel_ms / time_ratio + self.other_ms_at(self.from_batch);
            let from_tokens_per_s = 1e3 * f64::from(self.from_batch) / from_step_ms;
            let to_tokens_per_s = 1e3 * f64::from(self.to_batch) / self.to_step_ms;
            let fall_percent = 100.0 * (1.0 - to_tokens_per_s / from_tokens_per_s);
            let verdict = match fall_percent {
                fall if fall <= 0.0 => Verdict::DoesNotExplain,
                fall if fall < self.noise_percent => Verdict::HiddenByNoise,
                _ => Verdict::Explains,
            };
            Explanation {
                ctas_per_request,
                from_grid,
                to_grid,
                time_ratio,
                from_tokens_per_s,
                to_tokens_per_s,
                fall_percent,
                verdict,
            }
        };
        Ok((1..=most.min(CTAS_PER_REQUEST_MAX)).map(explanation).collect())
    }

    fn kernel_ms_at_to(&self) -> Result<f64, AnomalyError> {
        if self.from_batch == 0 || self.from_batch >= self.to_batch {
            return Err(AnomalyError::Batches { from: self.from_batch, to: self.to_batch });
        }
        for (what, given) in [
            ("the step time", self.to_step_ms),
            ("the floor", self.other_ms),
            ("the floor for every request", self.other_ms_per_request),
            ("the noise", self.noise_percent),
        ] {
            if !given.is_finite() || given < 0.0 {
                return Err(AnomalyError::BadNumber { what, given });
            }
        }
        let other_ms = self.other_ms_at(self.to_batch);
        let kernel_ms = self.to_step_ms - other_ms;
        if kernel_ms > 0.0 {
            Ok(kernel_ms)
        } else {
            Err(AnomalyError::NothingLeft { step_ms: self.to_step_ms, other_ms })
        }
    }

    fn other_ms_at(&self, batch: u32) -> f64 {
        self.other_ms + self.other_ms_per_request * f64::from(batch)
    }
}

/// The explanation that needs the least to be assumed: the smallest fall that would have been noticed. Larger falls would
/// have been told as such.
pub fn simplest(explanations: &[Explanation]) -> Option<&Explanation> {
    let explains = explanations.iter().filter(|explanation| explanation.verdict == Verdict::Explains);
    explains.min_by(|one, other| one.fall_percent.total_cmp(&other.fall_percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign() -> Anomaly {
        Anomaly {
            slots: NonZeroU32::new(188).unwrap(),
            from_batch: 80,
            to_batch: 96,
            to_step_ms: 120.085,
            other_ms: 36.329,
            other_ms_per_request: 0.015,
            noise_percent: 5.0,
        }
    }

    #[test]
    fn the_campaigns_anomaly_is_four_ctas_a_request() {
        let needed = campaign().time_ratio_needed().unwrap();
        assert!((needed - 1.316).abs() < 0.002, "{needed}");
        let explanations = campaign().explanations(8).unwrap();
        assert_eq!(simplest(&explanations).unwrap().ctas_per_request, 4);
        let verdicts: Vec<Verdict> = explanations.iter().map(|explanation| explanation.verdict).collect();
        use Verdict::{DoesNotExplain as No, Explains as Yes, HiddenByNoise as Hidden};
        assert_eq!(verdicts, [No, Yes, No, Yes, No, Hidden, Hidden, No]);
    }

    #[test]
    fn numbers_that_describe_no_step_are_refused() {
        let reversed = Anomaly { from_batch: 96, to_batch: 80, ..campaign() };
        assert!(matches!(reversed.explanations(8), Err(AnomalyError::Batches { .. })));
        let seconds = Anomaly { to_step_ms: 0.120, ..campaign() };
        assert!(matches!(seconds.explanations(8), Err(AnomalyError::NothingLeft { .. })));
        let nan = Anomaly { other_ms: f64::NAN, ..campaign() };
        assert!(matches!(nan.time_ratio_needed(), Err(AnomalyError::BadNumber { what: "the floor", .. })));
        let all_other = Anomaly { other_ms: 110.0, ..campaign() };
        assert_eq!(all_other.time_ratio_needed(), Ok(f64::INFINITY));
    }
}
