//! The step loop: admits requests, chooses what the next step computes, has a backend compute it, applies the stop
//! rules, and says what happened as [`Event`]s.
//!
//! Read `engine.rs` first. This crate knows tokens, not text; it has no thread of its own, and no decision of its
//! depends on a clock: whoever calls [`Engine::step`] decides when.

#[cfg(feature = "fault-injection")]
mod bugs;
mod clock;
mod engine;
mod flight;
mod limits;
mod request;
mod scheduler;
mod sequence;
mod trace;

#[cfg(feature = "fault-injection")]
pub use bugs::Bug;
pub use clock::Clock;
pub use engine::{Engine, EngineError, StepLoop};
pub use limits::Limits;
pub use request::{Constraint, Event, Failure, Finish, Refused, Request, RequestId, Usage};
pub use trace::{Counters, StepRecord, StepTrace};
