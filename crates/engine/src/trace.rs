//! One record a step, in a ring: what was computed, and where the time went. Whoever measures reads this and
//! nothing else of the engine.

use crate::Finish;
use overshot_backend::Family;
use std::collections::VecDeque;
use std::time::Duration;

/// One step, told when its result was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// The number of its plan.
    pub number: u64,
    /// Rows that compute part of a prompt, or tokens again after a preemption.
    pub prefill_rows: usize,
    pub prefill_tokens: usize,
    /// Rows that compute what the step before drew: one token, or several where a row may draw several.
    pub decode_rows: usize,
    /// Rows that the backend computed, padding included.
    pub padded_rows: usize,
    /// Tokens delivered; surplus ones of requests that had ended are not.
    pub delivered_tokens: usize,
    /// Requests that gave way when it was planned.
    pub preempted: usize,
    /// Requests left waiting when it was planned.
    pub waiting: usize,
    /// When its result was taken in, since the engine started.
    pub ended: Duration,
    /// Work of the engine itself: deciding, planning, taking in.
    pub host_time: Duration,
    /// Work of the backend, as the backend measured it.
    pub device_time: Duration,
    /// The same by family of kernels, where the engine was told to ask and the backend can tell.
    pub families: Vec<(Family, Duration)>,
    /// From the end of the step before, or from this one's submission if the engine was idle, to its own end.
    pub period: Duration,
}

impl StepRecord {
    /// The part of the period in which the device did not work for it.
    pub fn gap(&self) -> Duration {
        self.period.saturating_sub(self.device_time)
    }
}

/// The last steps.
#[derive(Debug)]
pub struct StepTrace {
    records: VecDeque<StepRecord>,
    most: usize,
}

impl StepTrace {
    pub(crate) fn new(most: usize) -> Self {
        StepTrace { records: VecDeque::new(), most }
    }

    pub(crate) fn push(&mut self, record: StepRecord) {
        if self.records.len() == self.most {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &StepRecord> + ExactSizeIterator {
        self.records.iter()
    }

    /// Those with a number of at least `number`, oldest first.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &StepRecord> {
        let old = self.records.partition_point(|record| record.number < number);
        self.records.range(old..)
    }

    pub fn last(&self) -> Option<&StepRecord> {
        self.records.back()
    }
}

/// What the engine did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub steps: u64,
    pub prefill_tokens: u64,
    pub delivered_tokens: u64,
    pub preemptions: u64,
    pub stopped: u64,
    pub reached_length: u64,
    pub cancelled: u64,
    pub failed: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, reason: &Finish) {
        match reason {
            Finish::Stop(_) => self.stopped += 1,
            Finish::Length => self.reached_length += 1,
            Finish::Cancelled => self.cancelled += 1,
            Finish::Failed(_) => self.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> StepRecord {
        StepRecord {
            number,
            prefill_rows: 0,
            prefill_tokens: 0,
            decode_rows: 1,
            padded_rows: 1,
            delivered_tokens: 1,
            preempted: 0,
            waiting: 0,
            ended: Duration::ZERO,
            host_time: Duration::ZERO,
            device_time: Duration::from_millis(3),
            families: Vec::new(),
            period: Duration::from_millis(5),
        }
    }

    #[test]
    fn the_ring_keeps_the_last_steps() {
        let mut trace = StepTrace::new(3);
        (0..5).for_each(|number| trace.push(record(number)));
        let numbers: Vec<u64> = trace.records().map(|record| record.number).collect();
        assert_eq!(numbers, [2, 3, 4]);
        let numbers: Vec<u64> = trace.since(3).map(|record| record.number).collect();
        assert_eq!(numbers, [3, 4]);
        assert_eq!(trace.last().unwrap().gap(), Duration::from_millis(2));
    }
}
