//! What goes into the engine and what comes out.

use overshot_backend::{RowFailure, Sampled, Sampling, SamplingError, TokenMask};
use std::fmt;

/// A prompt to continue.
#[derive(Debug)]
pub struct Request {
    /// At least one token. The engine adds none: a BOS that the model expects is part of it.
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// At least 1. The end of the model's context or of the cache may come first.
    pub max_new_tokens: usize,
    /// Tokens that end the request once drawn. The engine adds none: not even EOS.
    pub stop_tokens: Vec<u32>,
    /// What the answer is held to; `None` lets every token through.
    pub constraint: Option<Box<dyn Constraint>>,
}

impl Request {
    /// Greedy, until context or cache end.
    pub fn new(prompt: Vec<u32>) -> Self {
        Request {
            prompt,
            sampling: Sampling::greedy(),
            max_new_tokens: usize::MAX,
            stop_tokens: Vec::new(),
            constraint: None,
        }
    }
}

/// A grammar as the engine sees it: it is told every token and says which may come next.
pub trait Constraint: Send + fmt::Debug {
    /// The tokens that may come next; `None` when any may.
    ///
    /// # Errors
    /// Why the answer can't go on; it ends the request.
    fn mask(&mut self) -> Result<Option<TokenMask>, String>;

    /// Takes in a drawn token.
    ///
    /// # Errors
    /// Why the answer can't go on; it ends the request.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

/// Numbers are never used twice, and grow in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// What a step did for a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// `done` of the `total` tokens of the prompt are computed.
    PrefillProgress { id: RequestId, done: usize, total: usize },
    /// The next token. A stop token is delivered like any other.
    Token { id: RequestId, sampled: Sampled },
    /// The last event of a request; it holds nothing any more.
    Finished { id: RequestId, reason: Finish, usage: Usage },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// This stop token was drawn.
    Stop(u32),
    /// As many tokens as were asked for, or as the context or the cache can hold.
    Length,
    Cancelled,
    Failed(Failure),
}

/// Why a request failed that nobody else's trouble touched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Row(#[from] RowFailure),
    #[error("the backend refused the step: {what}")]
    StepRefused { what: String },
    #[error("the step drew no token where one was due")]
    NothingDrawn,
    #[error("the constraint on the answer can't go on: {what}")]
    Constraint { what: String },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// A stop token included.
    pub generated_tokens: usize,
}

/// Why a request was not even queued.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    #[error("{waiting} requests are waiting already, which is the limit: try again later")]
    QueueFull { waiting: usize },
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    #[error(
        "token {token} of the prompt, at index {index}, is outside the vocabulary of {vocab_size} tokens"
    )]
    NoSuchToken { token: u32, index: usize, vocab_size: usize },
    #[error("the prompt has {prompt_tokens} tokens: the model's context holds {most}")]
    BeyondContext { prompt_tokens: usize, most: usize },
    #[error("the prompt has {prompt_tokens} tokens: the cache holds {most} when nothing else is in it")]
    BeyondCache { prompt_tokens: usize, most: usize },
    #[error("max_new_tokens is 0: ask for at least 1")]
    NothingToGenerate,
    #[error("{stop_tokens} stop tokens are given: at most {most} are possible")]
    TooManyStopTokens { stop_tokens: usize, most: usize },
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
