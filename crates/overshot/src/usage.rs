//! The command line as text: values that are none are refused in plain words, and whatever clap refuses is told in
//! one line, as every other failure is.

use clap::error::ErrorKind;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

const BAD_USAGE: u8 = 2;

/// Prints help where help is wanted, else one line of error.
pub fn report(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => {
            // Whoever reads it may have left.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { BAD_USAGE } else { 0 })
        }
        ErrorKind::InvalidUtf8 => refuse(&not_text(arguments)),
        _ => refuse(&line(&error.to_string())),
    }
}

fn refuse(line: &str) -> ExitCode {
    crate::failure::note(&format!("error: {line} (see --help)"));
    ExitCode::from(BAD_USAGE)
}

/// What clap says, without its usage and layout.
fn line(message: &str) -> String {
    let message = message.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.split("\n\nFor more information").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let paragraphs = message.split("\n\n").map(|paragraph| {
        paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    });
    paragraphs.collect::<Vec<_>>().join("; ")
}

/// Clap does not say which argument it was.
fn not_text(arguments: impl Iterator<Item = OsString>) -> String {
    let positions = arguments.enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let positions: Vec<String> = positions.map(|(position, _)| position.to_string()).collect();
    match positions.as_slice() {
        [one] => format!("argument {one} is not UTF-8 text"),
        several => format!("an argument is not UTF-8 text: one of the arguments {}", several.join(", ")),
    }
}

/// A count that may be 0, or a seed.
pub fn whole_number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "use a whole number of at least 0".into())
}

/// Sizes are products of such numbers: so bounded, none of them grows out of its type.
pub fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    const MOST: usize = 1_000_000_000_000;
    let number: NonZeroUsize = text.parse().map_err(|_| "use a whole number of at least 1")?;
    if number.get() > MOST {
        return Err(format!("use a whole number of at most {MOST}"));
    }
    Ok(number)
}

pub fn from_1_to_1024(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "use a whole number from 1 to 1024".into())
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use a number of seconds, such as 2.5".into())
}

pub fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "use a number, such as 0.7".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use clap::Parser;

    fn told(flags: &[&str]) -> String {
        let error = Arguments::try_parse_from([&["overshot"], flags].concat()).err().unwrap();
        line(&error.to_string())
    }

    #[test]
    fn refusals_are_one_line() {
        for (flags, part) in [
            (&["run"][..], "required arguments were not provided: <PROMPT>"),
            (&["run", "x", "--tempratur", "1"], "unexpected argument '--tempratur' found; tip: a similar"),
            (&["run", "x", "--max-tokens", "0"], "a whole number of at least 1"),
            (&["run", "x", "--context", "0"], "a whole number of at least 1"),
            (&["run", "x", "--threads", "0"], "a whole number from 1 to 1024"),
            (&["run", "x", "--threads", "abc"], "a whole number from 1 to 1024"),
            (&["run", "x", "--threads", "-1"], "a whole number from 1 to 1024"),
            (&["run", "x", "--top-k", "-1"], "a whole number of at least 0"),
            (&["run", "x", "--seed", "-1"], "a whole number of at least 0"),
            (&["run", "x", "--temperature", "warm"], "use a number"),
            (&["run", "x", "--logit-bias", "-1=1"], "`-1=1` is not of the form ID=VALUE"),
            (&["run", "x", "--raw", "--system", "y"], "cannot be used with"),
            (&["score", "--ids", "x", "--greedy", "-1"], "a whole number of at least 0"),
            (&["score", "--ids", "x", "--chunk", "-1"], "a whole number from 1 to 1024"),
            (&["bench", "--seconds", "-1"], "a number of seconds"),
            (&["bench", "--concurrency", "1,0"], "a whole number from 1 to 1024"),
            (&["bench", "--mixed"], "required arguments were not provided: --url"),
            (&["sing"], "unrecognized subcommand 'sing'"),
        ] {
            let told = told(flags);
            assert!(told.contains(part) && !told.contains('\n') && !told.contains("Usage"), "{told}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn what_is_no_text_is_named_by_its_place() {
        use std::os::unix::ffi::OsStringExt;
        let arguments = ["overshot".into(), "run".into(), OsString::from_vec(vec![0xff])];
        assert_eq!(not_text(arguments.into_iter()), "argument 2 is not UTF-8 text");
    }
}
