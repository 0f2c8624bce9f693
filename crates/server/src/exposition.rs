//! The text format of Prometheus, and histograms that are counted without a lock.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of buckets, in seconds: a fast model's step to a large one's long prefill chunk.
pub const STEP_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// From a short answer of a small model to an agent's prompt in a full queue.
pub const REQUEST_SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0, 1200.0, 3600.0];
/// Up to the million tokens of the model's context.
pub const LENGTH_TOKENS: [f64; 12] =
    [1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 262144.0, 1048576.0];

/// Counts durations or numbers by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is for what exceeds them all.
    counts: Vec<AtomicU64>,
    /// In billionths of a second, or of one.
    sum: AtomicU64,
}

const PARTS: u64 = 1_000_000_000;

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, duration: Duration) {
        self.count(duration.as_secs_f64(), duration.as_nanos() as u64);
    }

    pub fn observe_number(&self, number: usize) {
        self.count(number as f64, (number as u64).wrapping_mul(PARTS));
    }

    fn count(&self, value: f64, parts: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(parts, Relaxed);
    }

    pub fn render(&self, name: &str, out: &mut Exposition) {
        let mut total = 0;
        for (index, count) in self.counts.iter().enumerate() {
            total += count.load(Relaxed);
            let bound = self.bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
            out.sample(&format!("{name}_bucket"), &[("le", &bound)], total);
        }
        let sum = self.sum.load(Relaxed) as f64 / PARTS as f64;
        let _ = writeln!(out.text, "{name}_sum {sum}");
        out.sample(&format!("{name}_count"), &[], total);
    }
}

#[derive(Default)]
pub struct Exposition {
    pub text: String,
}

impl Exposition {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Label values are the server's own words: none needs escaping.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
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
    fn numbers_are_counted_as_they_are() {
        let histogram = Histogram::new(&LENGTH_TOKENS);
        [1, 2, 2_000_000].into_iter().for_each(|tokens| histogram.observe_number(tokens));
        let mut out = Exposition::default();
        histogram.render("x", &mut out);
        assert!(out.text.contains("x_bucket{le=\"1\"} 1\n") && out.text.contains("x_bucket{le=\"16\"} 2\n"));
        assert!(out.text.ends_with("x_sum 2000003\nx_count 3\n"), "{}", out.text);
    }
}
