//! The thread that owns the engine, and the handle by which everybody else reaches it. All use of the engine's
//! interface stands here.
//!
//! The thread takes commands between steps and sleeps when there is nothing to compute. It posts tokens to mailboxes
//! and never waits for a reader. Text is none of its business: detokenizing, parsing and stop strings run in the
//! tasks of the connections.

use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::mailbox::{Arrival, ChoiceEnd, Mailbox, Posted};
use crate::metrics::{Metrics, Outcome};
use crate::sync::lock;
use overshot_engine::{Engine, Event, Finish, Refused, Request, RequestId, StepRecord};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Sees the record of every step, on the engine's thread.
pub type StepObserver = Box<dyn FnMut(&StepRecord) + Send>;

/// What the engine's thread and the connections share.
struct Shared {
    inbox: Mutex<Inbox>,
    /// Told when the inbox has something new.
    arrived: Condvar,
    metrics: Metrics,
    limits: ServerLimits,
    started: Instant,
    /// When the last step ended, or work came to a resting engine: milliseconds since `started`.
    heartbeat_ms: AtomicU64,
    has_ended: watch::Sender<bool>,
}

struct Inbox {
    phase: Phase,
    submissions: VecDeque<Submission>,
    /// At most one for each open choice and one for each open group.
    cancels: Vec<Cancel>,
    /// Every group whose ticket is still held and that more may come to, so that it can be told of the end whatever
    /// the engine does. One whose choices have all ended is not told: it has its answer, read or not.
    open: HashMap<GroupId, Arc<Mailbox>>,
    last_group: u64,
    /// The thread waits for work.
    is_resting: bool,
}

enum Phase {
    Running,
    /// New requests are refused; the thread ends when the engine is idle.
    Draining,
    /// What every request is told from now on.
    Ended(ApiError),
}

/// The choices of one HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GroupId(u64);

struct Submission {
    group: GroupId,
    requests: Vec<Request>,
    mailbox: Arc<Mailbox>,
    reply: oneshot::Sender<Result<(), Refused>>,
    arrived: Instant,
}

struct Cancel {
    group: GroupId,
    /// `None`: all of them.
    choice: Option<usize>,
    outcome: Outcome,
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
        observer: Option<StepObserver>,
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
        });
        let keeper = EndKeeper { shared: Arc::clone(&shared) };
        let mut desk = Desk {
            engine,
            shared: Arc::clone(&shared),
            groups: HashMap::new(),
            owners: HashMap::new(),
            next_step: 0,
            observer,
        };
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            let keeper = keeper;
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
            match &inbox.phase {
                Phase::Running => {}
                Phase::Draining => return Err(ApiError::ShuttingDown),
                Phase::Ended(error) => return Err(error.clone()),
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
        match &lock(&self.shared.inbox).phase {
            Phase::Running => None,
            Phase::Draining => Some(ApiError::ShuttingDown),
            Phase::Ended(error) => Some(error.clone()),
        }
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
}

impl Shared {
    fn beat(&self) {
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
            self.cancel(None, Outcome::Disconnected);
        }
    }
}

/// The thread's own side.
struct Desk {
    engine: Engine,
    shared: Arc<Shared>,
    /// By choice; `None` once ended.
    groups: HashMap<GroupId, Vec<Option<RequestId>>>,
    owners: HashMap<RequestId, Owner>,
    /// The first step whose record was not seen yet.
    next_step: u64,
    observer: Option<StepObserver>,
}

struct Owner {
    group: GroupId,
    choice: usize,
    mailbox: Arc<Mailbox>,
    /// Of the last token, or of the request.
    last: Instant,
    has_token: bool,
}

impl Desk {
    /// Until there is nothing more to do; the result is what later requests are told.
    fn run(&mut self) -> ApiError {
        loop {
            match self.take_commands() {
                Flow::Go => {}
                Flow::End(error) => {
                    self.cut_all();
                    return error;
                }
            }
            if self.engine.is_idle() {
                continue;
            }
            match self.engine.step() {
                Ok(events) => {
                    let now = Instant::now();
                    events.into_iter().for_each(|event| self.dispatch(event, now));
                    self.observe();
                }
                Err(error) => return ApiError::EngineStopped(error.to_string()),
            }
        }
    }

