//! Checks every variant against a float64 reference on the host, then times them side by side.
//!
//! Inputs are fresh random numbers each run (the seed is printed), outputs are poisoned with NaN before each launch, and
//! nothing is timed that was not right. Times are of replayed graphs over several index sets, so that the working set
//! passes the L2 cache; variants take turns, so that a drift of the clock hits all of them alike.

mod device_case;
mod error;
mod families;
mod inputs;
pub mod loading;
pub mod matmul;
mod parallel;
pub mod prefill;
mod reference;
mod report;
mod resources;
mod run;
mod suites;
pub mod sums;
#[cfg(test)]
mod tests;
mod timing;

pub use error::SelftestError;
pub use families::run_all;
pub use inputs::{Case, Exponents, Lengths, ListShape};
pub use reference::logit_differences;
pub use report::report;
pub use run::{Options, run};

use crate::ceiling;
use crate::cubins::Source;
use crate::decode::{Schedule, Variant};
use overshot_gpu_model::Architecture;

/// Everything that a run loads.
pub fn sources() -> Vec<Source> {
    Variant::all()
        .iter()
        .chain(&Variant::ablations())
        .map(Variant::source)
        .chain([ceiling::source(), Schedule::source()])
        .collect()
}

/// What a release has compiled ahead for an architecture.
pub fn shipped_sources(architecture: &str) -> Vec<Source> {
    let sm = architecture.parse::<Architecture>().map_or(0, |architecture| architecture.sm);
    let shipped = Variant::shipped(sm);
    shipped.iter().map(Variant::source).chain([ceiling::source(), Schedule::source()]).collect()
}
