//! One request's course: its tokens, how many of them are planned, and when it ends.
//!
//! Planning runs ahead of drawing in the overlapped loop, so a sequence counts both: `planned` positions, whose
//! steps may still be under way, and `drawing` tokens, which steps under way will add to it.

use crate::{Constraint, Event, Failure, Finish, Request, RequestId, Usage};
use overshot_backend::{Choice, Row, RowResult, Sampling, TokenMask, Wanted};
use overshot_kv::{PageTable, SetId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    /// What it holds in the cache; `None` while it waits.
    pub set: Option<SetId>,
    /// Prompt, then what was drawn.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose computing is prefill: the prompt, and after a preemption all that was known then.
    prefill_tokens: usize,
    /// Positions whose state is in the pages, or will be once the submitted steps have run.
    planned: usize,
    /// Tokens that submitted steps are still drawing.
    drawing: usize,
    /// The row that draws the latest of them, in the latest plan.
    drawing_row: usize,
    /// Prompt tokens told to be computed; a preempted prompt starts over, its progress does not.
    told_progress: usize,
    most_new_tokens: usize,
    stop_tokens: Vec<u32>,
    sampling: Arc<Sampling>,
    /// Every token seen with the times it was drawn. Empty when there are no penalties.
    seen: BTreeMap<u32, u32>,
    constraint: Option<Box<dyn Constraint>>,
}

impl Sequence {
    pub fn new(id: RequestId, request: Request, most_new_tokens: usize) -> Self {
        let has_penalties = request.sampling.has_penalties();
        let seen = request.prompt.iter().filter(|_| has_penalties).map(|token| (*token, 0)).collect();
        Sequence {
            id,
            set: None,
            prompt_tokens: request.prompt.len(),
            prefill_tokens: request.prompt.len(),
            tokens: request.prompt,
            planned: 0,
            drawing: 0,
            drawing_row: 0,
            told_progress: 0,
            most_new_tokens,
            stop_tokens: request.stop_tokens,
            sampling: Arc::new(request.sampling),
            seen,
            constraint: request.constraint,
        }
    }

    pub fn planned(&self) -> usize {
        self.planned
    }

    /// Tokens to plan next: 1 in decode; 0 when the draws under way are its last.
    pub fn unplanned(&self) -> usize {
        let is_complete = self.usage().generated_tokens + self.drawing >= self.most_new_tokens;
        if is_complete { 0 } else { self.tokens.len() + self.drawing - self.planned }
    }

    /// Positions that it can come to hold. The last token drawn is never computed.
    pub fn most_positions(&self) -> usize {
        self.prompt_tokens + self.most_new_tokens - 1
    }

    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Whether what is planned next was drawn just now.
    pub fn is_decoding(&self) -> bool {
        self.planned >= self.prefill_tokens
    }

    pub fn usage(&self) -> Usage {
        Usage { prompt_tokens: self.prompt_tokens, generated_tokens: self.tokens.len() - self.prompt_tokens }
    }

    /// Plans the next `count` tokens as row number `row` of the plan.
    pub fn plan(&mut self, row: usize, count: usize, pages: PageTable) -> Row {
        let (start, end) = (self.planned, self.planned + count);
        let mut tokens = self.tokens[start..end.min(self.tokens.len())].to_vec();
        let placeholder = (end > self.tokens.len()).then_some(self.drawing_row);
        tokens.resize(count, 0);
        self.planned = end;
        let wanted = if end < self.tokens.len() + self.drawing {
            Wanted::Nothing
        } else {
            self.drawing += 1;
            self.drawing_row = row;
            let seen = self.seen.iter().map(|(token, times)| (*token, *times)).collect();
            let choice = if self.is_constrained() { Choice::Masked } else { Choice::Free };
            Wanted::Token { sampling: self.sampling.clone(), seen, choice }
        };
        Row { tokens, start, placeholder, pages, wanted }
    }

    /// Forgets what was computed: its pages are gone. Draws under way still come.
    pub fn start_over(&mut self) {
        self.planned = 0;
        self.prefill_tokens = self.tokens.len() + self.drawing;
    }

    /// Tells how far the prompt is, once `computed` positions are.
    pub fn tell_progress(&mut self, computed: usize, events: &mut Vec<Event>) {
        let done = computed.min(self.prompt_tokens);
        if done > self.told_progress {
            self.told_progress = done;
            events.push(Event::PrefillProgress { id: self.id, done, total: self.prompt_tokens });
        }
    }

    /// Takes in what a drawing row gave: at most one token now, several once drafts are verified. What comes after
    /// the token that ends the request is dropped. Says why it ends, if it does.
    pub fn absorb(&mut self, result: RowResult, events: &mut Vec<Event>) -> Option<Finish> {
        self.drawing -= 1;
        if let Some(failure) = result.failure {
            return Some(Finish::Failed(failure.into()));
        }
        if result.tokens.is_empty() {
            return Some(Finish::Failed(Failure::NothingDrawn));
        }
        for sampled in result.tokens {
            let token = sampled.token;
            self.push(token);
            events.push(Event::Token { id: self.id, sampled });
            if let Some(reason) = self.end_after(token) {
                return Some(reason);
            }
        }
        None
    }

    /// The mask for its next draw.
    pub fn mask(&mut self) -> Result<Option<TokenMask>, Failure> {
        match &mut self.constraint {
            Some(constraint) => constraint.mask().map_err(|what| Failure::Constraint { what }),
            None => Ok(None),
        }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if self.sampling.has_penalties() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    fn end_after(&mut self, token: u32) -> Option<Finish> {
        if self.stop_tokens.contains(&token) {
            return Some(Finish::Stop(token));
        }
        if self.usage().generated_tokens >= self.most_new_tokens {
            return Some(Finish::Length);
        }
        let what = self.constraint.as_mut()?.accept(token).err()?;
        Some(Finish::Failed(Failure::Constraint { what }))
    }
}
