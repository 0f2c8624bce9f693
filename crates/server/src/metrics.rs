//! What `/metrics` tells, as atomics: whoever counts never waits for whoever reads. Times are measured on the
//! engine's thread, from the arrival of a request there to the moment its token is handed on; what the network adds
//! is not in them.

use overshot_kv::{Kv, Pool};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::sync::lock;

/// How a request's choice ended. A refusal is no end: it is counted by its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model ended the answer, or a stop string did.
    Stop,
    Length,
    /// The client went away.
    Disconnected,
    SlowReader,
    /// The server's own limit for a request.
    TookTooLong,
    /// Cut by a shutdown.
    Shutdown,
    Failed,
}

impl Outcome {
    const ALL: [(Outcome, &'static str); 7] = [
        (Outcome::Stop, "stop"),
        (Outcome::Length, "length"),
        (Outcome::Disconnected, "disconnected"),
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
    pub step: Histogram,
    pub first_token: Histogram,
    pub inter_token: Histogram,
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
            step: Histogram::new(&STEP_SECONDS),
            first_token: Histogram::new(&FIRST_TOKEN_SECONDS),
            inter_token: Histogram::new(&STEP_SECONDS),
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

/// Upper bounds of buckets, in seconds: a fast model's step to a large one's long prefill chunk.
const STEP_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
const FIRST_TOKEN_SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// Counts durations by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is for what exceeds them all.
    counts: Vec<AtomicU64>,
    sum_nanoseconds: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum_nanoseconds: AtomicU64::new(0) }
    }

    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_nanoseconds.fetch_add(duration.as_nanos() as u64, Relaxed);
    }

    fn render(&self, name: &str, out: &mut Exposition) {
        let mut total = 0;
        for (index, count) in self.counts.iter().enumerate() {
            total += count.load(Relaxed);
            let bound = self.bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
            out.sample(&format!("{name}_bucket"), &[("le", &bound)], total);
        }
        let seconds = self.sum_nanoseconds.load(Relaxed) as f64 / 1e9;
        let _ = writeln!(out.text, "{name}_sum {seconds}");
        out.sample(&format!("{name}_count"), &[], total);
    }
}

#[derive(Default)]
struct Exposition {
    text: String,
}

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Label values are the server's own words: none needs escaping.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.text.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{value}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_include_their_bound() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for milliseconds in [100, 500, 700, 5000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let mut out = Exposition::default();
        histogram.render("x", &mut out);
        assert_eq!(
            out.text,
            "x_bucket{le=\"0.5\"} 2\nx_bucket{le=\"1\"} 3\nx_bucket{le=\"+Inf\"} 4\nx_sum 6.3\nx_count 4\n"
        );
    }

    #[test]
    fn outcomes_stand_at_their_own_index() {
        for (index, (outcome, _)) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
