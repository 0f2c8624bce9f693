//! A model ready to answer, for one conversation at a time: engine, tokenizer, prompt texts, sampling. Streams
//! what comes; decides nothing about how it is shown.

use crate::args::AnswerFlags;
use crate::compute::{Cache, Needs, ToLower, start_backend};
use crate::display::PrefillBar;
use crate::failure::{bad_input, damaged_model, note};
use crate::interrupt::StopRequest;
use anyhow::bail;
use overshot_backend::{RowFailure, Sampling};
use overshot_chat::{
    Delivery, Delta, Detokenizer, End, Message, OutputParser, ParseOptions, ParsedMessage, PromptTexts,
    RenderOptions, StopStrings, Tokenizer, render,
};
use overshot_engine::{Engine, Event, Failure, Finish, Limits, Request, StepLoop, Usage};
use overshot_kv::PoolCapacity;
use serde::Serialize;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Positions that the cache holds unless told otherwise: 0.25 GB for V4-Flash with packed entries, and only what
/// is used of it becomes resident.
const CONTEXT_UNLESS_TOLD: usize = 65_536;

pub struct Session {
    pub model_label: String,
    pub sampling: Sampling,
    engine: Engine,
    tokenizer: Tokenizer,
    texts: PromptTexts,
    /// Positions that prompt and answer may fill.
    context: usize,
    /// What `context` could be.
    most_context: usize,
    max_tokens: Option<NonZeroUsize>,
    stop_strings: Vec<String>,
    eos_token: u32,
    bos_token: u32,
}

/// How long an answer took. The first token includes the prompt.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    pub first_token_seconds: f64,
    pub total_seconds: f64,
    /// Of the tokens after the first.
    pub decode_tokens_per_second: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stopped,
    LimitReached,
    Interrupted,
}

pub struct Answer {
    pub message: ParsedMessage,
    pub ending: Ending,
    pub timing: Timing,
}

/// The step that computed an answer failed: this answer is lost, the session is not.
#[derive(Debug)]
pub struct StepFailed(String);

impl fmt::Display for StepFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StepFailed {}

impl Session {
    /// Opens the model and starts the backend.
    pub fn start(flags: &AnswerFlags) -> anyhow::Result<Self> {
        let source = flags.compute.source()?;
        let model = Arc::new(source.open()?);
        let tokenizer = source.tokenizer(&model)?;
        let texts = source.prompt_texts(&model)?;
        let sampling = flags.sampling.resolve(&source.generation_defaults(&model)?, model.spec.vocab_size)?;
        let most_context = model.spec.max_positions;
        let context = context(flags.context, most_context)?;
        let (eos_token, bos_token) = (model.spec.eos_token, model.spec.bos_token);
        let limits = Limits { running_requests: 1, ..Limits::default() };
        let needs = Needs {
            cache: Cache::Fixed(PoolCapacity::for_sets(1, context)),
            step_tokens: limits.chunk_tokens,
            to_lower: ToLower { requests: None, cache: "--context" },
            rehearsal: None,
        };
        let backend = start_backend(&flags.compute, &source, model, needs)?.backend;
        for warning in texts.warnings() {
            note(&format!("warning: {warning}"));
        }
        Ok(Session {
            model_label: source.label(),
            sampling,
            engine: Engine::new(backend, limits, StepLoop::Plain)?,
            tokenizer,
            texts,
            context,
            most_context,
            max_tokens: flags.max_tokens,
            stop_strings: flags.stop.clone(),
            eos_token,
            bos_token,
        })
    }

    /// Answers a conversation; `on_delta` sees every piece as it comes, and the answer has them all.
    pub fn answer(
        &mut self,
        messages: &[Message],
        options: &RenderOptions,
        stop: &StopRequest,
        mut on_delta: impl FnMut(&Delta) -> anyhow::Result<()>,
    ) -> anyhow::Result<Answer> {
        let prompt = render(messages, options, &self.texts)?;
        let ids = prompt.ids(&self.tokenizer)?;
        let parse_options =
            ParseOptions { start: prompt.start(), tools: options.tools.clone(), ..ParseOptions::default() };
        let mut parser = OutputParser::new(&self.tokenizer, parse_options);
        let mut delivery = Delivery::new(&self.stop_strings);
        let mut message = ParsedMessage::default();
        let mut hand_on = |deltas: Vec<Delta>| {
            deltas.iter().try_for_each(|delta| {
                message.apply(delta);
                on_delta(delta)
            })
        };
        let (ending, timing) = self.generate(ids, stop, |token| {
            hand_on(delivery.push(parser.push(token)))?;
            Ok(go_on_unless(delivery.has_stopped()))
        })?;
        let end = if ending == Ending::Stopped { End::Stop } else { End::Limit };
        let (deltas, delivered) = delivery.finish(parser.finish(end));
        hand_on(deltas)?;
        message.finish_reason = delivered.reason;
        Ok(Answer { message, ending, timing })
    }

    /// Continues plain text, markers in it meant as such; the begin token is put first where it is missing.
    pub fn complete(
        &mut self,
        text: &str,
        stop: &StopRequest,
        mut on_text: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Ending, Timing)> {
        let mut ids = self.tokenizer.encode_with_specials(text)?;
        if ids.first() != Some(&self.bos_token) {
            ids.insert(0, self.bos_token);
        }
        let mut detokenizer = Detokenizer::new(&self.tokenizer);
        let mut stops = StopStrings::new(self.stop_strings.clone());
        let eos_token = self.eos_token;
        let outcome = self.generate(ids, stop, |token| {
            if token != eos_token {
                on_text(&stops.push(&detokenizer.push(token)))?;
            }
            Ok(go_on_unless(stops.matched().is_some()))
        })?;
        on_text(&stops.push(detokenizer.finish()))?;
        on_text(&stops.finish())?;
        Ok(outcome)
    }

