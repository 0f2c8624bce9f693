//! What `lab noise` and `lab ab` measure: a shell command, a server at an address, or this program's own `bench` with some flags,
//! started anew for every run so that no run inherits anything of another.

use super::numbers::not_negative;
use crate::failure::{bad_input, note};
use crate::usage::{at_least_one, from_1_to_1024, seconds};
use clap::Args;
use overshot_lab::load::{Api, ServerOptions, ServerTarget, Sharing};
use overshot_lab::noise::Key;
use overshot_lab::program::{ShellProgram, printed_json, run};
use overshot_lab::{Better, LabError, Measurement, Metric, Point, Quantity, Settings, Target, Work, machine};
use serde_json::Value;
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::Duration;

/// What is done to servers and to this program's own engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load of addresses and of our own bench")]
pub struct LoadFlags {
    /// Streams that decode at the same time
    #[arg(long, value_name = "N", default_value = "8", allow_negative_numbers = true, value_parser = from_1_to_1024)]
    pub concurrency: u16,

    /// Clients that send requests of mixed lengths without a pause, instead of streams that all decode
    #[arg(long)]
    pub mixed: bool,

    /// Tokens of every prompt; with --mixed the mean
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    pub prompt_tokens: NonZeroUsize,

    /// Tokens of every answer; with --mixed the mean
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    pub max_tokens: NonZeroUsize,

    /// How long one run measures: steps of our own bench, mixed load on a server
    #[arg(long, value_name = "S", default_value = "2", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Duration,

    /// The model that servers are asked for [default: the first that each lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

impl LoadFlags {
    fn point(&self) -> Point {
        let streams = usize::from(self.concurrency);
        if self.mixed { Point::Mixed { streams } } else { Point::Decode { streams } }
    }
}

/// The number that is compared.
#[derive(Args, Clone, Debug)]
pub struct MetricFlags {
    /// The number that is compared, such as step_ms or tokens_per_s; of a command, where it stands in the JSON that it prints,
    /// such as results.0.mean [default: the wall time of a command, step_ms of streams, tokens_per_s of a mixed load]
    #[arg(long, value_name = "NAME|PATH")]
    pub metric: Option<String>,

