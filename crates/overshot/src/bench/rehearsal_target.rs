//! A model over random weights as a target. It writes step plans itself: sequences begin behind a context that nobody computed, in
//! a cache that is full from the start, each with pages of its own. So a step behind 64K tokens is measured without the hour
//! that filling 256 such caches would take; what it computes means nothing.

use super::engine_target::{STEPS_MIN, WARM_UP_STEPS, most};
use super::families::{FAMILY_STEPS, set_families, set_peers_wait};
use super::geometry::Geometry;
use super::step_times::{StepTime, step_times};
use crate::args::ComputeFlags;
use crate::compute::{Cache, Needs, Started, ToLower, start_backend};
use crate::failure::{DoesNotFit, bad_input, note};
use overshot_backend::traffic::{DecodeShape, decode_bytes};
use overshot_backend::{
    Backend, Choice, Family, Numerics, PLANS_UNDER_WAY, Rehearsal, Row, RowResult, Sampling, Shard, StepPlan,
    StepResult, Timing, Wanted,
};
use overshot_engine::StepLoop;
use overshot_kv::{Kv, PoolCapacity, SetId};
use overshot_lab::{LabError, Measurement, Metric, Point, Settings, Target};
use overshot_model::Model;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of what caches hold and of the tokens: every run measures the same.
const SEED: u64 = 1;

/// Sequences stand at different places within the entries that they fill, as those of a server do.
const PLACES: usize = 128;

pub struct RehearsalOptions<'a> {
    pub compute: &'a ComputeFlags,
    pub geometry: &'a Geometry,
    pub points: &'a [Point],
    /// Positions behind every row of a decode.
    pub context: usize,
    /// Of one run.
    pub most_steps: usize,
    /// Of one run; whichever of the two ends first.
    pub time: Duration,
    pub step_loop: StepLoop,
}

pub struct RehearsalTarget {
    backend: Box<dyn Backend>,
    model: Arc<Model>,
    numerics: Numerics,
    /// The first rank's.
    shard: Shard,
    /// That the ranks which are here have.
    known_tokens: Range<u32>,
    /// Of the device's memory, measured; `None` where the processor computes.
    read_bytes_per_s: Option<f64>,
    kv: Kv,
    next_plan: u64,
    context: usize,
    chunk_tokens: usize,
    most_steps: usize,
    time: Duration,
    plans_under_way: usize,
    settings: Settings,
    name: String,
    random: fastrand::Rng,
}

/// Sequences that decode together.
struct Batch {
    sets: Vec<SetId>,
    wanted: Vec<Wanted>,
}

/// When steps end: after so many, or a few and this time.
#[derive(Clone, Copy)]
struct Bounds {
    most: usize,
    time: Duration,
}

struct Step {
    period: Duration,
    device_time: Duration,
    families: Vec<(Family, Duration)>,
    peers_wait: Option<Duration>,
}

impl Step {
    fn time(&self) -> StepTime {
        let Step { period, device_time: device, .. } = *self;
        StepTime { period, device, gap: period.saturating_sub(device) }
    }
}

