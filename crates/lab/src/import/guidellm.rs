//! GuideLLM: a report of one or more benchmarks, each at a strategy. What it calls inter-token latency is a request's time
//! after its first token over the tokens after it; its time per output token counts the first one in, and is left out.

use super::fields::{at, check_not_empty, number, set, settings, streams, text};
use super::{Run, Runs};
use crate::{Measurement, Metric, Point};
use serde_json::Value;

pub fn runs(report: &Value, concurrency: Option<usize>) -> Result<Runs, String> {
    let benchmarks = at(report, &["benchmarks"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut runs = Vec::new();
    for (index, benchmark) in benchmarks.iter().enumerate() {
        let run = run(benchmark, concurrency).map_err(|what| format!("benchmark {}: {what}", index + 1))?;
        let mut settings = settings(
            benchmark,
            &[
                ("model", &["config", "backend", "model"]),
                ("request_format", &["config", "backend", "request_format"]),
                ("strategy", &["config", "strategy", "type_"]),
            ],
        );
        settings.extend(self::settings(report, &[("tool_version", &["metadata", "guidellm_version"])]));
        let data = at(report, &["config", "spec", "data"]).or(at(report, &["args", "data"]));
        if let Some(lengths) = data.and_then(Value::as_array).and_then(|data| data.first()) {
            settings.extend(self::settings(
                lengths,
                &[("prompt_tokens", &["prompt_tokens"]), ("max_tokens", &["output_tokens"])],
            ));
        }
        runs.push((settings, run));
    }
    Ok(runs)
}

fn run(benchmark: &Value, concurrency: Option<usize>) -> Result<Run, String> {
    // Where the strategy stands depends on the release.
    let places = [&["config", "strategy"][..], &["args", "strategy"], &["scheduler", "strategy"]];
    let strategy = places.into_iter().find_map(|place| at(benchmark, place)).unwrap_or(&Value::Null);
    let kind = text(strategy, &["type_"]).unwrap_or_else(|| "no strategy is named".into());
    let said = match kind.as_str() {
        "synchronous" => Some(1.0),
        "concurrent" => number(strategy, &["streams"])?,
        _ => None,
    };
    let streams = streams(said, concurrency, &format!("its strategy is {kind}"))?;
    let mut measurement = Measurement::default();
    for (metric, name, statistic) in [
        (Metric::TokensPerS, "output_tokens_per_second", &["mean"][..]),
        (Metric::RequestsPerS, "requests_per_second", &["mean"]),
        (Metric::FirstTokenMs, "time_to_first_token_ms", &["median"]),
        (Metric::FirstTokenMsP99, "time_to_first_token_ms", &["percentiles", "p99"]),
        (Metric::TokenMs, "inter_token_latency_ms", &["median"]),
    ] {
        let path = [&["metrics", name, "successful"], statistic].concat();
        set(&mut measurement, metric, number(benchmark, &path)?);
    }
    set(&mut measurement, Metric::Requests, number(benchmark, &["metrics", "request_totals", "successful"])?);
    if let Some(failed) =
        number(benchmark, &["metrics", "request_totals", "errored"])?.filter(|count| *count > 0.0)
    {
        measurement.errors.insert("failed".into(), failed as u64);
    }
    check_not_empty(&measurement, "it")?;
    Ok(Run { point: Point::Mixed { streams }, measurement })
}
