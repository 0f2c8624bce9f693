//! A comparison from its question to its verdict.

use super::comparison::{Comparison, Pairing};
use super::course::Course;
use super::looks::{Look, pairs_needed, planned_looks};
use super::verdict::{Guards, Verdict, judge};
use crate::stats::{AbbaBlock, Noise, Sample, Spread};
use crate::sweep::RunRecord;
use crate::{Better, LabError, Point, Quantity};
use serde::Serialize;

/// A/A blocks of the past that a band can be trusted with.
const HISTORY_BLOCKS_MIN: usize = 10;

#[derive(Clone, Debug)]
pub struct Question {
    pub quantity: Quantity,
    pub better: Better,
    /// Gains below this share are not worth having.
    pub threshold: f64,
    pub guards: Vec<Guard>,
    /// A/A blocks of this quantity, machine and point.
    pub history: Option<Noise>,
}

/// Another number, which must not get worse by more than `limit` (a share).
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    pub quantity: Quantity,
    pub better: Better,
    pub limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// Of A, that chance explains.
    pub share: f64,
    pub source: BandSource,
    pub blocks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BandSource {
    /// A/A blocks that were measured before.
    History,
    /// The scatter within these very blocks.
    TheseBlocks,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub point: Point,
    pub quantity: String,
    pub title: String,
    pub better: Better,
    pub a: Spread,
    pub b: Spread,
    pub comparison: Comparison,
    pub threshold: f64,
    pub band: Option<Band>,
    /// The larger of threshold and band: gains below it do not count.
    pub counts_from: f64,
    pub guards: Vec<GuardOutcome>,
    pub verdict: Verdict,
    /// Of pairs, for a verdict at this threshold 4 times of 5, where there is none yet.
    pub pairs_needed: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GuardOutcome {
    pub quantity: String,
    pub limit: f64,
    pub comparison: Comparison,
    pub state: Guards,
}

/// Measures to the first planned look that has a verdict, or to the last.
///
/// # Errors
/// A side cannot be measured, lacks the quantity, or gives numbers that cannot be compared.
pub fn compare(course: &mut Course<'_>, question: &Question) -> Result<Outcome, LabError> {
    let point = course.point;
    let [first, second, last] = planned_looks();
    for look in [first, second] {
        let outcome = question.at_look(point, &course.until(look.pairs)?, &look)?;
        if outcome.is_final() {
            return Ok(outcome);
        }
    }
    question.at_look(point, &course.until(last.pairs)?, &last)
}

impl Question {
    fn at_look(&self, point: Point, runs: &[[&RunRecord; 4]], look: &Look) -> Result<Outcome, LabError> {
        let blocks = blocks_of(&self.quantity, runs)?;
        let pairing = Pairing::Blocks { blocks: blocks.len() };
        let comparison = Comparison::of_pairs(&log_ratios(&blocks)?, pairing, look, self.better)?;
        let mut guards = Vec::new();
        for guard in &self.guards {
            let ratios = log_ratios(&blocks_of(&guard.quantity, runs)?)?;
            let compared = Comparison::of_pairs_that_may_agree(&ratios, pairing, look, guard.better)?;
            guards.push(guard.outcome(compared));
        }
        let side = |values: fn(&AbbaBlock) -> [f64; 2]| {
            Sample::new("runs of a side", blocks.iter().flat_map(values).collect())
                .map(|sample| sample.spread())
        };
        let (a, b) = (side(|block| block.a)?, side(|block| block.b)?);
        Ok(self.outcome(point, a, b, comparison, Some(self.band(&blocks)?), guards))
    }

    /// Two runs of each side in every block.
    fn band(&self, blocks: &[AbbaBlock]) -> Result<Band, LabError> {
        let history = self.history.as_ref().filter(|noise| noise.blocks() >= HISTORY_BLOCKS_MIN);
        let (noise, source) = match history {
            Some(noise) => (noise.clone(), BandSource::History),
            None => {
                let mixed: Vec<AbbaBlock> = blocks.iter().map(AbbaBlock::mixed).collect();
                (Noise::new(log_ratios(&mixed)?)?, BandSource::TheseBlocks)
            }
        };
        let band = noise.band(2 * blocks.len());
        Ok(Band { share: band.share, source, blocks: band.blocks })
    }

    pub(super) fn outcome(
        &self,
        point: Point,
        a: Spread,
        b: Spread,
        comparison: Comparison,
        band: Option<Band>,
        guards: Vec<GuardOutcome>,
    ) -> Outcome {
        let counts_from = self.threshold.max(band.map_or(0.0, |band| band.share));
        let state = guards.iter().map(|guard| guard.state).max().unwrap_or(Guards::Hold);
        let verdict = judge(comparison.gain, comparison.interval, counts_from, state);
        let last_alpha = planned_looks()[2].alpha;
        // Where nothing is too little to count, what was seen is what more runs would have to confirm.
        let sought = if counts_from > 0.0 { counts_from } else { comparison.gain.abs() };
        Outcome {
            point,
            quantity: self.quantity.to_string(),
            title: self.quantity.title().to_owned(),
            better: self.better,
            a,
            b,
            comparison,
            threshold: self.threshold,
            band,
            counts_from,
            guards,
            verdict,
            pairs_needed: (verdict == Verdict::Inconclusive)
                .then(|| pairs_needed(comparison.sigma, sought, last_alpha))
                .flatten(),
        }
    }
}

impl Outcome {
    /// Whether an early look may end the comparison. That B gains too little to count may be plain while it is still open
    /// whether it loses as much: then further blocks are worth their time.
    fn is_final(&self) -> bool {
        match self.verdict {
            Verdict::Win | Verdict::Loss => true,
            Verdict::BelowThreshold => self.comparison.interval.low > -self.counts_from,
            Verdict::Inconclusive => false,
        }
    }
}

impl Guard {
    pub(super) fn outcome(&self, comparison: Comparison) -> GuardOutcome {
        let state = match comparison {
            _ if comparison.interval.high < -self.limit => Guards::Broken,
            _ if comparison.gain < -self.limit => Guards::Doubtful,
            _ => Guards::Hold,
        };
        GuardOutcome { quantity: self.quantity.to_string(), limit: self.limit, comparison, state }
    }
}

fn log_ratios(blocks: &[AbbaBlock]) -> Result<Vec<f64>, LabError> {
    blocks.iter().map(AbbaBlock::log_ratio).collect()
}

fn blocks_of(quantity: &Quantity, runs: &[[&RunRecord; 4]]) -> Result<Vec<AbbaBlock>, LabError> {
    let mut blocks = Vec::with_capacity(runs.len());
    for block in runs {
        let mut values = [0.0; 4];
        for (value, record) in values.iter_mut().zip(block) {
            *value = value_of(quantity, record)?;
        }
        blocks.push(AbbaBlock::in_order(values));
    }
    Ok(blocks)
}

fn value_of(quantity: &Quantity, record: &RunRecord) -> Result<f64, LabError> {
    quantity.of(&record.measurement).ok_or_else(|| LabError::NoQuantity {
        what: format!("a run ({})", record.key.point()),
        quantity: quantity.to_string(),
        known: record.measurement.names(),
    })
}
