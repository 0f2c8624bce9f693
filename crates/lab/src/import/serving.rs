//! vLLM's `bench serve` and SGLang's `bench_serving`: one object a run. The second descends from the first, and both call
//! things by the same names: TPOT is a request's time after its first token over the tokens after it, ITL the time between two
//! deliveries.

use super::fields::{check_not_empty, number, set, settings, streams};
use super::{Run, Runs};
use crate::{Measurement, Metric, Point};
use serde_json::Value;

pub fn runs(item: &Value, concurrency: Option<usize>) -> Result<Runs, String> {
    let said = number(item, &["max_concurrency"])?;
    let streams = streams(said, concurrency, "max_concurrency is missing")?;
    let mut measurement = Measurement::default();
    for (metric, name) in [
        (Metric::TokensPerS, "output_throughput"),
        (Metric::RequestsPerS, "request_throughput"),
        (Metric::FirstTokenMs, "median_ttft_ms"),
        (Metric::FirstTokenMsP99, "p99_ttft_ms"),
        (Metric::TokenMs, "median_tpot_ms"),
        (Metric::TokenGapMs, "median_itl_ms"),
        (Metric::TokenGapMsP99, "p99_itl_ms"),
        (Metric::AnswerTokens, "total_output_tokens"),
        (Metric::Requests, "completed"),
        (Metric::MeasuredS, "duration"),
    ] {
        set(&mut measurement, metric, number(item, &[name])?);
    }
    if let Some(failed) = number(item, &["failed"])?.filter(|failed| *failed > 0.0) {
        measurement.errors.insert("failed".into(), failed as u64);
    }
    check_not_empty(&measurement, "the run")?;
    let settings = settings(
        item,
        &[
            ("model", &["model_id"]),
            ("tool_backend", &["backend"]),
            ("endpoint", &["endpoint_type"]),
            ("requests", &["num_prompts"]),
            ("request_rate", &["request_rate"]),
            ("burstiness", &["burstiness"]),
            ("dataset", &["dataset_name"]),
            ("prompt_tokens", &["random_input_len"]),
            ("max_tokens", &["random_output_len"]),
            ("length_range", &["random_range_ratio"]),
        ],
    );
    Ok(vec![(settings, Run { point: Point::Mixed { streams }, measurement })])
}
