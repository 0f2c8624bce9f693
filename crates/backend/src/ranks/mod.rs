//! Several ranks as one [`Backend`]: a worker thread for each, every one of them consuming the same ordered queue of
//! step plans. A rank decides nothing: what it does next is the next plan, and what the plans say depends on no
//! rank's clock, free list or completion. Rank 0 alone answers; from the others it takes to hear that they are done.
//!
//! Host and ranks overlap: [`Backend::submit`] checks a plan, queues it and returns, so that one plan may be made
//! while another runs. At most [`PLANS_UNDER_WAY`] are.
//!
//! Nothing here waits for what may never come. A rank that fails, panics or meets a plan out of turn leaves its
//! reason behind and goes; whoever waits for it hears of that, the host included. What a rank needs from its peers in
//! the middle of a step is its own business, and a [`Rank`] that is dropped must release the peers that wait for it.

mod collective;
mod shard;
mod turn;
mod worker;

pub use collective::{Member, PeerGone};
pub use shard::{Shard, ShardError};

#[cfg(test)]
mod tests;

use crate::{Backend, BackendError, Family, RowResult, StepMasks, StepPlan, StepResult};
use overshot_kv::PoolCapacity;
use overshot_model::Spec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use turn::Turn;
use worker::{Fate, Masks, Order, Seat, Worker};

/// Plans that may be submitted and not yet collected: one that runs, and one that waits for it.
pub const PLANS_UNDER_WAY: usize = 2;

/// What executes plans on one device, or on one share of the host.
///
/// A plan is `forward`, then `draw` on rank 0 and `follow` on the others. All ranks see the same plans in the same
/// order, checked; an error stops the rank for good. Dropping it releases peers that wait for it.
pub trait Rank: Send + 'static {
    type Error: std::error::Error;

    /// Page operations, and everything of the rows up to their logits. A row's placeholder stands for what the plan
    /// before drew.
    ///
    /// # Errors
    /// What keeps this rank from going on.
    fn forward(&mut self, plan: &StepPlan) -> Result<(), Self::Error>;

    /// Rank 0: results of all rows of the plan that went `forward` last, whose drawn tokens the peers are told.
    ///
    /// # Errors
    /// What keeps this rank from going on.
    fn draw(&mut self, plan: &StepPlan, masks: &StepMasks) -> Result<Vec<RowResult>, Self::Error>;

    /// The other ranks: learns what rank 0 drew.
    ///
    /// # Errors
    /// What keeps this rank from going on.
    fn follow(&mut self, plan: &StepPlan) -> Result<(), Self::Error>;

    /// Of a plan that asks for it and went last: this rank's time by family of kernels, where that can be told.
    ///
    /// # Errors
    /// What keeps this rank from going on.
    fn families(&mut self) -> Result<Vec<(Family, Duration)>, Self::Error> {
        Ok(Vec::new())
    }

    /// Calls `work` once, on a thread where this rank likes to compute, and returns after it.
    fn host(&mut self, work: impl FnOnce(&mut Self) + Send)
    where
        Self: Sized,
    {
        work(self);
    }
}

/// What the ranks are together.
#[derive(Clone, Debug)]
pub struct RanksInfo {
    /// For people: see [`Backend::name`].
    pub name: String,
    pub spec: Spec,
    /// Of every rank: cache state is the same on all of them.
    pub capacity: PoolCapacity,
}

/// A group of ranks at work. Dropping it ends the workers after the step that they are in.
pub struct Ranks {
    info: RanksInfo,
    turn: Turn,
    /// Oldest first.
    under_way: VecDeque<UnderWay>,
    /// Of at least one rank.
    workers: Vec<Worker>,
    /// To rank 0; none once the ranks are told to end.
    masks: Option<SyncSender<StepMasks>>,
    fate: Arc<Fate>,
}

struct UnderWay {
    number: u64,
    masked: Vec<usize>,
    /// The masks are there, or none are needed.
    complete: bool,
}

impl UnderWay {
    fn wrong_masks(&self, supplied: Vec<usize>) -> BackendError {
        BackendError::WrongMasks { number: self.number, rows: self.masked.clone(), supplied }
    }
}

