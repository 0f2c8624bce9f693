//! How a command fails: one sentence on the error stream and an exit code that a script can act on.

use overshot_backend::SamplingError;
use overshot_chat::ChatError;
use overshot_engine::Refused;
use overshot_model::ModelError;
use std::fmt;
use std::process::ExitCode;

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;

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

/// Prints the failure and chooses the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever reads our output has read enough (`overshot inspect | head`): not a failure of ours.
    if error.chain().any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(is_bad_input) { BAD_INPUT } else { FAILED }
}

fn is_bad_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<BadInput>()
        || cause.is::<ModelError>()
        || cause.is::<ChatError>()
        || cause.is::<Refused>()
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
    fn bad_input_is_told_from_other_failures_however_deep() {
        let deep = Err::<(), _>(bad_input("no")).context("outer").unwrap_err();
        assert_eq!(code(&deep), BAD_INPUT);
        assert_eq!(code(&anyhow::anyhow!("machine on fire")), FAILED);
        let value = SamplingError::TooMany { parameter: "top_logprobs", value: 200, most: 128 };
        assert_eq!(code(&anyhow::Error::new(value)), BAD_INPUT);
        let broken = SamplingError::BadLogit { token: 1, value: f32::NAN };
        assert_eq!(code(&anyhow::Error::new(broken)), FAILED);
    }
}
