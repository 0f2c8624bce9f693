//! A request that has been understood: what the engine computes for it, and how it is answered.

use crate::answer_format::HeldTo;
use crate::answers::{Answers, Output, Progress};
use crate::app::App;
use crate::choice::{Choice, ChoiceOptions};
use crate::dialect::{AllCounts, Answer, Dialect};
use crate::error::ApiError;
use crate::stream::{EventStream, event_response};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use overshot_backend::Sampling;
use overshot_engine::Request;
use serde::Serialize;
use std::future::poll_fn;

/// Whether an answer is told at once or as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    Stream,
}

/// How answers are drawn, and where they end.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Answers to each prompt.
    pub choices: usize,
    pub options: ChoiceOptions,
    pub sampling: Sampling,
    /// Tokens that an answer may have; `None` leaves it to the context.
    pub most_new_tokens: Option<usize>,
}

impl Generation {
    /// Tokens that an answer to such a prompt may have: as many as asked for, at most what the context leaves.
    ///
    /// # Errors
    /// A prompt that leaves no room for one.
    pub fn most_new_tokens(&self, prompt_tokens: usize, context: usize) -> Result<usize, ApiError> {
        // The last token needs no position of its own.
        let room = (context + 1).saturating_sub(prompt_tokens);
        if room == 0 {
            return Err(ApiError::ContextExceeded(format!(
                "the prompt has {prompt_tokens} tokens: this server's context holds {context}, prompt and answer \
                 together"
            )));
        }
        Ok(self.most_new_tokens.map_or(room, |tokens| tokens.min(room)))
    }
}

/// What the engine computes for a request.
pub struct Work {
    /// Of all prompts, each counted once.
    prompt_tokens: usize,
    /// What all answers are held to.
    held: Option<HeldTo>,
    requests: Vec<Request>,
    choices: Vec<Choice>,
}

impl Work {
    /// Nothing to compute yet.
    pub fn new(prompt_tokens: usize) -> Self {
        Work { prompt_tokens, held: None, requests: Vec::new(), choices: Vec::new() }
    }

    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Holds all answers to something, once they are asked for.
    pub fn hold(&mut self, held: HeldTo) {
        self.held = Some(held).filter(|held| !held.demand.is_nothing());
    }

    /// Adds the answer number `index` to a prompt. Answers to one prompt differ by their seeds alone.
    pub fn push(
        &mut self,
        choice: Choice,
        prompt: &[u32],
        generation: &Generation,
        index: usize,
        max_new_tokens: usize,
    ) {
        let sampling = &generation.sampling;
        let seed = sampling.seed.wrapping_add(index as u64);
        self.choices.push(choice);
        self.requests.push(Request {
            sampling: Sampling { seed, ..sampling.clone() },
            max_new_tokens,
            stop_tokens: generation.options.stop_tokens.to_vec(),
            ..Request::new(prompt.to_vec())
        });
    }

    /// Has the engine compute it. Dropping the future, or the answers, cancels everything.
    ///
    /// # Errors
    /// A refusal, a schema that is unusable.
    pub async fn begin(mut self, app: &App) -> Result<Answers, ApiError> {
        if let Some(held) = self.held {
            app.grammars.hold(&mut self.requests, held).await?;
        }
        let ticket = app.engine.submit(self.requests).await?;
        Ok(Answers::new(ticket, self.choices).within(app.options.request_timeout))
    }
}

pub struct Job {
    work: Work,
    dialect: Box<dyn Dialect>,
    delivery: Delivery,
}

impl Job {
    pub fn of(work: Work, dialect: impl Dialect + 'static, delivery: Delivery) -> Self {
        Job { work, dialect: Box::new(dialect), delivery }
    }

    /// Has the engine compute it. Dropping the future, or the response's body, cancels everything.
    ///
    /// # Errors
    /// A refusal; for whole responses also a failure on the way.
    pub async fn answer(self, app: &App) -> Result<Response<Body>, ApiError> {
        let (choices, prompt_tokens) = (self.work.choices.len(), self.work.prompt_tokens);
        let answers = self.work.begin(app).await?;
        match self.delivery {
            Delivery::Whole => whole(answers, choices, prompt_tokens, self.dialect, app).await,
            Delivery::Stream => {
                let writer = self.dialect.events(choices, app);
                Ok(event_response(EventStream::new(answers, writer, prompt_tokens, app.options.keep_alive)))
            }
        }
    }
}

async fn whole(
    mut answers: Answers,
    choices: usize,
    prompt_tokens: usize,
    dialect: Box<dyn Dialect>,
    app: &App,
) -> Result<Response<Body>, ApiError> {
    let mut collected: Vec<Answer> = (0..choices).map(|_| Answer::default()).collect();
    let mut deliver = |choice: usize, output: Output| match output {
        Output::Piece(piece) => {
            if let Some(delta) = piece.delta {
                collected[choice].deltas.push(delta);
            }
            collected[choice].logprobs.extend(piece.logprobs);
        }
        Output::Finish(ending) => collected[choice].ending = ending,
    };
    while poll_fn(|context| answers.poll(context, &mut deliver)).await? == Progress::Going {}
    let counts = AllCounts { prompt: prompt_tokens, answers: answers.counts() };
    Ok(dialect.whole(collected, counts, app))
}

pub fn json_response(value: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(value).expect("responses are structs of strings, numbers and lists");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
