//! Load for any server that speaks the OpenAI API: streams requests, many at a time, and notes when every delivery
//! arrives. One thread does all of it, and reports how busy it was, so that a reader can tell a slow server from a slow
//! client.
//!
//! Not here: what the numbers mean (`stats`), and in which order points run (`sweep`). Read `exchange.rs` for one request,
//! `reading.rs` for how times become numbers.

mod address;
mod connection;
mod counters;
mod delivery;
mod exchange;
mod failure;
mod prompts;
mod reading;
mod server;
mod sse;
#[cfg(feature = "https")]
mod tls;

pub use address::Address;
pub use exchange::Api;
pub use prompts::Sharing;
pub use server::{ServerOptions, ServerTarget};
