//! `--trace FILE`: one JSON line a step, written as steps end. Times in microseconds, the end in seconds since the
//! engine started.

use crate::failure::{bad_input, note};
use anyhow::Context;
use overshot_engine::StepRecord;
use overshot_server::StepObserver;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

pub struct TraceFile {
    file: File,
    name: String,
}

/// The end of it on the engine's thread.
struct TraceWriter {
    /// `None` once writing has failed.
    file: Option<File>,
    name: String,
    /// Not written yet, each with its end.
    lines: Vec<u8>,
    /// By the engine's clock.
    flushed: Duration,
}

const FLUSH_EVERY: Duration = Duration::from_millis(250);
const FLUSH_BYTES: usize = 64 << 10;

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
    /// What the file holds stays until [`TraceFile::clear`]: a server that cannot start spoils no trace.
    ///
    /// # Errors
    /// A file that can't be written.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| bad_input(format!("--trace {name} can't be written: {error}")))?;
        Ok(TraceFile { file, name })
    }

    /// Drops what earlier servers wrote. To be called before the first step.
    pub fn clear(&self) {
        // Pipes and terminals hold nothing that could be dropped.
        let is_file = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        if let Some(error) = is_file.then(|| self.file.set_len(0).err()).flatten() {
            note(&format!("the trace {} can't be emptied: {error}", self.name));
        }
    }

    /// Writes every step down until the first failure, which is told; serving goes on without.
    ///
    /// # Errors
    /// The system gives no second handle.
    pub fn observer(&self) -> anyhow::Result<Box<dyn StepObserver>> {
        let file =
            self.file.try_clone().with_context(|| format!("--trace {} can't be written", self.name))?;
        Ok(Box::new(TraceWriter {
            file: Some(file),
            name: self.name.clone(),
            lines: Vec::new(),
            flushed: Duration::ZERO,
        }))
    }
}

impl TraceWriter {
    fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        let written = file.write_all(&self.lines);
        self.lines.clear();
        if let Err(error) = written {
            self.file = None;
            note(&format!("the trace {} ends here, it can't be written: {error}", self.name));
        }
    }
}

impl StepObserver for TraceWriter {
    fn saw(&mut self, record: &StepRecord) {
        if self.file.is_none() {
            return;
        }
        serde_json::to_writer(&mut self.lines, &Line::from(record))
            .expect("a line is numbers, and a Vec takes them");
        self.lines.push(b'\n');
        // Whoever watches the file sees each quarter of a second of steps, and whole lines only.
        if self.lines.len() >= FLUSH_BYTES || record.ended.saturating_sub(self.flushed) > FLUSH_EVERY {
            self.flushed = record.ended;
            self.flush();
        }
    }

    fn rests(&mut self) {
        self.flush();
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.flush();
    }
}
