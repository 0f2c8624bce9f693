//! Holds answers to a form: JSON schemas, patterns, lists of choices, tool calls whose arguments fit.
//!
//! [`Grammars`] is made once for a served model, from its tokenizer. It turns a [`Demand`] into a [`Grammar`], or
//! says which schema is unusable and why, before anything is computed. A grammar makes one
//! [`Constraint`](overshot_engine::Constraint) for each answer; the engine asks it for masks and tells it tokens.
//!
//! The grammars themselves are `llguidance`'s. This crate knows what that one does not: the tokens of DeepSeek-V4,
//! that thinking comes before the answer, how tool calls are spelled, and what a hostile request may cost. It knows
//! no field of any API.
//!
//! Start with `held.rs` (an answer's course), then `calls.rs` (the grammar of tool calls).

mod arguments;
mod calls;
mod demand;
mod error;
mod grammars;
mod held;
mod lark;
mod limits;
mod schema;
mod vocabulary;

pub use demand::{Arguments, CallCount, CallRules, Calls, Demand, Form, Function};
pub use error::{GrammarError, Place};
pub use grammars::{Grammar, Grammars};
pub use limits::Limits;
