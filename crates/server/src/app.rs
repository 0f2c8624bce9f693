//! What every handler sees: the engine's handle, the model's texts, and the options of the server.

use crate::answer_format::GrammarMaker;
use crate::api_keys::ApiKeys;
use crate::body::{self, ReceivedBody};
use crate::cors::CorsPolicy;
use crate::engine_handle::EngineHandle;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::responses::Store;
use axum::body::Body;
use axum::http::Request;
use overshot_backend::Sampling;
use overshot_chat::{Effort, PromptTexts, Tokenizer};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// The one model that is served.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// What clients call it.
    pub name: String,
    pub tokenizer: Tokenizer,
    pub texts: PromptTexts,
    pub bos_token: u32,
    pub eos_token: u32,
    pub vocab_size: usize,
    /// Positions that prompt and answer may fill together.
    pub context: usize,
    /// What requests that do not say otherwise are sampled with; seed and logprobs are their own.
    pub sampling: Sampling,
    /// Thinking of requests that do not say.
    pub effort: Effort,
}

#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Time for running answers to end once a shutdown is asked for.
    pub drain: Duration,
    /// Time without the end of a step, while there is work, after which the engine counts as stalled.
    pub stall: Duration,
    /// Time for an answer to be computed; `None` leaves it to the client's patience.
    pub request_timeout: Option<Duration>,
    /// Silence on a stream after which a sign of life is sent.
    pub keep_alive: Duration,
    pub api_keys: ApiKeys,
    pub cors: CorsPolicy,
    pub limits: ServerLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            drain: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            request_timeout: None,
            keep_alive: Duration::from_secs(10),
            api_keys: ApiKeys::default(),
            cors: CorsPolicy::default(),
            limits: ServerLimits::default(),
        }
    }
}

/// Shared by all connections.
pub struct App {
    pub engine: EngineHandle,
    pub model: ServedModel,
    pub options: ServerOptions,
    /// Seconds since 1970, when the server started.
    pub created: u64,
    pub(crate) responses: Store,
    pub grammars: GrammarMaker,
    large_bodies: Arc<Semaphore>,
}

impl App {
    pub fn new(engine: EngineHandle, model: ServedModel, options: ServerOptions) -> Arc<Self> {
        let large_bodies = Arc::new(Semaphore::new(options.limits.large_bodies));
        let responses = Store::new(&options.limits);
        let grammars = GrammarMaker::new(&model.tokenizer, model.vocab_size, options.limits.grammars);
        Arc::new(App { engine, model, options, created: now(), responses, grammars, large_bodies })
    }

    pub fn limits(&self) -> &ServerLimits {
        &self.options.limits
    }

    /// Reads a body and has `understand` make something of it: on this thread if it is small, else where it keeps
    /// no connection waiting.
    ///
    /// # Errors
    /// What is wrong with the body, or with what it says.
    pub async fn understand<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request<Body>,
        understand: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let received = self.receive(request).await?;
        if received.bytes.len() <= self.limits().small_body_bytes {
            return understand(self, &received.bytes);
        }
        self.understand_elsewhere(received, understand).await
    }

    /// The same for what may ask for far more than its size tells: never on this thread.
    ///
    /// # Errors
    /// As in [`App::understand`].
    pub async fn understand_apart<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request<Body>,
        understand: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let received = self.receive(request).await?;
        self.understand_elsewhere(received, understand).await
    }

    /// Whoever is still sending when everything is over is not waited for.
    async fn receive(&self, request: Request<Body>) -> Result<ReceivedBody, ApiError> {
        tokio::select! {
            received = body::read(request, self.limits(), &self.large_bodies) => received,
            () = self.engine.ended() => Err(self.engine.refusal().unwrap_or(ApiError::ShuttingDown)),
        }
    }

    async fn understand_elsewhere<T: Send + 'static>(
        self: &Arc<Self>,
        received: ReceivedBody,
        understand: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = Arc::clone(self);
        let elsewhere = move || {
            let ReceivedBody { bytes, .. } = &received;
            understand(&app, bytes)
        };
        let outcome = tokio::task::spawn_blocking(elsewhere).await;
        outcome.unwrap_or_else(|_| Err(ApiError::Failed("reading the request failed".into())))
    }

    /// # Errors
    /// A name that is not the served one. No name is taken for it.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.model.name => {
                Err(ApiError::NoSuchModel { name: name.to_owned(), served: self.model.name.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name that no other response or call has.
pub fn fresh_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..))
}
