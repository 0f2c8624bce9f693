//! The matmul family against float64: what is checked, on the emulator by `cargo test` and on a device by `gpu-check`.
//!
//! Inputs are random numbers, outputs are poisoned first. An answer may be as far from float64 as its sums in float32 are
//! long: every case states its bound beside its check. Weights and activations themselves lose nothing, as the
//! reference computes with the same rounded numbers.

mod dense;
mod experts;
mod run;
mod stored;
#[cfg(test)]
mod tests;

pub use dense::DenseCase;
pub use experts::{Choices, ExpertsCase};
pub use run::run;
pub use stored::{Codes, Stored};

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The worst error as a multiple of what is allowed.
    pub worst: f64,
    /// Numbers that are NaN or infinite, unwritten ones included.
    pub not_finite: usize,
    /// Prepared activations that are not what the host makes of them.
    pub unprepared: usize,
    /// The bits of the answer, to compare between runs.
    pub bits: Vec<u32>,
}

impl Finding {
    pub fn passed(&self) -> bool {
        self.worst <= 1.0 && self.not_finite == 0 && self.unprepared == 0
    }
}

/// `answer` against `exact`, of which each may be off by its `allowed`.
pub(super) fn find(answer: &[f32], exact: &[f64], allowed: impl Fn(usize) -> f64) -> Finding {
    let mut finding = Finding {
        worst: 0.0,
        not_finite: 0,
        unprepared: 0,
        bits: answer.iter().map(|number| number.to_bits()).collect(),
    };
    for (at, (answer, exact)) in answer.iter().zip(exact).enumerate() {
        if !answer.is_finite() {
            finding.not_finite += 1;
            continue;
        }
        let error = (f64::from(*answer) - exact).abs();
        finding.worst = finding.worst.max(if error == 0.0 { 0.0 } else { error / allowed(at) });
    }
    finding
}
