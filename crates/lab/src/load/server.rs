//! A server behind an address as a target: learns first how it wants to be asked, then runs points.

use super::address::Address;
use super::connection::Client;
use super::counters;
use super::delivery::Usage;
use super::exchange::{Answer, Api, Dialect, End, Question, ask};
use super::failure::{Failure, quoted};
use super::prompts::{Prompts, Sharing, WordCost};
use super::reading::{only_failures, read_decode, read_mixed, read_prefill};
use crate::{LabError, Measurement, Metric, Point, Settings, Target};
use serde::Deserialize;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Prompts of one prefill run; its number is their median.
const PREFILL_REQUESTS: usize = 3;

/// Words of the two prompts from which the cost of a word is learned.
const PROBE_WORDS: [usize; 2] = [16, 80];

/// The part of a mixed run before its window, and at most this long.
const MIXED_WARM_UP: Duration = Duration::from_secs(5);

/// Answers of one mixed run that are kept: bounds memory against servers that fail at once, over and over.
const MIXED_ANSWERS_MAX: usize = 1_000_000;

#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub url: String,
    pub api: Api,
    /// `None`: the first that the server lists.
    pub model: Option<String>,
    pub key: Option<String>,
    /// Of the prompts of decode and mixed runs.
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    pub mixed_time: Duration,
    pub sharing: Sharing,
    /// The longest silence of the server.
    pub idle: Duration,
}

pub struct ServerTarget {
    runtime: Runtime,
    client: Client,
    dialect: Dialect,
    options: ServerOptions,
    prompts: Prompts,
    cost: WordCost,
    counts_passes: bool,
    /// What was found out at the start, for people.
    findings: Vec<String>,
}

impl ServerTarget {
    /// Connects, and learns how the server wants to be asked and how long its tokens are: a few small requests.
    ///
    /// # Errors
    /// The server cannot be reached, has no such model, or does not answer a small request.
    pub fn connect(options: ServerOptions) -> Result<Self, LabError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LabError::Runtime)?;
        let client = Client::new(Address::parse(&options.url)?, options.key.as_deref(), options.idle)?;
        let mut findings = Vec::new();
        let prompts = Prompts::new(options.sharing);
        let mut target = ServerTarget {
            dialect: Dialect {
                api: options.api,
                model: options.model.clone().unwrap_or_default(),
                ignores_eos: true,
                counts_tokens: true,
            },
            runtime,
            client,
            options,
            prompts,
            cost: WordCost::UNKNOWN,
            counts_passes: false,
            findings: Vec::new(),
        };
        if target.options.model.is_none() {
            target.dialect.model = target.first_model()?;
        }
        let probes = target.probe(&mut findings)?;
        match probes {
            [Some(short), Some(long)] => {
                let [few, many] = PROBE_WORDS;
                target.cost = WordCost::learn((few, short.prompt_tokens), (many, long.prompt_tokens));
            }
            _ => {
                findings.push("it does not count tokens: prompt lengths are guessed, one token a word".into())
            }
        }
        target.counts_passes = target.passes().is_some();
        if !target.counts_passes {
            findings.push("its /metrics page counts no passes: passes/s is left out".into());
        }
        target.findings = findings;
        Ok(target)
    }

    /// What was learned about the server and shapes the numbers.
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    fn refuse(&self, failure: &Failure) -> LabError {
        LabError::Server { url: self.client.address().to_string(), what: failure.to_string() }
    }

    fn first_model(&self) -> Result<String, LabError> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let fetched = self.runtime.block_on(self.client.fetch("/v1/models"));
        let (status, body) = fetched.map_err(|failure| self.refuse(&failure))?;
        let list: Option<List> = serde_json::from_slice(&body).ok();
        let first = list.and_then(|list| list.data.into_iter().next());
        first.map(|model| model.id).ok_or_else(|| {
            let text = quoted(&String::from_utf8_lossy(&body));
            let what = format!("it lists no model (status {status}: {text}); name one with --model");
            LabError::Server { url: self.client.address().to_string(), what }
        })
    }

    /// Asks small questions, the first in ever plainer dialects until one is answered.
    fn probe(&mut self, findings: &mut Vec<String>) -> Result<[Option<Usage>; 2], LabError> {
        let mut refusal = None;
        for (ignores_eos, counts_tokens) in [(true, true), (false, true), (true, false), (false, false)] {
            self.dialect = Dialect { ignores_eos, counts_tokens, ..self.dialect.clone() };
            let answer = self.ask_alone(PROBE_WORDS[0], 2);
            match answer.end {
                End::Failed(failure @ Failure::Status { status: 400 | 422, .. }) => {
                    refusal.get_or_insert(failure);
                }
                End::Failed(failure) => return Err(self.refuse(&failure)),
                End::Whole | End::Cut => {
                    if !ignores_eos {
                        findings.push("it refuses ignore_eos: answers end where the model ends them".into());
                    }
                    let long = self.ask_alone(PROBE_WORDS[1], 2);
                    return match long.end {
                        End::Failed(failure) => Err(self.refuse(&failure)),
                        End::Whole | End::Cut => Ok([answer.usage, long.usage]),
                    };
                }
            }
        }
        let refusal = refusal.unwrap_or_else(|| Failure::Nonsense("nothing".into()));
        Err(self.refuse(&refusal))
    }

    fn ask_alone(&mut self, words: usize, answer_tokens: usize) -> Answer {
        let question = Question { prompt: self.prompts.of_words(words), answer_tokens };
        self.runtime.block_on(async { ask(&self.client, &mut None, &self.dialect, &question, None).await })
    }

    fn question(&mut self, prompt_tokens: usize, answer_tokens: usize) -> Question {
        let words = self.cost.words(prompt_tokens);
        Question { prompt: self.prompts.of_words(words), answer_tokens }
    }

    fn passes(&self) -> Option<f64> {
        let (status, page) = self.runtime.block_on(self.client.fetch("/metrics")).ok()?;
        (status == 200).then(|| counters::passes(&String::from_utf8_lossy(&page)))?
    }

    fn decode(&mut self, streams: usize) -> Vec<Answer> {
        let (prompt_tokens, answer_tokens) = (self.options.prompt_tokens, self.options.answer_tokens);
        let questions: Vec<Question> =
            (0..streams).map(|_| self.question(prompt_tokens, answer_tokens)).collect();
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for question in questions {
                let (client, dialect) = (self.client.clone(), self.dialect.clone());
                tasks.spawn(async move { ask(&client, &mut None, &dialect, &question, None).await });
            }
            tasks.join_all().await
        })
    }

    fn prefill(&mut self, tokens: usize) -> Vec<Answer> {
        let questions: Vec<Question> = (0..PREFILL_REQUESTS).map(|_| self.question(tokens, 1)).collect();
        self.runtime.block_on(async {
            let (mut slot, mut answers) = (None, Vec::new());
            for question in &questions {
                answers.push(ask(&self.client, &mut slot, &self.dialect, question, None).await);
            }
            answers
        })
    }

    /// Closed loop; each client has a generator of prompts of its own.
    fn mixed(&mut self, streams: usize) -> (Vec<Answer>, Instant, Instant) {
        let from = Instant::now() + MIXED_WARM_UP.min(self.options.mixed_time / 4);
        let to = from + self.options.mixed_time;
        let answers = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..streams {
                let client = MixedClient {
                    client: self.client.clone(),
                    dialect: self.dialect.clone(),
                    prompts: Prompts::like(&self.prompts),
                    cost: self.cost,
                    prompt_tokens: self.options.prompt_tokens,
                    answer_tokens: self.options.answer_tokens,
                    answers_max: MIXED_ANSWERS_MAX / streams.max(1),
                };
                tasks.spawn(client.run(to));
            }
            tasks.join_all().await
        });
        (answers.into_iter().flatten().collect(), from, to)
    }
}

