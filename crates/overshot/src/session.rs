//! A model ready to answer, for one conversation at a time: engine, tokenizer, prompt texts, sampling. Streams
//! what comes; decides nothing about how it is shown.

use crate::args::AnswerFlags;
use crate::compute::start_backend;
use crate::display::{PrefillBar, spinner};
use crate::failure::bad_input;
use crate::interrupt::StopRequest;
use crate::model_source::ModelSource;
use anyhow::bail;
use overshot_backend::Sampling;
use overshot_chat::{
    Delta, Detokenizer, End, Message, OutputParser, ParseOptions, ParsedMessage, PromptTexts, RenderOptions,
    Tokenizer, render,
};
use overshot_engine::{Engine, Event, Finish, Limits, Refused, Request, Usage};
use overshot_kv::PoolCapacity;
use serde::Serialize;
use std::num::NonZeroUsize;
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
    max_tokens: Option<NonZeroUsize>,
    stop_tokens: Vec<u32>,
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

impl Session {
    /// Opens the model and starts the backend, with a spinner on a terminal.
    pub fn start(flags: &AnswerFlags) -> anyhow::Result<Self> {
        let source = ModelSource::from_flag(flags.compute.model.as_deref())?;
        let waiting = spinner(&format!("opening {}", source.label()));
        let model = Arc::new(source.open()?);
        let tokenizer = source.tokenizer(&model)?;
        let texts = source.prompt_texts(&model)?;
        let sampling = flags.sampling.resolve(&source.generation_defaults(&model)?, model.spec.vocab_size)?;
        let context = context(flags.context, model.spec.max_positions)?;
        let mut stop_tokens = vec![tokenizer.end_of_sentence(), model.spec.eos_token];
        stop_tokens.dedup();
        let bos_token = model.spec.bos_token;
        let backend = start_backend(&flags.compute, model, PoolCapacity::for_sets(1, context))?;
        let limits = Limits { running_requests: 1, ..Limits::default() };
        waiting.finish_and_clear();
        for warning in texts.warnings() {
            eprintln!("warning: {warning}");
        }
        Ok(Session {
            model_label: source.label(),
            sampling,
            engine: Engine::new(backend, limits)?,
            tokenizer,
            texts,
            context,
            max_tokens: flags.max_tokens,
            stop_tokens,
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
        let (ending, timing) =
            self.generate(ids, stop, |token| parser.push(token).iter().try_for_each(&mut on_delta))?;
        let end = if ending == Ending::Stopped { End::Stop } else { End::Limit };
        let finished = parser.finish(end);
        finished.deltas.iter().try_for_each(&mut on_delta)?;
        Ok(Answer { message: finished.message, ending, timing })
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
        let stop_tokens = self.stop_tokens.clone();
        let outcome = self.generate(ids, stop, |token| {
            if stop_tokens.contains(&token) { Ok(()) } else { on_text(&detokenizer.push(token)) }
        })?;
        on_text(detokenizer.finish())?;
        Ok(outcome)
    }

    fn generate(
        &mut self,
        prompt: Vec<u32>,
        stop: &StopRequest,
        mut on_token: impl FnMut(u32) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Ending, Timing)> {
        // The last token needs no position of its own.
        let Some(room) = (self.context + 1).checked_sub(prompt.len()).filter(|room| *room > 0) else {
            return Err(Refused::BeyondCache { prompt_tokens: prompt.len(), most: self.context }.into());
        };
        let request = Request {
            max_new_tokens: self.max_tokens.map_or(room, |tokens| tokens.get().min(room)),
            sampling: self.sampling.clone(),
            stop_tokens: self.stop_tokens.clone(),
            prompt,
        };
        let started = Instant::now();
        let mut first_token_seconds = None;
        let bar = PrefillBar::new(request.prompt.len());
        let id = self.engine.submit(request)?;
        loop {
            let mut events = self.engine.step()?;
            if events.is_empty() && self.engine.is_idle() {
                bail!("the engine lost the request");
            }
            if stop.is_requested() {
                events.extend(self.engine.cancel(id));
            }
            for event in events {
                match event {
                    Event::PrefillProgress { done, .. } => bar.show(done),
                    Event::Token { sampled, .. } => {
                        bar.clear();
                        first_token_seconds.get_or_insert_with(|| started.elapsed().as_secs_f64());
                        on_token(sampled.token)?;
                    }
                    Event::Finished { reason, usage, .. } => {
                        bar.clear();
                        let total = started.elapsed().as_secs_f64();
                        return Ok((
                            ending(reason)?,
                            timing(usage, first_token_seconds.unwrap_or(total), total),
                        ));
                    }
                }
            }
        }
    }
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

fn ending(reason: Finish) -> anyhow::Result<Ending> {
    match reason {
        Finish::Stop(_) => Ok(Ending::Stopped),
        Finish::Length => Ok(Ending::LimitReached),
        Finish::Cancelled => Ok(Ending::Interrupted),
        Finish::Failed(sentence) => bail!("the step that computed the answer failed: {sentence}"),
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
