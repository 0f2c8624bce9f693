//! How far equal measurements lie apart, learned over time: a history of A/A blocks, and what it means for comparisons. The
//! statistics of a few blocks are in `stats/noise.rs`.

mod history;
mod report;

pub use history::{History, Key};
pub use report::{NoiseReport, RunsRow};
