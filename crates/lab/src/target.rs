//! What is measured, seen from the sweep: something that runs a point once and says what came out. A target brings
//! its own clock and its own warm-up, so that a mock with a virtual clock is as good a target as an engine or a
//! server.

use crate::LabError;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What must be equal for two runs to be comparable, and what it was: model, machine, flags.
pub type Settings = BTreeMap<String, String>;

pub trait Target {
    /// For people: what is measured, where.
    fn name(&self) -> String;

    fn settings(&self) -> Settings;

    /// Runs the point once, warm-up of its own not counted.
    ///
    /// # Errors
    /// The point could not be measured. What was measured before stays valid.
    fn measure(&mut self, point: Point) -> Result<Measurement, LabError>;
}

/// What one run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Point {
    /// So many answers grow at the same time, nothing else runs.
    Decode { streams: usize },
    /// One prompt of so many tokens, alone.
    Prefill { tokens: usize },
    /// So many clients, each sending its next request as soon as an answer ends.
    Mixed { streams: usize },
    /// A program, from its start to its end.
    Program,
}

impl Point {
    /// The place on the horizontal axis of a plot.
    pub fn x(self) -> usize {
        match self {
            Point::Decode { streams } | Point::Mixed { streams } => streams,
            Point::Prefill { tokens } => tokens,
            Point::Program => 1,
        }
    }

    pub fn work(self) -> Work {
        match self {
            Point::Decode { .. } => Work::Decode,
            Point::Prefill { .. } => Work::Prefill,
            Point::Mixed { .. } => Work::Mixed,
            Point::Program => Work::Program,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Point::Decode { streams: 1 } => write!(f, "decode, 1 stream"),
            Point::Decode { streams } => write!(f, "decode, {streams} streams"),
            Point::Prefill { tokens } => write!(f, "prefill, {tokens} tokens"),
            Point::Mixed { streams: 1 } => write!(f, "mixed, 1 stream"),
            Point::Mixed { streams } => write!(f, "mixed, {streams} streams"),
            Point::Program => write!(f, "the whole program"),
        }
    }
}

/// The kinds of points: each has its own table and plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Decode,
    Prefill,
    Mixed,
    Program,
}

impl Work {
    pub const ALL: [Work; 4] = [Work::Decode, Work::Prefill, Work::Mixed, Work::Program];

    /// The number in which points of this kind are compared, and which the noise band is made for.
    pub fn metric(self) -> Metric {
        match self {
            Work::Decode | Work::Mixed => Metric::TokensPerS,
            Work::Prefill => Metric::PromptTokensPerS,
            Work::Program => Metric::WallS,
        }
    }

    /// The time that the line of floor and slope goes through.
    pub fn time(self) -> Option<Metric> {
        match self {
            Work::Decode => Some(Metric::StepMs),
            Work::Prefill => Some(Metric::FirstTokenMs),
            Work::Mixed | Work::Program => None,
        }
    }
}

/// A number that a run can give, its unit last in the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Tokens of all answers together.
    TokensPerS,
    /// Tokens of the prompt over the time to the first token.
    PromptTokensPerS,
    RequestsPerS,
    /// Decode passes, as the server itself counts them.
    PassesPerS,
    /// One decode pass: the median of the run.
    StepMs,
    StepMsP99,
    /// The part of a step in which the device worked, and the part in which it did not: medians of the run.
    DeviceMs,
    HostGapMs,
    /// Of ranks other than the first, the part of a step in which they waited for their peers: the one that waited longest.
    PeersWaitMs,
    /// From sending a request to its first token: the median of the run.
    FirstTokenMs,
    FirstTokenMsP99,
    /// Between two deliveries of one answer: the median of the run.
    TokenGapMs,
    TokenGapMsP99,
    /// Per answer, the time after its first token over the tokens after the first: the median of the run.
    TokenMs,
    /// Answer tokens that one delivery carries.
    TokensPerDelivery,
    /// What the machine's reading and arithmetic allow for the step or prompt.
    LimitMs,
    ReadGbPerS,
    MultiplyAddGflopPerS,
    /// Positions behind each row, in the mean.
    ContextTokens,
    PromptTokens,
    /// That were counted.
    AnswerTokens,
    Requests,
    Steps,
    MeasuredS,
    /// Of a program, from its start to its end.
    WallS,
    /// Of one core, how much the load generator itself was busy (1 is all).
    GeneratorBusyShare,
}

impl Metric {
    pub const ALL: [Metric; 26] = [
        Metric::TokensPerS,
        Metric::PromptTokensPerS,
        Metric::RequestsPerS,
        Metric::PassesPerS,
        Metric::StepMs,
        Metric::StepMsP99,
        Metric::DeviceMs,
        Metric::HostGapMs,
        Metric::PeersWaitMs,
        Metric::FirstTokenMs,
        Metric::FirstTokenMsP99,
        Metric::TokenGapMs,
        Metric::TokenGapMsP99,
        Metric::TokenMs,
        Metric::TokensPerDelivery,
        Metric::LimitMs,
        Metric::ReadGbPerS,
        Metric::MultiplyAddGflopPerS,
        Metric::ContextTokens,
        Metric::PromptTokens,
        Metric::AnswerTokens,
        Metric::Requests,
        Metric::Steps,
        Metric::MeasuredS,
        Metric::WallS,
        Metric::GeneratorBusyShare,
    ];