impl Ranks {
    /// Starts a worker for each of `ranks`, rank 0 first.
    ///
    /// # Errors
    /// No ranks, or a thread that the system does not start.
    pub fn start<R: Rank>(info: RanksInfo, ranks: Vec<R>) -> std::io::Result<Self> {
        if ranks.is_empty() {
            return Err(std::io::Error::other("a group of no ranks"));
        }
        let fate = Arc::new(Fate::default());
        let (to_rank_0, masks) = sync_channel(PLANS_UNDER_WAY);
        let mut masks = Some(masks);
        let turn = Turn::new(info.spec.vocab_size, info.capacity);
        let mut group = Ranks {
            info,
            turn,
            under_way: VecDeque::new(),
            workers: Vec::new(),
            masks: Some(to_rank_0),
            fate,
        };
        for (rank, executes) in ranks.into_iter().enumerate() {
            let seat = Seat {
                rank,
                masks: masks.take().map_or(Masks::Elsewhere, Masks::Come),
                fate: group.fate.clone(),
            };
            // An early return drops the group, which ends the workers that did start.
            group.workers.push(Worker::start(seat, executes)?);
        }
        Ok(group)
    }

    pub fn len(&self) -> usize {
        self.workers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// No more orders and masks: every rank ends when it has done those that it has.
    fn dismiss(&mut self) {
        self.masks = None;
        self.workers.iter_mut().for_each(Worker::dismiss);
    }
}

impl Backend for Ranks {
    fn name(&self) -> String {
        self.info.name.clone()
    }

    fn spec(&self) -> &Spec {
        &self.info.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.info.capacity
    }

    /// Never waits for a rank.
    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        self.fate.check()?;
        self.turn.expect(plan.number)?;
        if self.under_way.len() == PLANS_UNDER_WAY {
            return Err(BackendError::Full { number: plan.number, under_way: PLANS_UNDER_WAY });
        }
        let follows = self.turn.admit(&plan)?;
        let (number, masked) = (plan.number, plan.masked_rows());
        let plan = Arc::new(plan);
        for worker in &self.workers {
            worker.order(Order { plan: plan.clone(), follows }, &self.fate)?;
        }
        self.under_way.push_back(UnderWay { number, complete: masked.is_empty(), masked });
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        self.fate.check()?;
        let (number, supplied) = (masks.number, masks.rows.iter().map(|(row, _)| *row).collect());
        let Some(waiting) = self.under_way.iter_mut().find(|plan| !plan.complete) else {
            return Err(BackendError::WrongMasks { number, rows: Vec::new(), supplied });
        };
        if waiting.number != number {
            let what = format!("its masks came where those of step plan {} were due", waiting.number);
            return Err(BackendError::BadPlan { number, what });
        }
        if waiting.masked != supplied {
            return Err(waiting.wrong_masks(supplied));
        }
        let sent = self.masks.as_ref().is_some_and(|to_rank_0| to_rank_0.try_send(masks).is_ok());
        waiting.complete = true;
        if sent { Ok(()) } else { Err(self.fate.stopped(0)) }
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        let oldest = self.under_way.front().ok_or(BackendError::NothingSubmitted)?;
        if !oldest.complete {
            return Err(oldest.wrong_masks(Vec::new()));
        }
        let reports = self.workers.iter().map(|worker| worker.report(&self.fate)).collect();
        let reports: Vec<StepResult> = match reports {
            Ok(reports) => reports,
            Err(stopped) => {
                // Or the next call would wait for those that are well and have nothing to do.
                self.dismiss();
                return Err(stopped);
            }
        };
        self.under_way.pop_front();
        let mut reports = reports.into_iter();
        let result = reports.next().ok_or(BackendError::NothingSubmitted)?;
        let waits = reports.filter_map(|peer| family_time(&peer.families, Family::Wait));
        Ok(StepResult { peers_wait: waits.max(), ..result })
    }
}

fn family_time(families: &[(Family, Duration)], wanted: Family) -> Option<Duration> {
    families.iter().find(|(family, _)| *family == wanted).map(|(_, time)| *time)
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.fate.end();
        // All of them before any is waited for: they may wait for each other.
        self.dismiss();
        self.workers.iter_mut().for_each(Worker::join);
    }
}
