//! Faults on purpose, for tests of everything above a backend: a wrapper around any of them that delays steps or
//! makes single rows fail. Compiled under the feature `fault-injection` only.
//!
//! Each fault strikes once, except `slow-step`. Steps and tokens are counted from the start of the process, over all
//! requests together. What the wrapped backend computed for a failed row is thrown away, as after a real failure.

use crate::{Backend, BackendError, RowFailure, RowResult, SamplingError, StepMasks, StepPlan, StepResult};
use overshot_kv::{PageId, PageOp, Pool, PoolCapacity};
use overshot_model::Spec;
use std::collections::{HashMap, VecDeque};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Tokens that were drawn before `stall-step` strikes.
const TOKENS_BEFORE_STALL: u64 = 5;
/// Longer than any test would wait; also keeps times within what a clock can add up.
const DELAY_MOST: Duration = Duration::from_secs(3600);

const KNOWN: &str = "stall-step:30s, fail-after-token:1, nan-row:3, slow-step:20ms";

/// What goes wrong. Read from text such as `nan-row:3,slow-step:20ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The first step submitted after 5 tokens were collected takes this much longer.
    pub stall_step: Option<Duration>,
    /// The first sequence that has drawn this many tokens fails instead of drawing the next.
    pub fail_after_token: Option<u64>,
    /// This row result (counted from 1, among those that have a token) becomes one of a NaN logit.
    pub nan_row: Option<u64>,
    /// Every step takes this much longer.
    pub slow_step: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    #[error("`{fault}` is no fault that can be injected: write a list such as {KNOWN}")]
    Unknown { fault: String },
    #[error("`{fault}` needs a number of at least 1 after the colon: write a list such as {KNOWN}")]
    BadCount { fault: String },
    #[error(
        "`{fault}` needs a time of at most an hour in ms or s after the colon: write a list such as {KNOWN}"
    )]
    BadDelay { fault: String },
}

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut faults = Faults::default();
        for fault in text.split(',').map(str::trim) {
            let count = |value: &str| {
                let count = value.parse().ok().filter(|count| *count > 0);
                count.map(Some).ok_or(FaultError::BadCount { fault: fault.into() })
            };
            let delay = |value: &str| {
                parse_delay(value).map(Some).ok_or(FaultError::BadDelay { fault: fault.into() })
            };
            match fault.split_once(':') {
                Some(("stall-step", value)) => faults.stall_step = delay(value)?,
                Some(("slow-step", value)) => faults.slow_step = delay(value)?,
                Some(("fail-after-token", value)) => faults.fail_after_token = count(value)?,
                Some(("nan-row", value)) => faults.nan_row = count(value)?,
                _ => return Err(FaultError::Unknown { fault: fault.into() }),
            }
        }
        Ok(faults)
    }
}

fn parse_delay(text: &str) -> Option<Duration> {
    let delay = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => Duration::from_millis(number.parse().ok()?),
        (None, Some(number)) => Duration::from_secs(number.parse().ok()?),
        (None, None) => return None,
    };
    (delay <= DELAY_MOST).then_some(delay)
}

/// A backend with faults.
pub struct FaultyBackend {
    inner: Box<dyn Backend>,
    faults: Faults,
    /// Submitted, not collected.
    steps: VecDeque<Step>,
    /// When the step collected last ended.
    busy_until: Option<Instant>,
    drawn_total: u64,
    results_with_tokens: u64,
    /// Tokens drawn by the sequence in each window.
    drawn_by_window: HashMap<PageId, u64>,
    /// Rows of the step collected last that failed here.
    failed: Vec<usize>,
}

struct Step {
    extra: Duration,
    arrived: Instant,
    /// A backend that computes while it is given a plan has done so by then.
    submitted: Instant,
    /// Window copies, and rows, in the plan's order.
    copies: Vec<(PageId, PageId)>,
    rows: Vec<StepRow>,
}

struct StepRow {
    window: Option<PageId>,
    starts_sequence: bool,
    placeholder: Option<usize>,
}

impl FaultyBackend {
    pub fn new(inner: Box<dyn Backend>, faults: Faults) -> Self {
        FaultyBackend {
            inner,
            faults,
            steps: VecDeque::new(),
            busy_until: None,
            drawn_total: 0,
            results_with_tokens: 0,
            drawn_by_window: HashMap::new(),
            failed: Vec::new(),
        }
    }

    /// How much longer the next step takes.
    fn extra_delay(&mut self) -> Duration {
        let stall = match self.drawn_total >= TOKENS_BEFORE_STALL {
            true => self.faults.stall_step.take(),
            false => None,
        };
        self.faults.slow_step.unwrap_or_default() + stall.unwrap_or_default()
    }

