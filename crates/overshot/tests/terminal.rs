//! `overshot chat` on a terminal: lines are edited, not read as they come.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod program;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// A conversation on a terminal of its own.
struct Terminal {
    keys: File,
    output: Receiver<String>,
    /// What came and was not waited for yet.
    shown: String,
    chat: Child,
}

impl Terminal {
    fn start() -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let screen = File::options().read(true).write(true).open(Path::new(name.to_str().unwrap())).unwrap();
        let chat = program::overshot(&["chat", "--model"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/dsv4-mini"))
            .env("TERM", "xterm")
            .stdin(Stdio::from(screen.try_clone().unwrap()))
            .stdout(Stdio::from(screen))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = File::from(keys);
        let mut screen = keys.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with an error once the program has closed the terminal.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Terminal { keys, output, shown: String::new(), chat }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Takes what is shown up to and with `text`.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            match self.output.recv_timeout(PATIENCE) {
                Ok(more) => self.shown += &more,
                Err(error) => panic!("{text:?} did not come ({error}): {:?}", self.shown),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.chat.kill();
        let _ = self.chat.wait();
    }
}

#[test]
fn lines_are_long_and_come_back_and_ctrl_c_drops_them() {
    let mut terminal = Terminal::start();
    terminal.wait_for("> ");
    // A terminal's own line mode would cut this after 4,095 bytes.
    let long = format!("/effort{}high", " ".repeat(6000));
    terminal.press(&format!("\x1b[200~{long}\x1b[201~\r"));
    terminal.wait_for("[effort high]");
    terminal.wait_for("> ");
    terminal.press(&format!("{UP}\r"));
    terminal.wait_for("[effort high]");
    terminal.wait_for("> ");
    terminal.press(&format!("dropped{CTRL_C}"));
    terminal.wait_for("(Ctrl-D or /quit ends the conversation)");
    terminal.wait_for("> ");
    terminal.press(CTRL_D);
    assert_eq!(terminal.chat.wait().unwrap().code(), Some(0));
}
