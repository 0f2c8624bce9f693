//! A device that only takes time: real time, on nobody's core. It draws made-up tokens at once and gives them out when
//! a device of its latency would have. For measuring what runs around a device.

use crate::{Backend, BackendError, RowResult, Sampled, StepMasks, StepPlan, StepResult, Wanted};
use overshot_kv::PoolCapacity;
use overshot_model::Spec;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a step takes: `floor + per_token * tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub floor: Duration,
    pub per_token: Duration,
}

pub struct FakeDevice {
    spec: Spec,
    capacity: PoolCapacity,
    latency: Latency,
    expected: u64,
    /// When the device has done all that was submitted.
    busy_until: Instant,
    under_way: VecDeque<(Instant, StepResult)>,
}

impl FakeDevice {
    pub fn new(spec: Spec, capacity: PoolCapacity, latency: Latency) -> Self {
        let busy_until = Instant::now();
        FakeDevice { spec, capacity, latency, expected: 0, busy_until, under_way: VecDeque::new() }
    }

    /// Neither BOS nor EOS as long as the vocabulary has others.
    fn token_at(&self, position: usize) -> u32 {
        let made_up = 2 + position % self.spec.vocab_size.saturating_sub(2).max(1);
        made_up.min(self.spec.vocab_size - 1) as u32
    }
}

impl Backend for FakeDevice {
    fn name(&self) -> String {
        format!("fake ({:?} a step and {:?} a token)", self.latency.floor, self.latency.per_token)
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn capacity(&self) -> PoolCapacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<(), BackendError> {
        if plan.number != self.expected {
            return Err(BackendError::OutOfOrder { number: plan.number, expected: self.expected });
        }
        self.expected += 1;
        let tokens: usize = plan.rows.iter().map(|row| row.tokens.len()).sum();
        let device_time = self.latency.floor + self.latency.per_token * tokens as u32;
        self.busy_until = self.busy_until.max(Instant::now()) + device_time;
        let rows = plan.rows.iter().map(|row| match row.wanted {
            Wanted::Token { .. } => {
                let token = self.token_at(row.start + row.tokens.len());
                let sampled = Sampled { token, logprob: 0.0, top: Vec::new() };
                RowResult { tokens: vec![sampled], ..RowResult::default() }
            }
            _ => RowResult::default(),
        });
        let result =
            StepResult { number: plan.number, rows: rows.collect(), device_time, ..StepResult::default() };
        self.under_way.push_back((self.busy_until, result));
        Ok(())
    }

    /// Masks do not change what is made up.
    fn supply(&mut self, _masks: StepMasks) -> Result<(), BackendError> {
        Ok(())
    }

    fn collect(&mut self) -> Result<StepResult, BackendError> {
        let (due, result) = self.under_way.pop_front().ok_or(BackendError::NothingSubmitted)?;
        // Sleeping overshoots by tens of microseconds: the last stretch is waited for awake.
        const AWAKE: Duration = Duration::from_micros(200);
        std::thread::sleep(due.saturating_duration_since(Instant::now()).saturating_sub(AWAKE));
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        Ok(result)
    }
}
