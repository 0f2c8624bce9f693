//! A backend that plays scripts instead of running a model: what each decode step yields and how long it takes is
//! written down. For tests of everything above a model: it costs microseconds a step, whatever the model's size, and
//! holds no byte of cache.
//!
//! Each new sequence takes the next script, and after the last the first again (`course.rs` tells sequences apart).
//! Sampling parameters change nothing: every log probability is 0, the scripted token's being certain. A mask is
//! obeyed: such a row yields one token, the script's where it is allowed, else the lowest that is. Logits are refused.
//!
//! Time is the device's: a step begins when it was submitted and the one before has ended, takes as long as the
//! longest delay of its rows, and only `collect` waits for it, so that a caller may work meanwhile. A row with a
//! placeholder goes on one position behind the row that it names, as any backend must have it: where that row
//! yielded several tokens, the placeholder stands for the first, and the others are yielded again.

mod course;
mod script;

pub use script::{Script, ScriptStep};

use crate::{
    Backend, BackendError, Choice, Row, RowFailure, RowResult, Sampled, SamplingError, StepMasks, StepPlan,
    StepResult, TokenMask, Wanted,
};
use course::Courses;
use overshot_kv::{PageOp, Pool, PoolCapacity};
use overshot_model::Spec;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub struct ScriptedBackend {
    spec: Spec,
    capacity: PoolCapacity,
    courses: Courses,
    next_number: u64,
    /// Submitted, not collected.
    steps: VecDeque<Step>,
    /// When the step submitted last ends.
    busy_until: Option<Instant>,
    /// What the rows of the step submitted last draw first: the values of the next step's placeholders.
    drawing: Vec<Option<u32>>,
    /// Which rows of the step collected last failed.
    failed: Vec<bool>,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("there is no script to play: at least one is needed")]
    NoScript,
    #[error("script {index} has token {token}, which is outside the vocabulary of {vocab_size} tokens")]
    NoSuchToken { index: usize, token: u32, vocab_size: usize },
}

struct Step {
    number: u64,
    rows: Vec<ScriptedRow>,
    masks: Option<StepMasks>,
    device_time: Duration,
    ends: Instant,
}

/// What a row will yield, as far as no mask says otherwise.
struct ScriptedRow {
    tokens: Vec<u32>,
    choice: Choice,
    top_logprobs: usize,
    placeholder: Option<usize>,
}

impl ScriptedBackend {
    /// Stands in for a model of this spec; `capacity` is only counted, never allocated.
    ///
    /// # Errors
    /// No script, or one with a token that the model does not have.
    pub fn new(spec: Spec, capacity: PoolCapacity, scripts: Vec<Script>) -> Result<Self, ScriptError> {
        if scripts.is_empty() {
            return Err(ScriptError::NoScript);
        }
        let vocab_size = spec.vocab_size;
        for (index, script) in scripts.iter().enumerate() {
            if let Some(&token) = script.tokens().iter().find(|token| **token as usize >= vocab_size) {
                return Err(ScriptError::NoSuchToken { index, token, vocab_size });
            }
        }
        Ok(ScriptedBackend {
            courses: Courses::new(scripts, spec.eos_token),
            spec,
            capacity,
            next_number: 0,
            steps: VecDeque::new(),
            busy_until: None,
            drawing: Vec::new(),
            failed: Vec::new(),
        })
    }

    fn script_row(&mut self, row: &Row, device_time: &mut Duration) -> Result<ScriptedRow, String> {
        let placeholder = row.placeholder;
        let window = *row.pages.pages(Pool::Window).first().ok_or("it has no window page")?;
        let mut tokens = Cow::Borrowed(row.tokens.as_slice());
        if let Some(before) = placeholder {
            let drawn = self.drawing.get(before).copied().flatten();
            let drawn = drawn.ok_or_else(|| format!("row {before} of the step before draws no token"))?;
            tokens.to_mut()[row.tokens.len() - 1] = drawn;
        }
        self.courses.feed(window, row.start, &tokens)?;
        match &row.wanted {
            Wanted::Nothing => {
                Ok(ScriptedRow { tokens: Vec::new(), choice: Choice::Free, top_logprobs: 0, placeholder })
            }
            Wanted::Token { sampling, choice, .. } => {
                let draw = self.courses.draw(window).ok_or("its sequence has no positions")?;
                *device_time = draw.delay.max(*device_time);
                let (choice, top_logprobs) = (*choice, sampling.top_logprobs);
                Ok(ScriptedRow { tokens: draw.tokens, choice, top_logprobs, placeholder })
            }
            Wanted::LastLogits | Wanted::AllLogits => Err("it wants logits, and a script has none".into()),
        }
    }
}

