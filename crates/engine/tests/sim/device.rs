//! A device of one or several ranks that takes virtual time and nothing else. Steps run when they are collected, in
//! order, on every rank; ranks that did not do the same are found out.

use super::memory::{Memory, check_rows};
use super::model::{VOCAB, fold, logits};
use overshot_backend::{
    Backend, BackendError, Choice, Family, Row, RowFailure, RowResult, Sampler, SamplingError, StepMasks,
    StepPlan, StepResult, Timing, Wanted,
};
use overshot_engine::Clock;
use overshot_kv::{PageId, Pool, PoolCapacity};
use overshot_model::Spec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time that passes only when somebody waits.
#[derive(Clone, Default)]
pub struct VirtualTime(Arc<AtomicU64>);

impl VirtualTime {
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn wait_until(&self, time: u64) {
        self.0.fetch_max(time, Ordering::Relaxed);
    }

    pub fn clock(&self) -> Clock {
        let time = self.clone();
        Clock::from_fn(move || Duration::from_nanos(time.now()))
    }
}

/// What the device does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Refuses the plan with this number.
    RefusesPlan(u64),
    /// Answers the plan with this number with a row too few.
    LosesRow(u64),
    /// Draws nothing in the plan with this number.
    DrawsNothing(u64),
    /// Finds a broken logit in the first row of the plan with this number.
    BreaksFirstRow(u64),
    /// A rank leaves out the rows of sets that it has known for this long, by its own clock.
    RankHasOwnClock(u64),
}

/// Nanoseconds that steps take.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub floor: u64,
    pub per_token: u64,
    /// Each rank takes up to this much longer, at random.
    pub jitter: u64,
}

impl Latency {
    pub const NONE: Latency = Latency { floor: 0, per_token: 0, jitter: 0 };
}

/// Steps that may be submitted and not collected.
const MOST_UNDER_WAY: usize = 2;

struct Submitted {
    plan: StepPlan,
    masks: Option<StepMasks>,
    at: u64,
}

struct Rank {
    memory: Memory,
    sampler: Sampler,
    /// What each row of the last plan drew.
    drawn: Vec<Option<u32>>,
    /// When a set was first seen, by its window page; for the rank with a clock of its own.
    first_seen: HashMap<PageId, u64>,
}

pub struct Device {
    spec: Spec,
    capacity: PoolCapacity,
    fault: Fault,
    latency: Latency,
    pub time: VirtualTime,
    random: fastrand::Rng,
    ranks: Vec<Rank>,
    expected: u64,
    busy_until: u64,
    under_way: VecDeque<Submitted>,
}

impl Device {
    pub fn new(capacity: PoolCapacity, max_positions: usize, fault: Fault) -> Box<Self> {
        Self::with_ranks(capacity, max_positions, fault, 1, Latency::NONE, 0)
    }

    pub fn with_ranks(
        capacity: PoolCapacity,
        max_positions: usize,
        fault: Fault,
        ranks: usize,
        latency: Latency,
        seed: u64,
    ) -> Box<Self> {
        let rank = || Rank {
            memory: Memory::new(capacity),
            sampler: Sampler::default(),
            drawn: Vec::new(),
            first_seen: HashMap::new(),
        };
        Box::new(Device {
            spec: Spec::hollow(VOCAB, max_positions),
            capacity,
            fault,
            latency,
            time: VirtualTime::default(),
            random: fastrand::Rng::with_seed(seed),
            ranks: (0..ranks).map(|_| rank()).collect(),
            expected: 0,
            busy_until: 0,
            under_way: VecDeque::new(),
        })
    }

    fn run(&mut self, submitted: &Submitted) -> Result<StepResult, String> {
        let Submitted { plan, masks, at } = submitted;
        check_rows(&plan.rows)?;
        let tokens: usize = plan.rows.iter().map(|row| row.tokens.len()).sum();
        let began = self.busy_until.max(*at);
        let mut results = Vec::new();
        for rank in &mut self.ranks {
            let late = self.random.u64(0..=self.latency.jitter);
            let skips = match self.fault {
                Fault::RankHasOwnClock(patience) => rank.impatient_rows(plan, began + late, patience),
                _ => Vec::new(),
            };
            let ended = began + late + self.latency.floor + self.latency.per_token * tokens as u64;
            self.busy_until = self.busy_until.max(ended);
            results.push(rank.run(plan, masks.as_ref(), &skips)?);
        }
        self.time.wait_until(self.busy_until);
        let (digest, rows) = results.swap_remove(0);
        if results.iter().any(|(other, _)| *other != digest) {
            return Err(format!("the ranks did different things in step {}", plan.number));
        }
        let device_time = Duration::from_nanos(self.busy_until - began);
        // All of it is one kernel's.
        let families = match plan.timing {
            Timing::ByFamily => vec![(Family::Head, device_time)],
            Timing::Off => Vec::new(),
        };
        Ok(StepResult { number: plan.number, rows, device_time, families, ..StepResult::default() })
    }
}

fn masked_rows(plan: &StepPlan) -> Vec<usize> {
    let is_masked = |row: &Row| matches!(row.wanted, Wanted::Token { choice: Choice::Masked, .. });
    plan.rows.iter().enumerate().filter(|(_, row)| is_masked(row)).map(|(index, _)| index).collect()
}

