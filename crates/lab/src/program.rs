//! A program as a target: how long it runs, or a number that it prints as JSON. It is started anew for every run, with an empty
//! input; what it prints is bounded, and a program that fails is an error that quotes its last words.

use crate::{LabError, Measurement, Metric, Point, Settings, Target};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of what a program prints; the rest is read and dropped.
const PRINTED_BYTES_MAX: usize = 64 << 20;

/// Of its complaints.
const QUOTED_CHARS_MAX: usize = 300;

/// What one run of a program gave.
#[derive(Debug)]
pub struct Ran {
    pub wall: Duration,
    pub printed: Vec<u8>,
}

/// Runs a program to its end. `shown` names it in errors.
///
/// # Errors
/// It cannot be started, or ends with another code than 0.
pub fn run(mut command: Command, shown: &str) -> Result<Ran, LabError> {
    let failed = |what: String| LabError::Program { program: shown.to_owned(), what };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    let complaints = child.stderr.take().map(|stream| std::thread::spawn(move || read_bounded(stream)));
    let printed = child.stdout.take().map(read_bounded).unwrap_or_default();
    let status = child.wait().map_err(|error| failed(format!("cannot be waited for: {error}")))?;
    let wall = started.elapsed();
    let complaints = complaints.and_then(|reader| reader.join().ok()).unwrap_or_default();
    if !status.success() {
        let text = String::from_utf8_lossy(&complaints);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed no reason");
        let quoted: String = last.chars().take(QUOTED_CHARS_MAX).collect();
        return Err(failed(format!("ended with {status}: {quoted}")));
    }
    Ok(Ran { wall, printed })
}

fn read_bounded(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A stream that breaks is one that ended.
    let _ = stream.by_ref().take(PRINTED_BYTES_MAX as u64).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
    bytes
}

/// A shell command, and what of it is measured.
#[derive(Clone, Debug)]
pub struct ShellProgram {
    pub command: String,
    /// Where numbers stand in the JSON that it prints; its wall time is always measured.
    pub paths: Vec<String>,
}

impl Target for ShellProgram {
    fn name(&self) -> String {
        self.command.clone()
    }

    fn settings(&self) -> Settings {
        Settings::from([("command".into(), self.command.clone())])
    }

    fn measure(&mut self, _: Point) -> Result<Measurement, LabError> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command]);
        let ran = run(shell, &self.command)?;
        let mut measurement = Measurement::default();
        measurement.set(Metric::WallS, ran.wall.as_secs_f64());
        if !self.paths.is_empty() {
            let wrong = |what: String| LabError::Program { program: self.command.clone(), what };
            let json = printed_json(&ran.printed).map_err(wrong)?;
            for path in &self.paths {
                measurement.named.insert(path.clone(), number_at(&json, path).map_err(wrong)?);
            }
        }
        Ok(measurement)
    }
}

/// The whole text, or its last line that is a JSON object or list: many programs print other things before.
pub fn printed_json(printed: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(printed);
    if text.trim().is_empty() {
        return Err("printed nothing where JSON is expected".into());
    }
    let whole = match serde_json::from_str(&text) {
        Ok(json) => return Ok(json),
        Err(error) => error,
    };
    let is_json = |line: &&str| line.starts_with(['{', '[']);
    let last =
        text.lines().map(str::trim).rev().filter(is_json).find_map(|line| serde_json::from_str(line).ok());
    last.ok_or_else(|| format!("printed what is no JSON: {whole}"))
}

/// `results.0.mean`: names of objects and places in lists, with dots between.
pub fn number_at(json: &Value, path: &str) -> Result<f64, String> {
    let mut found = json;
    for (index, part) in path.split('.').enumerate() {
        let next = match found {
            Value::Object(members) => members.get(part),
            Value::Array(items) => part.parse().ok().and_then(|place: usize| items.get(place)),
            _ => None,
        };
        found = next.ok_or_else(|| {
            let before = path.split('.').take(index).collect::<Vec<_>>().join(".");
            let within =
                if before.is_empty() { "its JSON".into() } else { format!("`{before}` of its JSON") };
            format!("printed no `{part}` in {within}, which has {}", members(found))
        })?;
    }
    let number =
        found.as_f64().ok_or_else(|| format!("printed no number at `{path}` but {}", kind(found)))?;
    if number > 0.0 {
        Ok(number)
    } else {
        Err(format!("printed {number} at `{path}`: only numbers above 0 can be compared"))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn members(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let names: Vec<&str> = members.keys().take(12).map(String::as_str).collect();
            if names.is_empty() { "nothing".into() } else { names.join(", ") }
        }
        Value::Array(items) => format!("{} items", items.len()),
        other => kind(other).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(command: &str, paths: &[&str]) -> Result<Measurement, LabError> {
        let paths = paths.iter().map(|path| path.to_string()).collect();
        ShellProgram { command: command.into(), paths }.measure(Point::Program)
    }

    #[test]
    fn programs_are_timed_and_their_numbers_read() {
        let timed = measure("sleep 0.03", &[]).unwrap();
        assert!(timed.get(Metric::WallS).unwrap() >= 0.03);
        let printed = measure("echo hello; echo '{\"a\": [{\"b\": 2.5}]}'", &["a.0.b"]).unwrap();
        assert_eq!(printed.named["a.0.b"], 2.5);
    }

    #[test]
    fn whatever_goes_wrong_is_one_sentence() {
        for (command, path, part) in [
            ("echo one >&2; echo two >&2; exit 3", "a", "exit status: 3: two"),
            ("exit 1", "a", "it printed no reason"),
            ("true", "a", "printed nothing"),
            ("echo hello", "a", "printed what is no JSON"),
            ("echo '{\"a\": NaN}'", "a", "printed what is no JSON"),
            ("echo '{\"a\": {\"c\": 1}}'", "a.b", "no `b` in `a` of its JSON, which has c"),
            ("echo '[1]'", "1", "which has 1 items"),
            ("echo '{\"a\": \"5 ms\"}'", "a", "no number at `a` but a text"),
            ("echo '{\"a\": 0}'", "a", "only numbers above 0"),
            ("echo '{\"a\": -1}'", "a", "printed -1 at `a`"),
            ("no-such-program-here", "a", "not found"),
        ] {
            let told = measure(command, &[path]).unwrap_err().to_string();
            assert!(told.contains(part) && told.lines().count() == 1, "{command}: {told}");
        }
    }
}
