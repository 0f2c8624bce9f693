//! `overshot run`: one prompt, one answer. The answer goes to the output, everything else to the error stream, so
//! that it can be used in a pipe.

use crate::args::AnswerFlags;
use crate::display::{AnswerWriter, Look, cut_line, speed_line};
use crate::input::{PROMPT_BYTES_MAX, read_text};
use crate::interrupt::StopRequest;
use crate::session::{Answer, Ending, Session, Timing};
use clap::Args;
use overshot_chat::{Delta, Effort, Message, RenderOptions};
use serde_json::json;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  overshot run \"What is the capital of France?\"
  overshot run \"What is 6 times 4?\" --effort high --temperature 0
  overshot run --raw \"It is a truth universally acknowledged\" --max-tokens 40
  git diff | overshot run - --model ~/models/DeepSeek-V4-Flash --system \"Review this change.\"

The answer goes to the output; thinking, warnings and, on a terminal, the speed go to the error stream.";

/// Answer one prompt.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The prompt; - reads it from the input
    #[arg(value_name = "PROMPT")]
    prompt: String,

    /// Continue the prompt as plain text, without the chat format; special tokens in it are meant as such
    #[arg(long, conflicts_with_all = ["system", "effort"])]
    raw: bool,

    /// A system message before the prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// How much to think before answering: none, low, medium, high, xhigh or max
    #[arg(long, value_name = "LEVEL", default_value = "none")]
    effort: Effort,

    /// Print one JSON object, at the end, instead of streaming text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    answer: AnswerFlags,
}

/// # Errors
/// A prompt or flag that the model cannot take.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let prompt = prompt(&arguments.prompt)?;
    let mut session = Session::start(&arguments.answer)?;
    let (ending, timing) = if arguments.raw {
        complete(arguments, &mut session, &prompt, out)?
    } else {
        answer(arguments, &mut session, prompt, out)?
    };
    if arguments.json {
        return Ok(());
    }
    if ending == Ending::LimitReached {
        let _ = writeln!(std::io::stderr(), "{}", Look::of_stderr().dim(&cut_line(&timing)));
    }
    if Look::of_stderr().is_terminal() {
        let _ = writeln!(std::io::stderr(), "{}", Look::of_stderr().dim(&speed_line(&timing)));
    }
    Ok(())
}

fn prompt(given: &str) -> anyhow::Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    read_text(std::io::stdin(), "the prompt on the input", PROMPT_BYTES_MAX)
}

fn answer(
    arguments: &Arguments,
    session: &mut Session,
    prompt: String,
    out: &mut dyn Write,
) -> anyhow::Result<(Ending, Timing)> {
    let mut messages: Vec<Message> =
        arguments.system.iter().map(|text| Message::system(text.as_str())).collect();
    messages.push(Message::user(prompt));
    let options = RenderOptions { effort: arguments.effort, ..RenderOptions::default() };
    let mut stream = Stream::new(arguments.json);
    let answer = session
        .answer(&messages, &options, &StopRequest::default(), |delta| Ok(stream.write(delta, out)?))?;
    if arguments.json {
        writeln!(out, "{}", answer_json(session, &answer))?;
    } else {
        stream.finish(&answer, out)?;
    }
    Ok((answer.ending, answer.timing))
}

/// The answer to the output, the rest to the error stream; nothing while JSON is wanted.
struct Stream {
    silent: bool,
    look: Look,
    aside: AnswerWriter,
    wrote_aside: bool,
}

impl Stream {
    fn new(silent: bool) -> Self {
        let aside = AnswerWriter::new(Look::of_stderr());
        Stream { silent, look: Look::of_stdout(), aside, wrote_aside: false }
    }

    fn write(&mut self, delta: &Delta, out: &mut dyn Write) -> std::io::Result<()> {
        if self.silent {
            return Ok(());
        }
        match delta {
            Delta::Content(text) => {
                if std::mem::take(&mut self.wrote_aside) {
                    let _ = self.aside.finish(&mut std::io::stderr());
                }
                write!(out, "{}", self.look.text(text))?;
                out.flush()
            }
            other => {
                self.wrote_aside = true;
                // An error stream that takes nothing does not cost the answer.
                let _ = self.aside.write(other, &mut std::io::stderr());
                Ok(())
            }
        }
    }

    fn finish(&mut self, answer: &Answer, out: &mut dyn Write) -> std::io::Result<()> {
        if std::mem::take(&mut self.wrote_aside) {
            let _ = self.aside.finish(&mut std::io::stderr());
        }
        if !answer.message.content.is_empty() { writeln!(out) } else { Ok(()) }
    }
}

fn answer_json(session: &Session, answer: &Answer) -> serde_json::Value {
    let message = &answer.message;
    let calls: Vec<_> = message
        .tool_calls
        .iter()
        .map(|call| json!({ "id": call.id, "name": call.name, "arguments": call.arguments }))
        .collect();
    json!({
        "model": session.model_label,
        "content": message.content,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls,
        "unparsed_tool_text": message.unparsed_tool_text,
        "finish_reason": message.finish_reason.as_str(),
        "seed": session.sampling.seed,
        "timing": answer.timing,
    })
}

fn complete(
    arguments: &Arguments,
    session: &mut Session,
    prompt: &str,
    out: &mut dyn Write,
) -> anyhow::Result<(Ending, Timing)> {
    let look = Look::of_stdout();
    let mut whole = String::new();
    let (ending, timing) = session.complete(prompt, &StopRequest::default(), |text| {
        if arguments.json {
            whole.push_str(text);
            return Ok(());
        }
        write!(out, "{}", look.text(text))?;
        Ok(out.flush()?)
    })?;
    if arguments.json {
        let finish_reason = if ending == Ending::Stopped { "stop" } else { "length" };
        let answer = json!({
            "model": session.model_label,
            "text": whole,
            "finish_reason": finish_reason,
            "seed": session.sampling.seed,
            "timing": timing,
        });
        writeln!(out, "{answer}")?;
    } else {
        writeln!(out)?;
    }
    Ok((ending, timing))
}