impl Rank {
    /// Carries out a plan; also gives a digest of all that it did, to compare between ranks.
    fn run(
        &mut self,
        plan: &StepPlan,
        masks: Option<&StepMasks>,
        skips: &[usize],
    ) -> Result<(u64, Vec<RowResult>), String> {
        for op in &plan.page_ops {
            self.memory.copy(*op)?;
        }
        let mut digest = fold(plan.number, plan.rows.len() as u64);
        let mut results = Vec::new();
        for (index, row) in plan.rows.iter().enumerate() {
            if skips.contains(&index) {
                results.push(RowResult::default());
                continue;
            }
            let mask = masks.and_then(|masks| masks.rows.iter().find(|(row, _)| *row == index));
            let (seen, result) = self.run_row(row, mask.map(|(_, mask)| mask))?;
            digest = fold(fold(digest, index as u64), seen);
            results.push(result);
        }
        self.drawn = results.iter().map(|row| row.tokens.first().map(|sampled| sampled.token)).collect();
        Ok((digest, results))
    }

    fn run_row(
        &mut self,
        row: &Row,
        mask: Option<&overshot_backend::TokenMask>,
    ) -> Result<(u64, RowResult), String> {
        let mut tokens = row.tokens.clone();
        let mut late_token = None;
        if let Some(source) = row.placeholder {
            let drawn = self.drawn.get(source).ok_or("a placeholder names a row that was not there")?;
            let Some(drawn) = *drawn else {
                let failure = Some(RowFailure::NoPlaceholderToken);
                return Ok((0, RowResult { failure, ..RowResult::default() }));
            };
            *tokens.last_mut().unwrap() = drawn;
            late_token = Some(drawn);
        }
        self.memory.write_row(row, &tokens)?;
        let end = row.start + tokens.len();
        let mut result = RowResult::default();
        let mut visible = 0;
        if let Wanted::Token { sampling, seen, .. } = &row.wanted {
            visible = self.memory.visible(&row.pages, end)?;
            let mut seen = seen.clone();
            if let Some(token) = late_token.filter(|_| sampling.has_penalties()) {
                match seen.iter_mut().find(|(other, _)| *other == token) {
                    Some((_, times)) => *times += 1,
                    None => seen.push((token, 1)),
                }
            }
            match self.sampler.sample_among(&logits(visible), sampling, &seen, end, mask) {
                Ok(sampled) => result.tokens.push(sampled),
                Err(error) => result.failure = Some(error.into()),
            }
        }
        Ok((visible, result))
    }

    fn impatient_rows(&mut self, plan: &StepPlan, now: u64, patience: u64) -> Vec<usize> {
        let mut late = Vec::new();
        for (index, row) in plan.rows.iter().enumerate() {
            let page = row.pages.pages(Pool::Window)[0];
            if row.start == 0 {
                self.first_seen.insert(page, now);
            }
            if self.first_seen.get(&page).is_some_and(|first| now - first > patience) {
                late.push(index);
            }
        }
        late
    }
}

impl Backend for Device {
    fn name(&self) -> String {
        "hash of what is seen".into()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        let number = plan.number;
        if number != self.expected {
            return Err(BackendError::OutOfOrder { number, expected: self.expected });
        }
        self.expected += 1;
        if self.fault == Fault::RefusesPlan(number) {
            return Err(BackendError::BadPlan { number, what: "refused on purpose".into() });
        }
        let at = self.time.now();
        self.under_way.push_back(Submitted { plan, masks: None, at });
        if self.under_way.len() > MOST_UNDER_WAY {
            let what = format!("{} steps are under way at once", self.under_way.len());
            return Err(BackendError::RankStopped { rank: 0, what });
        }
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        let supplied: Vec<usize> = masks.rows.iter().map(|(row, _)| *row).collect();
        let waits = |step: &&mut Submitted| step.masks.is_none() && !masked_rows(&step.plan).is_empty();
        let step = self.under_way.iter_mut().find(waits);
        let rows = step.as_ref().map_or(Vec::new(), |step| masked_rows(&step.plan));
        match step {
            Some(step) if step.plan.number == masks.number && rows == supplied => {
                step.masks = Some(masks);
                Ok(())
            }
            _ => Err(BackendError::WrongMasks { number: masks.number, rows, supplied }),
        }
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        let step = self.under_way.pop_front().ok_or(BackendError::NothingSubmitted)?;
        let number = step.plan.number;
        let rows = masked_rows(&step.plan);
        if !rows.is_empty() && step.masks.is_none() {
            // A real device would wait for ever.
            return Err(BackendError::WrongMasks { number, rows, supplied: Vec::new() });
        }
        let mut result = self.run(&step).map_err(|what| BackendError::RankStopped { rank: 0, what })?;
        if self.fault == Fault::LosesRow(number) {
            result.rows.pop();
        }
        if self.fault == Fault::DrawsNothing(number) {
            result.rows.iter_mut().for_each(|row| row.tokens.clear());
        }
        if self.fault == Fault::BreaksFirstRow(number) {
            let failure = Some(SamplingError::BadLogit { token: 7, value: f32::NAN }.into());
            result.rows[0] = RowResult { failure, ..RowResult::default() };
            self.ranks.iter_mut().for_each(|rank| rank.drawn[0] = None);
        }
        Ok(result)
    }
}
