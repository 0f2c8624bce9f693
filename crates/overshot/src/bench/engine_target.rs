//! This process's engine as a target. The only file that knows both the engine and the lab: it pins a batch by submitting as
//! many requests as the point has streams, waits until all of them decode, and reads the engine's own step trace.

use super::families::{FAMILY_STEPS, set_families};
use super::step_times::{StepTime, step_times};
use crate::args::ComputeFlags;
use crate::compute::{Cache, Needs, Started, ToLower, start_backend};
use crate::failure::bad_input;
use anyhow::Context;
use overshot_backend::Timing;
use overshot_backend_cpu::roofline::{Machine, MachineLimits, StepShape, work, working_set_bytes};
use overshot_engine::{Engine, Event, Finish, Limits, Request, RequestId, StepLoop, StepRecord};
use overshot_kv::PoolCapacity;
use overshot_lab::stats::Sample;
use overshot_lab::{LabError, Measurement, Metric, Point, Settings, Target};
use overshot_model::Model;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps with all streams that are computed before any counts.
pub const WARM_UP_STEPS: usize = 3;

/// Fewer steps say little, however long they take.
pub const STEPS_MIN: usize = 8;

/// Prompts of one prefill run, unless the first took longer than a run should.
const PREFILL_REQUESTS: usize = 3;

pub struct EngineOptions<'a> {
    pub compute: &'a ComputeFlags,
    pub points: &'a [Point],
    /// Tokens of every prompt in front of a decode.
    pub context: usize,
    /// Of one run.
    pub most_steps: usize,
    /// Of one run; whichever of the two ends first.
    pub time: Duration,
    pub step_loop: StepLoop,
}

pub struct EngineTarget {
    engine: Engine,
    model: Arc<Model>,
    /// Measured beside what it computes; `None` where something else computes.
    machine: Option<Machine>,
    settings: Settings,
    name: String,
    limits: Limits,
    context: usize,
    /// Tokens of an answer that lasts to the end of a run.
    answer_tokens: usize,
    most_steps: usize,
    time: Duration,
    random: fastrand::Rng,
}

/// Requests that are under way, and how many tokens each has.
type Streams = BTreeMap<RequestId, usize>;

impl EngineTarget {
    pub fn start(options: EngineOptions<'_>) -> anyhow::Result<Self> {
        let EngineOptions { compute, points, context, most_steps, time, step_loop } = options;
        let source = compute.source()?;
        let model = Arc::new(source.open()?);
        let streams = most(points, |point| match point {
            Point::Decode { streams } | Point::Mixed { streams } => Some(streams),
            Point::Prefill { .. } | Point::Program => None,
        });
        let prefill = most(points, |point| match point {
            Point::Prefill { tokens } => Some(tokens),
            Point::Decode { .. } | Point::Mixed { .. } | Point::Program => None,
        });
        let limits =
            Limits { trace_steps: 1 << 16, ..Limits::for_batch(streams, Limits::default().chunk_tokens) };
        // The first stream answers while the prompts of the others are computed.
        let filling = streams * context.div_ceil(limits.chunk_tokens) + streams;
        // Two steps more are planned before it is seen that one ended.
        let answer_tokens = filling + WARM_UP_STEPS + most_steps + FAMILY_STEPS + 3;
        let stream = context + answer_tokens;
        let longest = stream.max(prefill + 1);
        if longest > model.spec.max_positions {
            let most = model.spec.max_positions;
            return Err(bad_input(format!(
                "a point needs {longest} positions where the model's context holds {most}: lower --prompt-tokens, --prefill, \
                 --max-tokens or --concurrency"
            )));
        }
        let needs = Needs {
            cache: Cache::Fixed(PoolCapacity::for_sets(streams, (streams * stream).max(prefill + 1))),
            step_tokens: limits.step_tokens,
            to_lower: ToLower {
                requests: Some("--concurrency"),
                cache: "--prompt-tokens, --prefill or --concurrency",
            },
            rehearsal: None,
        };
        let Started { backend, on_processor, .. } = start_backend(compute, &source, model.clone(), needs)?;
        let machine = match on_processor {
            true => {
                let machine = Machine::new(compute.threads.map(usize::from), working_set_bytes(&model));
                Some(machine.context("the threads that measure the machine cannot be started")?)
            }
            false => None,
        };
        let name = format!("{} on {}", source.label(), backend.name());
        let numerics = compute.numerics();
        let settings = [
            ("model", source.label()),
            ("parameters", model.weights.parameters().to_string()),
            ("backend", backend.name()),
            (
                "numerics",
                format!("kv {}, index keys {}, act {}", numerics.kv, numerics.index_keys, numerics.act),
            ),
            ("prompt_tokens", context.to_string()),
            ("max_tokens", most_steps.to_string()),
            ("seconds", time.as_secs_f64().to_string()),
            ("chunk_tokens", limits.chunk_tokens.to_string()),
            ("step_loop", format!("{step_loop:?}").to_lowercase()),
        ];
        Ok(EngineTarget {
            engine: Engine::new(backend, limits, step_loop)?,
            model,
            machine,
            settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            name,
            limits,
            context,
            answer_tokens,
            most_steps,
            time,
            random: fastrand::Rng::new(),
        })
    }