    /// Waits for commands if there is nothing to compute, and carries out those that are there.
    fn take_commands(&mut self) -> Flow {
        let shared = Arc::clone(&self.shared);
        let mut inbox = lock(&shared.inbox);
        while self.engine.is_idle()
            && inbox.submissions.is_empty()
            && inbox.cancels.is_empty()
            && matches!(inbox.phase, Phase::Running)
        {
            inbox.is_resting = true;
            inbox = shared.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            inbox.is_resting = false;
        }
        match &inbox.phase {
            Phase::Ended(error) => return Flow::End(error.clone()),
            Phase::Draining if self.engine.is_idle() && inbox.submissions.is_empty() => {
                return Flow::End(ApiError::ShuttingDown);
            }
            Phase::Running | Phase::Draining => {}
        }
        if inbox.submissions.is_empty() && inbox.cancels.is_empty() {
            return Flow::Go;
        }
        let submissions = std::mem::take(&mut inbox.submissions);
        let cancels = std::mem::take(&mut inbox.cancels);
        drop(inbox);
        // In this order: a ticket dropped early has its submission before its cancel.
        submissions.into_iter().for_each(|submission| self.submit(submission));
        cancels.iter().for_each(|cancel| self.cancel(cancel));
        self.publish();
        Flow::Go
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { group, requests, mailbox, reply, arrived } = submission;
        let mut accepted = Vec::with_capacity(requests.len());
        for request in requests {
            match self.engine.submit(request) {
                Ok(id) => accepted.push(id),
                Err(refused) => {
                    accepted.into_iter().for_each(|id| drop(self.engine.cancel(id)));
                    // Whoever does not wait any more needs no answer.
                    let _ = reply.send(Err(refused));
                    return;
                }
            }
        }
        for (choice, id) in accepted.iter().enumerate() {
            let mailbox = Arc::clone(&mailbox);
            self.owners.insert(*id, Owner { group, choice, mailbox, last: arrived, has_token: false });
        }
        self.groups.insert(group, accepted.into_iter().map(Some).collect());
        let _ = reply.send(Ok(()));
    }

    fn cancel(&mut self, cancel: &Cancel) {
        let Some(group) = self.groups.get(&cancel.group) else { return };
        let chosen = |(choice, id): (usize, &Option<RequestId>)| {
            id.filter(|_| cancel.choice.is_none_or(|wanted| wanted == choice))
        };
        let ids: Vec<RequestId> = group.iter().enumerate().filter_map(chosen).collect();
        for id in ids {
            self.engine.cancel(id);
            self.forget(id, cancel.outcome);
        }
    }

    fn cut_all(&mut self) {
        let ids: Vec<RequestId> = self.owners.keys().copied().collect();
        for id in ids {
            self.engine.cancel(id);
            self.forget(id, Outcome::Shutdown);
        }
        self.publish();
    }

    fn dispatch(&mut self, event: Event, now: Instant) {
        match event {
            Event::PrefillProgress { .. } => {}
            Event::Token { id, sampled } => self.hand_on(id, sampled, now),
            Event::Finished { id, reason, .. } => {
                let Some(owner) = self.owners.get(&id) else { return };
                let end = match reason {
                    Finish::Stop(_) => ChoiceEnd::Stop,
                    Finish::Length => ChoiceEnd::Length,
                    Finish::Cancelled => return,
                    Finish::Failed(failure) => {
                        let group = owner.group;
                        owner.mailbox.fail(ApiError::Failed(failure.to_string()));
                        return self.cancel(&Cancel { group, choice: None, outcome: Outcome::Failed });
                    }
                };
                owner.mailbox.post_end(owner.choice, end);
                let outcome = if end == ChoiceEnd::Stop { Outcome::Stop } else { Outcome::Length };
                self.forget(id, outcome);
            }
        }
    }

    fn hand_on(&mut self, id: RequestId, sampled: overshot_backend::Sampled, now: Instant) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        let metrics = &self.shared.metrics;
        let times = if owner.has_token { &metrics.inter_token } else { &metrics.first_token };
        times.observe(now.saturating_duration_since(owner.last));
        (owner.last, owner.has_token) = (now, true);
        let unread_tokens = self.shared.limits.unread_tokens;
        if owner.mailbox.post_token(owner.choice, sampled, unread_tokens) == Posted::Full {
            let group = owner.group;
            owner.mailbox.fail(ApiError::ReaderTooSlow { unread_tokens });
            self.cancel(&Cancel { group, choice: None, outcome: Outcome::SlowReader });
        }
    }

    /// A request has ended, and the engine knows nothing of it any more.
    fn forget(&mut self, id: RequestId, outcome: Outcome) {
        let Some(owner) = self.owners.remove(&id) else { return };
        self.shared.metrics.count_outcome(outcome);
        let Some(group) = self.groups.get_mut(&owner.group) else { return };
        group[owner.choice] = None;
        if group.iter().all(Option::is_none) {
            self.groups.remove(&owner.group);
            lock(&self.shared.inbox).open.remove(&owner.group);
        }
    }

    fn observe(&mut self) {
        self.shared.beat();
        for record in self.engine.trace().since(self.next_step) {
            self.shared.metrics.step.observe(record.period);
            self.next_step = record.number + 1;
            if let Some(observer) = &mut self.observer {
                observer(record);
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let (metrics, counters) = (&self.shared.metrics, self.engine.counters());
        metrics.waiting.store(self.engine.waiting_requests() as u64, Relaxed);
        metrics.running.store(self.engine.running_requests() as u64, Relaxed);
        metrics.prompt_tokens.store(counters.prefill_tokens, Relaxed);
        metrics.generated_tokens.store(counters.delivered_tokens, Relaxed);
        metrics.preemptions.store(counters.preemptions, Relaxed);
        metrics.set_kv(self.engine.kv());
    }
}

enum Flow {
    Go,
    End(ApiError),
}
