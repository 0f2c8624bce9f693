//! Whether a lever is worth its days, by a rule that is fixed before anything is measured: go when the uplift exceeds a
//! threshold with a chance of 80 % at every batch that users run, no-go when it hardly can at any of them. In between is
//! for a cheaper experiment to say. How the threshold comes about (noise band, what a comparison can find, the smallest gain
//! that is worth the days) is for whoever gives it.

use super::projection::{Gain, Projection};
use serde::Serialize;

/// The chance that a go takes.
pub const CHANCE_OF_GO: f64 = 0.8;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    pub verdict: Verdict,
    /// Uplift that counts, as a share.
    pub threshold: f64,
    /// What was decided by.
    pub batches: Vec<BatchChance>,
    /// Mean of the gain over these batches, a loss counting as nothing, as a share.
    pub expected_gain: f64,
    /// That per day of work: what levers are ranked by.
    pub gain_per_day: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Go,
    /// Neither likely enough nor out of reach.
    Open,
    NoGo,
    /// The mechanism does not move: nothing is projected, so nothing is worth a day.
    NoMechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BatchChance {
    pub batch: u32,
    /// That the uplift exceeds the threshold, by the form that gives it the least.
    pub chance: f64,
    /// 95 % of the uplift, by the form that gives it the most.
    pub p95: f64,
}

impl Decision {
    /// `forms`: the same lever by every form of the step that is to be believed. A go must hold by all of them, and so must
    /// a no-go. `batches` that no row has are passed over.
    pub fn by(forms: &[Projection], batches: &[u32], threshold: f64, days: Option<f64>) -> Self {
        let rows = forms.first().map_or(&[][..], |first| &first.rows);
        let asked: Vec<usize> = (0..rows.len()).filter(|&row| batches.contains(&rows[row].batch)).collect();
        let chance = |&row: &usize| BatchChance {
            batch: rows[row].batch,
            chance: forms.iter().map(|form| form.chance_above(row, threshold)).fold(1.0, f64::min),
            p95: forms.iter().map(|form| form.rows[row].p95).fold(f64::NEG_INFINITY, f64::max),
        };
        let chances: Vec<BatchChance> = asked.iter().map(chance).collect();
        let gains = asked.iter().flat_map(|&row| forms.iter().map(move |form| form.expected_gain(row)));
        let expected_gain = gains.sum::<f64>() / (asked.len() * forms.len()).max(1) as f64;
        Decision {
            verdict: Verdict::of(forms, &chances, threshold),
            threshold,
            batches: chances,
            expected_gain,
            gain_per_day: days.map(|days| expected_gain / days),
        }
    }
}

impl Verdict {
    fn of(forms: &[Projection], chances: &[BatchChance], threshold: f64) -> Self {
        if forms.iter().any(|form| matches!(form.effect.gain, Gain::Nothing { .. })) {
            Verdict::NoMechanism
        } else if !chances.is_empty() && chances.iter().all(|at| at.chance >= CHANCE_OF_GO) {
            Verdict::Go
        } else if chances.iter().all(|at| at.p95 < threshold) {
            Verdict::NoGo
        } else {
            Verdict::Open
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Verdict::Go => "go",
            Verdict::Open => "open",
            Verdict::NoGo | Verdict::NoMechanism => "no-go",
        }
    }
}
