//! The founding campaign, replayed: what its numbers imply when the lab's own formulas read them. The data is in
//! `examples/campaign/`, compiled in; every finding is computed here from it, and none is stored. `text` prints them.

mod campaign;
mod findings;
mod text;

pub use campaign::{Campaign, campaign, ledger, levers};
pub use findings::{AnomalyFinding, Claim, Findings, KernelFinding, LeverFinding, NoiseFinding, StepFinding};
pub use text::write;
