//! What is measured, seen from the sweep: something that runs a point once and says what came out. A target brings
//! its own clock and its own warm-up, so that a mock with a virtual clock is as good a target as an engine or a
//! server.

use crate::LabError;
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
}

impl Point {
    /// The place on the horizontal axis of a plot.
    pub fn x(self) -> usize {
        match self {
            Point::Decode { streams } | Point::Mixed { streams } => streams,
            Point::Prefill { tokens } => tokens,
        }
    }

    pub fn work(self) -> Work {
        match self {
            Point::Decode { .. } => Work::Decode,
            Point::Prefill { .. } => Work::Prefill,
            Point::Mixed { .. } => Work::Mixed,
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
}

impl Work {
    pub const ALL: [Work; 3] = [Work::Decode, Work::Prefill, Work::Mixed];

    /// The number in which points of this kind are compared, and which the noise band is made for.
    pub fn metric(self) -> Metric {
        match self {
            Work::Decode | Work::Mixed => Metric::TokensPerS,
            Work::Prefill => Metric::PromptTokensPerS,
        }
    }

    /// The time that the line of floor and slope goes through.
    pub fn time(self) -> Option<Metric> {
        match self {
            Work::Decode => Some(Metric::StepMs),
            Work::Prefill => Some(Metric::FirstTokenMs),
            Work::Mixed => None,
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
    /// From sending a request to its first token: the median of the run.
    FirstTokenMs,
    FirstTokenMsP99,
    /// Between two deliveries of one answer: the median of the run.
    TokenGapMs,
    TokenGapMsP99,
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
    /// Of one core, how much the load generator itself was busy (1 is all).
    GeneratorBusyShare,
}

impl Metric {
    pub const ALL: [Metric; 23] = [
        Metric::TokensPerS,
        Metric::PromptTokensPerS,
        Metric::RequestsPerS,
        Metric::PassesPerS,
        Metric::StepMs,
        Metric::StepMsP99,
        Metric::DeviceMs,
        Metric::HostGapMs,
        Metric::FirstTokenMs,
        Metric::FirstTokenMsP99,
        Metric::TokenGapMs,
        Metric::TokenGapMsP99,
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
            Metric::FirstTokenMs => "TTFT ms",
            Metric::FirstTokenMsP99 => "TTFT ms p99",
            Metric::TokenGapMs => "gap ms",
            Metric::TokenGapMsP99 => "gap ms p99",
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
            Metric::GeneratorBusyShare => "generator busy",
        }
    }
}

/// What one run gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub metrics: BTreeMap<Metric, f64>,
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
}