    fn submit(&mut self, tokens: usize, max_new_tokens: usize) -> anyhow::Result<RequestId> {
        let vocab = self.model.spec.vocab_size as u32;
        let prompt = (0..tokens).map(|_| self.random.u32(..vocab)).collect();
        Ok(self.engine.submit(Request { max_new_tokens, ..Request::new(prompt) })?)
    }

    /// One step; counts the tokens of the streams.
    fn step(&mut self, streams: &mut Streams) -> anyhow::Result<()> {
        for event in self.engine.step()? {
            match event {
                Event::Token { id, .. } => {
                    if let Some(tokens) = streams.get_mut(&id) {
                        *tokens += 1;
                    }
                }
                Event::Finished { id, reason: Finish::Failed(failure), .. } => {
                    anyhow::bail!("{id} failed: {failure}");
                }
                Event::Finished { id, .. } => {
                    streams.remove(&id);
                }
                Event::PrefillProgress { .. } => {}
            }
        }
        Ok(())
    }

    fn decode(&mut self, count: usize) -> anyhow::Result<Measurement> {
        let limits = self.machine.as_ref().map(Machine::measure);
        let mut streams = Streams::new();
        for _ in 0..count {
            streams.insert(self.submit(self.context, self.answer_tokens)?, 0);
        }
        let ids: Vec<RequestId> = streams.keys().copied().collect();
        let measured = self.decode_all(&mut streams);
        self.engine.set_timing(Timing::Off);
        // Whatever happened, the next point begins with an empty engine.
        for id in ids {
            self.engine.cancel(id);
        }
        while !self.engine.is_idle() {
            self.engine.step()?;
        }
        let (steps, context) = measured?;
        let mut measurement = read_steps(&steps, count)?;
        set_families(&mut measurement, steps.iter().map(|record| record.families.as_slice()))?;
        measurement.set(Metric::ContextTokens, context);
        if let Some(limits) = limits {
            let shape = StepShape { rows: count, tokens: 1, context: context as usize, drawn: count };
            set_limits(&mut measurement, limits, limits.limit_s(work(&self.model, shape)));
        }
        Ok(measurement)
    }

    /// Runs until all streams decode, a little further, and then the steps that count, and some whose time is told by family.
    /// Returns their records and the positions behind a row, in the mean over rows and steps that count.
    fn decode_all(&mut self, streams: &mut Streams) -> anyhow::Result<(Vec<StepRecord>, f64)> {
        let count = streams.len();
        while streams.values().any(|tokens| *tokens == 0) {
            self.step(streams)?;
            anyhow::ensure!(streams.len() == count, "a stream ended before all of them decoded");
        }
        for _ in 0..WARM_UP_STEPS {
            self.step(streams)?;
        }
        let first = self.engine.trace().last().map_or(0, |record| record.number + 1);
        let generated = |streams: &Streams| streams.values().sum::<usize>() as f64 / count as f64;
        let before = generated(streams);
        let started = Instant::now();
        let mut steps = 0;
        while steps < self.most_steps && (steps < STEPS_MIN || started.elapsed() < self.time) {
            self.step(streams)?;
            steps += 1;
        }
        anyhow::ensure!(streams.len() == count, "a stream ended while it was measured");
        let context = self.context as f64 + f64::midpoint(before, generated(streams));
        // The processor's backend cannot tell.
        if self.machine.is_none() {
            self.engine.set_timing(Timing::ByFamily);
            for _ in 0..FAMILY_STEPS {
                self.step(streams)?;
            }
            anyhow::ensure!(streams.len() == count, "a stream ended while its families were timed");
        }
        Ok((self.engine.trace().since(first).cloned().collect(), context))
    }