impl RehearsalTarget {
    /// Leaves out decode points whose caches do not fit, the largest first. Returns those that are left.
    ///
    /// # Errors
    /// A backend that does not start, or points beyond the model's context.
    pub fn start(options: RehearsalOptions<'_>) -> anyhow::Result<(Self, Vec<Point>)> {
        let RehearsalOptions { compute, geometry, context, most_steps, time, step_loop, .. } = options;
        let Geometry { source, chunk_tokens, .. } = geometry;
        let ranks = compute.ranks()?;
        let of_ranks = geometry.of_ranks(ranks)?;
        let model = Arc::new(source.open()?);
        let mut points = options.points.to_vec();
        points.sort_unstable();
        let steps = most_steps.max(STEPS_MIN) + FAMILY_STEPS + 2 * (WARM_UP_STEPS + PLANS_UNDER_WAY);
        let stream = context + steps;
        let Started { backend, read_bytes_per_s, .. } = loop {
            let prefill = most(&points, |point| match point {
                Point::Prefill { tokens } => Some(tokens),
                _ => None,
            });
            let streams = most(&points, streams_of);
            let (longest, positions) = (stream.max(prefill + 1), model.spec.max_positions);
            if longest > positions {
                return Err(bad_input(format!(
                    "a point needs {longest} positions where the model's context holds {positions}: lower --context, \
                     --prefill or --max-tokens"
                )));
            }
            let needs = Needs {
                cache: Cache::Fixed(PoolCapacity::for_sets(streams, (streams * stream).max(prefill + 1))),
                step_tokens: streams.max(*chunk_tokens),
                to_lower: ToLower {
                    requests: Some("--batch or --chunk-tokens"),
                    cache: "--context, --prefill or --batch",
                },
                rehearsal: Some(Rehearsal { of_ranks, seed: SEED }),
            };
            match start_backend(compute, source, model.clone(), needs) {
                Err(error) if error.is::<DoesNotFit>() && points.len() > 1 && streams > 1 => {
                    note(&format!("decode, {streams} streams, is left out: {error}"));
                    points.retain(|point| streams_of(*point) != Some(streams));
                }
                started => break started?,
            }
        };
        let shard = Shard::of(&model.spec, 0, of_ranks);
        let known = if ranks > 1 { 0..model.spec.vocab_size } else { shard.vocab.clone() };
        let numerics = compute.numerics();
        let settings = [
            ("model", source.label()),
            ("parameters", model.weights.parameters().to_string()),
            ("backend", backend.name()),
            (
                "numerics",
                format!("kv {}, index keys {}, act {}", numerics.kv, numerics.index_keys, numerics.act),
            ),
            ("batch_invariant", compute.batch_invariant.to_string()),
            ("prompt_tokens", context.to_string()),
            ("max_tokens", most_steps.to_string()),
            ("seconds", time.as_secs_f64().to_string()),
            ("chunk_tokens", chunk_tokens.to_string()),
            ("step_loop", format!("{step_loop:?}").to_lowercase()),
        ];
        let target = RehearsalTarget {
            kv: Kv::new(backend.capacity()),
            next_plan: 0,
            known_tokens: known.start as u32..known.end as u32,
            shard,
            model,
            numerics,
            read_bytes_per_s,
            context,
            chunk_tokens: *chunk_tokens,
            most_steps,
            time,
            plans_under_way: if step_loop == StepLoop::Overlapped { PLANS_UNDER_WAY } else { 1 },
            settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            name: format!("{} on {}", source.label(), backend.name()),
            random: fastrand::Rng::with_seed(SEED),
            backend,
        };
        Ok((target, points))
    }

    fn submit(&mut self, plan: StepPlan) -> anyhow::Result<()> {
        self.next_plan = plan.number + 1;
        Ok(self.backend.submit(plan)?)
    }

    /// The oldest plan under way.
    fn collect(&mut self) -> anyhow::Result<StepResult> {
        let result = self.backend.collect()?;
        let failed = result.rows.iter().enumerate().find_map(|(row, RowResult { failure, .. })| {
            failure.as_ref().map(|failure| format!("row {row} of step {} failed: {failure}", result.number))
        });
        failed.map_or(Ok(result), |what| Err(anyhow::anyhow!(what)))
    }

    fn token(&mut self) -> u32 {
        self.random.u32(self.known_tokens.clone())
    }

    /// `count` sequences behind about the context, each a little less than the one before.
    fn batch(&mut self, count: usize) -> anyhow::Result<Batch> {
        let mut batch = Batch { sets: Vec::with_capacity(count), wanted: Vec::with_capacity(count) };
        for stream in 0..count {
            let set = self.kv.create()?;
            batch.sets.push(set);
            // What copies there might be are of no use: nothing was computed.
            self.kv.extend(set, self.context.saturating_sub(stream * 37 % PLACES))?;
            let sampling = Arc::new(Sampling { seed: stream as u64, ..Sampling::default() });
            batch.wanted.push(Wanted::Token { sampling, seen: Vec::new(), choice: Choice::Free });
        }
        Ok(batch)
    }

    /// The next step of all sequences; the first one's tokens are random, the others those that the step before draws.
    fn decode_plan(&mut self, batch: &Batch, is_first: bool, timing: Timing) -> anyhow::Result<StepPlan> {
        let mut plan = StepPlan { number: self.next_plan, timing, ..StepPlan::default() };
        for (row, (set, wanted)) in batch.sets.iter().zip(&batch.wanted).enumerate() {
            let start = self.kv.len(*set)?;
            plan.page_ops.extend(self.kv.extend(*set, 1)?);
            plan.rows.push(Row {
                tokens: vec![self.token()],
                start,
                placeholder: (!is_first).then_some(row),
                pages: self.kv.table(*set)?.clone(),
                wanted: wanted.clone(),
            });
        }
        Ok(plan)
    }

