//! What a history of A/A blocks means for whoever compares: how large a difference chance makes, what a number of runs can
//! find, and how many runs a wanted precision needs.

use crate::stats::{AbbaBlock, Noise, Sample, minimum_detectable_effect, runs_needed};
use crate::{LabError, Quantity};
use serde::Serialize;

/// Runs a side for which the table answers: one to a dozen blocks of A, B, B, A are twice as many runs.
const RUNS: [usize; 7] = [1, 2, 3, 5, 10, 16, 24];

/// Changes that people ask about.
const CHANGES: [f64; 4] = [0.01, 0.02, 0.03, 0.05];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoiseReport {
    pub quantity: String,
    pub title: String,
    /// Of all runs, in the unit of the quantity.
    pub median: f64,
    pub blocks: usize,
    /// Of one run, as a share: what it does not share with its neighbours.
    pub sigma: f64,
    /// How far B seemed to lie from A over all blocks: 0, but for chance.
    pub mean_log_ratio: f64,
    pub runs: Vec<RunsRow>,
    pub needed: Vec<Needed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunsRow {
    /// Of each side.
    pub runs: usize,
    /// Differences below it mean nothing: a share, and the same in the unit of the quantity.
    pub band: f64,
    pub band_in_unit: f64,
    /// The smallest true change that is found 4 times of 5.
    pub detectable: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Needed {
    pub change: f64,
    /// Of each side; `None` beyond counting.
    pub runs: Option<u64>,
}

impl NoiseReport {
    /// # Errors
    /// Fewer than two blocks, values without a logarithm, or no scatter.
    pub fn of(quantity: &Quantity, blocks: &[AbbaBlock]) -> Result<Self, LabError> {
        if blocks.len() < 2 {
            return Err(LabError::TooFew { what: "a noise band (in blocks)", have: blocks.len(), need: 2 });
        }
        let ratios = blocks.iter().map(AbbaBlock::log_ratio).collect::<Result<Vec<f64>, _>>()?;
        let mean_log_ratio = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let noise = Noise::new(ratios)?;
        let sigma = noise.sigma();
        if sigma <= 1e-12 {
            return Err(LabError::NoScatter { pairs: blocks.len(), ratio: 1.0 });
        }
        let values = blocks.iter().flat_map(|block| [block.a[0], block.b[0], block.b[1], block.a[1]]);
        let median = Sample::new("runs", values.collect())?.median();
        let row = |runs: usize| {
            let band = noise.band(runs).share;
            let detectable = minimum_detectable_effect(sigma, runs, 0.0);
            RunsRow { runs, band, band_in_unit: band * median, detectable }
        };
        let needed = |change: f64| Needed { change, runs: runs_needed(sigma, change, 0.0) };
        Ok(NoiseReport {
            quantity: quantity.to_string(),
            title: quantity.title().to_owned(),
            median,
            blocks: blocks.len(),
            sigma,
            mean_log_ratio,
            runs: RUNS.map(row).to_vec(),
            needed: CHANGES.map(needed).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_noise_allows() {
        let blocks: Vec<AbbaBlock> = [0.01, -0.02, 0.015, -0.01, 0.02]
            .iter()
            .map(|d: &f64| AbbaBlock::in_order([10.0, 10.0 * d.exp(), 10.0 * d.exp(), 10.0]))
            .collect();
        let report = NoiseReport::of(&Quantity::from("step_ms"), &blocks).unwrap();
        let sigma = (1e-4_f64 * (1.0 + 4.0 + 2.25 + 1.0 + 4.0) / 5.0).sqrt();
        assert!((report.sigma - sigma).abs() < 1e-9, "{report:?}");
        assert!((report.median - 10.0).abs() < 0.11);
        let two = report.runs[1];
        assert!((two.detectable - 2.8016 * sigma).abs() < 1e-5, "{two:?}");
        assert!((two.band_in_unit / report.median - two.band).abs() < 1e-12);
        assert_eq!(report.needed[3].runs, runs_needed(sigma, 0.05, 0.0));
        assert!(matches!(
            NoiseReport::of(&Quantity::from("step_ms"), &blocks[..1]),
            Err(LabError::TooFew { .. })
        ));
        let same = [AbbaBlock::in_order([1.0; 4]); 3];
        assert!(matches!(
            NoiseReport::of(&Quantity::from("step_ms"), &same),
            Err(LabError::NoScatter { .. })
        ));
    }
}