    /// What a row's result becomes.
    fn strike(&mut self, row: &StepRow, result: RowResult) -> RowResult {
        let drawn = row.window.map_or(0, |window| {
            let drawn = self.drawn_by_window.entry(window).or_default();
            if row.starts_sequence {
                *drawn = 0;
            }
            *drawn
        });
        if row.placeholder.is_some_and(|before| self.failed.contains(&before)) {
            return failed(RowFailure::NoPlaceholderToken);
        }
        if result.tokens.is_empty() {
            return result;
        }
        self.results_with_tokens += 1;
        if self.faults.nan_row == Some(self.results_with_tokens) {
            return failed(SamplingError::BadLogit { token: 0, value: f32::NAN }.into());
        }
        if self.faults.fail_after_token.is_some_and(|tokens| drawn >= tokens) {
            self.faults.fail_after_token = None;
            return failed(SamplingError::NoFiniteLogit { vocab_size: self.inner.spec().vocab_size }.into());
        }
        self.drawn_total += result.tokens.len() as u64;
        if let Some(drawn) = row.window.and_then(|window| self.drawn_by_window.get_mut(&window)) {
            *drawn += result.tokens.len() as u64;
        }
        result
    }
}

fn failed(failure: RowFailure) -> RowResult {
    RowResult { failure: Some(failure), ..RowResult::default() }
}

impl Backend for FaultyBackend {
    fn name(&self) -> String {
        format!("{}, with faults injected", self.inner.name())
    }

    fn spec(&self) -> &Spec {
        self.inner.spec()
    }

    fn capacity(&self) -> PoolCapacity {
        self.inner.capacity()
    }

    fn most_tokens_per_row(&self) -> usize {
        self.inner.most_tokens_per_row()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        let windows = plan.page_ops.iter().filter_map(|op| match *op {
            PageOp::Copy { pool: Pool::Window, from, to } => Some((from, to)),
            PageOp::Copy { .. } => None,
        });
        let copies = windows.collect();
        let rows = plan.rows.iter().map(|row| StepRow {
            window: row.pages.pages(Pool::Window).first().copied(),
            starts_sequence: row.start == 0,
            placeholder: row.placeholder,
        });
        let rows = rows.collect();
        let arrived = Instant::now();
        self.inner.submit(plan)?;
        let (extra, submitted) = (self.extra_delay(), Instant::now());
        self.steps.push_back(Step { extra, arrived, submitted, copies, rows });
        Ok(())
    }

    fn supply(&mut self, masks: StepMasks) -> Result<(), BackendError> {
        self.inner.supply(masks)
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        let Some(step) = self.steps.pop_front() else { return self.inner.collect() };
        let mut result = self.inner.collect()?;
        for (from, to) in &step.copies {
            let drawn = self.drawn_by_window.get(from).copied().unwrap_or_default();
            self.drawn_by_window.insert(*to, drawn);
        }
        let rows = std::mem::take(&mut result.rows);
        result.rows = step.rows.iter().zip(rows).map(|(row, result)| self.strike(row, result)).collect();
        let failed = result.rows.iter().enumerate().filter(|(_, row)| row.failure.is_some());
        self.failed = failed.map(|(index, _)| index).collect();

        let begins = self.busy_until.map_or(step.arrived, |until| until.max(step.arrived));
        let ends = (begins + result.device_time).max(step.submitted) + step.extra;
        self.busy_until = Some(ends);
        result.device_time += step.extra;
        std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_from_a_list() {
        let faults: Faults = "stall-step:30s, nan-row:3,slow-step:20ms,fail-after-token:1".parse().unwrap();
        let expected = Faults {
            stall_step: Some(Duration::from_secs(30)),
            fail_after_token: Some(1),
            nan_row: Some(3),
            slow_step: Some(Duration::from_millis(20)),
        };
        assert_eq!(faults, expected);
    }

    #[test]
    fn what_is_no_fault_is_refused_by_name() {
        let refused = |text: &str| text.parse::<Faults>().unwrap_err().to_string();
        for text in ["", "burn", "nan-row", "nan-row:1,", "Nan-row:1"] {
            assert!(refused(text).contains("is no fault that can be injected"), "{text}");
        }
        for text in ["nan-row:0", "fail-after-token:x", "nan-row:-1"] {
            assert!(refused(text).contains("needs a number of at least 1"), "{text}");
        }
        for text in ["slow-step:20", "stall-step:2h", "stall-step:3601s", "slow-step:ms"] {
            assert!(refused(text).contains("needs a time of at most an hour"), "{text}");
        }
    }
}
