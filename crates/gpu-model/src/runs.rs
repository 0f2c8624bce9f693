//! Times of decode attention as the self-test writes them, one JSON object a line or one report: text to points that costs are
//! fitted to. Opens no file; what a line does not say of its lists is worked out from the bytes that it says were moved.

use crate::choose::{ChooseError, Lists, Load};
use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

pub const RUN_BYTES_MAX: usize = 64 << 20;
const SAMPLES_MAX: usize = 100_000;

/// One device's times.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub device: Device,
    /// Kernels that were loaded, with the CTAs of each that the driver puts on a multiprocessor.
    pub ctas_per_sm: BTreeMap<String, u32>,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Device {
    pub name: String,
    pub sm: u32,
    pub multiprocessors: std::num::NonZeroU32,
}

/// A kernel at a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub kernel: String,
    pub load: Load,
    /// Splits or workers.
    pub parts: u32,
    pub us: f64,
    /// Heads and lists, in words.
    pub subject: String,
    /// What was asked of several kernels: subject and rows.
    pub question: String,
}

#[derive(Debug, Error)]
pub enum RunError {
    #[error("{given} bytes: a run has at most {RUN_BYTES_MAX}")]
    TooLong { given: usize },
    #[error("line {number}: {source}")]
    Line { number: usize, source: serde_json::Error },
    #[error("time {number} ({kernel}): {reason}")]
    Time { number: usize, kernel: String, reason: String },
    #[error("no line says which device it was: {{\"kind\":\"device\",..}}")]
    NoDevice,
    #[error("it holds no times")]
    NoTimes,
    #[error("more than {SAMPLES_MAX} times")]
    TooMany,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Device(Device),
    Kernel(Kernel),
    Time(Time),
    #[serde(other)]
    Other,
}

/// A whole report: what it holds more is for people.
#[derive(Deserialize)]
struct Report {
    device: Option<Device>,
    kernels: Vec<Kernel>,
    times: Vec<Time>,
}

#[derive(Deserialize)]
struct Kernel {
    variant: String,
    driver: Driver,
}

#[derive(Deserialize)]
struct Driver {
    ctas_per_sm: u32,
}

#[derive(Deserialize)]
struct Time {
    variant: String,
    heads: u32,
    batch: u32,
    /// `128+512`: how long the lists may be.
    shape: String,
    #[serde(default = "full")]
    lengths: String,
    splits: u32,
    us_p50: f64,
    bytes: u64,
    lists: Option<[MeanLongest; 2]>,
}

#[derive(Deserialize)]
struct MeanLongest {
    mean: f64,
    longest: u32,
}

fn full() -> String {
    "full".into()
}

impl Run {
    /// # Errors
    /// Text that is neither lines nor a report, times that cannot be.
    pub fn parse(text: &str) -> Result<Self, RunError> {
        if text.len() > RUN_BYTES_MAX {
            return Err(RunError::TooLong { given: text.len() });
        }
        let Report { device, kernels, times } = match serde_json::from_str(text) {
            Ok(report) => report,
            Err(_) => lines(text)?,
        };
        let device = device.ok_or(RunError::NoDevice)?;
        if times.len() > SAMPLES_MAX {
            return Err(RunError::TooMany);
        }
        let samples: Vec<Sample> =
            times.iter().enumerate().map(|(index, time)| sample(index, time)).collect::<Result<_, _>>()?;
        if samples.is_empty() {
            return Err(RunError::NoTimes);
        }
        let ctas_per_sm =
            kernels.into_iter().map(|kernel| (kernel.variant, kernel.driver.ctas_per_sm)).collect();
        Ok(Run { device, ctas_per_sm, samples })
    }
}

fn lines(text: &str) -> Result<Report, RunError> {
    let mut report = Report { device: None, kernels: Vec::new(), times: Vec::new() };
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line).map_err(|source| RunError::Line { number: index + 1, source })? {
            Line::Device(found) => report.device = Some(found),
            Line::Kernel(kernel) => report.kernels.push(kernel),
            Line::Time(time) => report.times.push(time),
            Line::Other => {}
        }
    }
    Ok(report)
}

