//! `--trace FILE`: one JSON line a step, written as steps end. Times in microseconds, the end in seconds since the
//! engine started.

use crate::failure::{bad_input, note};
use overshot_engine::StepRecord;
use overshot_server::StepObserver;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

pub struct TraceFile {
    lines: BufWriter<File>,
    name: String,
    /// By the engine's clock.
    flushed: Duration,
}

const FLUSH_EVERY: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Line {
    step: u64,
    ended_s: f64,
    prefill_rows: usize,
    prefill_tokens: usize,
    decode_rows: usize,
    padded_rows: usize,
    delivered_tokens: usize,
    preempted: usize,
    waiting: usize,
    period_us: f64,
    device_us: f64,
    host_us: f64,
    gap_us: f64,
}

impl From<&StepRecord> for Line {
    fn from(record: &StepRecord) -> Self {
        let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        Line {
            step: record.number,
            ended_s: record.ended.as_secs_f64(),
            prefill_rows: record.prefill_rows,
            prefill_tokens: record.prefill_tokens,
            decode_rows: record.decode_rows,
            padded_rows: record.padded_rows,
            delivered_tokens: record.delivered_tokens,
            preempted: record.preempted,
            waiting: record.waiting,
            period_us: us(record.period),
            device_us: us(record.device_time),
            host_us: us(record.host_time),
            gap_us: us(record.gap()),
        }
    }
}

impl TraceFile {
    /// # Errors
    /// A file that can't be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let file = File::create(path)
            .map_err(|error| bad_input(format!("--trace {name} can't be written: {error}")))?;
        Ok(TraceFile { lines: BufWriter::new(file), name, flushed: Duration::ZERO })
    }

    /// Writes every step down until the first failure, which is told; serving goes on without.
    pub fn into_observer(mut self) -> StepObserver {
        let mut has_failed = false;
        Box::new(move |record| {
            if has_failed {
                return;
            }
            if let Err(error) = self.write(record) {
                has_failed = true;
                note(&format!("the trace {} ends here, it can't be written: {error}", self.name));
            }
        })
    }

    fn write(&mut self, record: &StepRecord) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.lines, &Line::from(record))?;
        self.lines.write_all(b"\n")?;
        // Whoever watches the file sees each quarter of a second of steps, not each buffer.
        if record.ended.saturating_sub(self.flushed) > FLUSH_EVERY {
            self.flushed = record.ended;
            self.lines.flush()?;
        }
        Ok(())
    }
}
