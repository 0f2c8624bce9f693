//! Looking into foreign JSON: what is absent is absent, what is there and is not what it should be is an error that names it.

use crate::journal::fnv1a;
use crate::{Measurement, Metric, Settings};
use serde_json::Value;
use std::borrow::Cow;

/// Texts of foreign files that become settings are quoted up to here; a check stands for the rest.
const SETTING_CHARS_MAX: usize = 200;

/// Streams that one run may claim.
const STREAMS_MAX: f64 = 1e6;

/// The file as a list: a JSON list, one object, or one object a line.
pub fn json_items(text: &str) -> Result<Vec<Value>, String> {
    let text = &quoted_python_numbers(text);
    let whole = match serde_json::from_str(text) {
        Ok(Value::Array(items)) => return Ok(items),
        Ok(item) => return Ok(vec![item]),
        Err(error) => error,
    };
    let mut items = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(item @ Value::Object(_)) => items.push(item),
            // The first line is no object: not a file of lines, so what is wrong is the JSON as a whole.
            Ok(_) | Err(_) if items.is_empty() => return Err(damaged(&whole)),
            Ok(_) => return Err(format!("line {} holds JSON that is no object", index + 1)),
            Err(error) => return Err(format!("line {}: {}", index + 1, damaged(&error))),
        }
    }
    Ok(items)
}

/// Python writes `Infinity` and `NaN` where JSON has no such numbers. As texts they can be read, and are refused where a
/// number is needed.
fn quoted_python_numbers(text: &str) -> Cow<'_, str> {
    const NAMES: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return Cow::Borrowed(text);
    }
    let mut quoted = String::with_capacity(text.len() + 64);
    let (mut in_string, mut is_escaped) = (false, false);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let name = NAMES.iter().find(|name| !in_string && rest.starts_with(**name));
        if let Some(name) = name {
            quoted.extend(["\"", name, "\""]);
            rest = &rest[name.len()..];
            continue;
        }
        match character {
            '"' if !is_escaped => in_string = !in_string,
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
        quoted.push(character);
        rest = &rest[character.len_utf8()..];
    }
    Cow::Owned(quoted)
}

fn damaged(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "its JSON ends too soon: the file was cut short".into()
    } else {
        format!("its JSON is damaged ({error})")
    }
}

/// Follows names into objects; `None` where one is missing or null.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let mut found = value;
    for name in path {
        found = found.get(name)?;
    }
    (!found.is_null()).then_some(found)
}

/// A number that may be missing.
pub fn number(value: &Value, path: &[&str]) -> Result<Option<f64>, String> {
    let Some(found) = at(value, path) else { return Ok(None) };
    match found.as_f64().filter(|number| number.is_finite()) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("`{}` is {} where a number is expected", path.join("."), shown(found))),
    }
}

/// A text, or anything else as it is written.
pub fn text(value: &Value, path: &[&str]) -> Option<String> {
    let found = at(value, path)?;
    let whole = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
    if whole.chars().count() <= SETTING_CHARS_MAX {
        return Some(whole);
    }
    // Long commands that differ at their ends only are different settings.
    let start: String = whole.chars().take(SETTING_CHARS_MAX).collect();
    Some(format!("{start}... ({:016x})", fnv1a(whole.as_bytes())))
}

fn shown(value: &Value) -> String {
    let text: String = value.to_string().chars().take(60).collect();
    format!("`{text}`")
}

/// How many streams at once: what the file says, or else what the caller was told.
pub fn streams(said: Option<f64>, told: Option<usize>, instead: &str) -> Result<usize, String> {
    match (said, told) {
        (Some(said), _) if (1.0..=STREAMS_MAX).contains(&said) && said.fract() == 0.0 => Ok(said as usize),
        (Some(said), _) => {
            Err(format!("its concurrency is {said} where a whole number of at least 1 is expected"))
        }
        (None, Some(told)) => Ok(told),
        (None, None) => Err(format!(
            "it was not measured at a fixed concurrency ({instead}): say with --concurrency how many requests ran at once"
        )),
    }
}

/// Names of settings, and where their values stand.
pub fn settings(value: &Value, fields: &[(&str, &[&str])]) -> Settings {
    fields.iter().filter_map(|(name, path)| Some((name.to_string(), text(value, path)?))).collect()
}

/// Sets what is above 0; a run that gave nothing has 0 in many places.
pub fn set(measurement: &mut Measurement, metric: Metric, value: Option<f64>) {
    if let Some(value) = value.filter(|value| *value > 0.0) {
        measurement.set(metric, value);
    }
}

/// # Errors
/// Nothing was set that runs could be compared in.
pub fn check_not_empty(measurement: &Measurement, what: &str) -> Result<(), String> {
    if measurement.metrics.keys().any(|metric| metric.better().is_some()) {
        return Ok(());
    }
    Err(format!("{what} has no throughput and no time above 0: nothing in it can be compared"))
}
