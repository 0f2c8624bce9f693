//! The step loop, and the only place where requests, cache accounts and backend meet.
//!
//! This is the plain loop: one step is chosen, computed and taken in before the next is chosen. The choice itself is
//! in `scheduler.rs`, the course of one request in `sequence.rs`.

use crate::scheduler::{self, Demand, Share, View};
use crate::sequence::Sequence;
use crate::{Event, Finish, Limits, Refused, Request, RequestId, Usage};
use overshot_backend::{Backend, BackendError, StepPlan, StepResult};
use overshot_kv::{Kv, KvError, Pool, SetId};
use std::collections::VecDeque;

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

pub struct Engine {
    backend: Box<dyn Backend>,
    kv: Kv,
    limits: Limits,
    /// Positions that the cache can hold for a request that is alone.
    cache_positions: usize,
    /// In the order of arrival.
    waiting: VecDeque<(RequestId, Request)>,
    /// In the order of admission.
    running: Vec<Sequence>,
    next_request: u64,
    next_plan: u64,
    is_stopped: bool,
}

impl Engine {
    /// # Errors
    /// Limits under which nothing could run.
    pub fn new(backend: Box<dyn Backend>, limits: Limits) -> Result<Self, EngineError> {
        limits.validate()?;
        let capacity = backend.capacity();
        Ok(Engine {
            backend,
            kv: Kv::new(capacity),
            limits,
            cache_positions: capacity.longest_set_tokens(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_request: 0,
            next_plan: 0,
            is_stopped: false,
        })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// What can never run, or not now, is refused at once, with the reason.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.examine(&request)?;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Computes one step and says what it did. Nothing to do gives no events.
    ///
    /// A plan that the backend refuses for what it says fails the requests that have rows in it, nobody else.
    ///
    /// # Errors
    /// The engine can't go on: it and the backend disagree. Every later step fails too.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        if self.is_stopped {
            return Err(EngineError::Stopped);
        }
        let events = self.run_step();
        self.is_stopped = events.is_err();
        events
    }

    fn run_step(&mut self) -> Result<Vec<Event>, EngineError> {
        let decision = scheduler::decide(&self.view(), &self.limits);
        self.admit(decision.admitted)?;
        if decision.shares.is_empty() {
            return Ok(Vec::new());
        }
        let plan = self.plan(&decision.shares)?;
        let mut events = Vec::new();
        match self.backend.step(plan) {
            Ok(result) => self.absorb(&decision.shares, result, &mut events)?,
            Err(error @ (BackendError::BadRow { .. } | BackendError::BadPlan { .. })) => {
                for share in &decision.shares {
                    self.running[share.running].finish(Finish::Failed(error.to_string()), &mut events);
                }
            }
            Err(error) => return Err(error.into()),
        }
        self.retire();
        Ok(events)
    }

    /// Ends a request and frees what it holds before the call returns. The event is the request's last; `None`
    /// when it had ended already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(index);
            self.free(sequence.set);
            return Some(Event::Finished { id, reason: Finish::Cancelled, usage: sequence.usage() });
        }
        let index = self.waiting.iter().position(|(waiting, _)| *waiting == id)?;
        let (_, request) = self.waiting.remove(index)?;
        let usage = Usage { prompt_tokens: request.prompt.len(), generated_tokens: 0 };
        Some(Event::Finished { id, reason: Finish::Cancelled, usage })
    }

    /// Whether a step would have nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

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
        if self.waiting.len() >= limits.waiting_requests {
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

    fn view(&self) -> View {
        let running = self.running.iter().map(|sequence| Demand {
            uncomputed: sequence.uncomputed(),
            held: Some(sequence.computed()),
            most: sequence.most_positions(),
        });
        let room = self.limits.running_requests.saturating_sub(self.running.len());
        let waiting = self.waiting.iter().take(room).map(|(_, request)| Demand {
            uncomputed: request.prompt.len(),
            held: None,
            most: request.prompt.len() + self.most_new_tokens(request) - 1,
        });
        View {
            running: running.collect(),
            waiting: waiting.collect(),
            free_pages: Pool::ALL.map(|pool| self.kv.free_pages(pool)),
        }
    }

    fn admit(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            let Some((id, request)) = self.waiting.pop_front() else { break };
            let most_new_tokens = self.most_new_tokens(&request);
            self.running.push(Sequence::new(id, self.kv.create()?, request, most_new_tokens));
        }
        Ok(())
    }

    fn plan(&mut self, shares: &[Share]) -> Result<StepPlan, EngineError> {
        let mut plan = StepPlan { number: self.next_plan, ..StepPlan::default() };
        self.next_plan += 1;
        for share in shares {
            let sequence = &self.running[share.running];
            plan.page_ops.extend(self.kv.extend(sequence.set, share.tokens)?);
            plan.rows.push(sequence.row(share.tokens, self.kv.table(sequence.set)?.clone()));
        }
        Ok(plan)
    }

    fn absorb(
        &mut self,
        shares: &[Share],
        result: StepResult,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let (number, rows) = (self.next_plan - 1, shares.len());
        let (answered_number, answered_rows) = (result.number, result.rows.len());
        if (answered_number, answered_rows) != (number, rows) {
            return Err(EngineError::WrongAnswer { number, rows, answered_number, answered_rows });
        }
        for (share, row) in shares.iter().zip(result.rows) {
            self.running[share.running].absorb(share.tokens, row, events);
        }
        Ok(())
    }

    fn retire(&mut self) {
        let finished: Vec<Sequence> = self.running.extract_if(.., |sequence| sequence.has_finished).collect();
        for sequence in finished {
            self.free(sequence.set);
        }
    }

    fn free(&mut self, set: SetId) {
        self.kv.free(set).expect("a running sequence owns its set, and only the engine frees sets");
    }
}