    /// Short, with its unit, for the head of a column and for axes.
    pub fn title(self) -> &'static str {
        match self {
            Metric::TokensPerS => "tok/s",
            Metric::PromptTokensPerS => "prompt tok/s",
            Metric::RequestsPerS => "requests/s",
            Metric::PassesPerS => "passes/s",
            Metric::StepMs => "step ms",
            Metric::StepMsP99 => "step ms p99",
            Metric::DeviceMs => "device ms",
            Metric::HostGapMs => "host gap ms",
            Metric::PeersWaitMs => "peers wait ms",
            Metric::FirstTokenMs => "TTFT ms",
            Metric::FirstTokenMsP99 => "TTFT ms p99",
            Metric::TokenGapMs => "gap ms",
            Metric::TokenGapMsP99 => "gap ms p99",
            Metric::TokenMs => "TPOT ms",
            Metric::TokensPerDelivery => "tok/delivery",
            Metric::LimitMs => "limit ms",
            Metric::ReadGbPerS => "read GB/s",
            Metric::MultiplyAddGflopPerS => "FMA GFLOP/s",
            Metric::ContextTokens => "context",
            Metric::PromptTokens => "prompt tokens",
            Metric::AnswerTokens => "answer tokens",
            Metric::Requests => "requests",
            Metric::Steps => "steps",
            Metric::MeasuredS => "seconds",
            Metric::WallS => "wall s",
            Metric::GeneratorBusyShare => "generator busy",
        }
    }

    /// The direction in which the number improves; `None` for those that say what was done and not how well.
    pub fn better(self) -> Option<Better> {
        match self {
            Metric::TokensPerS
            | Metric::PromptTokensPerS
            | Metric::RequestsPerS
            | Metric::PassesPerS
            | Metric::ReadGbPerS
            | Metric::MultiplyAddGflopPerS => Some(Better::Higher),
            Metric::StepMs
            | Metric::StepMsP99
            | Metric::DeviceMs
            | Metric::HostGapMs
            | Metric::PeersWaitMs
            | Metric::FirstTokenMs
            | Metric::FirstTokenMsP99
            | Metric::TokenGapMs
            | Metric::TokenGapMsP99
            | Metric::TokenMs
            | Metric::WallS => Some(Better::Lower),
            Metric::TokensPerDelivery
            | Metric::LimitMs
            | Metric::ContextTokens
            | Metric::PromptTokens
            | Metric::AnswerTokens
            | Metric::Requests
            | Metric::Steps
            | Metric::MeasuredS
            | Metric::GeneratorBusyShare => None,
        }
    }

    /// As in files and on command lines: `step_ms`.
    pub fn named(name: &str) -> Option<Self> {
        Metric::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }
}

impl fmt::Display for Metric {
    /// The name that `named` reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Higher,
    Lower,
}

/// What one run gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub metrics: BTreeMap<Metric, f64>,
    /// Numbers that a program printed, by the names that it gave them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, f64>,
    /// By family of kernels: milliseconds of a step, the median of the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub family_ms: BTreeMap<String, f64>,
    /// By family, as far as it is known: the least that its bytes take at the rate that was measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub family_limit_ms: BTreeMap<String, f64>,
    /// Requests that failed, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// What a reader must know about how the numbers were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Measurement {
    /// Adds a number; one that is not finite was not measured and stays out.
    pub fn set(&mut self, metric: Metric, value: f64) {
        if value.is_finite() {
            self.metrics.insert(metric, value);
        }
    }

    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).copied()
    }

    /// The names of all its numbers, for messages.
    pub fn names(&self) -> String {
        let metrics = self.metrics.keys().map(ToString::to_string);
        metrics.chain(self.named.keys().cloned()).collect::<Vec<_>>().join(", ")
    }
}

/// What is compared: a number that is known here, or one that a program printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    Known(Metric),
    /// Where the number stands in the printed JSON: `results.0.mean`.
    Named(String),
}

impl Quantity {
    pub fn of(&self, measurement: &Measurement) -> Option<f64> {
        match self {
            Quantity::Known(metric) => measurement.get(*metric),
            Quantity::Named(name) => measurement.named.get(name).copied(),
        }
    }

    pub fn title(&self) -> &str {
        match self {
            Quantity::Known(metric) => metric.title(),
            Quantity::Named(name) => name,
        }
    }

    pub fn better(&self) -> Option<Better> {
        match self {
            Quantity::Known(metric) => metric.better(),
            Quantity::Named(_) => None,
        }
    }
}

impl From<&str> for Quantity {
    fn from(name: &str) -> Self {
        Metric::named(name).map_or_else(|| Quantity::Named(name.to_owned()), Quantity::Known)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Known(metric) => write!(f, "{metric}"),
            Quantity::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_one_name_each() {
        for metric in Metric::ALL {
            assert_eq!(Metric::named(&metric.to_string()), Some(metric));
            let json = serde_json::to_string(&metric).unwrap();
            assert_eq!(json, format!("\"{metric}\""));
        }
        assert_eq!(Quantity::from("step_ms"), Quantity::Known(Metric::StepMs));
        assert_eq!(Quantity::from("a.0.b"), Quantity::Named("a.0.b".into()));
    }
}
