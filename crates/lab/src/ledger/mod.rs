//! The ledger: one file a performance idea, so that none is tried twice and none is closed for the wrong reason.
//! `lever` is what a file says, `ruling` what its runs say, `book` all files of a folder and what they mean for one
//! another, `edit` the appending to a file, `plan` the page that follows from it all.
//!
//! Nothing here measures, and nothing here stores how a lever stands.

mod book;
mod date;
mod edit;
mod error;
mod lever;
mod lock;
mod odds;
mod plan;
mod plan_plot;
mod ruling;
mod words;

pub use book::{Entry, Flag, Ledger};
pub use date::Date;
pub use edit::{Addition, Edited, NewLever};
pub use error::LedgerError;
pub use lever::{
    Better, Check, Closed, Guard, Lever, LeverName, Mechanism, Projection, Reverted, Role, Run, Spread,
    Threshold,
};
pub use lock::Lock;
pub use odds::{Coverage, Decision, Transfer};
pub use plan::Plan;
pub use ruling::{JudgedRun, Movement, Outcome, Ruling, Standing, Status, Verdict};
pub use words::signed_percent;
