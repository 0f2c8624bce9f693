//! The handle by which everybody reaches the engine, whose thread is in `desk.rs`: requests go in through an inbox,
//! tokens come back through a mailbox, and the ticket between the two cancels when it is dropped.

use crate::desk::Desk;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::mailbox::{Arrival, Mailbox};
use crate::metrics::{Metrics, Outcome};
use crate::sync::lock;
use overshot_engine::{Engine, Refused, Request, StepRecord};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Sees the record of every step, on the engine's thread. It is dropped before the thread's end is told.
pub trait StepObserver: Send {
    fn saw(&mut self, record: &StepRecord);

    /// Nothing is left to compute for now. It may be called again without a step between.
    fn rests(&mut self);
}

/// What the engine's thread and the connections share.
pub(crate) struct Shared {
    pub inbox: Mutex<Inbox>,
    /// Told when the inbox has something new.
    pub arrived: Condvar,
    pub metrics: Metrics,
    pub limits: ServerLimits,
    pub started: Instant,
    /// When the last step ended, or work came to a resting engine: milliseconds since `started`.
    pub heartbeat_ms: AtomicU64,
    pub has_ended: watch::Sender<bool>,
    /// The thread is over, and with it the observer. It may come long after the end: the engine may hang.
    pub has_left: watch::Sender<bool>,
}

pub(crate) struct Inbox {
    pub phase: Phase,
    pub submissions: VecDeque<Submission>,
    /// At most one for each open choice and one for each open group.
    pub cancels: Vec<Cancel>,
    /// Every group whose ticket is still held and that more may come to, so that it can be told of the end whatever
    /// the engine does. One whose choices have all ended is not told: it has its answer, read or not.
    pub open: HashMap<GroupId, Arc<Mailbox>>,
    pub last_group: u64,
    /// The thread waits for work.
    pub is_resting: bool,
}

pub(crate) enum Phase {
    Running,
    /// New requests are refused; the thread ends when the engine is idle.
    Draining,
    /// What every open request was told.
    Ended(ApiError),
}

impl Phase {
    /// What new requests are told. They were never begun, so none of them was cut.
    fn refusal(&self) -> Option<ApiError> {
        match self {
            Phase::Running => None,
            Phase::Draining | Phase::Ended(ApiError::CutByShutdown) => Some(ApiError::ShuttingDown),
            Phase::Ended(error) => Some(error.clone()),
        }
    }
}

/// The choices of one HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(u64);

pub(crate) struct Submission {
    pub group: GroupId,
    pub requests: Vec<Request>,
    pub mailbox: Arc<Mailbox>,
    pub reply: oneshot::Sender<Result<(), Refused>>,
    pub arrived: Instant,
}

pub(crate) struct Cancel {
    pub group: GroupId,
    /// `None`: all of them.
    pub choice: Option<usize>,
    pub outcome: Outcome,
}

/// Where requests go. Clones reach the same engine.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// Whether the engine moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    Well,
    /// There is work, and no step has ended for so long.
    Stalled(Duration),
}

