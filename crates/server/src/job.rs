//! A request that has been understood: what the engine computes for it, and how it is answered.

use crate::answers::{Answers, Output, Progress};
use crate::app::{App, fresh_id, now};
use crate::choice::{Choice, ChoiceOptions, LogprobsWanted, TokenLogprob};
use crate::chunks::{ChunkWriter, Format};
use crate::error::ApiError;
use crate::fields::Delivery;
use crate::stream::EventStream;
use crate::wire::{
    ChatLogprobs, ChatResponse, ChatResponseChoice, TextLogprobs, TextResponse, TextResponseChoice, Usage,
};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use overshot_backend::Sampling;
use overshot_chat::ParsedMessage;
use overshot_engine::Request;
use serde::Serialize;
use std::future::poll_fn;

pub struct Job {
    format: Format,
    delivery: Delivery,
    logprobs: LogprobsWanted,
    /// Of all prompts, each counted once.
    pub prompt_tokens: usize,
    requests: Vec<Request>,
    choices: Vec<Choice>,
}

/// A choice of a whole response, while it comes.
#[derive(Default)]
struct Collected {
    message: ParsedMessage,
    logprobs: Vec<TokenLogprob>,
}

impl Job {
    pub fn new(format: Format, delivery: Delivery, logprobs: LogprobsWanted) -> Self {
        let (requests, choices) = (Vec::new(), Vec::new());
        Job { format, delivery, logprobs, prompt_tokens: 0, requests, choices }
    }

    /// Adds the answer number `index` to a prompt. Answers to one prompt differ by their seeds alone.
    pub fn push(
        &mut self,
        choice: Choice,
        prompt: &[u32],
        sampling: &Sampling,
        index: usize,
        max_new_tokens: usize,
        options: &ChoiceOptions,
    ) {
        let seed = sampling.seed.wrapping_add(index as u64);
        self.choices.push(choice);
        self.requests.push(Request {
            sampling: Sampling { seed, ..sampling.clone() },
            max_new_tokens,
            stop_tokens: options.stop_tokens.to_vec(),
            ..Request::new(prompt.to_vec())
        });
    }

    /// Has the engine compute it. Dropping the future, or the response's body, cancels everything.
    ///
    /// # Errors
    /// A refusal; for whole responses also a failure on the way.
    pub async fn answer(self, app: &App) -> Result<Response<Body>, ApiError> {
        let ticket = app.engine.submit(self.requests).await?;
        let choices = self.choices.len();
        let answers = Answers::new(ticket, self.choices);
        let id = fresh_id(self.format.id_prefix());
        match self.delivery {
            Delivery::Whole => {
                let whole = Whole { id: &id, format: self.format, logprobs: self.logprobs };
                whole.answer(answers, choices, self.prompt_tokens, app).await
            }
            Delivery::Stream { usage } => {
                let writer = ChunkWriter::new(
                    self.format,
                    &id,
                    now(),
                    &app.model.name,
                    usage,
                    app.model.tokenizer.clone(),
                    self.logprobs,
                    choices,
                );
                let stream = EventStream::new(answers, writer, self.prompt_tokens, choices);
                let mut response = Response::new(Body::new(stream));
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
                Ok(response)
            }
        }
    }
}

struct Whole<'a> {
    id: &'a str,
    format: Format,
    logprobs: LogprobsWanted,
}

impl Whole<'_> {
    async fn answer(
        self,
        mut answers: Answers,
        choices: usize,
        prompt_tokens: usize,
        app: &App,
    ) -> Result<Response<Body>, ApiError> {
        let mut collected: Vec<Collected> = (0..choices).map(|_| Collected::default()).collect();
        let mut deliver = |choice: usize, output: Output| match output {
            Output::Piece(piece) => {
                if let Some(delta) = &piece.delta {
                    collected[choice].message.apply(delta);
                }
                collected[choice].logprobs.extend(piece.logprobs);
            }
            Output::Finish(reason) => collected[choice].message.finish_reason = reason,
        };
        while poll_fn(|context| answers.poll(context, &mut deliver)).await? == Progress::Going {}
        let usage = Usage::new(prompt_tokens, answers.counts());
        Ok(match self.format {
            Format::Chat => self.chat(collected, usage, app),
            Format::Text => self.text(collected, usage, app),
        })
    }

    fn chat(&self, collected: Vec<Collected>, usage: Usage, app: &App) -> Response<Body> {
        let choice = |(index, collected): (usize, Collected)| ChatResponseChoice {
            index,
            finish_reason: collected.message.finish_reason.as_str(),
            logprobs: (self.logprobs == LogprobsWanted::Yes)
                .then(|| ChatLogprobs::new(&app.model.tokenizer, &collected.logprobs)),
            message: collected.message.into(),
        };
        json_response(&ChatResponse {
            id: self.id,
            object: "chat.completion",
            created: now(),
            model: &app.model.name,
            choices: collected.into_iter().enumerate().map(choice).collect(),
            usage,
        })
    }

    fn text(&self, collected: Vec<Collected>, usage: Usage, app: &App) -> Response<Body> {
        let choice = |(index, collected): (usize, Collected)| TextResponseChoice {
            index,
            finish_reason: collected.message.finish_reason.as_str(),
            logprobs: (self.logprobs == LogprobsWanted::Yes)
                .then(|| TextLogprobs::new(&app.model.tokenizer, &collected.logprobs, &mut 0)),
            text: collected.message.content,
        };
        json_response(&TextResponse {
            id: self.id,
            object: "text_completion",
            created: now(),
            model: &app.model.name,
            choices: collected.into_iter().enumerate().map(choice).collect(),
            usage,
        })
    }
}

pub fn json_response(value: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(value).expect("responses are structs of strings, numbers and lists");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
