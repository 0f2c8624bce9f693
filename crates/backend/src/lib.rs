//! The boundary between deciding and computing. The engine hands a [`Backend`] numbered, plain-data
//! [`StepPlan`]s; the backend executes them in order and answers with [`StepResult`]s. It never sees a request.

mod check;
mod draw;
mod fake;
mod family;
#[cfg(feature = "fault-injection")]
mod faults;
mod mask;
mod numerics;
mod plan;
mod ranks;
mod rehearsal;
mod sample;
mod scripted;
pub mod traffic;

pub use draw::{RowDraw, draw_rows};
pub use fake::{FakeDevice, Latency};
pub use family::{Family, Timing};
#[cfg(feature = "fault-injection")]
pub use faults::{FaultError, Faults, FaultyBackend};
pub use mask::TokenMask;
pub use numerics::{Activations, IndexKeyFormat, KvFormat, Numerics};
pub use plan::{Choice, Row, RowFailure, RowResult, StepMasks, StepPlan, StepResult, Wanted};
pub use ranks::{Member, PLANS_UNDER_WAY, PeerGone, Rank, Ranks, RanksInfo, Shard, ShardError};
pub use rehearsal::Rehearsal;
pub use sample::{Sampled, Sampler, Sampling, SamplingError, argmax, log_sum_exp};
pub use scripted::{Script, ScriptError, ScriptStep, ScriptedBackend};

use overshot_kv::PoolCapacity;
use overshot_model::Spec;

/// Executes step plans, in order, over pools of cache pages that it owns.
pub trait Backend: Send {
    /// What computes, for people: `"cpu (avx2, 2 threads)"`.
    fn name(&self) -> String;

    fn spec(&self) -> &Spec;

    /// The pages it holds; the accounting in `overshot_kv` works within them.
    fn capacity(&self) -> PoolCapacity;

    /// The most tokens that a drawing row gives: more than 1 where drafts are verified, or an answer is played back.
    fn most_tokens_per_row(&self) -> usize {
        1
    }

    /// Queues a plan. Plans execute in the order of submission, which is the order of their numbers.
    ///
    /// # Errors
    /// A plan that arrives in its turn uses up its number, even when it is refused for what it says.
    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError>;

    /// Gives a submitted plan the masks of its masked rows. A plan without masked rows needs no call.
    ///
    /// # Errors
    /// Masks that are not those of the oldest plan that waits for some.
    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError>;

    /// Waits for the oldest plan not yet collected.
    ///
    /// # Errors
    /// A plan whose masks were not supplied is refused, never waited for.
    fn collect(&mut self) -> Result<StepResult, BackendError>;

    /// Submits a plan without masked rows and waits for it.
    fn step(&mut self, plan: StepPlan) -> Result<StepResult, BackendError> {
        self.submit(plan)?;
        self.collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("step plan {number} arrived where plan {expected} was due")]
    OutOfOrder { number: u64, expected: u64 },
    #[error("step plan {number}, row {row}: {what}")]
    BadRow { number: u64, row: usize, what: String },
    #[error("step plan {number}: {what}")]
    BadPlan { number: u64, what: String },
    /// Nothing is wrong with it, and its number is not used up.
    #[error("step plan {number} came while {under_way} are under way: collect one first")]
    Full { number: u64, under_way: usize },
    #[error("no step plan is waiting to be collected")]
    NothingSubmitted,
    #[error("step plan {number} has masked rows {rows:?}, and masks came for {supplied:?}")]
    WrongMasks { number: u64, rows: Vec<usize>, supplied: Vec<usize> },
    #[error("rank {rank} stopped: {what}")]
    RankStopped { rank: usize, what: String },
}