fn sample(index: usize, time: &Time) -> Result<Sample, RunError> {
    let refuse = |reason: String| RunError::Time { number: index + 1, kernel: time.variant.clone(), reason };
    if !(1e-3..1e9).contains(&time.us_p50) || time.splits == 0 {
        return Err(refuse(format!("{} us with {} parts cannot be", time.us_p50, time.splits)));
    }
    let lists = match &time.lists {
        Some(told) => [&told[0], &told[1]].map(|list| Lists { mean: list.mean, longest: list.longest }),
        None => worked_out(time)
            .ok_or_else(|| refuse(format!("shape `{}` or its bytes cannot be", time.shape)))?,
    };
    let load =
        Load::new(time.batch, time.heads, lists).map_err(|error: ChooseError| refuse(error.to_string()))?;
    let Time { heads, batch, shape, lengths, .. } = time;
    Ok(Sample {
        kernel: time.variant.clone(),
        load,
        parts: time.splits,
        us: time.us_p50,
        subject: format!("{heads} heads, lists of {shape}, {lengths}"),
        question: format!("{heads} heads, {batch} rows, lists of {shape}, {lengths}"),
    })
}

/// Queries and answers take 2 KiB a row and head, an entry with its index 588 bytes: what is left tells the mean. The longest
/// list of several rows is taken to be whole.
fn worked_out(time: &Time) -> Option<[Lists; 2]> {
    const ENTRY_BYTES: f64 = 588.0;
    let mut capacities = time.shape.split('+').map(str::parse::<u32>);
    let window = capacities.next()?.ok()?;
    let extra = capacities.next().unwrap_or(Ok(0)).ok()?;
    if time.lengths == "full" {
        return Some([window, extra].map(Lists::even));
    }
    let queries = f64::from(time.batch) * f64::from(time.heads) * 2048.0;
    let entries = (time.bytes as f64 - queries) / ENTRY_BYTES / f64::from(time.batch);
    let both = f64::from(window) + f64::from(extra);
    Some([window, extra].map(|capacity| {
        let mean = (entries * f64::from(capacity) / both).clamp(0.0, f64::from(capacity));
        if time.batch == 1 { Lists::even(mean.round() as u32) } else { Lists { mean, longest: capacity } }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = r#"{"name":"NVIDIA H200","sm":90,"multiprocessors":132,"kind":"device"}"#;
    const KERNEL: &str = r#"{"variant":"v6","driver":{"ctas_per_sm":2},"kind":"kernel"}"#;
    const TIME: &str = r#"{"variant":"v6","heads":16,"batch":2,"shape":"128+512","lengths":"uneven","splits":3,"us_p50":9.5,"bytes":253696,"kind":"time"}"#;

    #[test]
    fn lines_and_reports_are_the_same() {
        let of_lines =
            Run::parse(&format!("{DEVICE}\n{{\"kind\":\"check\"}}\n\n{KERNEL}\n{TIME}\n")).unwrap();
        let report =
            format!("{{\"device\":{DEVICE},\n\"kernels\":[{KERNEL}],\"times\":[{TIME}],\"more\":1}}");
        assert_eq!(of_lines, Run::parse(&report).unwrap());
        assert_eq!(of_lines.ctas_per_sm["v6"], 2);
        let sample = &of_lines.samples[0];
        assert_eq!(
            (sample.parts, sample.question.as_str()),
            (3, "16 heads, 2 rows, lists of 128+512, uneven")
        );
        // (253,696 - 65,536) / 588 = 320 entries in two rows: a fifth of them of the window.
        let lists = [Lists { mean: 32.0, longest: 128 }, Lists { mean: 128.0, longest: 512 }];
        assert_eq!(sample.load, Load::new(2, 16, lists).unwrap());
    }

    #[test]
    fn what_cannot_be_is_named() {
        let told = |text: &str| Run::parse(text).unwrap_err().to_string();
        assert!(told(TIME).contains("which device"));
        assert!(told(DEVICE).contains("no times"));
        assert!(told(&format!("{DEVICE}\nx")).starts_with("line 2"));
        for (from, to) in [
            ("9.5", "-1"),
            ("\"splits\":3", "\"splits\":0"),
            ("128+512", "128+x"),
            ("\"heads\":16", "\"heads\":0"),
        ] {
            let text = told(&format!("{DEVICE}\n{}", TIME.replace(from, to)));
            assert!(text.starts_with("time 1 (v6)"), "{text}");
        }
    }
}