    /// Draws tokens until one of them, `on_token` or `stop` ends it.
    fn generate(
        &mut self,
        prompt: Vec<u32>,
        stop: &StopRequest,
        mut on_token: impl FnMut(u32) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<(Ending, Timing)> {
        let request = Request {
            max_new_tokens: self.most_new_tokens(prompt.len())?,
            sampling: self.sampling.clone(),
            stop_tokens: vec![self.eos_token],
            ..Request::new(prompt)
        };
        let started = Instant::now();
        let mut first_token_seconds = None;
        let mut has_stopped = false;
        let bar = PrefillBar::new(request.prompt.len());
        let id = self.engine.submit(request)?;
        loop {
            let events = if has_stopped || stop.is_requested() {
                self.engine.cancel(id).into_iter().collect()
            } else {
                self.engine.step()?
            };
            if events.is_empty() && self.engine.is_idle() {
                bail!("the engine lost the request");
            }
            for event in events {
                match event {
                    Event::PrefillProgress { done, .. } => bar.show(done),
                    Event::Token { sampled, .. } => {
                        bar.clear();
                        first_token_seconds.get_or_insert_with(|| started.elapsed().as_secs_f64());
                        has_stopped = on_token(sampled.token)?.is_break();
                    }
                    Event::Finished { reason, usage, .. } => {
                        bar.clear();
                        let total = started.elapsed().as_secs_f64();
                        let ending =
                            if has_stopped { Ending::Stopped } else { ending(reason, &self.model_label)? };
                        return Ok((ending, timing(usage, first_token_seconds.unwrap_or(total), total)));
                    }
                }
            }
        }
    }

    /// Tokens that fit behind a prompt, as far as they are wanted.
    fn most_new_tokens(&self, prompt_tokens: usize) -> anyhow::Result<usize> {
        let (context, most) = (self.context, self.most_context);
        // The last token needs no position of its own.
        let room = match (context + 1).checked_sub(prompt_tokens) {
            None | Some(0) if context < most => {
                return Err(bad_input(format!(
                    "the prompt has {prompt_tokens} tokens where the context is {context}: raise --context, \
                     at most to the model's {most}"
                )));
            }
            None | Some(0) => {
                return Err(bad_input(format!(
                    "the prompt has {prompt_tokens} tokens where the model's context holds {most}: shorten it"
                )));
            }
            Some(room) => room,
        };
        Ok(self.max_tokens.map_or(room, |tokens| tokens.get().min(room)))
    }
}

fn go_on_unless(has_stopped: bool) -> ControlFlow<()> {
    if has_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn context(asked: Option<NonZeroUsize>, most: usize) -> anyhow::Result<usize> {
    match asked.map(NonZeroUsize::get) {
        None => Ok(most.min(CONTEXT_UNLESS_TOLD)),
        Some(context) if context <= most => Ok(context),
        Some(context) => {
            Err(bad_input(format!("--context {context} is more than the model's {most} positions")))
        }
    }
}

fn ending(reason: Finish, model_label: &str) -> anyhow::Result<Ending> {
    match reason {
        Finish::Stop(_) => Ok(Ending::Stopped),
        Finish::Length => Ok(Ending::LimitReached),
        Finish::Cancelled => Ok(Ending::Interrupted),
        Finish::Failed(failure) => Err(anyhow::Error::new(StepFailed(step_failure(&failure, model_label)))),
    }
}

/// Logits that are no numbers come from weights that are none.
fn step_failure(failure: &Failure, model_label: &str) -> String {
    match failure {
        Failure::Row(RowFailure::Sampling(_)) => damaged_model(model_label, &failure.to_string()),
        _ => format!("the step that computed the answer failed: {failure}"),
    }
}

fn timing(usage: Usage, first_token_seconds: f64, total_seconds: f64) -> Timing {
    let further = usage.generated_tokens.saturating_sub(1);
    let seconds = total_seconds - first_token_seconds;
    Timing {
        prompt_tokens: usage.prompt_tokens,
        generated_tokens: usage.generated_tokens,
        first_token_seconds,
        total_seconds,
        decode_tokens_per_second: if further > 0 && seconds > 0.0 { further as f64 / seconds } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_bounded_by_the_model() {
        assert_eq!(context(None, 16_384).unwrap(), 16_384);
        assert_eq!(context(None, 1_048_576).unwrap(), CONTEXT_UNLESS_TOLD);
        assert_eq!(context(NonZeroUsize::new(100), 16_384).unwrap(), 100);
        assert!(
            context(NonZeroUsize::new(16_385), 16_384).unwrap_err().to_string().contains("--context 16385")
        );
    }

    #[test]
    fn speed_leaves_the_first_token_out() {
        let timing = timing(Usage { prompt_tokens: 5, generated_tokens: 11 }, 1.0, 3.0);
        assert_eq!(timing.decode_tokens_per_second, 5.0);
        let single = super::timing(Usage { prompt_tokens: 5, generated_tokens: 1 }, 1.0, 1.0);
        assert_eq!(single.decode_tokens_per_second, 0.0);
    }
}
