//! What `/metrics` tells, as atomics: whoever counts never waits for whoever reads. Times are measured on the
//! engine's thread, from the arrival of a request there to the moment its token is handed on; what the network adds
//! is not in them.

use crate::exposition::{Exposition, Histogram, LENGTH_TOKENS, REQUEST_SECONDS, STEP_SECONDS};
use crate::sync::lock;
use overshot_kv::{Kv, Pool};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a request's choice ended. A refusal is no end: it is counted by its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model ended the answer, or a stop string did.
    Stop,
    Length,
    /// The client went away.
    Disconnected,
    /// A response in the background that its client no longer wants.
    Cancelled,
    SlowReader,
    /// The server's own limit for a request.
    TookTooLong,
    /// Cut by a shutdown.
    Shutdown,
    Failed,
}

impl Outcome {
    const ALL: [(Outcome, &'static str); 8] = [
        (Outcome::Stop, "stop"),
        (Outcome::Length, "length"),
        (Outcome::Disconnected, "disconnected"),
        (Outcome::Cancelled, "cancelled"),
        (Outcome::SlowReader, "slow_reader"),
        (Outcome::TookTooLong, "timeout"),
        (Outcome::Shutdown, "shutdown"),
        (Outcome::Failed, "failed"),
    ];
}

#[derive(Debug)]
pub struct Metrics {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    pub prompt_tokens: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub preemptions: AtomicU64,
    pub waiting: AtomicU64,
    pub running: AtomicU64,
    pub connections: AtomicU64,
    kv_used: [AtomicU64; Pool::ALL.len()],
    kv_capacity: [u64; Pool::ALL.len()],
    /// What a walk over all cache pages found wrong when the engine last had nothing to do.
    pub kv_faults: AtomicU64,
    pub step: Histogram,
    pub first_token: Histogram,
    pub inter_token: Histogram,
    /// From a request's arrival to the step that first computes some of it.
    pub queue: Histogram,
    /// From its arrival to its end, of those that ended as they should.
    pub whole: Histogram,
    /// Tokens of prompts and of answers of the same.
    pub prompt_length: Histogram,
    pub answer_length: Histogram,
    /// Responses by route and status. Both are few: routes are templates, not paths.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    pub fn new(kv: &Kv) -> Self {
        Metrics {
            outcomes: Default::default(),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            running: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            kv_used: Default::default(),
            kv_capacity: Pool::ALL.map(|pool| kv.free_pages(pool) as u64),
            kv_faults: AtomicU64::new(0),
            step: Histogram::new(&STEP_SECONDS),
            first_token: Histogram::new(&REQUEST_SECONDS),
            inter_token: Histogram::new(&STEP_SECONDS),
            queue: Histogram::new(&REQUEST_SECONDS),
            whole: Histogram::new(&REQUEST_SECONDS),
            prompt_length: Histogram::new(&LENGTH_TOKENS),
            answer_length: Histogram::new(&LENGTH_TOKENS),
            responses: Mutex::default(),
        }
    }

    pub fn count_outcome(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub fn count_response(&self, route: &'static str, status: u16) {
        *lock(&self.responses).entry((route, status)).or_default() += 1;
    }

    pub fn set_kv(&self, kv: &Kv) {
        for (index, pool) in Pool::ALL.into_iter().enumerate() {
            let used = self.kv_capacity[index].saturating_sub(kv.free_pages(pool) as u64);
            self.kv_used[index].store(used, Relaxed);
        }
    }

    /// All of it in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        out.family(
            "overshot_answers_total",
            "counter",
            "Answers that ended, by how; n of them for n choices",
        );
        for (outcome, name) in Outcome::ALL {
            out.sample(
                "overshot_answers_total",
                &[("outcome", name)],
                self.outcomes[outcome as usize].load(Relaxed),
            );
        }
        out.family("overshot_http_responses_total", "counter", "HTTP responses, by route and status");
        for ((route, status), count) in lock(&self.responses).iter() {
            let status = status.to_string();
            out.sample("overshot_http_responses_total", &[("route", route), ("status", &status)], *count);
        }
        for (name, kind, help, value) in [
            (
                "overshot_prompt_tokens_total",
                "counter",
                "Prompt tokens computed, again after a preemption",
                &self.prompt_tokens,
            ),
            ("overshot_generated_tokens_total", "counter", "Tokens drawn", &self.generated_tokens),
            (
                "overshot_preemptions_total",
                "counter",
                "Times that a running request gave way to older ones",
                &self.preemptions,
            ),
            ("overshot_requests_waiting", "gauge", "Requests that hold no cache pages yet", &self.waiting),
            ("overshot_requests_running", "gauge", "Requests that hold cache pages", &self.running),
            ("overshot_connections", "gauge", "Open connections", &self.connections),
            (
                "overshot_kv_faults",
                "gauge",
                "What a walk over all cache pages found wrong at the last rest; anything but 0 is a bug",
                &self.kv_faults,
            ),
        ] {
            out.family(name, kind, help);
            out.sample(name, &[], value.load(Relaxed));
        }
        self.render_kv(&mut out);
        for (name, help, histogram) in [
            ("overshot_step_seconds", "Duration of an engine step", &self.step),
            (
                "overshot_time_to_first_token_seconds",
                "From a request's arrival at the engine to its first token",
                &self.first_token,
            ),
            ("overshot_inter_token_seconds", "Between two tokens of one answer", &self.inter_token),
            (
                "overshot_request_queue_seconds",
                "From a request's arrival at the engine to the step that first computes some of it",
                &self.queue,
            ),
            (
                "overshot_request_seconds",
                "From a request's arrival at the engine to its end, by stop or length",
                &self.whole,
            ),
            (
                "overshot_request_prompt_tokens",
                "Prompt tokens of requests that ended by stop or length",
                &self.prompt_length,
            ),
            (
                "overshot_request_generated_tokens",
                "Tokens drawn for requests that ended by stop or length",
                &self.answer_length,
            ),
        ] {
            out.family(name, "histogram", help);
            histogram.render(name, &mut out);
        }
        out.text
    }

    fn render_kv(&self, out: &mut Exposition) {
        let names = Pool::ALL.map(|pool| match pool {
            Pool::Window => "window",
            Pool::Csa => "csa",
            Pool::Hca => "hca",
            Pool::IndexKeys => "index_keys",
            Pool::CompressorRows => "compressor_rows",
        });
        out.family("overshot_kv_pages_used", "gauge", "Cache pages in use, by pool");
        for (name, used) in names.iter().zip(&self.kv_used) {
            out.sample("overshot_kv_pages_used", &[("pool", name)], used.load(Relaxed));
        }
        out.family("overshot_kv_pages", "gauge", "Cache pages there are, by pool");
        for (name, capacity) in names.iter().zip(self.kv_capacity) {
            out.sample("overshot_kv_pages", &[("pool", name)], capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_stand_at_their_own_index() {
        for (index, (outcome, _)) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
