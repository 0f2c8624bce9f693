//! Where the lines of a conversation come from. On a terminal they can be edited, called back and pasted at any length, which
//! the terminal's own line mode ends at 4,095 bytes; from pipes and files they are taken as they are. Nothing is kept
//! beyond the program's end.

use crate::failure::bad_input;
use crate::input::{LINE_BYTES_MAX, check_length, read_line};
use crate::interrupt::{HOW_TO_END, PROMPT, StopRequest};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use std::io::{self, IsTerminal, StdinLock, Write};

/// What messages call a line.
const NAME: &str = "the message";

pub enum LineSource {
    Editor(Box<DefaultEditor>),
    /// A terminal whose output goes elsewhere.
    Prompted(StdinLock<'static>),
    Piped(StdinLock<'static>),
}

impl LineSource {
    /// # Errors
    /// A terminal that cannot be taken over.
    pub fn of_stdin() -> anyhow::Result<Self> {
        let input = io::stdin();
        if !input.is_terminal() {
            return Ok(LineSource::Piped(input.lock()));
        }
        if !io::stdout().is_terminal() {
            return Ok(LineSource::Prompted(input.lock()));
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config)
            .map_err(|error| bad_input(format!("cannot edit lines on this terminal: {error}")))?;
        Ok(LineSource::Editor(Box::new(editor)))
    }

    pub fn is_terminal(&self) -> bool {
        !matches!(self, LineSource::Piped(_))
    }

    /// The next line; `None` when there is none.
    ///
    /// # Errors
    /// A line that cannot be read, or is longer than 1 MiB.
    pub fn next(&mut self, stop: &StopRequest, out: &mut dyn Write) -> anyhow::Result<Option<Vec<u8>>> {
        match self {
            LineSource::Piped(input) => read_line(input, NAME),
            LineSource::Prompted(input) => {
                let _at_prompt = stop.while_at_prompt();
                write!(out, "{PROMPT}")?;
                out.flush()?;
                let line = read_line(input, NAME)?;
                if line.is_none() {
                    // Ctrl-D leaves the cursor behind the prompt.
                    writeln!(out)?;
                }
                Ok(line)
            }
            LineSource::Editor(editor) => {
                out.flush()?;
                edit(editor, stop, out)
            }
        }
    }
}

/// While a line is edited, the terminal passes Ctrl-C on as a key.
fn edit(
    editor: &mut DefaultEditor,
    stop: &StopRequest,
    out: &mut dyn Write,
) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        let at_prompt = stop.while_at_prompt();
        let line = editor.readline(PROMPT);
        drop(at_prompt);
        match line {
            Ok(line) => {
                check_length(line.as_bytes(), NAME, LINE_BYTES_MAX)?;
                return Ok(Some(line.into_bytes()));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Interrupted) => {
                writeln!(out, "{HOW_TO_END}")?;
                out.flush()?;
            }
            Err(error) => return Err(bad_input(format!("cannot read {NAME}: {error}"))),
        }
    }
}
