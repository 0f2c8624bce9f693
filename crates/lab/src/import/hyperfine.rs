//! hyperfine: a list of commands, each with the wall time of every run, in seconds. Two commands of one file are two
//! different things, so each is a group of its own.

use super::fields::{at, settings};
use super::{Run, Runs};
use crate::{Measurement, Metric, Point, Settings};
use serde_json::Value;

pub fn runs(report: &Value) -> Result<Runs, String> {
    let results = at(report, &["results"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut runs = Vec::new();
    for result in results {
        let settings = settings(result, &[("command", &["command"])]);
        let command = settings.get("command").cloned().unwrap_or_default();
        let times = at(result, &["times"]).and_then(Value::as_array).ok_or_else(|| {
            format!("`{command}` has no list of times: hyperfine's summaries alone cannot be compared")
        })?;
        for time in times {
            runs.push((settings.clone(), run(&settings, time)?));
        }
    }
    Ok(runs)
}

fn run(settings: &Settings, time: &Value) -> Result<Run, String> {
    let seconds = time.as_f64().filter(|seconds| *seconds > 0.0).ok_or_else(|| {
        let command = settings.get("command").map_or("", String::as_str);
        format!("`{command}` has the time {time} where seconds above 0 are expected")
    })?;
    let mut measurement = Measurement::default();
    measurement.set(Metric::WallS, seconds);
    Ok(Run { point: Point::Program, measurement })
}
