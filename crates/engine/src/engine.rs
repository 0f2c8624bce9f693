//! The step loop, and the only place where requests, cache accounts and backend meet.
//!
//! A step is decided (`scheduler.rs`), planned, submitted, collected and taken in. The plain loop does all of it for
//! one step before it begins the next. The overlapped loop decides and submits the next step while one is still
//! under way: rows go on from tokens that are not drawn yet. A request that turns out to have ended leaves a surplus
//! row behind, whose token is dropped. Both loops give the same tokens.
//!
//! Pages are given back as soon as a request ends, even while a submitted step still writes to them: the backend
//! executes steps in order, so whoever gets those pages next writes later.

use crate::flight::{Flight, FlightRow};
use crate::scheduler::{self, Decision, Demand, View};
use crate::sequence::Sequence;
use crate::trace::{Counters, StepRecord, StepTrace};
use crate::{Clock, Event, Failure, Finish, Limits, Refused, Request, RequestId};
use overshot_backend::{Backend, BackendError, StepMasks, StepPlan, StepResult, Timing, TokenMask};
use overshot_kv::{Kv, KvError, Pool};
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the limit {name} is 0: use at least 1")]
    LimitIsZero { name: &'static str },
    #[error(
        "the limit step_tokens is {step_tokens}: use at least {running_requests}, one for each of running_requests"
    )]
    StepTooSmall { step_tokens: usize, running_requests: usize },
    #[error("the backend and the engine no longer agree on the order of steps: {0}")]
    Backend(#[from] BackendError),
    #[error(
        "step plan {number} with {rows} rows was answered as plan {answered_number} with {answered_rows} rows"
    )]
    WrongAnswer { number: u64, rows: usize, answered_number: u64, answered_rows: usize },
    #[error("a step did not fit into the pages promised to it: {0}")]
    Kv(#[from] KvError),
    #[error("the engine stopped after an earlier error: what its pages hold is unknown")]
    Stopped,
}

/// Whether the next step is planned before the one under way has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepLoop {
    #[default]
    Plain,
    Overlapped,
}

/// What came of planning a step.
enum Launch {
    Nothing,
    Submitted(Flight),
    /// The backend does not take it for what it says; these requests have rows in it.
    Refused {
        ids: Vec<RequestId>,
        failure: Failure,
    },
}

pub struct Engine {
    backend: Box<dyn Backend>,
    kv: Kv,
    limits: Limits,
    step_loop: StepLoop,
    timing: Timing,
    clock: Clock,
    /// Positions that the cache can hold for a request that is alone.
    cache_positions: usize,
    /// In the order of arrival, all younger than the running ones.
    waiting: VecDeque<Sequence>,
    /// How many of those at the head have run before and gave way.
    preempted: usize,
    /// In the order of arrival.
    running: Vec<Sequence>,
    /// The submitted step that is not collected yet: between calls, in the overlapped loop only.
    flight: Option<Flight>,
    next_request: u64,
    next_plan: u64,
    /// When the last step ended, if the engine was not idle since.
    last_end: Option<Duration>,
    counters: Counters,
    trace: StepTrace,
    is_stopped: bool,
    /// The error that stopped it, until a call tells it.
    untold: Option<EngineError>,
    #[cfg(feature = "fault-injection")]
    bug: Option<crate::Bug>,
}

impl Engine {
    /// A backend that may draw several tokens a row gets the plain loop whatever is asked: how far such a row comes
    /// is not known before it ends.
    ///
    /// # Errors
    /// Limits under which nothing could run.
    pub fn new(backend: Box<dyn Backend>, limits: Limits, step_loop: StepLoop) -> Result<Self, EngineError> {
        limits.validate()?;
        let capacity = backend.capacity();
        let is_predictable = backend.most_tokens_per_row() == 1;
        Ok(Engine {
            kv: Kv::new(capacity),
            limits,
            step_loop: if is_predictable { step_loop } else { StepLoop::Plain },
            timing: Timing::Off,
            clock: Clock::system(),
            cache_positions: capacity.longest_set_tokens(),
            waiting: VecDeque::new(),
            preempted: 0,
            running: Vec::new(),
            flight: None,
            next_request: 0,
            next_plan: 0,
            last_end: None,
            counters: Counters::default(),
            trace: StepTrace::new(limits.trace_steps),
            is_stopped: false,
            untold: None,
            #[cfg(feature = "fault-injection")]
            bug: None,
            backend,
        })
    }