impl EngineHandle {
    /// Starts the thread. It ends after [`EngineHandle::drain`] or [`EngineHandle::stop`], or when the engine fails.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        engine: Engine,
        limits: ServerLimits,
        observer: Option<Box<dyn StepObserver>>,
    ) -> std::io::Result<Self> {
        let inbox = Inbox {
            phase: Phase::Running,
            submissions: VecDeque::new(),
            cancels: Vec::new(),
            open: HashMap::new(),
            last_group: 0,
            is_resting: false,
        };
        let shared = Arc::new(Shared {
            inbox: Mutex::new(inbox),
            arrived: Condvar::new(),
            metrics: Metrics::new(engine.kv()),
            limits,
            started: Instant::now(),
            heartbeat_ms: AtomicU64::new(0),
            has_ended: watch::Sender::new(false),
            has_left: watch::Sender::new(false),
        });
        let keeper = EndKeeper { shared: Arc::clone(&shared) };
        let desk = Desk::new(engine, Arc::clone(&shared), observer);
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            // Dropped in reverse, also by a panic: first the observer, then the word that it is gone.
            let keeper = keeper;
            let mut desk = desk;
            keeper.shared.end(desk.run());
        })?;
        Ok(EngineHandle { shared })
    }

    /// Queues the choices of one HTTP request: all of them, or none. Dropping the future or the ticket cancels them.
    ///
    /// # Errors
    /// What the engine refuses, a full queue, an engine that takes nothing any more.
    pub async fn submit(&self, requests: Vec<Request>) -> Result<Ticket, ApiError> {
        let is_open = vec![true; requests.len()];
        let (reply, replied) = oneshot::channel();
        let ticket = {
            let mut inbox = lock(&self.shared.inbox);
            if let Some(error) = inbox.phase.refusal() {
                return Err(error);
            }
            let waiting = inbox.submissions.len();
            if waiting >= self.shared.limits.submissions {
                return Err(Refused::QueueFull { waiting }.into());
            }
            if inbox.is_resting {
                self.shared.beat();
            }
            inbox.last_group += 1;
            let (group, mailbox) = (GroupId(inbox.last_group), Arc::new(Mailbox::default()));
            inbox.open.insert(group, Arc::clone(&mailbox));
            let arrived = Instant::now();
            inbox.submissions.push_back(Submission {
                group,
                requests,
                mailbox: Arc::clone(&mailbox),
                reply,
                arrived,
            });
            Ticket { shared: Arc::clone(&self.shared), group, mailbox, is_open }
        };
        self.shared.arrived.notify_one();
        match replied.await {
            Ok(Ok(())) => Ok(ticket),
            Ok(Err(refused)) => Err(refused.into()),
            Err(_) => Err(self.refusal().unwrap_or(ApiError::ShuttingDown)),
        }
    }

    /// Why requests are refused, if they are.
    pub fn refusal(&self) -> Option<ApiError> {
        lock(&self.shared.inbox).phase.refusal()
    }

    pub fn pulse(&self, stall: Duration) -> Pulse {
        let has_work = {
            let metrics = &self.shared.metrics;
            metrics.waiting.load(Relaxed) + metrics.running.load(Relaxed) > 0
                || !lock(&self.shared.inbox).submissions.is_empty()
        };
        let beat = Duration::from_millis(self.shared.heartbeat_ms.load(Relaxed));
        let since = self.shared.started.elapsed().saturating_sub(beat);
        if has_work && since >= stall { Pulse::Stalled(since) } else { Pulse::Well }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// From here on new requests are refused; the thread ends once the running ones have.
    pub fn drain(&self) {
        let mut inbox = lock(&self.shared.inbox);
        if matches!(inbox.phase, Phase::Running) {
            inbox.phase = Phase::Draining;
        }
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Cuts everything that is open, at once, also when the engine hangs in a step.
    pub fn stop(&self) {
        self.shared.end(ApiError::CutByShutdown);
    }

    /// Waits until the engine takes nothing any more and every open request has been told.
    pub async fn ended(&self) {
        let mut has_ended = self.shared.has_ended.subscribe();
        // The sender lives in `shared`, which this handle holds.
        let _ = has_ended.wait_for(|has_ended| *has_ended).await;
    }

    /// Waits until the thread is over, which an engine that hangs in a step never is.
    pub async fn left(&self) {
        let mut has_left = self.shared.has_left.subscribe();
        let _ = has_left.wait_for(|has_left| *has_left).await;
    }
}

impl Shared {
    pub fn beat(&self) {
        self.heartbeat_ms.store(self.started.elapsed().as_millis() as u64, Relaxed);
    }

    /// The end for everybody, with what to tell them. Only the first call says anything.
    fn end(&self, error: ApiError) {
        let mut inbox = lock(&self.inbox);
        if !matches!(inbox.phase, Phase::Ended(_)) {
            for mailbox in inbox.open.values() {
                mailbox.fail(error.clone());
            }
            // Their senders go with them, which ends the waiting for a reply.
            inbox.submissions.clear();
            inbox.phase = Phase::Ended(error);
        }
        drop(inbox);
        self.arrived.notify_one();
        self.has_ended.send_replace(true);
    }
}

/// Tells everybody when the thread ends, however it ends.
struct EndKeeper {
    shared: Arc<Shared>,
}

impl Drop for EndKeeper {
    fn drop(&mut self) {
        self.shared.end(ApiError::EngineStopped("its thread panicked".into()));
        self.shared.has_left.send_replace(true);
    }
}

/// The right to the answers of one HTTP request. Dropping it cancels what has not ended.
pub struct Ticket {
    shared: Arc<Shared>,
    group: GroupId,
    mailbox: Arc<Mailbox>,
    /// By choice: whether anything more can come.
    is_open: Vec<bool>,
}

impl Ticket {
    /// Takes all that has arrived into `taken`, which must be empty.
    pub fn poll_take(&mut self, context: &mut Context<'_>, taken: &mut Vec<Arrival>) -> Poll<()> {
        let poll = self.mailbox.poll_take(context, taken);
        for arrival in taken.iter() {
            match arrival {
                Arrival::Token { .. } => {}
                Arrival::Ended { choice, .. } => self.is_open[*choice] = false,
                Arrival::Failed(_) => self.is_open.fill(false),
            }
        }
        poll
    }

    /// Ends a choice whose text has reached its end; nothing more is wanted of it.
    pub fn stop(&mut self, choice: usize) {
        self.is_open[choice] = false;
        self.cancel(Some(choice), Outcome::Stop);
    }

    /// Ends all that is left of the request.
    pub fn give_up(&mut self, outcome: Outcome) {
        self.is_open.fill(false);
        self.cancel(None, outcome);
    }

    fn cancel(&self, choice: Option<usize>, outcome: Outcome) {
        let mut inbox = lock(&self.shared.inbox);
        if matches!(inbox.phase, Phase::Ended(_)) {
            return;
        }
        inbox.cancels.push(Cancel { group: self.group, choice, outcome });
        drop(inbox);
        self.shared.arrived.notify_one();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.shared.inbox).open.remove(&self.group);
        if self.is_open.contains(&true) {
            self.give_up(Outcome::Disconnected);
        }
    }
}
