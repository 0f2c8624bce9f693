//! A world to run the engine in, with no model, no thread and no real time: a device whose "model" notices every
//! wrong page, a clock that the device moves, and scenarios of requests that come, wait, stop and go away.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in what they call
#![allow(dead_code)] // Not every test file uses all of it.

pub mod device;
pub mod grammar;
pub mod memory;
pub mod model;
pub mod scenario;
