//! The step loop: admits requests, chooses what the next step computes, has a backend compute it, applies the stop
//! rules, and says what happened as [`Event`]s.
//!
//! Read `engine.rs` first. This crate knows tokens, not text; it has no thread and no clock of its own: whoever
//! calls [`Engine::step`] decides when.

mod engine;
mod limits;
mod request;
mod scheduler;
mod sequence;

pub use engine::{Engine, EngineError};
pub use limits::Limits;
pub use request::{Event, Finish, Refused, Request, RequestId, Usage};
