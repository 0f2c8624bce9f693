//! How answers and waiting look on a terminal. What goes to a file or a pipe is the model's text, unchanged.

use crate::session::Timing;
use crate::table::bytes;
use indicatif::{ProgressBar, ProgressStyle};
use overshot_chat::Delta;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Shorter prompts are done before a bar could be read.
const BAR_FROM_TOKENS: usize = 256;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Whether a terminal wants text without colours and moving lines.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// By the convention of NO_COLOR, or because the terminal knows none.
fn is_colourless() -> bool {
    is_dumb() || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Something is happening, its length unknown: says what, and for how long already. Shown only on a terminal.
pub fn spinner(what: &str) -> ProgressBar {
    if is_dumb() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// The prompt's tokens as they are computed. Shown only on a terminal, and for long prompts.
pub struct PrefillBar(ProgressBar);

impl PrefillBar {
    pub fn new(prompt_tokens: usize) -> Self {
        if prompt_tokens < BAR_FROM_TOKENS || is_dumb() {
            return PrefillBar(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(prompt_tokens as u64);
        // Wide parts are cut where the line ends: a line that wraps could not be taken back.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        PrefillBar(bar)
    }

    pub fn show(&self, done: usize) {
        self.0.set_position(done as u64);
        let all = self.0.length().unwrap_or_default();
        self.0.set_message(prefill_line(done as u64, all, self.0.eta()));
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// `prompt [######--------------] 1234/4100 tokens, 12 s left`
fn prefill_line(done: u64, all: u64, left: Duration) -> String {
    format!("prompt {} {done}/{all} tokens, {} s left", cells(done, all), left.as_secs())
}

/// `loading [######--------------] 48.1 GB of 159.6 GB, 3.1 GB a second`
pub fn loading_line(done: u64, all: u64, taken: Duration) -> String {
    let speed = (done as f64 / taken.as_secs_f64().max(1e-3)) as u64;
    format!("loading {} {} of {}, {} a second", cells(done, all), bytes(done), bytes(all), bytes(speed))
}

/// `[######--------------]`
fn cells(done: u64, all: u64) -> String {
    const CELLS: u64 = 20;
    let full = (u128::from(done) * u128::from(CELLS)).checked_div(u128::from(all));
    let full = full.map_or(CELLS, |full| full.min(u128::from(CELLS)) as u64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(CELLS as usize - full))
}

/// Whether a stream is a terminal: there, thinking is dimmed and control characters are made visible, so that no
/// model output can drive the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Terminal,
    /// A terminal that is not to be sent colours.
    ColourlessTerminal,
    Plain,
}

impl Look {
    pub fn of_stdout() -> Self {
        Look::of(&io::stdout())
    }

    pub fn of_stderr() -> Self {
        Look::of(&io::stderr())
    }

    fn of(stream: &impl IsTerminal) -> Self {
        match stream.is_terminal() {
            true if is_colourless() => Look::ColourlessTerminal,
            true => Look::Terminal,
            false => Look::Plain,
        }
    }

    pub fn is_terminal(self) -> bool {
        self != Look::Plain
    }

    pub fn text(self, text: &str) -> Cow<'_, str> {
        let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
        if self == Look::Plain || text.chars().all(harmless) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect())
    }

    pub fn dim(self, text: &str) -> String {
        match self {
            Look::Terminal => format!("{DIM}{}{PLAIN}", self.text(text)),
            Look::ColourlessTerminal | Look::Plain => self.text(text).into_owned(),
        }
    }
}

/// Writes the deltas of one answer to one stream, its parts told apart: dim on a terminal, else under headings.
pub struct AnswerWriter {
    look: Look,
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Thinking,
    Answer,
    ToolCall(usize),
    Unparsed,
}

impl AnswerWriter {
    pub fn new(look: Look) -> Self {
        AnswerWriter { look, part: None }
    }

    pub fn write(&mut self, delta: &Delta, out: &mut dyn Write) -> io::Result<()> {
        match delta {
            Delta::Reasoning(text) => {
                self.enter(Part::Thinking, "[thinking] ", out)?;
                write!(out, "{}", self.look.dim(text))?;
            }
            Delta::Content(text) => {
                let heading = if self.part.is_some() { "[answer] " } else { "" };
                self.enter(Part::Answer, heading, out)?;
                write!(out, "{}", self.look.text(text))?;
            }
            Delta::ToolCallStart { index, name, .. } => {
                let heading = format!("[call] {} ", self.look.text(name));
                self.enter(Part::ToolCall(*index), &heading, out)?;
            }
            Delta::ToolCallArguments { text, .. } => write!(out, "{}", self.look.text(text))?,
            Delta::ToolCallEnd { .. } => {}
            Delta::ToolCallWithdrawn { .. } => write!(out, " [is no call]")?,
            Delta::UnparsedToolText(text) => {
                self.enter(Part::Unparsed, "[unparsed tool text] ", out)?;
                write!(out, "{}", self.look.dim(text))?;
            }
        }
        out.flush()
    }

    /// Whether a line is begun and not ended.
    pub fn is_within_line(&self) -> bool {
        self.part.is_some()
    }

    /// Ends the line of whatever was written last.
    pub fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.part = None;
        writeln!(out)?;
        out.flush()
    }

    fn enter(&mut self, part: Part, heading: &str, out: &mut dyn Write) -> io::Result<()> {
        if self.part == Some(part) {
            return Ok(());
        }
        if self.part.is_some() {
            write!(out, "\n\n")?;
        }
        self.part = Some(part);
        if heading.is_empty() { Ok(()) } else { write!(out, "{}", self.look.dim(heading)) }
    }
}

/// `[cut at 40 tokens]`: the answer did not end by itself.
pub fn cut_line(timing: &Timing) -> String {
    format!("[cut at {} tokens]", timing.generated_tokens)
}

/// `[12 tokens read in 0.05 s, 10 written at 123.4 tokens/s]`
pub fn speed_line(timing: &Timing) -> String {
    let Timing { prompt_tokens, generated_tokens, first_token_seconds, decode_tokens_per_second, .. } =
        timing;
    let speed = if *decode_tokens_per_second > 0.0 {
        format!(" at {decode_tokens_per_second:.1} tokens/s")
    } else {
        String::new()
    };
    format!("[{prompt_tokens} tokens read in {first_token_seconds:.2} s, {generated_tokens} written{speed}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(look: Look, deltas: &[Delta]) -> String {
        let (mut writer, mut out) = (AnswerWriter::new(look), Vec::new());
        deltas.iter().for_each(|delta| writer.write(delta, &mut out).unwrap());
        writer.finish(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_answer_alone_is_only_its_text() {
        let deltas = [Delta::Content("Par".into()), Delta::Content("is.\x1b[2J".into())];
        assert_eq!(written(Look::Plain, &deltas), "Paris.\x1b[2J\n");
        assert_eq!(written(Look::Terminal, &deltas), "Paris.\u{FFFD}[2J\n");
    }

    #[test]
    fn a_terminal_without_colours_gets_no_control_characters() {
        let text = "a\x1b[2Jb";
        assert_eq!(Look::ColourlessTerminal.dim(text), "a\u{FFFD}[2Jb");
        assert_eq!(Look::Terminal.dim(text), format!("{DIM}a\u{FFFD}[2Jb{PLAIN}"));
        assert_eq!(Look::Plain.dim(text), text);
    }

    #[test]
    fn the_prefill_line_shows_the_share() {
        let line = prefill_line(1_025, 4_100, Duration::from_millis(12_300));
        assert_eq!(line, "prompt [#####---------------] 1025/4100 tokens, 12 s left");
        assert!(prefill_line(1, 0, Duration::ZERO).contains("[####################]"));
        let line = loading_line(48_100_000_000, 159_600_000_000, Duration::from_secs(10));
        assert_eq!(line, "loading [######--------------] 48.1 GB of 159.6 GB, 4.8 GB a second");
        assert!(loading_line(u64::MAX, u64::MAX, Duration::ZERO).contains("[####################]"));
    }

    #[test]
    fn thinking_stands_apart() {
        let deltas =
            [Delta::Reasoning("Hm".into()), Delta::Reasoning(".".into()), Delta::Content("24".into())];
        assert_eq!(written(Look::Plain, &deltas), "[thinking] Hm.\n\n[answer] 24\n");
    }
}
