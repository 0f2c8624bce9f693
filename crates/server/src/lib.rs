//! The HTTP server over one engine, in the words of OpenAI's and Anthropic's APIs. It knows text and the network, and no
//! tensor.
//!
//! Start with `routes.rs` for what there is. A chat request goes through `body.rs` (bytes to fields),
//! `conversation.rs` (fields to a prompt and a job), `answer_format.rs` (what answers are held to), `engine_handle.rs`
//! and `desk.rs` (prompt to tokens, over a `mailbox.rs`), `answers.rs` and `choice.rs` (tokens to pieces of text), and
//! out by `stream.rs` and `chunks.rs`, or as a whole by `job.rs`. Every error becomes an envelope in `error.rs`; every
//! bound stands in `limits.rs`. `messages/` is Anthropic's API and `responses/` OpenAI's newer one: they differ at both
//! ends of that way only, though responses may be kept.

mod answer_format;
mod answers;
mod api_keys;
mod app;
mod body;
mod chat_fields;
mod choice;
mod chunks;
mod completions;
mod conversation;
mod cors;
mod desk;
mod dialect;
mod engine_handle;
mod error;
mod exposition;
mod fields;
mod format_fields;
mod gate;
mod job;
mod limits;
mod mailbox;
mod messages;
mod metrics;
mod openai;
mod openapi;
mod page;
mod responses;
mod routes;
mod serve;
mod stream;
mod switches;
mod sync;
mod texts;
mod unreadable_head;
mod wire;
mod write_deadline;

pub use api_keys::{ApiKeys, BadKey};
pub use app::{App, ServedModel, ServerOptions};
pub use cors::{CorsOrigin, CorsPolicy};
pub use engine_handle::{EngineHandle, StepObserver};
pub use limits::ServerLimits;
pub use routes::router;
pub use serve::{ServeError, Shutdown, serve, serve_until_signal};
