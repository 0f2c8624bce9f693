//! AIPerf and genai-perf, which came before it: one object with a statistic per metric, each of which says its unit. Both call
//! inter-token latency what is a mean per request, so it is our time per token.

use super::fields::{at, check_not_empty, number, set, settings, streams, text};
use super::{Run, Runs};
use crate::{Measurement, Metric, Point};
use serde_json::Value;

pub fn runs(item: &Value, concurrency: Option<usize>) -> Result<Runs, String> {
    // In the order of age, newest first: phases of AIPerf, its first releases, genai-perf.
    let phases = at(item, &["input_config", "phases"]).and_then(Value::as_array);
    let profiled = phases.and_then(|phases| phases.last());
    let said = match profiled {
        Some(phase) => number(phase, &["concurrency"])?,
        None => None,
    };
    let older = [
        ["input_config", "loadgen", "concurrency"].as_slice(),
        ["input_config", "perf_analyzer", "stimulus", "concurrency"].as_slice(),
    ];
    let mut said = said;
    for path in older {
        said = said.or(number(item, path)?);
    }
    let streams = streams(said, concurrency, "its input_config has none")?;
    let mut measurement = Measurement::default();
    for (metric, name, statistic, unit) in [
        (Metric::TokensPerS, "output_token_throughput", "avg", Unit::PerSecond),
        (Metric::RequestsPerS, "request_throughput", "avg", Unit::PerSecond),
        (Metric::FirstTokenMs, "time_to_first_token", "p50", Unit::Milliseconds),
        (Metric::FirstTokenMsP99, "time_to_first_token", "p99", Unit::Milliseconds),
        (Metric::TokenMs, "inter_token_latency", "p50", Unit::Milliseconds),
        (Metric::TokenGapMs, "inter_chunk_latency", "p50", Unit::Milliseconds),
        (Metric::TokenGapMsP99, "inter_chunk_latency", "p99", Unit::Milliseconds),
    ] {
        if at(item, &[name]).is_some() {
            let factor = unit.factor(name, text(item, &[name, "unit"]).as_deref())?;
            set(&mut measurement, metric, number(item, &[name, statistic])?.map(|value| value * factor));
        }
    }
    set(&mut measurement, Metric::Requests, number(item, &["request_count", "avg"])?);
    if let Some(failed) = number(item, &["error_request_count", "avg"])?.filter(|failed| *failed > 0.0) {
        measurement.errors.insert("failed".into(), failed as u64);
    }
    check_not_empty(&measurement, "the run")?;
    let mut settings = settings(
        item,
        &[
            ("tool_version", &["aiperf_version"]),
            ("endpoint", &["input_config", "endpoint", "type"]),
            ("streaming", &["input_config", "endpoint", "streaming"]),
        ],
    );
    let of_data =
        at(item, &["input_config", "datasets"]).and_then(Value::as_array).and_then(|all| all.last());
    let lengths = [("prompt_tokens", "isl"), ("max_tokens", "osl")];
    for (name, length) in lengths {
        if let Some(mean) = of_data.and_then(|data| text(data, &["prompts", length, "mean"])) {
            settings.insert(name.into(), mean);
        }
    }
    let models = at(item, &["input_config", "models", "items"]).and_then(Value::as_array);
    let model = models.and_then(|models| text(models.first()?, &["name"]));
    let older =
        at(item, &["input_config", "model_names"]).or(at(item, &["input_config", "endpoint", "model_names"]));
    if let Some(model) = model.or_else(|| older.map(ToString::to_string)) {
        settings.insert("model".into(), model);
    }
    Ok(vec![(settings, Run { point: Point::Mixed { streams }, measurement })])
}

#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    PerSecond,
}

impl Unit {
    /// What the file's number must be multiplied by.
    fn factor(self, name: &str, said: Option<&str>) -> Result<f64, String> {
        let wrong = |expected: &str| {
            Err(format!("`{name}` is in `{}` where {expected} is expected", said.unwrap_or("no unit")))
        };
        match (self, said) {
            (Unit::Milliseconds, Some("ms")) => Ok(1.0),
            (Unit::Milliseconds, Some("s" | "sec")) => Ok(1e3),
            (Unit::Milliseconds, Some("us")) => Ok(1e-3),
            (Unit::Milliseconds, Some("ns")) => Ok(1e-6),
            (Unit::Milliseconds, _) => wrong("a time in s, ms, us or ns"),
            (Unit::PerSecond, Some(unit)) if unit.ends_with("/sec") || unit.ends_with("/s") => Ok(1.0),
            (Unit::PerSecond, _) => wrong("a rate per second"),
        }
    }
}