impl Backend for ScriptedBackend {
    fn name(&self) -> String {
        format!("scripted ({} answers)", self.courses.scripts().len())
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.capacity
    }

    fn most_tokens_per_row(&self) -> usize {
        self.courses.scripts().iter().map(Script::most_tokens_per_step).max().unwrap_or(1).max(1)
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        let number = plan.number;
        if number != self.next_number {
            return Err(BackendError::OutOfOrder { number, expected: self.next_number });
        }
        self.next_number += 1;
        plan.check(self.spec.vocab_size, self.capacity)?;
        for &PageOp::Copy { pool, from, to } in &plan.page_ops {
            if pool == Pool::Window {
                self.courses.copy(from, to);
            }
        }
        let mut device_time = Duration::ZERO;
        let mut rows = Vec::with_capacity(plan.rows.len());
        for (index, row) in plan.rows.iter().enumerate() {
            let scripted = self.script_row(row, &mut device_time);
            rows.push(scripted.map_err(|what| BackendError::BadRow { number, row: index, what })?);
        }
        self.drawing = rows.iter().map(|row| row.tokens.first().copied()).collect();
        let now = Instant::now();
        let begins = self.busy_until.map_or(now, |until| until.max(now));
        let ends = begins.checked_add(device_time).unwrap_or(begins);
        self.busy_until = Some(ends);
        self.steps.push_back(Step { number, rows, masks: None, device_time, ends });
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        let supplied: Vec<usize> = masks.rows.iter().map(|(row, _)| *row).collect();
        let waiting = |step: &&mut Step| step.masks.is_none() && !step.masked().is_empty();
        let Some(step) = self.steps.iter_mut().find(waiting) else {
            return Err(BackendError::WrongMasks { number: masks.number, rows: Vec::new(), supplied });
        };
        if step.number != masks.number || step.masked() != supplied {
            return Err(BackendError::WrongMasks { number: step.number, rows: step.masked(), supplied });
        }
        step.masks = Some(masks);
        Ok(())
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        let step = self.steps.pop_front().ok_or(BackendError::NothingSubmitted)?;
        let masked = step.masked();
        if step.masks.is_none() && !masked.is_empty() {
            return Err(BackendError::WrongMasks { number: step.number, rows: masked, supplied: Vec::new() });
        }
        let mut masks = step.masks.unwrap_or_default().rows.into_iter().map(|(_, mask)| mask);
        let mut rows = Vec::with_capacity(step.rows.len());
        for row in step.rows {
            let mask = match row.choice {
                Choice::Free => None,
                Choice::Masked => masks.next(),
            };
            let follows_failed = row.placeholder.is_some_and(|before| self.failed.get(before) == Some(&true));
            rows.push(if follows_failed {
                RowResult { failure: Some(RowFailure::NoPlaceholderToken), ..RowResult::default() }
            } else {
                row.result(mask.as_ref(), self.spec.vocab_size)
            });
        }
        self.failed = rows.iter().map(|row| row.failure.is_some()).collect();
        std::thread::sleep(step.ends.saturating_duration_since(Instant::now()));
        Ok(StepResult { number: step.number, rows, device_time: step.device_time, ..StepResult::default() })
    }
}

impl Step {
    fn masked(&self) -> Vec<usize> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| row.choice == Choice::Masked).map(|(index, _)| index).collect()
    }
}

impl ScriptedRow {
    fn result(self, mask: Option<&TokenMask>, vocab_size: usize) -> RowResult {
        let tokens = match mask {
            None => self.tokens,
            Some(mask) => {
                let scripted = self.tokens.first().copied().filter(|token| mask.allows(*token));
                match scripted.or_else(|| (0..vocab_size as u32).find(|token| mask.allows(*token))) {
                    Some(token) => vec![token],
                    None => {
                        let failure = Some(SamplingError::NothingAllowed.into());
                        return RowResult { failure, ..RowResult::default() };
                    }
                }
            }
        };
        let top = |token| if self.top_logprobs > 0 { vec![(token, 0.0)] } else { Vec::new() };
        let tokens =
            tokens.into_iter().map(|token| Sampled { token, logprob: 0.0, top: top(token) }).collect();
        RowResult { tokens, ..RowResult::default() }
    }
}