struct MixedClient {
    client: Client,
    dialect: Dialect,
    prompts: Prompts,
    cost: WordCost,
    prompt_tokens: usize,
    answer_tokens: usize,
    answers_max: usize,
}

impl MixedClient {
    async fn run(mut self, until: Instant) -> Vec<Answer> {
        let (mut slot, mut answers) = (None, Vec::new());
        while Instant::now() < until && answers.len() < self.answers_max {
            let words = self.cost.words(self.prompts.length_around(self.prompt_tokens));
            let answer_tokens = self.prompts.length_around(self.answer_tokens);
            let question = Question { prompt: self.prompts.of_words(words), answer_tokens };
            let answer = ask(&self.client, &mut slot, &self.dialect, &question, Some(until)).await;
            if let End::Failed(failure) = &answer.end {
                let next = Instant::now() + failure.pause();
                tokio::time::sleep_until(next.min(until).into()).await;
            }
            answers.push(answer);
        }
        answers
    }
}

impl Target for ServerTarget {
    fn name(&self) -> String {
        format!("{} at {}", self.dialect.model, self.client.address())
    }

    fn settings(&self) -> Settings {
        let options = &self.options;
        let pairs = [
            ("url", self.client.address().to_string()),
            ("model", self.dialect.model.clone()),
            ("api", format!("{:?}", options.api).to_lowercase()),
            ("prompt_tokens", options.prompt_tokens.to_string()),
            ("max_tokens", options.answer_tokens.to_string()),
            ("mixed_seconds", options.mixed_time.as_secs_f64().to_string()),
            ("shared_prefix", (options.sharing == Sharing::Prefix).to_string()),
            ("ignore_eos", self.dialect.ignores_eos.to_string()),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn measure(&mut self, point: Point) -> Result<Measurement, LabError> {
        let passes_before = self.counts_passes.then(|| self.passes()).flatten();
        let (busy_before, started) = (self.busy(), Instant::now());
        let (answers, mut measurement) = match point {
            Point::Decode { streams } => {
                let answers = self.decode(streams);
                let measurement = read_decode(streams, &answers);
                (answers, measurement)
            }
            Point::Prefill { tokens } => {
                let answers = self.prefill(tokens);
                let measurement = read_prefill(tokens, &answers);
                (answers, measurement)
            }
            Point::Mixed { streams } => {
                let (answers, from, to) = self.mixed(streams);
                let measurement = read_mixed(&answers, from, to);
                (answers, measurement)
            }
            Point::Program => {
                let what = "a server is no program that ends".into();
                return Err(LabError::Target { point: point.to_string(), what });
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        if let Some(first) = only_failures(&answers) {
            let (point, requests) = (point.to_string(), answers.len());
            return Err(LabError::NothingAnswered { point, requests, first: first.to_string() });
        }
        measurement.set(Metric::GeneratorBusyShare, (self.busy() - busy_before).as_secs_f64() / seconds);
        if let Some((before, after)) = passes_before.zip(self.passes()) {
            measurement.set(Metric::PassesPerS, (after - before) / seconds);
        }
        Ok(measurement)
    }
}

impl ServerTarget {
    /// Time that the generator's only thread was not waiting, since it started.
    fn busy(&self) -> Duration {
        self.runtime.metrics().worker_total_busy_duration(0)
    }
}
