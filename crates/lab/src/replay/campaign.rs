//! The campaign's data, as it stands in the repository.

use crate::LabError;
use crate::ledger::{Ledger, LedgerError};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const CAMPAIGN: &str = include_str!("../../../../examples/campaign/campaign.toml");

macro_rules! lever_files {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../../../examples/campaign/levers/", $name)))),+]
    };
}

const LEVERS: [(&str, &str); 9] = lever_files!(
    "block-h-16.toml",
    "eight-warps.toml",
    "overlap-scheduler.toml",
    "registers-128.toml",
    "shared-memory-49k.toml",
    "split-by-batch.toml",
    "target-512-ctas.toml",
    "three-stages.toml",
    "two-ctas-per-sm.toml"
);

/// What was told and what is guessed; see the comments of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    pub title: String,
    pub card: String,
    pub kernel: Kernel,
    pub step: Step,
    pub experts: ExpertWeights,
    pub anomaly: Anomaly,
    pub split: Split,
    pub eight_warps: Fall,
    pub public: Public,
    pub claims: Vec<Told>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    pub warps: u32,
    pub registers: u32,
    pub shared_kb: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub attention_ms_per_request: f64,
    pub moe_ms_per_request: f64,
    pub batch: u32,
    pub tokens_per_s_low: f64,
    pub tokens_per_s_high: f64,
    pub runs_assumed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertWeights {
    pub bytes: u64,
    pub cards: u32,
    pub bandwidth_gb_per_s: f64,
    pub reached_share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anomaly {
    pub from_batch: u32,
    pub to_batch: u32,
    pub uplift_percent_after: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    pub target_ctas: u32,
    pub tiles: u32,
    pub cta_cost_in_tiles: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fall {
    pub fall_percent_low: f64,
    pub fall_percent_high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Public {
    pub step_ms_at_1_low: f64,
    pub step_ms_at_1_high: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    pub what: String,
    pub uplift_percent: f64,
}

/// # Errors
/// None, as long as the file in the repository is well formed, which a test sees to.
pub fn campaign() -> Result<Campaign, LabError> {
    let bad = |error: toml_edit::de::Error| LedgerError::BadFile {
        path: "examples/campaign/campaign.toml".into(),
        what: error.message().to_owned(),
    };
    Ok(toml_edit::de::from_str(CAMPAIGN).map_err(bad)?)
}

/// File names and texts.
pub fn levers() -> [(&'static str, &'static str); 9] {
    LEVERS
}

/// # Errors
/// As of [`campaign`].
pub fn ledger() -> Result<Ledger, LabError> {
    let folder = Path::new("examples/campaign/levers");
    let texts: Vec<(PathBuf, String)> =
        LEVERS.map(|(name, text)| (folder.join(name), text.to_owned())).into();
    Ok(Ledger::of(folder, texts)?)
}
