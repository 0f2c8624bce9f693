//! What a change would bring, before anybody makes it: a lever as people write it (`lever`), whether it can move anything
//! (`mechanism`), what a step takes (`model`, `typed`), what the step gains with an interval (`projection`), whether that is
//! worth its days (`decision`). Nothing here measures, and a projection is never a result: it is what a result is compared with.

mod decision;
mod lever;
mod mechanism;
mod model;
mod projection;
mod typed;

pub use decision::{BatchChance, CHANCE_OF_GO, Decision, Verdict};
pub use lever::{Amount, Change, KernelChange, Lever, Part};
pub use mechanism::{Grid, Kernel, Mechanism};
pub use model::{FittedStep, StepModel, StepTimes};
pub use projection::{
    BATCHES_MAX, DRAWS, Effect, Gain, Projection, Roofline, Row, Transfer, UPLIFTS_ASKED, speedup_needed,
    uplift,
};
pub use typed::{REST, SeenThroughput, TypedBend, TypedStep};
