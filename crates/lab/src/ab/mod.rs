//! Is B better than A? Both are measured in blocks of A, B, B, A, looked at after 4, 8 and 12 blocks, and judged by one set of
//! words: win, loss, below threshold, inconclusive. The planned looks share out the chance of a false alarm, so that
//! stopping early costs nothing; looking at other times would.
//!
//! Read `looks.rs` for the plan, `comparison.rs` for the interval, `verdict.rs` for the words, `course.rs` for what runs when,
//! `files.rs` for runs that were measured elsewhere. Not here: what A and B are (a `Target` each), and how far equal things
//! lie apart (`stats/noise.rs`, `noise`).

mod comparison;
mod course;
mod files;
mod fingerprint;
mod looks;
mod outcome;
mod verdict;

pub use comparison::{Comparison, Pairing};
pub use course::{Course, Phase, Progress, Side};
pub use files::{ResultsFile, compare_files};
pub use fingerprint::{Difference, Unlike, check_alike};
pub use looks::{Look, planned_looks};
pub use outcome::{Band, BandSource, Guard, GuardOutcome, Outcome, Question, compare};
pub use verdict::{Guards, Verdict, judge};