    /// The direction in which that number improves, where its name does not say
    #[arg(long, value_name = "higher|lower", value_parser = better)]
    pub better: Option<Better>,
}

fn better(text: &str) -> Result<Better, String> {
    match text {
        "higher" => Ok(Better::Higher),
        "lower" => Ok(Better::Lower),
        _ => Err("use higher or lower".into()),
    }
}

impl MetricFlags {
    /// # Errors
    /// Neither the name nor `--better` says which way is up.
    pub fn quantity(&self, point: Point) -> anyhow::Result<(Quantity, Better)> {
        let quantity = match &self.metric {
            None => Quantity::Known(default_metric(point.work())),
            Some(name) => named(name, point),
        };
        let better = self.better.or_else(|| direction(&quantity));
        let better = better.ok_or_else(|| {
            bad_input(format!(
                "--metric {quantity}: its name does not say which way is better: add --better higher or lower"
            ))
        })?;
        Ok((quantity, better))
    }
}

/// Of a program only the wall time is known; every other name is a path into what it prints.
pub fn named(name: &str, point: Point) -> Quantity {
    match (point, Quantity::from(name)) {
        (_, known @ Quantity::Known(Metric::WallS)) => known,
        (Point::Program, _) => Quantity::Named(name.to_owned()),
        (_, quantity) => quantity,
    }
}

/// From the metric, or from one that is part of a path: `works.0.points.0.metrics.step_ms.median`.
pub fn direction(quantity: &Quantity) -> Option<Better> {
    match quantity {
        Quantity::Known(metric) => metric.better(),
        Quantity::Named(path) => path.split('.').find_map(|part| Metric::named(part)?.better()),
    }
}

fn default_metric(work: Work) -> Metric {
    match work {
        Work::Decode => Metric::StepMs,
        Work::Prefill => Metric::FirstTokenMs,
        Work::Mixed => Metric::TokensPerS,
        Work::Program => Metric::WallS,
    }
}

/// `step_ms:2`, `a.b:0.5:higher`.
#[derive(Clone, Debug)]
pub struct GuardFlag {
    pub name: String,
    pub limit: f64,
    pub better: Option<Better>,
}

pub fn guard(text: &str) -> Result<GuardFlag, String> {
    let refusal =
        || "use NAME:PERCENT, such as first_token_ms_p99:5, or NAME:PERCENT:higher|lower".to_owned();
    let mut parts = text.split(':');
    let (name, percent) = (parts.next().unwrap_or_default(), parts.next().ok_or_else(refusal)?);
    let better = parts.next().map(better).transpose()?;
    if name.is_empty() || parts.next().is_some() {
        return Err(refusal());
    }
    Ok(GuardFlag {
        name: name.to_owned(),
        limit: not_negative(percent).map_err(|_| refusal())? / 100.0,
        better,
    })
}

#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Command(&'a str),
    Url(&'a str),
    BenchFlags(&'a str),
}

impl Source<'_> {
    pub fn point(&self, load: &LoadFlags) -> Point {
        match self {
            Source::Command(_) => Point::Program,
            Source::Url(_) | Source::BenchFlags(_) => load.point(),
        }
    }
}

/// One side of a comparison, ready to be measured.
pub struct Subject {
    pub target: Box<dyn Target>,
    /// Names it in a history of noise.
    pub name: String,
}

impl Subject {
    /// `quantities`: those that runs must give.
    ///
    /// # Errors
    /// A server that cannot be reached, or flags that the bench refuses.
    pub fn start(source: Source<'_>, load: &LoadFlags, quantities: &[Quantity]) -> anyhow::Result<Self> {
        let subject = match source {
            Source::Command(command) => {
                let paths = quantities.iter().filter_map(|quantity| match quantity {
                    Quantity::Named(path) => Some(path.clone()),
                    Quantity::Known(_) => None,
                });
                let program = ShellProgram { command: command.to_owned(), paths: paths.collect() };
                Subject { target: Box::new(program), name: command.to_owned() }
            }
            Source::Url(url) => Subject::server(url, load)?,
            Source::BenchFlags(flags) => {
                let target = BenchTarget::start(flags, load)?;
                Subject { name: format!("bench {flags}"), target: Box::new(target) }
            }
        };
        let target = Demanding { target: subject.target, quantities: quantities.to_vec() };
        Ok(Subject { target: Box::new(target), ..subject })
    }

    fn server(url: &str, load: &LoadFlags) -> anyhow::Result<Self> {
        let target = ServerTarget::connect(ServerOptions {
            url: url.to_owned(),
            api: Api::Chat,
            model: load.model.clone(),
            key: None,
            prompt_tokens: load.prompt_tokens.get(),
            answer_tokens: load.max_tokens.get(),
            mixed_time: load.seconds,
            sharing: Sharing::Nothing,
            idle: Duration::from_secs(120),
        })?;
        for finding in target.findings() {
            note(&format!("note: {url}: {finding}"));
        }
        let model = target.settings().remove("model").unwrap_or_default();
        let name = format!("{model}, prompts of {}, answers of {}", load.prompt_tokens, load.max_tokens);
        Ok(Subject { target: Box::new(target), name })
    }

    /// What was set, and the machine that it runs on or is asked from.
    pub fn settings(&self) -> Settings {
        let mut settings = machine::fingerprint();
        settings.extend(self.target.settings());
        settings
    }

    pub fn noise_key(&self, point: Point) -> Key {
        Key { subject: self.name.clone(), point, machine: machine::fingerprint() }
    }
}

/// Fails at the first run that lacks what was asked for, the warm-up included, instead of after all of them.
struct Demanding {
    target: Box<dyn Target>,
    quantities: Vec<Quantity>,
}

impl Target for Demanding {
    fn name(&self) -> String {
        self.target.name()
    }

    fn settings(&self) -> Settings {
        self.target.settings()
    }

