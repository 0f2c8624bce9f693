//! A running request: its tokens, how many of them are computed, and when it ends.

use crate::{Event, Finish, Request, RequestId, Usage};
use overshot_backend::{Choice, Row, RowResult, Sampling, Wanted};
use overshot_kv::{PageTable, SetId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    pub set: SetId,
    /// Prompt, then what was drawn.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose state is in the pages; less than `tokens.len()` between steps.
    computed: usize,
    most_new_tokens: usize,
    stop_tokens: Vec<u32>,
    sampling: Arc<Sampling>,
    /// Every token seen with the times it was drawn. Empty when there are no penalties.
    seen: BTreeMap<u32, u32>,
    pub has_finished: bool,
}

impl Sequence {
    pub fn new(id: RequestId, set: SetId, request: Request, most_new_tokens: usize) -> Self {
        let has_penalties = request.sampling.has_penalties();
        let seen = request.prompt.iter().filter(|_| has_penalties).map(|token| (*token, 0)).collect();
        Sequence {
            id,
            set,
            prompt_tokens: request.prompt.len(),
            tokens: request.prompt,
            computed: 0,
            most_new_tokens,
            stop_tokens: request.stop_tokens,
            sampling: Arc::new(request.sampling),
            seen,
            has_finished: false,
        }
    }

    pub fn computed(&self) -> usize {
        self.computed
    }

    pub fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Positions that it can come to hold. The last token drawn is never computed.
    pub fn most_positions(&self) -> usize {
        self.prompt_tokens + self.most_new_tokens - 1
    }

    pub fn usage(&self) -> Usage {
        Usage { prompt_tokens: self.prompt_tokens, generated_tokens: self.tokens.len() - self.prompt_tokens }
    }

    /// The row that computes the next `count` tokens.
    pub fn row(&self, count: usize, pages: PageTable) -> Row {
        let end = self.computed + count;
        let wanted = if end < self.tokens.len() {
            Wanted::Nothing
        } else {
            let seen = self.seen.iter().map(|(token, times)| (*token, *times)).collect();
            Wanted::Token { sampling: self.sampling.clone(), seen, choice: Choice::Free }
        };
        Row {
            tokens: self.tokens[self.computed..end].to_vec(),
            start: self.computed,
            placeholder: None,
            pages,
            wanted,
        }
    }

    /// Takes in what the row of `count` tokens gave: at most one token now, several once drafts are verified.
    /// What comes after the token that ends the request is dropped.
    pub fn absorb(&mut self, count: usize, result: RowResult, events: &mut Vec<Event>) {
        let id = self.id;
        let was_prompt = self.computed < self.prompt_tokens;
        self.computed += count;
        if was_prompt {
            events.push(Event::PrefillProgress { id, done: self.computed, total: self.prompt_tokens });
        }
        if let Some(failure) = result.failure {
            return self.finish(Finish::Failed(failure.to_string()), events);
        }
        if self.computed < self.tokens.len() {
            return;
        }
        if result.tokens.is_empty() {
            self.finish(Finish::Failed("the step drew no token where one was due".into()), events);
        }
        for sampled in result.tokens {
            let token = sampled.token;
            self.push(token);
            events.push(Event::Token { id, sampled });
            if let Some(reason) = self.end_after(token) {
                self.finish(reason, events);
                break;
            }
        }
    }

    pub fn finish(&mut self, reason: Finish, events: &mut Vec<Event>) {
        self.has_finished = true;
        events.push(Event::Finished { id: self.id, reason, usage: self.usage() });
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if self.sampling.has_penalties() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    fn end_after(&self, token: u32) -> Option<Finish> {
        if self.stop_tokens.contains(&token) {
            return Some(Finish::Stop(token));
        }
        (self.usage().generated_tokens >= self.most_new_tokens).then_some(Finish::Length)
    }
}
