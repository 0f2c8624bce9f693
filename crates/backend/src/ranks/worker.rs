//! One rank's thread: takes orders, executes them, reports. Ends when it is told to, or for good with a reason.

use super::{PLANS_UNDER_WAY, Rank};
use crate::{BackendError, Family, RowResult, StepMasks, StepPlan, StepResult, Timing};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The next plan of the queue that all ranks consume.
#[derive(Clone)]
pub struct Order {
    pub plan: Arc<StepPlan>,
    /// Number of the order before. Numbers of refused plans are skipped, so a rank cannot count for itself.
    pub follows: Option<u64>,
}

/// What all workers and the host know about how it ends.
#[derive(Default)]
pub struct Fate {
    /// The first rank that stopped; those that stopped for want of it do not count.
    first: OnceLock<Stopped>,
    ending: AtomicBool,
}

struct Stopped {
    rank: usize,
    what: String,
}

impl Fate {
    /// # Errors
    /// A rank stopped.
    pub fn check(&self) -> Result<(), BackendError> {
        match self.first.get() {
            Some(_) => Err(self.stopped(0)),
            None => Ok(()),
        }
    }

    /// Why ranks stopped, or that `rank` is gone without a word.
    pub fn stopped(&self, rank: usize) -> BackendError {
        match self.first.get() {
            Some(Stopped { rank, what }) => BackendError::RankStopped { rank: *rank, what: what.clone() },
            None => BackendError::RankStopped { rank, what: "its worker is gone".into() },
        }
    }

    /// Workers end after the plan that they are at.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}

/// Where rank 0's masks come from; others draw nothing.
pub enum Masks {
    Come(Receiver<StepMasks>),
    Elsewhere,
}

/// A rank's place in its group.
pub struct Seat {
    pub rank: usize,
    pub masks: Masks,
    pub fate: Arc<Fate>,
}

/// The host's side of a rank. Neither channel ever fills: [`PLANS_UNDER_WAY`] counts for both.
pub struct Worker {
    rank: usize,
    orders: Option<SyncSender<Order>>,
    reports: Receiver<StepResult>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// # Errors
    /// The system starts no thread.
    pub fn start<R: Rank>(seat: Seat, mut rank: R) -> std::io::Result<Self> {
        let (orders, orders_of_rank) = sync_channel(PLANS_UNDER_WAY);
        let (reports_of_rank, reports) = sync_channel(PLANS_UNDER_WAY);
        let number = seat.rank;
        let life = move || {
            rank.host(move |rank| {
                let served =
                    catch_unwind(AssertUnwindSafe(|| seat.serve(rank, &orders_of_rank, &reports_of_rank)));
                let stopped = match served {
                    Ok(end) => end.err(),
                    Err(payload) => Some(format!("it panicked: {}", panic_message(payload.as_ref()))),
                };
                if let Some(what) = stopped {
                    seat.fate.first.get_or_init(|| Stopped { rank: seat.rank, what });
                }
                // Channels and rank go after this: whom they release must find the reason, not leave another.
            });
        };
        let thread = std::thread::Builder::new().name(format!("rank {number}")).spawn(life)?;
        Ok(Worker { rank: number, orders: Some(orders), reports, thread: Some(thread) })
    }

    /// # Errors
    /// The rank stopped.
    pub fn order(&self, order: Order, fate: &Fate) -> Result<(), BackendError> {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        if sent { Ok(()) } else { Err(fate.stopped(self.rank)) }
    }

    /// Waits for the rank to be done with its oldest order.
    ///
    /// # Errors
    /// The rank stopped.
    pub fn report(&self, fate: &Fate) -> Result<StepResult, BackendError> {
        self.reports.recv().map_err(|_| fate.stopped(self.rank))
    }

    pub fn dismiss(&mut self) {
        self.orders = None;
    }

    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Its panics were caught, and nobody is left to tell of others.
            let _ = thread.join();
        }
    }
}

impl Seat {
    /// Executes orders until there are no more.
    fn serve<R: Rank>(
        &self,
        rank: &mut R,
        orders: &Receiver<Order>,
        reports: &SyncSender<StepResult>,
    ) -> Result<(), String> {
        let mut last = None;
        for Order { plan, follows } in orders {
            if self.fate.ending.load(Ordering::Relaxed) {
                break;
            }
            if follows != last {
                return Err(out_of_turn(plan.number, follows, last));
            }
            last = Some(plan.number);
            let report = self.step(rank, &plan).map_err(|error| error.to_string())?;
            // Without a report, the masks will not come; nor is there anyone to answer without a reader.
            let Some(report) = report else { break };
            if reports.send(report).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// `None` when the masks that the plan needs will never come.
    fn step<R: Rank>(&self, rank: &mut R, plan: &StepPlan) -> Result<Option<StepResult>, R::Error> {
        let started = Instant::now();
        rank.forward(plan)?;
        let (rows, waited) = match &self.masks {
            Masks::Elsewhere => {
                rank.follow(plan)?;
                (Vec::<RowResult>::new(), Duration::ZERO)
            }
            Masks::Come(masks) => {
                let waiting = Instant::now();
                let masks = match plan.masked_rows().is_empty() {
                    true => StepMasks::default(),
                    false => match masks.recv() {
                        Ok(masks) => masks,
                        Err(_) => return Ok(None),
                    },
                };
                let waited = waiting.elapsed();
                (rank.draw(plan, &masks)?, waited)
            }
        };
        let device_time = started.elapsed().saturating_sub(waited);
        let families: Vec<(Family, Duration)> = match plan.timing {
            Timing::ByFamily => rank.families()?,
            Timing::Off => Vec::new(),
        };
        Ok(Some(StepResult { number: plan.number, rows, device_time, families, peers_wait: None }))
    }
}

fn out_of_turn(number: u64, follows: Option<u64>, last: Option<u64>) -> String {
    let name =
        |plan: Option<u64>| plan.map_or("the start".to_owned(), |number| format!("step plan {number}"));
    format!("step plan {number} follows {}, but what ran here last was {}", name(follows), name(last))
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
