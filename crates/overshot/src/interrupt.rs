//! Ctrl-C in a conversation: the first one stops the answer, one more ends the program. At the prompt it drops the
//! line, as shells do, and says how to end. While a file is written, it takes the half file with it. While something is
//! measured, it says what is left of that.

use crate::failure::note;
use anyhow::Context;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOP: u8 = 2;
const AT_PROMPT: u8 = 3;

pub const PROMPT: &str = "> ";
pub const HOW_TO_END: &str = "(Ctrl-D or /quit ends the conversation)";

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
                    let _ = write!(std::io::stderr(), "\n{HOW_TO_END}\n{PROMPT}");
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

/// Takes over Ctrl-C for the rest of the program: it ends at once, with these words.
pub fn say_on_ctrl_c(words: String) -> anyhow::Result<()> {
    let handler = move || {
        note(&words);
        std::process::exit(EXIT_CODE)
    };
    ctrlc::set_handler(handler).context("Ctrl-C cannot be handled")
}

/// To be called when a program that we started has failed: Ctrl-C goes to both, and the failure of the other one would be told
/// where the words of `say_on_ctrl_c` belong.
pub fn give_way_to_ctrl_c() {
    std::thread::sleep(Duration::from_millis(200));
}

pub struct Meanwhile<'a>(&'a StopRequest);

impl Drop for Meanwhile<'_> {
    fn drop(&mut self) {
        self.0.0.store(IDLE, Ordering::SeqCst);
    }
}

/// Files in the making, which Ctrl-C removes before it ends the program.
#[derive(Clone, Debug, Default)]
pub struct Unfinished(Arc<Mutex<Vec<PathBuf>>>);

impl Unfinished {
    /// Takes over Ctrl-C for the rest of the program. Without this call nothing is removed.
    pub fn removed_on_ctrl_c(&self) -> anyhow::Result<()> {
        let unfinished = self.clone();
        let handler = move || {
            // Held to the end, so that no file begins after this.
            let files = unfinished.files();
            for file in files.iter() {
                // Nobody is left to tell.
                let _ = fs::remove_file(file);
            }
            std::process::exit(EXIT_CODE)
        };
        ctrlc::set_handler(handler).context("Ctrl-C cannot be handled")
    }

    /// Creates a file by `create`, which says where it is; Ctrl-C waits meanwhile.
    pub fn create<T>(&self, create: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(PathBuf, T)> {
        let mut files = self.files();
        let created = create()?;
        files.push(created.0.clone());
        Ok(created)
    }

    /// The file has its own name now, or is gone.
    pub fn forget(&self, file: &Path) {
        self.files().retain(|other| other != file);
    }

    fn files(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        // A list of paths is whole whatever happened to its last owner.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
