//! A submitted step that was not collected yet: whose rows it has, and what it will be remembered by.

use crate::RequestId;
use crate::trace::StepRecord;
use overshot_backend::{Choice, Row, Wanted};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Flight {
    pub number: u64,
    /// In the order of the plan's rows.
    pub rows: Vec<FlightRow>,
    pub preempted: usize,
    pub waiting: usize,
    /// By the engine's clock.
    pub submitted: Duration,
    pub host_time: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRow {
    pub id: RequestId,
    pub tokens: usize,
    /// Positions of the request that are computed once it has run.
    pub end: usize,
    pub is_decode: bool,
    pub is_drawing: bool,
    pub is_masked: bool,
}

impl FlightRow {
    pub fn of(id: RequestId, row: &Row, is_decode: bool) -> Self {
        FlightRow {
            id,
            tokens: row.tokens.len(),
            end: row.start + row.tokens.len(),
            is_decode,
            is_drawing: matches!(row.wanted, Wanted::Token { .. }),
            is_masked: matches!(row.wanted, Wanted::Token { choice: Choice::Masked, .. }),
        }
    }
}

impl Flight {
    /// What is known before it ends.
    pub fn record(&self) -> StepRecord {
        let decode_rows = self.rows.iter().filter(|row| row.is_decode).count();
        StepRecord {
            number: self.number,
            prefill_rows: self.rows.len() - decode_rows,
            prefill_tokens: self.rows.iter().filter(|row| !row.is_decode).map(|row| row.tokens).sum(),
            decode_rows,
            padded_rows: self.rows.len(),
            delivered_tokens: 0,
            preempted: self.preempted,
            waiting: self.waiting,
            ended: Duration::ZERO,
            host_time: self.host_time,
            device_time: Duration::ZERO,
            families: Vec::new(),
            period: Duration::ZERO,
        }
    }
}
