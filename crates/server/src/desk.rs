//! The thread that owns the engine: takes commands between steps, sleeps when there is nothing to compute, posts
//! tokens to mailboxes and never waits for a reader. Everything that is asked of the engine is asked here.
//!
//! Text is none of its business: detokenizing, parsing and stop strings run in the tasks of the connections.

use crate::engine_handle::{Cancel, GroupId, Phase, Shared, StepObserver, Submission};
use crate::error::ApiError;
use crate::mailbox::{ChoiceEnd, Mailbox, Posted};
use crate::metrics::Outcome;
use crate::sync::lock;
use overshot_backend::Sampled;
use overshot_engine::{Engine, Event, Finish, RequestId};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub struct Desk {
    engine: Engine,
    shared: Arc<Shared>,
    /// By choice; `None` once ended.
    groups: HashMap<GroupId, Vec<Option<RequestId>>>,
    owners: HashMap<RequestId, Owner>,
    /// The first step whose record was not seen yet.
    next_step: u64,
    observer: Option<Box<dyn StepObserver>>,
}

struct Owner {
    group: GroupId,
    choice: usize,
    mailbox: Arc<Mailbox>,
    arrived: Instant,
    prompt_tokens: usize,
    /// Of the last token, or of the request.
    last: Instant,
    drawn_tokens: usize,
    /// Some of it was computed.
    has_begun: bool,
}

impl Desk {
    pub fn new(engine: Engine, shared: Arc<Shared>, observer: Option<Box<dyn StepObserver>>) -> Self {
        Desk { engine, shared, groups: HashMap::new(), owners: HashMap::new(), next_step: 0, observer }
    }

    /// Until there is nothing more to do; the result is what later requests are told. The observer is gone by then:
    /// who waits for the end may rely on what it wrote.
    pub fn run(&mut self) -> ApiError {
        let error = self.work();
        self.rest();
        self.observer = None;
        error
    }

    fn work(&mut self) -> ApiError {
        loop {
            if self.engine.is_idle() {
                self.rest();
            }
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
            shared.beat();
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
        if self.engine.is_idle() {
            // Work begins here, and no step has ended for as long as there was none.
            shared.beat();
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
        let mut prompt_tokens = Vec::with_capacity(requests.len());
        for request in requests {
            prompt_tokens.push(request.prompt.len());
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
            let owner = Owner {
                group,
                choice,
                mailbox,
                arrived,
                prompt_tokens: prompt_tokens[choice],
                last: arrived,
                drawn_tokens: 0,
                has_begun: false,
            };
            self.owners.insert(*id, owner);
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
            Event::PrefillProgress { id, .. } => self.begin(id, now),
            Event::Token { id, sampled } => {
                self.begin(id, now);
                self.hand_on(id, sampled, now);
            }
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

    /// The first step that computed some of a request has just ended: it waited until that step began.
    fn begin(&mut self, id: RequestId, now: Instant) {
        let Some(owner) = self.owners.get_mut(&id).filter(|owner| !owner.has_begun) else { return };
        owner.has_begun = true;
        let step = self.engine.trace().records().next_back().map_or(Duration::ZERO, |record| record.period);
        let waited = now.saturating_duration_since(owner.arrived).saturating_sub(step);
        self.shared.metrics.queue.observe(waited);
    }

    fn hand_on(&mut self, id: RequestId, sampled: Sampled, now: Instant) {
        let Some(owner) = self.owners.get_mut(&id) else { return };
        let metrics = &self.shared.metrics;
        let times = if owner.drawn_tokens > 0 { &metrics.inter_token } else { &metrics.first_token };
        times.observe(now.saturating_duration_since(owner.last));
        owner.last = now;
        owner.drawn_tokens += 1;
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
        let metrics = &self.shared.metrics;
        metrics.count_outcome(outcome);
        if matches!(outcome, Outcome::Stop | Outcome::Length) {
            metrics.whole.observe(owner.arrived.elapsed());
            metrics.prompt_length.observe_number(owner.prompt_tokens);
            metrics.answer_length.observe_number(owner.drawn_tokens);
        }
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
                observer.saw(record);
            }
        }
        self.publish();
    }

    /// Nothing is left to compute, so that there is time to look whether the accounts add up.
    fn rest(&mut self) {
        let faults = self.engine.kv().check();
        self.shared.metrics.kv_faults.store(faults.len() as u64, Relaxed);
        if let Some(observer) = &mut self.observer {
            observer.rests();
        }
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
