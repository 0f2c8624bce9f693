//! A backend whose model says what it was told to: the answer to a prompt is the text of its last user message, or
//! of the whole prompt where there is no such message, with markers in it meant as such. What tests cannot say in a
//! prompt they say by a [`Control`].

use overshot_backend::{
    Backend, BackendError, RowFailure, RowResult, Sampled, SamplingError, StepMasks, StepPlan, StepResult,
    Wanted,
};
use overshot_chat::{Special, Tokenizer};
use overshot_kv::{PageId, Pool, PoolCapacity};
use overshot_model::Spec;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// An answer that begins with this goes on with what follows, over and over.
pub const FOREVER: &str = "forever ";

/// A prompt with this draws a NaN in place of its third token.
pub const POISON: &str = "poison";

/// How the model behaves for everybody.
#[derive(Default)]
pub struct Control {
    pub step_microseconds: AtomicU64,
    /// The next step loses its row's results, after which engine and backend no longer agree.
    pub breaks: AtomicBool,
    /// Whether answers are drawn a byte a token, which splits everything that can be split.
    pub spells: AtomicBool,
    is_held: Mutex<bool>,
    released: Condvar,
}

impl Control {
    /// Steps hang until they are released.
    pub fn hold(&self) {
        *self.is_held.lock().unwrap() = true;
    }

    pub fn release(&self) {
        *self.is_held.lock().unwrap() = false;
        self.released.notify_all();
    }

    fn wait(&self) {
        let mut is_held = self.is_held.lock().unwrap();
        while *is_held {
            is_held = self.released.wait(is_held).unwrap();
        }
        drop(is_held);
        match self.step_microseconds.load(Ordering::SeqCst) {
            0 => {}
            microseconds => std::thread::sleep(Duration::from_micros(microseconds)),
        }
    }
}

pub struct Parrot {
    spec: Spec,
    capacity: PoolCapacity,
    tokenizer: Tokenizer,
    control: Arc<Control>,
    /// By window page, which every running sequence has to itself.
    sequences: HashMap<PageId, Spoken>,
    results: VecDeque<StepResult>,
}

#[derive(Default)]
struct Spoken {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    repeats: bool,
    is_poisoned: bool,
    drawn: usize,
}

impl Parrot {
    pub fn new(
        tokenizer: &Tokenizer,
        capacity: PoolCapacity,
        max_positions: usize,
        control: Arc<Control>,
    ) -> Box<Self> {
        Box::new(Parrot {
            spec: Spec::hollow(tokenizer.vocabulary_size(), max_positions),
            capacity,
            tokenizer: tokenizer.clone(),
            control,
            sequences: HashMap::new(),
            results: VecDeque::new(),
        })
    }

    fn draw(&mut self, page: PageId, top_logprobs: usize) -> RowResult {
        let eos = self.tokenizer.end_of_sentence();
        let spoken = self.sequences.get_mut(&page).unwrap();
        if spoken.answer.is_empty() {
            spoken.decide(&self.tokenizer);
            if self.control.spells.load(Ordering::SeqCst) {
                spoken.spell(&self.tokenizer);
            }
        }
        let at = if spoken.repeats { spoken.drawn % spoken.answer.len() } else { spoken.drawn };
        let token = spoken.answer.get(at).copied().unwrap_or(eos);
        spoken.drawn += 1;
        if spoken.is_poisoned && spoken.drawn == 3 {
            let failure = SamplingError::BadLogit { token: 7, value: f32::NAN };
            return RowResult { failure: Some(RowFailure::Sampling(failure)), ..RowResult::default() };
        }
        let top = (0..top_logprobs as u32).map(|rank| (token ^ rank, -0.5 - rank as f32)).collect();
        RowResult { tokens: vec![Sampled { token, logprob: -0.5, top }], ..RowResult::default() }
    }
}

impl Spoken {
    fn decide(&mut self, tokenizer: &Tokenizer) {
        let special = |wanted: Special| {
            self.prompt.iter().rposition(|token| tokenizer.special_of(*token) == Some(wanted))
        };
        let (begin, end) = match (special(Special::User), special(Special::Assistant)) {
            (Some(user), Some(assistant)) if user < assistant => (user + 1, assistant),
            _ => (1, self.prompt.len()),
        };
        let said = &self.prompt[begin.min(end)..end];
        let bytes: Vec<u8> = said.iter().flat_map(|token| tokenizer.bytes_of(*token)).copied().collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.is_poisoned = text.contains(POISON);
        self.repeats = text.starts_with(FOREVER);
        let text = text.strip_prefix(FOREVER).unwrap_or(&text);
        self.answer = tokenizer.encode_with_specials(text).unwrap();
        if !self.repeats {
            self.answer.push(tokenizer.end_of_sentence());
        }
    }

    /// Markers stay whole: each is one token, however it is drawn.
    fn spell(&mut self, tokenizer: &Tokenizer) {
        let byte_token = |byte: &u8| {
            let is_byte = |id: &u32| !tokenizer.is_added(*id) && tokenizer.bytes_of(*id) == [*byte];
            (0..tokenizer.vocabulary_size() as u32).find(is_byte).unwrap()
        };
        let spelled = self.answer.iter().flat_map(|token| match tokenizer.is_added(*token) {
            true => vec![*token],
            false => tokenizer.bytes_of(*token).iter().map(byte_token).collect(),
        });
        self.answer = spelled.collect();
    }
}

impl Backend for Parrot {
    fn name(&self) -> String {
        "parrot".into()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        self.control.wait();
        let mut rows = Vec::new();
        for row in &plan.rows {
            let page = row.pages.pages(Pool::Window)[0];
            if row.start == 0 {
                self.sequences.insert(page, Spoken::default());
            }
            let spoken = self.sequences.get_mut(&page).unwrap();
            if spoken.answer.is_empty() {
                spoken.prompt.extend(&row.tokens);
            }
            rows.push(match &row.wanted {
                Wanted::Token { sampling, .. } => self.draw(page, sampling.top_logprobs),
                _ => RowResult::default(),
            });
        }
        if self.control.breaks.load(Ordering::SeqCst) {
            rows.clear();
        }
        self.results.push_back(StepResult { number: plan.number, rows, ..StepResult::default() });
        Ok(())
    }

    /// What it may not say becomes the first token that it may.
    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        let vocabulary = 0..self.spec.vocab_size as u32;
        let result = self.results.iter_mut().find(|result| result.number == masks.number).unwrap();
        for (row, mask) in &masks.rows {
            let Some(sampled) = result.rows.get_mut(*row).and_then(|row| row.tokens.first_mut()) else {
                continue;
            };
            if !mask.allows(sampled.token) {
                sampled.token = vocabulary.clone().find(|token| mask.allows(*token)).unwrap();
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        self.results.pop_front().ok_or(BackendError::NothingSubmitted)
    }
}