    /// Steps of a batch that has just begun, or goes on.
    fn decode_steps(&mut self, batch: &Batch, bounds: Bounds, timing: Timing) -> anyhow::Result<Vec<Step>> {
        let mut steps = Vec::new();
        let (mut under_way, mut submitted) = (0, 0);
        let (mut started, mut ended) = (Instant::now(), Instant::now());
        loop {
            let counted = submitted.max(WARM_UP_STEPS) - WARM_UP_STEPS;
            let fewest = bounds.most.min(STEPS_MIN);
            let goes_on = counted < fewest || (counted < bounds.most && started.elapsed() < bounds.time);
            while goes_on && under_way < self.plans_under_way {
                let plan = self.decode_plan(batch, submitted == 0, timing)?;
                self.submit(plan)?;
                (under_way, submitted) = (under_way + 1, submitted + 1);
            }
            if under_way == 0 {
                steps.drain(..WARM_UP_STEPS.min(steps.len()));
                return Ok(steps);
            }
            let StepResult { device_time, families, peers_wait, .. } = self.collect()?;
            under_way -= 1;
            steps.push(Step { period: ended.elapsed(), device_time, families, peers_wait });
            ended = Instant::now();
            if steps.len() == WARM_UP_STEPS {
                started = ended;
            }
        }
    }

    fn decode(&mut self, count: usize) -> anyhow::Result<Measurement> {
        let batch = self.batch(count)?;
        let bounds = Bounds { most: self.most_steps.max(STEPS_MIN), time: self.time };
        let steps = self.decode_steps(&batch, bounds, Timing::Off)?;
        let ended: usize = batch.sets.iter().map(|set| self.kv.len(*set)).sum::<Result<_, _>>()?;
        let context = ended as f64 / count as f64 - steps.len() as f64 / 2.0;
        let times: Vec<StepTime> = steps.iter().map(Step::time).collect();
        let mut measurement = step_times(&times, count * steps.len())?;
        measurement.set(Metric::ContextTokens, context);
        let bounds = Bounds { most: FAMILY_STEPS, time: Duration::ZERO };
        let timed = self.decode_steps(&batch, bounds, Timing::ByFamily)?;
        set_families(&mut measurement, timed.iter().map(|step| step.families.as_slice()))?;
        set_peers_wait(&mut measurement, timed.iter().filter_map(|step| step.peers_wait))?;
        self.set_limits(&mut measurement, DecodeShape { rows: count, context: context as usize });
        for set in batch.sets {
            self.kv.free(set)?;
        }
        Ok(measurement)
    }

    /// What the bytes of each family need at least, where the device's memory was measured.
    fn set_limits(&self, measurement: &mut Measurement, shape: DecodeShape) {
        let Some(rate) = self.read_bytes_per_s else { return };
        let bytes = decode_bytes(&self.model, &self.shard, self.numerics, shape);
        measurement.set(Metric::ReadGbPerS, rate / 1e9);
        measurement.set(Metric::LimitMs, bytes.values().sum::<f64>() / rate * 1e3);
        measurement.family_limit_ms =
            bytes.into_iter().map(|(family, bytes)| (family.to_string(), bytes / rate * 1e3)).collect();
    }

    /// One prompt in chunks, two under way.
    fn prefill(&mut self, tokens: usize) -> anyhow::Result<Measurement> {
        let set = self.kv.create()?;
        let started = Instant::now();
        let mut under_way = VecDeque::new();
        for start in (0..tokens).step_by(self.chunk_tokens) {
            let count = self.chunk_tokens.min(tokens - start);
            let mut plan = StepPlan { number: self.next_plan, ..StepPlan::default() };
            plan.page_ops = self.kv.extend(set, count)?;
            let drawn = Wanted::Token { sampling: Arc::default(), seen: Vec::new(), choice: Choice::Free };
            plan.rows.push(Row {
                tokens: (0..count).map(|_| self.token()).collect(),
                start,
                placeholder: None,
                pages: self.kv.table(set)?.clone(),
                wanted: if start + count == tokens { drawn } else { Wanted::Nothing },
            });
            under_way.push_back(plan.number);
            self.submit(plan)?;
            if under_way.len() == self.plans_under_way {
                self.collect()?;
                under_way.pop_front();
            }
        }
        for _ in under_way {
            self.collect()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.kv.free(set)?;
        let mut measurement = Measurement::default();
        measurement.set(Metric::FirstTokenMs, seconds * 1e3);
        measurement.set(Metric::PromptTokensPerS, tokens as f64 / seconds);
        measurement.set(Metric::PromptTokens, tokens as f64);
        measurement.set(Metric::Requests, 1.0);
        Ok(measurement)
    }
}

fn streams_of(point: Point) -> Option<usize> {
    match point {
        Point::Decode { streams } => Some(streams),
        Point::Prefill { .. } | Point::Mixed { .. } | Point::Program => None,
    }
}

impl Target for RehearsalTarget {
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
            Point::Program => Err(anyhow::anyhow!("a model is no program that ends")),
        };
        measured.map_err(|error| LabError::Target { point: point.to_string(), what: format!("{error:#}") })
    }
}
