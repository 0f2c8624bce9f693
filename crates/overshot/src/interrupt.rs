//! Ctrl-C in a conversation: the first one stops the answer, one more (or one while nothing is being answered)
//! ends the program.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOP: u8 = 2;

/// What shells expect of a program that ended by Ctrl-C.
const EXIT_CODE: i32 = 130;

/// Asked by whoever generates, after every step.
#[derive(Clone, Debug, Default)]
pub struct StopRequest(Arc<AtomicU8>);

impl StopRequest {
    /// Takes over Ctrl-C for the rest of the program. Without this call nothing is ever requested.
    pub fn on_ctrl_c(&self) -> anyhow::Result<()> {
        let state = Arc::clone(&self.0);
        let handler = move || {
            if state.compare_exchange(ANSWERING, STOP, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                std::process::exit(EXIT_CODE);
            }
        };
        ctrlc::set_handler(handler).context("Ctrl-C cannot be handled")
    }

    /// From here to the end of the guard, Ctrl-C stops the answer only.
    pub fn while_answering(&self) -> Answering<'_> {
        self.0.store(ANSWERING, Ordering::SeqCst);
        Answering(self)
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOP
    }
}

pub struct Answering<'a>(&'a StopRequest);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.0.store(IDLE, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_with_the_answer() {
        let stop = StopRequest::default();
        let answering = stop.while_answering();
        assert!(!stop.is_requested());
        stop.0.store(STOP, Ordering::SeqCst);
        assert!(stop.is_requested());
        drop(answering);
        assert!(!stop.is_requested());
    }
}
