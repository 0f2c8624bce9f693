//! What a lever brings to the whole step, at every batch, with an interval:
//!
//! ```text
//! uplift          T / (T - saved) - 1            T: the step, a: the touched part, saved = a (1 - 1/k) or milliseconds
//! k that happens  1 + (k - 1) r                  r: how much of what a kernel gains arrives, drawn from `Transfer`
//! k for uplift u  a / (a - T u / (1 + u))
//! ceiling         the part at its roofline, or gone where no roofline is known
//! ```
//!
//! Every draw takes one step from the model and one r, for all batches alike, as they would be one truth. Nothing here
//! decides: `decision.rs` does.

use super::lever::{Change, Lever, Part};
use super::mechanism::{Grid, Mechanism};
use super::model::{StepModel, StepTimes};
use crate::LabError;
use crate::stats::{Interval, Sample};
use serde::Serialize;
use std::collections::BTreeMap;

/// Enough that the ends of an interval move by a fiftieth of its width from seed to seed.
pub const DRAWS: usize = 20_000;
/// Every draw of every batch is held, to be put in order: 40 MB of them.
pub const BATCHES_MAX: usize = 256;
/// Uplifts whose price is told: the speed-up of the part that each would need.
pub const UPLIFTS_ASKED: [f64; 4] = [0.05, 0.10, 0.20, 0.50];

/// The share of a kernel's gain that arrives in the step, equally likely between two ends. Until levers have been closed it is
/// a guess: 0.7 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transfer {
    pub low: f64,
    pub high: f64,
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer { low: 0.7, high: 1.0 }
    }
}

/// A lever with what is known of its mechanism: what makes a part of the step faster, and by how much.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    pub part: Part,
    pub gain: Gain,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    Time(Change),
    /// CTAs per SM move: the waves of the grid bound the gain.
    Waves {
        mechanism: Mechanism,
        grid: Grid,
    },
    /// CTAs per SM do not move: nothing is gained.
    Nothing {
        mechanism: Mechanism,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Projection {
    pub form: String,
    pub effect: Effect,
    pub rows: Vec<Row>,
    /// By draw, by row.
    #[serde(skip)]
    draws: Vec<Vec<f64>>,
}

/// One batch. Uplifts are shares: 0.05 is 5 % more tokens a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub batch: u32,
    pub step_ms: f64,
    pub tokens_per_s: f64,
    pub part_ms: f64,
    /// If all that the lever says arrives; of waves, if the CTAs of an SM do not slow each other.
    pub as_told: f64,
    pub p5: f64,
    pub p50: f64,
    pub p95: f64,
    /// If the part took what the hardware needs, or no time at all; `None` where nothing else would be left. Draws stop at
    /// a roofline, whatever the lever says.
    pub ceiling: Option<f64>,
    /// How far above its roofline the part is, where that is known.
    pub times_roofline: Option<f64>,
    /// For `UPLIFTS_ASKED`; `None` when no speed-up of this part is enough.
    pub speedups_needed: [Option<f64>; 4],
}

/// The least that a part would need on the hardware, by batch.
pub type Roofline = BTreeMap<u32, f64>;

impl Effect {
    /// # Errors
    /// A change of a kernel whose mechanism moves, without a grid to say what for.
    pub fn of(
        lever: &Lever,
        part: Part,
        mechanism: Option<Mechanism>,
        grid: Option<Grid>,
    ) -> Result<Self, LabError> {
        let gain = match (lever, mechanism) {
            (Lever::Time { change, .. }, _) => Gain::Time(*change),
            (Lever::Kernel { .. }, Some(mechanism)) if !mechanism.moves() => Gain::Nothing { mechanism },
            (Lever::Kernel { .. }, Some(mechanism)) => match grid {
                Some(grid) => Gain::Waves { mechanism, grid },
                None => return Err(LabError::NoGrid),
            },
            (Lever::Kernel { .. }, None) => return Err(LabError::NoKernel),
        };
        Ok(Effect { part, gain })
    }

    /// Milliseconds of `part_ms` that are saved when a share `arrives` (0 to 1) of the gain does; below 0 when it is slower.
    fn saved_ms(&self, part_ms: f64, batch: u32, arrives: f64) -> f64 {
        match &self.gain {
            Gain::Nothing { .. } => 0.0,
            Gain::Time(Change::LessMs(ms)) => (ms * arrives).min(part_ms),
            // What gets slower does so in full: hoping is for gains.
            Gain::Time(Change::Keeps(share)) if *share >= 1.0 => part_ms * (1.0 - share),
            Gain::Time(Change::Keeps(share)) => part_ms * (1.0 - 1.0 / partly(1.0 / share, arrives)),
            Gain::Waves { mechanism, grid } => {
                let speedup = mechanism.speedup(grid, batch);
                let k = speedup.low + (speedup.high - speedup.low) * arrives;
                part_ms * (1.0 - 1.0 / k)
            }
        }
    }

    /// The share of the gain that arrives in one draw. Of waves nobody knows it: from none to all.
    fn draw_arrives(&self, transfer: Transfer, random: &mut fastrand::Rng) -> f64 {
        match self.gain {
            Gain::Waves { .. } => random.f64(),
            _ => transfer.low + (transfer.high - transfer.low) * random.f64(),
        }
    }
}

/// `k` with a share of its gain; all of an infinite one when any of it arrives.
fn partly(k: f64, arrives: f64) -> f64 {
    if arrives > 0.0 { 1.0 + (k - 1.0) * arrives } else { 1.0 }
}

