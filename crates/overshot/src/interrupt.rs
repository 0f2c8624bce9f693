//! Ctrl-C in a conversation: the first one stops the answer, one more ends the program. At the prompt it drops the
//! line, as shells do, and says how to end.

use anyhow::Context;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOP: u8 = 2;
const AT_PROMPT: u8 = 3;

pub const PROMPT: &str = "> ";

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
            match state.compare_exchange(ANSWERING, STOP, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {}
                // The terminal has dropped the line already. The output belongs to the conversation's thread.
                Err(AT_PROMPT) => {
                    let _ = write!(std::io::stderr(), "\n(Ctrl-D or /quit ends the conversation)\n{PROMPT}");
                }
                Err(_) => std::process::exit(EXIT_CODE),
            }
        };
        ctrlc::set_handler(handler).context("Ctrl-C cannot be handled")
    }

    /// From here to the end of the guard, Ctrl-C stops the answer only.
    pub fn while_answering(&self) -> Meanwhile<'_> {
        self.0.store(ANSWERING, Ordering::SeqCst);
        Meanwhile(self)
    }

    /// From here to the end of the guard, Ctrl-C gives a fresh prompt.
    pub fn while_at_prompt(&self) -> Meanwhile<'_> {
        self.0.store(AT_PROMPT, Ordering::SeqCst);
        Meanwhile(self)
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOP
    }
}

pub struct Meanwhile<'a>(&'a StopRequest);

impl Drop for Meanwhile<'_> {
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
