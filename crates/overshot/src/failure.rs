//! How a command fails: one sentence on the error stream and an exit code that a script can act on.

use overshot_backend::SamplingError;
use overshot_backend_cuda::selftest::SelftestError;
use overshot_chat::ChatError;
use overshot_engine::Refused;
use overshot_lab::LabError;
use overshot_lab::ledger::LedgerError;
use overshot_model::ModelError;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const NO_GPU: u8 = 3;

/// Something that whoever called must change: a flag, a file. The text is one sentence that says what.
#[derive(Debug)]
pub struct BadInput(pub String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

pub fn bad_input(sentence: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(BadInput(sentence.into()))
}

/// A model that is larger than the memory there is. The text has the numbers, and what to lower.
#[derive(Debug)]
pub struct DoesNotFit(pub String);

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DoesNotFit {}

/// A command that needs a GPU, on a machine that has none that can be used. The text says what is missing.
#[derive(Debug)]
pub struct NoGpu(pub String);

impl fmt::Display for NoGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoGpu {}

/// What the self-test says: that there is no GPU has an exit code of its own.
pub fn gpu_error(error: SelftestError) -> anyhow::Error {
    if error.is_absence() { anyhow::Error::new(NoGpu(error.to_string())) } else { anyhow::Error::new(error) }
}

/// A model whose forward pass gives no numbers. `label` names it, `detail` says where it showed.
pub fn damaged_model(label: &str, detail: &str) -> String {
    format!(
        "the logits that {label} computes are not numbers: its weights are damaged or of a kind that is not \
         supported ({detail})"
    )
}

/// Prints the failure and chooses the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever reads our output has read enough (`overshot inspect | head`): not a failure of ours.
    if error.chain().any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    note(&format!("error: {}", sentence(error)));
    ExitCode::from(code(error))
}

/// A line on the error stream. When nobody can read it there is nothing left to do about that.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", one_line(line));
}

/// An error with its causes. Some errors tell their cause themselves: it is not told again.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    one_line(&sentence)
}

/// Longer messages are foreign text, such as a value of a JSON file that is quoted whole.
const LINE_CHARS_MAX: usize = 2000;

/// Text with its line ends as spaces and its control characters visible: names and texts out of files can neither
/// break the line nor drive a terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for (count, character) in text.trim_end().chars().enumerate() {
        if count == LINE_CHARS_MAX {
            line.push_str("...");
            break;
        }
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            // Besides the control characters: what turns the direction of writing, or hides.
            _ if character.is_control()
                || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                line.extend(character.escape_unicode());
            }
            _ => line.push(character),
        }
    }
    line
}

fn code(error: &anyhow::Error) -> u8 {
    match error {
        error if error.chain().any(is_bad_input) => BAD_INPUT,
        error if error.chain().any(|cause| cause.is::<NoGpu>()) => NO_GPU,
        _ => FAILED,
    }
}

fn is_bad_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<BadInput>()
        || cause.is::<DoesNotFit>()
        || cause.is::<ModelError>()
        || cause.is::<ChatError>()
        || cause.is::<Refused>()
        || cause.downcast_ref().is_some_and(LabError::is_bad_input)
        || cause.downcast_ref().is_some_and(LedgerError::is_bad_input)
        || cause.downcast_ref().is_some_and(is_bad_sampling)
}

/// A parameter out of its range; broken logits are nobody's input.
fn is_bad_sampling(error: &SamplingError) -> bool {
    !matches!(error, SamplingError::BadLogit { .. } | SamplingError::NoFiniteLogit { .. })
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    let io = cause.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let io = || std::io::Error::other("no disk");
        let told = ChatError::Read { path: "x".into(), source: io() };
        assert_eq!(sentence(&anyhow::Error::new(told)), "cannot read x: no disk");
        let untold = Err::<(), _>(io()).context("cannot write y").unwrap_err();
        assert_eq!(sentence(&untold), "cannot write y: no disk");
        assert_eq!(one_line(&"long".repeat(9999)).len(), LINE_CHARS_MAX + 3);
        assert_eq!(one_line("a\nb\x1b[2J\u{202e}c\n"), "a b\\u{1b}[2J\\u{202e}c");
    }

    #[test]
    fn bad_input_is_told_from_other_failures_however_deep() {
        let deep = Err::<(), _>(bad_input("no")).context("outer").unwrap_err();
        assert_eq!(code(&deep), BAD_INPUT);
        assert_eq!(code(&anyhow::anyhow!("machine on fire")), FAILED);
        assert_eq!(code(&anyhow::Error::new(NoGpu("none".into()))), NO_GPU);
        let value = SamplingError::TooMany { parameter: "top_logprobs", value: 200, most: 128 };
        assert_eq!(code(&anyhow::Error::new(value)), BAD_INPUT);
        let broken = SamplingError::BadLogit { token: 1, value: f32::NAN };
        assert_eq!(code(&anyhow::Error::new(broken)), FAILED);
    }
}