pub fn uplift(step_ms: f64, saved_ms: f64) -> f64 {
    step_ms / (step_ms - saved_ms) - 1.0
}

/// How many times faster a part must get for the step to gain `uplift`; `None` when even without it the step gains less.
pub fn speedup_needed(step_ms: f64, part_ms: f64, uplift: f64) -> Option<f64> {
    let saved_ms = step_ms * uplift / (1.0 + uplift);
    (saved_ms < part_ms).then(|| part_ms / (part_ms - saved_ms))
}

impl Projection {
    /// # Errors
    /// More batches than can be held; a part that the model does not have; a lever that leaves nothing of a step.
    pub fn of(
        model: &dyn StepModel,
        effect: &Effect,
        batches: &[u32],
        transfer: Transfer,
        roofline: &Roofline,
        random: &mut fastrand::Rng,
    ) -> Result<Self, LabError> {
        if batches.len() > BATCHES_MAX {
            return Err(LabError::TooManyBatches { have: batches.len(), most: BATCHES_MAX });
        }
        let least_ms: Vec<f64> =
            batches.iter().map(|batch| roofline.get(batch).copied().unwrap_or(0.0)).collect();
        let mut draws: Vec<Vec<f64>> = vec![Vec::with_capacity(DRAWS); batches.len()];
        for _ in 0..DRAWS {
            let times = model.draw(random);
            let arrives = effect.draw_arrives(transfer, random);
            for ((drawn, batch), least_ms) in draws.iter_mut().zip(batches).zip(&least_ms) {
                drawn.push(effect_at(effect, &times, *batch, arrives, *least_ms)?);
            }
        }
        let best = model.best();
        let rows = batches.iter().zip(&draws).map(|(batch, drawn)| {
            let sample = Sample::new("drawn uplifts", drawn.clone())?;
            row(effect, &best, *batch, roofline.get(batch).copied(), &sample)
        });
        Ok(Projection {
            form: model.form().to_owned(),
            effect: effect.clone(),
            rows: rows.collect::<Result<_, LabError>>()?,
            draws,
        })
    }

    /// How many of the draws gain more than `threshold` at a row.
    pub fn chance_above(&self, row: usize, threshold: f64) -> f64 {
        let drawn = self.draws.get(row).map_or(&[][..], Vec::as_slice);
        drawn.iter().filter(|uplift| **uplift > threshold).count() as f64 / drawn.len().max(1) as f64
    }

    /// The mean of what is gained at a row, a loss counting as nothing: what is slower is not kept.
    pub fn expected_gain(&self, row: usize) -> f64 {
        let drawn = self.draws.get(row).map_or(&[][..], Vec::as_slice);
        drawn.iter().map(|uplift| uplift.max(0.0)).sum::<f64>() / drawn.len().max(1) as f64
    }

    /// Whether another form of the step tells another story at some batch: one whose middle lies outside this interval, or a
    /// tenth away.
    pub fn differs_from(&self, other: &Projection) -> bool {
        self.rows.iter().zip(&other.rows).any(|(one, other)| {
            let interval = Interval { low: one.p5, high: one.p95 };
            let apart = (one.p50 - other.p50).abs();
            apart > 0.002 && (!interval.contains(other.p50) || apart > 0.1 * one.p50.abs())
        })
    }
}

/// The step, and what the part takes of it: no more than all, also where a draw of noisy times has it so.
fn step_and_part_ms(effect: &Effect, times: &StepTimes, batch: u32) -> Result<(f64, f64), LabError> {
    let step_ms = times.step_ms(batch);
    Ok((step_ms, times.part_ms(&effect.part, batch)?.min(step_ms)))
}

/// `least_ms`: what the part takes at its best, by the hardware.
fn effect_at(
    effect: &Effect,
    times: &StepTimes,
    batch: u32,
    arrives: f64,
    least_ms: f64,
) -> Result<f64, LabError> {
    let (step_ms, part_ms) = step_and_part_ms(effect, times, batch)?;
    let saved_ms = effect.saved_ms(part_ms, batch, arrives).min((part_ms - least_ms).max(0.0));
    let gained = uplift(step_ms, saved_ms);
    if gained.is_finite() && gained >= -1.0 {
        Ok(gained)
    } else {
        Err(LabError::NothingLeft { batch, step_ms })
    }
}

fn row(
    effect: &Effect,
    best: &StepTimes,
    batch: u32,
    roofline_ms: Option<f64>,
    drawn: &Sample,
) -> Result<Row, LabError> {
    let (step_ms, part_ms) = step_and_part_ms(effect, best, batch)?;
    let ceiling = uplift(step_ms, (part_ms - roofline_ms.unwrap_or(0.0)).max(0.0));
    Ok(Row {
        batch,
        step_ms,
        tokens_per_s: f64::from(batch) / step_ms * 1e3,
        part_ms,
        as_told: effect_at(effect, best, batch, 1.0, 0.0)?,
        p5: drawn.quantile(0.05),
        p50: drawn.median(),
        p95: drawn.quantile(0.95),
        ceiling: (ceiling.is_finite() && ceiling >= 0.0).then_some(ceiling),
        times_roofline: roofline_ms.filter(|ms| *ms > 0.0).map(|ms| part_ms / ms),
        speedups_needed: UPLIFTS_ASKED.map(|uplift| speedup_needed(step_ms, part_ms, uplift)),
    })
}
