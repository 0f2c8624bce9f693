//! The measuring core. What is measured stands behind the trait `Target`: an engine in this process, a server behind
//! an address, or a mock with a clock of its own. `sweep` decides what runs when and writes every run down, `stats` says
//! what the runs show and what is noise, `report` prints and plots it, `load` drives OpenAI-compatible servers.
//!
//! Nothing here changes what it measures, and nothing here knows the engine: targets bring their own knowledge.

pub mod ab;
mod error;
pub mod import;
pub mod journal;
pub mod ledger;
pub mod load;
pub mod machine;
pub mod noise;
pub mod profile;
pub mod program;
pub mod project;
pub mod replay;
pub mod report;
pub mod stats;
pub mod sweep;
mod target;

pub use error::LabError;
pub use target::{Better, Measurement, Metric, Point, Quantity, Settings, Target, Work};