    /// Replaces the clock that the trace is written by; nothing else reads it.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Of steps that are planned from now on: whether the trace is told their time by family of kernels.
    pub fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Queues a request.
    ///
    /// # Errors
    /// What can never run, or not now, is refused at once, with the reason.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.examine(&request)?;
        if self.is_idle() {
            self.last_end = None;
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let most_new_tokens = self.most_new_tokens(&request);
        self.waiting.push_back(Sequence::new(id, request, most_new_tokens));
        Ok(id)
    }

    /// Takes in one step, after submitting one, and says what it did. Nothing to do gives no events; neither does
    /// the first step of the overlapped loop.
    ///
    /// A plan that the backend refuses for what it says fails the requests that have rows in it, nobody else.
    ///
    /// # Errors
    /// The engine can't go on: it and the backend disagree. Every later step fails too.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        if let Some(error) = self.untold.take() {
            return Err(error);
        }
        if self.is_stopped {
            return Err(EngineError::Stopped);
        }
        let mut events = Vec::new();
        let outcome = match self.step_loop {
            StepLoop::Plain => self.step_plain(&mut events),
            StepLoop::Overlapped => self.step_overlapped(&mut events),
        };
        self.is_stopped = outcome.is_err();
        match outcome {
            // What had come before the error is not lost: it goes first.
            Err(error) if !events.is_empty() => self.untold = Some(error),
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        Ok(events)
    }

    fn step_plain(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        match self.launch()? {
            Launch::Nothing => {}
            Launch::Refused { ids, failure } => self.end_refused(&ids, &failure, events),
            Launch::Submitted(mut flight) => {
                self.supply_masks(&mut flight, events)?;
                self.land(flight, events)?;
            }
        }
        Ok(())
    }

    fn step_overlapped(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let next = self.launch()?;
        if let Some(flight) = self.flight.take() {
            self.land(flight, events)?;
        }
        match next {
            Launch::Nothing => {}
            // Only now: a request may have ended well in the step before.
            Launch::Refused { ids, failure } => self.end_refused(&ids, &failure, events),
            Launch::Submitted(mut flight) => {
                // Masks depend on the tokens that have just come.
                self.supply_masks(&mut flight, events)?;
                self.flight = Some(flight);
            }
        }
        Ok(())
    }

    /// Ends a request and gives back what it holds before the call returns. The event is the request's last; `None`
    /// when it had ended already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let mut events = Vec::new();
        self.end(id, Finish::Cancelled, &mut events);
        events.pop()
    }

    /// Whether a step would have nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.flight.is_none()
    }

    /// Requests that were never computed, and requests that gave way.
    pub fn waiting_requests(&self) -> usize {
        self.waiting.len()
    }

    pub fn running_requests(&self) -> usize {
        self.running.len()
    }

    /// The cache accounts, to look at.
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn trace(&self) -> &StepTrace {
        &self.trace
    }

    fn examine(&self, request: &Request) -> Result<(), Refused> {
        let (spec, limits) = (self.backend.spec(), &self.limits);
        let (vocab_size, prompt_tokens) = (spec.vocab_size, request.prompt.len());
        let stop_tokens = request.stop_tokens.len();
        if prompt_tokens == 0 {
            return Err(Refused::EmptyPrompt);
        }
        if prompt_tokens > spec.max_positions {
            return Err(Refused::BeyondContext { prompt_tokens, most: spec.max_positions });
        }
        if prompt_tokens > self.cache_positions {
            return Err(Refused::BeyondCache { prompt_tokens, most: self.cache_positions });
        }
        if let Some(index) = request.prompt.iter().position(|token| *token as usize >= vocab_size) {
            return Err(Refused::NoSuchToken { token: request.prompt[index], index, vocab_size });
        }
        if request.max_new_tokens == 0 {
            return Err(Refused::NothingToGenerate);
        }
        if stop_tokens > limits.stop_tokens {
            return Err(Refused::TooManyStopTokens { stop_tokens, most: limits.stop_tokens });
        }
        request.sampling.validate(vocab_size)?;
        // Requests that gave way were in already, and those for whom a place is free start with the next step:
        // neither kind shuts the door to others.
        let places = limits.running_requests.saturating_sub(self.running.len());
        let newcomers = self.waiting.len() - self.preempted;
        if newcomers >= limits.waiting_requests.saturating_add(places) {
            return Err(Refused::QueueFull { waiting: self.waiting.len() });
        }
        Ok(())
    }

    /// Tokens that a request can come to draw: as many as it asked for, or until context or cache end.
    fn most_new_tokens(&self, request: &Request) -> usize {
        let positions = self.backend.spec().max_positions.min(self.cache_positions);
        // The last token drawn needs no position of its own.
        request.max_new_tokens.min(positions - request.prompt.len() + 1)
    }

    /// Decides, plans and submits a step.
    fn launch(&mut self) -> Result<Launch, EngineError> {
        let began = self.clock.now();
        let decision = scheduler::decide(&self.view(), &self.limits);
        self.preempt(decision.preempted)?;
        self.admit(decision.admitted)?;
        if decision.shares.is_empty() {
            return Ok(Launch::Nothing);
        }
        let (plan, rows) = self.plan(&decision)?;
        let submitted = self.clock.now();
        let flight = Flight {
            number: plan.number,
            rows,
            preempted: decision.preempted,
            waiting: self.waiting.len(),
            submitted,
            host_time: submitted - began,
        };
        match self.backend.submit(plan) {
            Ok(()) => Ok(Launch::Submitted(flight)),
            Err(error @ (BackendError::BadRow { .. } | BackendError::BadPlan { .. })) => {
                let ids = flight.rows.iter().map(|row| row.id).collect();
                Ok(Launch::Refused { ids, failure: Failure::StepRefused { what: error.to_string() } })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn end_refused(&mut self, ids: &[RequestId], failure: &Failure, events: &mut Vec<Event>) {
        for id in ids {
            self.end(*id, Finish::Failed(failure.clone()), events);
        }
    }

    fn view(&self) -> View {
        let demand = |sequence: &Sequence| Demand {
            unplanned: sequence.unplanned(),
            held: sequence.set.map(|_| sequence.planned()),
            most: sequence.most_positions(),
        };
        let room = self.limits.running_requests.saturating_sub(self.running.len());
        View {
            running: self.running.iter().map(demand).collect(),
            waiting: self.waiting.iter().take(room).map(demand).collect(),
            free_pages: Pool::ALL.map(|pool| self.kv.free_pages(pool)),
        }
    }

    fn preempt(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            let Some(mut sequence) = self.running.pop() else { break };
            if let Some(set) = sequence.set.take() {
                self.kv.free(set)?;
            }
            sequence.start_over();
            self.waiting.push_front(sequence);
            self.preempted += 1;
            self.counters.preemptions += 1;
        }
        Ok(())
    }

    fn admit(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            self.preempted = self.preempted.saturating_sub(1);
            sequence.set = Some(self.kv.create()?);
            self.running.push(sequence);
        }
        Ok(())
    }

    fn plan(&mut self, decision: &Decision) -> Result<(StepPlan, Vec<FlightRow>), EngineError> {
        let mut plan = StepPlan { number: self.next_plan, timing: self.timing, ..StepPlan::default() };
        self.next_plan += 1;
        let mut rows = Vec::with_capacity(decision.shares.len());
        for share in &decision.shares {
            let sequence = &mut self.running[share.running];
            let set = sequence.set.expect("a running sequence holds a set from its admission on");
            plan.page_ops.extend(self.kv.extend(set, share.tokens)?);
            let is_decode = sequence.is_decoding();
            let row = sequence.plan(plan.rows.len(), share.tokens, self.kv.table(set)?.clone());
            rows.push(FlightRow::of(sequence.id, &row, is_decode));
            plan.rows.push(row);
            #[cfg(feature = "fault-injection")]
            self.free_early(share.running)?;
        }
        Ok((plan, rows))
    }

    /// Gives a submitted step the masks of its masked rows, now that all tokens before them are known.
    fn supply_masks(&mut self, flight: &mut Flight, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let began = self.clock.now();
        let masked = flight.rows.iter().enumerate().filter(|(_, row)| row.is_masked);
        let wanted: Vec<(usize, RequestId)> = masked.map(|(index, row)| (index, row.id)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut masks = StepMasks { number: flight.number, rows: Vec::with_capacity(wanted.len()) };
        for (row, id) in wanted {
            let mask = match self.sequence_mut(id).map(Sequence::mask) {
                Some(Ok(Some(mask))) => mask,
                Some(Err(failure)) => {
                    self.end(id, Finish::Failed(failure), events);
                    TokenMask::all(self.backend.spec().vocab_size)
                }
                // Anything is allowed, or nobody reads what will be drawn.
                Some(Ok(None)) | None => TokenMask::all(self.backend.spec().vocab_size),
            };
            masks.rows.push((row, mask));
        }
        flight.host_time += self.clock.now() - began;
        Ok(self.backend.supply(masks)?)
    }

    /// Waits for a submitted step and takes in what it gave.
    fn land(&mut self, flight: Flight, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let result = self.backend.collect()?;
        let ended = self.clock.now();
        let (number, rows) = (flight.number, flight.rows.len());
        let (answered_number, answered_rows) = (result.number, result.rows.len());
        if (answered_number, answered_rows) != (number, rows) {
            return Err(EngineError::WrongAnswer { number, rows, answered_number, answered_rows });
        }
        let began = self.last_end.unwrap_or(flight.submitted);
        let (device_time, families) = (result.device_time, result.families.clone());
        let delivered_tokens = self.absorb(&flight, result, events);
        self.last_end = Some(ended);
        let record = StepRecord {
            delivered_tokens,
            ended,
            host_time: flight.host_time + (self.clock.now() - ended),
            device_time,
            families,
            period: ended - began,
            ..flight.record()
        };
        self.counters.steps += 1;
        self.counters.prefill_tokens += record.prefill_tokens as u64;
        self.counters.delivered_tokens += delivered_tokens as u64;
        self.trace.push(record);
        Ok(())
    }

    /// Hands every row's result to its request. Rows whose request has ended are surplus: dropped.
    fn absorb(&mut self, flight: &Flight, result: StepResult, events: &mut Vec<Event>) -> usize {
        let events_before = events.len();
        for (row, result) in flight.rows.iter().zip(result.rows) {
            let Some(sequence) = self.sequence_mut(row.id) else { continue };
            sequence.tell_progress(row.end, events);
            let ended = match result.failure {
                Some(failure) if !row.is_drawing => Some(Finish::Failed(failure.into())),
                _ if row.is_drawing => sequence.absorb(result, events),
                _ => None,
            };
            if let Some(reason) = ended {
                self.end(row.id, reason, events);
            }
        }
        events[events_before..].iter().filter(|event| matches!(event, Event::Token { .. })).count()
    }

    fn sequence_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        if let Ok(index) = self.running.binary_search_by_key(&id, |sequence| sequence.id) {
            return Some(&mut self.running[index]);
        }
        let index = self.waiting.binary_search_by_key(&id, |sequence| sequence.id).ok()?;
        self.waiting.get_mut(index)
    }

    /// The one way out for a request: removes it, gives its set back, says how it ended.
    fn end(&mut self, id: RequestId, reason: Finish, events: &mut Vec<Event>) {
        let sequence = if let Ok(index) = self.running.binary_search_by_key(&id, |sequence| sequence.id) {
            self.running.remove(index)
        } else if let Ok(index) = self.waiting.binary_search_by_key(&id, |sequence| sequence.id) {
            self.preempted -= usize::from(index < self.preempted);
            self.waiting.remove(index).expect("the index was found in the queue")
        } else {
            return;
        };
        if let Some(set) = sequence.set {
            self.kv.free(set).expect("a running sequence owns its set, and only the engine frees sets");
        }
        #[cfg(feature = "fault-injection")]
        self.drop_late_token(id);
        self.counters.count(&reason);
        events.push(Event::Finished { id, reason, usage: sequence.usage() });
    }
}

/// Mistakes made on purpose; see [`crate::Bug`].
#[cfg(feature = "fault-injection")]
impl Engine {
    pub fn plant(&mut self, bug: crate::Bug) {
        self.bug = Some(bug);
    }

    fn free_early(&mut self, running: usize) -> Result<(), EngineError> {
        let sequence = &mut self.running[running];
        if self.bug == Some(crate::Bug::FreesEarly)
            && sequence.unplanned() == 0
            && let Some(set) = sequence.set.take()
        {
            self.kv.free(set)?;
        }
        Ok(())
    }

    fn drop_late_token(&mut self, id: RequestId) {
        if self.bug == Some(crate::Bug::DropsLateToken)
            && let Some(flight) = &mut self.flight
        {
            flight.rows.retain(|row| row.id != id);
        }
    }
}
