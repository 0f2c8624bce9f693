//! llama-bench: one object or row a test, `pp` tests of a prompt alone and `tg` tests of one stream that decodes. JSON has every
//! repetition; CSV and Markdown have their mean, which is one run.

use super::fields::{at, number, settings};
use super::tables::Row;
use super::{Run, Runs};
use crate::{Measurement, Metric, Point, Settings};
use serde_json::Value;

/// Our names, and llama-bench's: what shapes the speed of a test.
const SETTINGS: [(&str, &[&str]); 18] = [
    ("build_commit", &["build_commit"]),
    ("processor", &["cpu_info"]),
    ("gpu", &["gpu_info"]),
    ("backends", &["backends"]),
    ("model", &["model_type"]),
    ("parameters", &["model_n_params"]),
    ("batch", &["n_batch"]),
    ("ubatch", &["n_ubatch"]),
    ("threads", &["n_threads"]),
    ("type_k", &["type_k"]),
    ("type_v", &["type_v"]),
    ("gpu_layers", &["n_gpu_layers"]),
    ("split_mode", &["split_mode"]),
    ("flash_attn", &["flash_attn"]),
    ("use_mmap", &["use_mmap"]),
    ("no_kv_offload", &["no_kv_offload"]),
    ("depth", &["n_depth"]),
    ("embeddings", &["embeddings"]),
];

pub fn runs(test: &Value) -> Result<Runs, String> {
    let size = |name: &str| number(test, &[name]).map(|size| size.unwrap_or(0.0));
    let Some(point) = point(size("n_prompt")?, size("n_gen")?) else { return Ok(Vec::new()) };
    let settings = settings(test, &SETTINGS);
    let mean = number(test, &["avg_ts"])?;
    let speeds: Vec<f64> = match at(test, &["samples_ts"]).and_then(Value::as_array) {
        Some(samples) => {
            let speed =
                |sample: &Value| sample.as_f64().ok_or_else(|| format!("`samples_ts` holds {sample}"));
            samples.iter().map(speed).collect::<Result<_, _>>()?
        }
        None => mean.into_iter().collect(),
    };
    speeds.into_iter().map(|speed| Ok((settings.clone(), run(point, speed)?))).collect()
}

/// From CSV, which has the fields of JSON, or from Markdown, which has a column `test` such as `pp512` and a column `t/s`.
pub fn runs_of_rows(rows: &[Row]) -> Result<Runs, String> {
    let mut runs = Vec::new();
    for row in rows {
        match row.get("test") {
            None => {
                let fields = row.iter().map(|(name, cell)| {
                    let number = cell.parse().ok().and_then(serde_json::Number::from_f64);
                    (name.clone(), number.map_or_else(|| Value::String(cell.clone()), Value::Number))
                });
                runs.extend(self::runs(&Value::Object(fields.collect()))?);
            }
            Some(test) => runs.extend(run_of_markdown(row, test)?),
        }
    }
    Ok(runs)
}

fn run_of_markdown(row: &Row, test: &str) -> Result<Option<(Settings, Run)>, String> {
    let (test, depth) = test.split_once('@').unwrap_or((test, "d0"));
    let size = |kind: &str| test.trim().strip_prefix(kind).and_then(|size| size.trim().parse().ok());
    let Some(point) = point(size("pp").unwrap_or(0.0), size("tg").unwrap_or(0.0)) else { return Ok(None) };
    let cell = row.get("t/s").map_or("", String::as_str);
    let mean = cell.split('±').next().unwrap_or_default().trim();
    let speed = mean
        .parse()
        .map_err(|_| format!("the test `{test}` has the speed `{cell}` where a number is expected"))?;
    let mut settings: Settings = row
        .iter()
        .filter(|(name, _)| *name != "test" && *name != "t/s")
        .map(|(n, c)| (n.clone(), c.clone()))
        .collect();
    settings.insert("depth".into(), depth.trim().trim_start_matches('d').to_owned());
    Ok(Some((settings, run(point, speed)?)))
}

/// Tests of both at once are left out: their speed is neither that of prompts nor that of decoding.
fn point(prompt: f64, generated: f64) -> Option<Point> {
    const TOKENS_MAX: f64 = 1e9;
    match (prompt, generated) {
        (prompt, 0.0) if (1.0..TOKENS_MAX).contains(&prompt) => {
            Some(Point::Prefill { tokens: prompt as usize })
        }
        (0.0, generated) if generated >= 1.0 => Some(Point::Decode { streams: 1 }),
        _ => None,
    }
}

fn run(point: Point, tokens_per_s: f64) -> Result<Run, String> {
    if !(tokens_per_s > 0.0 && tokens_per_s.is_finite()) {
        return Err(format!("{point}: its speed is {tokens_per_s} where a number above 0 is expected"));
    }
    let mut measurement = Measurement::default();
    match point {
        Point::Prefill { tokens } => {
            measurement.set(Metric::PromptTokensPerS, tokens_per_s);
            measurement.set(Metric::FirstTokenMs, tokens as f64 / tokens_per_s * 1e3);
        }
        _ => {
            measurement.set(Metric::TokensPerS, tokens_per_s);
            measurement.set(Metric::StepMs, 1e3 / tokens_per_s);
        }
    }
    Ok(Run { point, measurement })
}
