//! The course of a measurement: which point runs when, what was measured already, and every run written down before the
//! next begins.
//!
//! First noise: one point again and again, as two labels that differ in nothing. Then the points, all of them once per
//! round, each round in an order of its own, so that a machine that slows down slows every point alike.

mod blocks;
mod plan;
mod results;

pub use blocks::whole_blocks;
pub use plan::{NoisePlan, Plan, RunKey};
pub use results::{Results, RunRecord};

use crate::{LabError, Target};

/// What a sweep is doing, for a line on the terminal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress<'a> {
    WarmingUp,
    /// Run `done` (from 0) of `all` begins; those found in the results file count as done.
    Begins {
        done: usize,
        all: usize,
        key: &'a RunKey,
    },
    Ended {
        done: usize,
        all: usize,
        record: &'a RunRecord,
    },
}

/// Runs what the plan asks for and the results do not have yet. Afterwards the results have all of it.
///
/// # Errors
/// The target fails, or the results cannot be written. Everything measured until then is written down.
pub fn sweep(
    plan: &Plan,
    target: &mut dyn Target,
    results: &mut Results,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<(), LabError> {
    let runs = plan.runs()?;
    let missing: Vec<&RunKey> = plan.missing(&runs, results.records());
    let all = runs.len();
    let found = all - missing.len();
    if let Some(first) = missing.first() {
        // A process that has just started is slow in ways that no later run is.
        progress(Progress::WarmingUp);
        target.measure(first.point())?;
    }
    for (done, key) in (found..).zip(missing) {
        progress(Progress::Begins { done, all, key });
        let measurement = target.measure(key.point())?;
        let record = results.append(RunRecord { key: *key, measurement })?;
        progress(Progress::Ended { done: done + 1, all, record });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Measurement, Metric, Point, Settings};

    /// A server of known cost, with a clock that moves only when it works.
    struct MockTarget {
        clock_ms: f64,
        measured: Vec<Point>,
        /// Fails in the run of this number.
        fails_at: Option<usize>,
    }

    impl Target for MockTarget {
        fn name(&self) -> String {
            "mock".into()
        }

        fn settings(&self) -> Settings {
            Settings::from([("model".into(), "mock".into())])
        }

        fn measure(&mut self, point: Point) -> Result<Measurement, LabError> {
            self.measured.push(point);
            if Some(self.measured.len()) == self.fails_at {
                return Err(LabError::Target { point: point.to_string(), what: "gone".into() });
            }
            let started = self.clock_ms;
            self.clock_ms += 5.0 + 0.5 * point.x() as f64;
            let mut measurement = Measurement::default();
            measurement.set(Metric::StepMs, self.clock_ms - started);
            Ok(measurement)
        }
    }

    fn mock(fails_at: Option<usize>) -> MockTarget {
        MockTarget { clock_ms: 0.0, measured: Vec::new(), fails_at }
    }

    fn plan() -> Plan {
        let points: Vec<Point> = [1, 2, 4, 8].map(|streams| Point::Decode { streams }).to_vec();
        let noise = vec![NoisePlan { point: points[3], blocks: 2 }];
        Plan { points, repeats: 3, noise, seed: 7 }
    }

    #[test]
    fn noise_comes_first_and_every_round_has_every_point() {
        let (mut target, mut results) = (mock(None), Results::in_memory());
        sweep(&plan(), &mut target, &mut results, |_| {}).unwrap();
        let points: Vec<usize> = target.measured.iter().map(|point| point.x()).collect();
        assert_eq!(points.len(), 1 + 2 * 4 + 3 * 4);
        assert!(points[..9].iter().all(|&streams| streams == 8), "warm-up and noise: {points:?}");
        let rounds: Vec<&[usize]> = points[9..].chunks(4).collect();
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [1, 2, 4, 8]);
        }
        assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]), "orders differ: {rounds:?}");
        assert_eq!(results.records().len(), 20, "the warm-up is not among the results");
    }

    #[test]
    fn a_broken_sweep_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let settings = mock(None).settings();
        let mut broken = mock(Some(13));
        let mut results = Results::open(&path, &settings).unwrap();
        let error = sweep(&plan(), &mut broken, &mut results, |_| {}).unwrap_err().to_string();
        assert!(error.ends_with("gone"), "{error}");
        let written = results.records().len();
        assert_eq!(written, 11);
        drop(results);

        let mut again = mock(None);
        let mut results = Results::open(&path, &settings).unwrap();
        assert_eq!(results.records().len(), written);
        let mut begun = 0;
        sweep(&plan(), &mut again, &mut results, |progress| {
            begun += usize::from(matches!(progress, Progress::Begins { .. }));
        })
        .unwrap();
        assert_eq!(begun, 20 - written);
        assert_eq!(again.measured.len(), 1 + 20 - written, "one more warm-up");

        drop(results);

        // All there: nothing runs, not even a warm-up.
        let mut idle = mock(None);
        sweep(&plan(), &mut idle, &mut Results::open(&path, &settings).unwrap(), |_| {}).unwrap();
        assert!(idle.measured.is_empty());
        // More repeats and more points are only what is missing.
        let mut more = plan();
        more.points.push(Point::Decode { streams: 16 });
        more.repeats = 4;
        sweep(&more, &mut idle, &mut Results::open(&path, &settings).unwrap(), |_| {}).unwrap();
        assert_eq!(idle.measured.len(), 1 + 3 + 5);
    }

    #[test]
    fn a_block_that_was_cut_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let settings = mock(None).settings();
        let mut results = Results::open(&path, &settings).unwrap();
        // Warm-up, one block, and two runs of the second.
        sweep(&plan(), &mut mock(Some(8)), &mut results, |_| {}).unwrap_err();
        assert_eq!(results.records().len(), 6);
        drop(results);
        let mut again = mock(None);
        let mut results = Results::open(&path, &settings).unwrap();
        sweep(&plan(), &mut again, &mut results, |_| {}).unwrap();
        assert_eq!(again.measured.len(), 1 + 4 + 12);
        assert_eq!(results.records().len(), 20, "a run that is repeated replaces the earlier one");
    }
}
