//! `overshot chat`: a conversation in the terminal. Every turn computes the whole conversation again: the engine
//! does not reuse prompt prefixes yet.

use crate::args::AnswerFlags;
use crate::display::{AnswerWriter, Look, cut_line, speed_line};
use crate::failure::{BadInput, one_line, sentence};
use crate::input::text;
use crate::interrupt::StopRequest;
use crate::line_source::LineSource;
use crate::session::{Ending, Session, StepFailed};
use clap::Args;
use overshot_chat::{ChatError, Effort, Message, RenderOptions};
use overshot_engine::Refused;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  overshot chat
  overshot chat --model ~/models/DeepSeek-V4-Flash --effort high

One line is one message; one that begins with a space is no command.
Ctrl-C stops the answer only; Ctrl-D or /quit ends the conversation.";

const COMMANDS: &str = "\
/new            forget the conversation
/effort LEVEL   think more or less: none, low, medium, high, xhigh, max
/quit           end, as Ctrl-D does";

/// Talk with the model in the terminal.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A system message before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// How much to think before answering: none, low, medium, high, xhigh or max
    #[arg(long, value_name = "LEVEL", default_value = "none")]
    effort: Effort,

    #[command(flatten)]
    answer: AnswerFlags,
}

/// # Errors
/// A flag that the model cannot take. What goes wrong in a turn is reported there, and the conversation goes on.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let session = Session::start(&arguments.answer)?;
    let stop = StopRequest::default();
    stop.on_ctrl_c()?;
    let lines = LineSource::of_stdin()?;
    let look = Look::of_stdout();
    if lines.is_terminal() {
        writeln!(out, "{}", look.dim(&format!("{}; /help lists commands", one_line(&session.model_label))))?;
    }
    let system: Vec<Message> = arguments.system.iter().map(|text| Message::system(text.as_str())).collect();
    let options = RenderOptions { effort: arguments.effort, ..RenderOptions::default() };
    Conversation { session, messages: system.clone(), system, options, stop, look }.run(lines, out)
}

struct Conversation {
    session: Session,
    /// What a new conversation begins with.
    system: Vec<Message>,
    messages: Vec<Message>,
    options: RenderOptions,
    stop: StopRequest,
    look: Look,
}

/// What a line of input asks for.
#[derive(Clone, Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Message(&'a str),
    New,
    Effort(&'a str),
    Help,
    Quit,
    /// Looks like a command and is none.
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        if line.starts_with(' ') && !line.trim().is_empty() {
            return Line::Message(line.trim());
        }
        let line = line.trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => Line::Nothing,
            ("/new", "") => Line::New,
            ("/effort", level) => Line::Effort(level.trim()),
            ("/help", "") => Line::Help,
            ("/quit" | "/exit", "") => Line::Quit,
            // A path has more slashes.
            (word, _) if word.strip_prefix('/').is_some_and(|word| !word.contains('/')) => {
                Line::Unknown(line)
            }
            _ => Line::Message(line),
        }
    }
}

impl Conversation {
    fn run(&mut self, mut lines: LineSource, out: &mut dyn Write) -> anyhow::Result<()> {
        while let Some(line) = lines.next(&self.stop, out)? {
            let line = match text(line, "the message") {
                Ok(line) => line,
                Err(error) => {
                    writeln!(out, "{}", sentence(&error))?;
                    continue;
                }
            };
            match Line::parse(&line) {
                Line::Quit => return Ok(()),
                Line::Nothing => {}
                Line::Help => writeln!(out, "{COMMANDS}")?,
                Line::Unknown(line) => writeln!(
                    out,
                    "there is no command `{}`: /help lists them, and a space before it makes it a message",
                    one_line(line)
                )?,
                Line::New => {
                    self.messages = self.system.clone();
                    writeln!(out, "{}", self.look.dim("[a new conversation]"))?;
                }
                Line::Effort(level) => match level.parse() {
                    Ok(effort) => {
                        self.options.effort = effort;
                        writeln!(out, "{}", self.look.dim(&format!("[effort {level}]")))?;
                    }
                    Err(error) => writeln!(out, "{}", one_line(&error.to_string()))?,
                },
                Line::Message(text) => self.turn(text, out)?,
            }
        }
        Ok(())
    }

    /// One message and its answer, which both become part of the conversation, or neither does.
    fn turn(&mut self, text: &str, out: &mut dyn Write) -> anyhow::Result<()> {
        self.messages.push(Message::user(text));
        let mut writer = AnswerWriter::new(self.look);
        let answering = self.stop.while_answering();
        let outcome = self
            .session
            .answer(&self.messages, &self.options, &self.stop, |delta| Ok(writer.write(delta, out)?));
        drop(answering);
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) if is_of_this_turn(&error) => {
                self.messages.pop();
                if writer.is_within_line() {
                    writer.finish(out)?;
                }
                writeln!(out, "{} (the message is taken back; /new starts afresh)", sentence(&error))?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        writer.finish(out)?;
        if answer.ending == Ending::Interrupted {
            writeln!(out, "{}", self.look.dim("[stopped]"))?;
        }
        if answer.ending == Ending::LimitReached {
            let _ = writeln!(std::io::stderr(), "{}", Look::of_stderr().dim(&cut_line(&answer.timing)));
        }
        if self.look.is_terminal() {
            writeln!(out, "{}", self.look.dim(&speed_line(&answer.timing)))?;
        }
        self.messages.push(answer.message.to_message());
        Ok(())
    }
}

/// Whether the conversation can go on: what failed is this message or its answer, not the program.
fn is_of_this_turn(error: &anyhow::Error) -> bool {
    error.is::<BadInput>() || error.is::<Refused>() || error.is::<ChatError>() || error.is::<StepFailed>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_unless_they_are_commands() {
        assert_eq!(Line::parse("Hello there \n"), Line::Message("Hello there"));
        assert_eq!(Line::parse(" /new\n"), Line::Message("/new"));
        assert_eq!(Line::parse("  \n"), Line::Nothing);
        assert_eq!(Line::parse("/efort high"), Line::Unknown("/efort high"));
        assert_eq!(Line::parse("/effort high\n"), Line::Effort("high"));
        assert_eq!(Line::parse("/new\n"), Line::New);
        assert_eq!(Line::parse("/new ideas"), Line::Unknown("/new ideas"));
        assert_eq!(Line::parse("/usr/bin is a folder"), Line::Message("/usr/bin is a folder"));
        assert_eq!(Line::parse("\n"), Line::Nothing);
    }
}