    fn measure(&mut self, point: Point) -> Result<Measurement, LabError> {
        let measurement = self.target.measure(point)?;
        match self.quantities.iter().find(|quantity| quantity.of(&measurement).is_none()) {
            None => Ok(measurement),
            Some(quantity) => {
                let why: String = measurement.notes.iter().map(|note| format!("; {note}")).collect();
                let what = format!("the run gave no {quantity}, only {}{why}", measurement.names());
                Err(LabError::Target { point: point.to_string(), what })
            }
        }
    }
}

/// `overshot bench` with one point and one repeat, as a process.
struct BenchTarget {
    arguments: Vec<String>,
    shown: String,
    settings: Settings,
}

impl BenchTarget {
    /// Runs once, to learn the settings.
    fn start(flags: &str, load: &LoadFlags) -> anyhow::Result<Self> {
        let fixed = ["bench", "--json", "--repeats", "1", "--noise-blocks", "0"].map(str::to_owned);
        let set = [
            ("--concurrency", load.concurrency.to_string()),
            ("--prompt-tokens", load.prompt_tokens.to_string()),
            ("--max-tokens", load.max_tokens.to_string()),
            ("--seconds", load.seconds.as_secs_f64().to_string()),
        ];
        if load.mixed {
            return Err(bad_input("--mixed needs addresses: our own bench measures streams that all decode"));
        }
        let mut arguments = fixed.to_vec();
        arguments.extend(set.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        arguments.extend(words(flags)?);
        let shown = format!("overshot {}", arguments.join(" "));
        let mut target = BenchTarget { arguments, shown, settings: Settings::new() };
        let report = target.report()?;
        let settings = report.get("settings").and_then(Value::as_object);
        for (name, value) in settings.into_iter().flatten() {
            target.settings.insert(name.clone(), value.as_str().unwrap_or_default().to_owned());
        }
        target.settings.insert("flags".into(), flags.to_owned());
        Ok(target)
    }

    fn report(&self) -> Result<Value, LabError> {
        let failed = |what: String| LabError::Program { program: self.shown.clone(), what };
        let program = std::env::current_exe().map_err(|error| failed(format!("cannot be found: {error}")))?;
        let mut command = Command::new(program);
        command.args(&self.arguments);
        printed_json(&run(command, &self.shown)?.printed).map_err(failed)
    }
}

impl Target for BenchTarget {
    fn name(&self) -> String {
        self.shown.clone()
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }

    fn measure(&mut self, _: Point) -> Result<Measurement, LabError> {
        let report = self.report()?;
        let mut measurement = Measurement::default();
        let medians = report.pointer("/works/0/points/0/metrics").and_then(Value::as_object);
        for (name, spread) in medians.into_iter().flatten() {
            if let (Some(metric), Some(median)) = (Metric::named(name), spread["median"].as_f64()) {
                measurement.set(metric, median);
            }
        }
        Ok(measurement)
    }
}

/// As a shell would split them, with single and double quotes and no other magic.
fn words(text: &str) -> anyhow::Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in text.chars() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    if quote.is_some() {
        return Err(bad_input(format!("`{text}`: a quote is not closed")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_split_as_shells_do() {
        assert_eq!(
            words("--kv fp8  --model 'a b' --x \"\"").unwrap(),
            ["--kv", "fp8", "--model", "a b", "--x", ""]
        );
        assert_eq!(words("").unwrap(), [""; 0]);
        assert!(words("--model 'a").is_err());
    }

    #[test]
    fn directions_come_from_names() {
        let direction_of = |name: &str| direction(&named(name, Point::Program));
        assert_eq!(direction_of("works.0.points.0.metrics.step_ms.median"), Some(Better::Lower));
        assert_eq!(direction_of("tokens_per_s"), Some(Better::Higher));
        assert_eq!(direction_of("results.0.mean"), None);
        let flags = MetricFlags { metric: Some("results.0.mean".into()), better: None };
        assert!(flags.quantity(Point::Program).unwrap_err().to_string().contains("--better"));
        let decode = Point::Decode { streams: 4 };
        let flags = MetricFlags { metric: None, better: None };
        assert_eq!(flags.quantity(decode).unwrap(), (Quantity::Known(Metric::StepMs), Better::Lower));
    }

    #[test]
    fn guards_are_read_or_refused() {
        let read = guard("a.b:0.5:higher").unwrap();
        assert_eq!((read.name.as_str(), read.limit, read.better), ("a.b", 0.005, Some(Better::Higher)));
        for text in ["", "a", "a:", "a:x", ":5", "a:5:up", "a:5:lower:x", "a:-1", "a:NaN"] {
            assert!(guard(text).is_err(), "{text}");
        }
    }
}