    fn prefill(&mut self, tokens: usize) -> anyhow::Result<Measurement> {
        let limits = self.machine.as_ref().map(Machine::measure);
        let started = Instant::now();
        let mut seconds = Vec::new();
        while seconds.is_empty() || (seconds.len() < PREFILL_REQUESTS && started.elapsed() < self.time) {
            let sent = Instant::now();
            let mut streams = Streams::from([(self.submit(tokens, 1)?, 0)]);
            while !streams.is_empty() {
                self.step(&mut streams)?;
            }
            seconds.push(sent.elapsed().as_secs_f64());
        }
        let count = seconds.len();
        let first_token_s = Sample::new("times to the first token", seconds)?.median();
        let mut measurement = Measurement::default();
        measurement.set(Metric::FirstTokenMs, first_token_s * 1e3);
        measurement.set(Metric::PromptTokensPerS, tokens as f64 / first_token_s);
        measurement.set(Metric::PromptTokens, tokens as f64);
        measurement.set(Metric::Requests, count as f64);
        let Some(limits) = limits else { return Ok(measurement) };
        let chunk = self.limits.chunk_tokens;
        let chunks = (0..tokens).step_by(chunk).map(|context| {
            let last = context + chunk >= tokens;
            let tokens = chunk.min(tokens - context);
            let shape = StepShape { rows: 1, tokens, context, drawn: usize::from(last) };
            limits.limit_s(work(&self.model, shape))
        });
        set_limits(&mut measurement, limits, chunks.sum());
        Ok(measurement)
    }
}

impl Target for EngineTarget {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }

    fn measure(&mut self, point: Point) -> Result<Measurement, LabError> {
        let measured = match point {
            Point::Decode { streams } => self.decode(streams),
            Point::Prefill { tokens } => self.prefill(tokens),
            Point::Mixed { .. } => Err(anyhow::anyhow!("a mixed load needs --url")),
            Point::Program => Err(anyhow::anyhow!("the engine is no program that ends")),
        };
        measured.map_err(|error| LabError::Target { point: point.to_string(), what: format!("{error:#}") })
    }
}

pub fn most(points: &[Point], of: impl Fn(Point) -> Option<usize>) -> usize {
    points.iter().filter_map(|point| of(*point)).max().unwrap_or(1)
}

/// Steps in which every stream had its one row and nothing else was computed.
fn read_steps(records: &[StepRecord], streams: usize) -> anyhow::Result<Measurement> {
    let pure: Vec<&StepRecord> = records
        .iter()
        .filter(|record| record.decode_rows == streams && record.prefill_rows == 0 && record.preempted == 0)
        .filter(|record| record.families.is_empty())
        .collect();
    anyhow::ensure!(!pure.is_empty(), "no step had all {streams} streams and nothing else");
    let time = |record: &&StepRecord| StepTime {
        period: record.period,
        device: record.device_time,
        gap: record.gap(),
    };
    let times: Vec<StepTime> = pure.iter().map(time).collect();
    Ok(step_times(&times, pure.iter().map(|record| record.delivered_tokens).sum())?)
}

fn set_limits(measurement: &mut Measurement, limits: MachineLimits, limit_s: f64) {
    measurement.set(Metric::LimitMs, limit_s * 1e3);
    measurement.set(Metric::ReadGbPerS, limits.read_bytes_per_s / 1e9);
    measurement.set(Metric::MultiplyAddGflopPerS, limits.flops_per_s / 1e9);
}
