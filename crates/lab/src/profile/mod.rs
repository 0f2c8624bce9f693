//! Where the time of a decode step goes, at several batches: the whole step and its families of kernels, run by run. A
//! profile is data: `forms` and `fit` say how its times grow with the batch; whoever projects draws from those fits.
//!
//! Every family has a time for every run of the step, 0 where none of its kernels ran, so that a run can be drawn whole:
//! what a step took and what attention took in it belong together. The host gap is a family like the others. Families
//! need not add up to the step: kernels may run side by side.

pub mod analysis;
pub mod families;
mod file;
pub mod fit;
pub mod forms;
pub mod plots;
pub mod runs;
pub mod text;
pub mod trace;

pub use fit::{FormFit, ProfileFit, SeriesFit};
pub use forms::{Curve, Experts, Form, FormKind, Forms, Stairs};

use crate::stats::Sample;
use crate::{LabError, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The family of the time in which no kernel ran.
pub const HOST_GAP: &str = "host gap";

pub const BATCHES_MAX: usize = 4096;
/// Of one batch.
pub const RUNS_MAX: usize = 4096;
pub const FAMILIES_MAX: usize = 256;
const TEXT_CHARS_MAX: usize = 1000;
/// Eleven days. Errors are weighed by squares of times, which numbers must hold.
const MS_MAX: f64 = 1e9;
/// A nanosecond.
const STEP_MS_MIN: f64 = 1e-6;

/// By batch, the runs' milliseconds a step.
pub type RunsByBatch = BTreeMap<u32, Vec<f64>>;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    subject: String,
    settings: Settings,
    clock: StepClock,
    step_ms: RunsByBatch,
    families: Vec<Family>,
}

/// What the time of a whole step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepClock {
    /// From its beginning to that of the next.
    Wall,
    /// The sum of its kernels: the source knows no more, so there is no host gap.
    Kernels,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    pub name: String,
    pub step_ms: RunsByBatch,
    /// The least that the hardware would need, by batch, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roofline_ms: BTreeMap<u32, f64>,
}

impl Family {
    /// The median over the runs.
    pub fn median_ms(&self, batch: u32) -> Option<f64> {
        median(&self.step_ms, batch)
    }
}

impl Profile {
    /// # Errors
    /// Names what cannot be: no batches, batch 0, times that are negative or no numbers, families whose batches or numbers
    /// of runs differ from the step's, two families of one name.
    pub fn new(
        subject: impl Into<String>,
        settings: Settings,
        clock: StepClock,
        step_ms: RunsByBatch,
        families: Vec<Family>,
    ) -> Result<Self, LabError> {
        let profile = Profile { subject: subject.into(), settings, clock, step_ms, families };
        match profile.fault() {
            None => Ok(profile),
            Some(what) => Err(LabError::BadProfile { subject: profile.subject, what }),
        }
    }

    /// What was profiled, for people.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// What must be equal for two profiles to be compared.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn clock(&self) -> StepClock {
        self.clock
    }

    pub fn step_ms(&self) -> &RunsByBatch {
        &self.step_ms
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// Ascending, at least one.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        self.step_ms.keys().copied()
    }

    /// The median of the whole step over the runs.
    pub fn median_step_ms(&self, batch: u32) -> Option<f64> {
        median(&self.step_ms, batch)
    }

    /// The first thing that is wrong, as the rest of a sentence.
    fn fault(&self) -> Option<String> {
        if self.step_ms.is_empty() {
            return Some("`step_ms` holds no batches: profile at least one".into());
        }
        if self.step_ms.len() > BATCHES_MAX || self.families.len() > FAMILIES_MAX {
            return Some(format!("at most {BATCHES_MAX} batches and {FAMILIES_MAX} families can be held"));
        }
        let texts = self.families.iter().map(|family| &family.name).chain([&self.subject]);
        if texts.clone().any(|text| text.is_empty() || text.chars().count() > TEXT_CHARS_MAX) {
            return Some(format!("subject and families need a name of at most {TEXT_CHARS_MAX} characters"));
        }
        series_fault("step_ms", &self.step_ms).or_else(|| no_step(&self.step_ms)).or_else(|| {
            let mut before: Vec<&str> = Vec::new();
            self.families.iter().find_map(|family| {
                let twice = before.contains(&family.name.as_str());
                before.push(&family.name);
                if twice {
                    return Some(format!("the family `{}` is there twice", family.name));
                }
                self.family_fault(family)
            })
        })
    }

    fn family_fault(&self, family: &Family) -> Option<String> {
        let name = format!("the family `{}`", family.name);
        if let Some(fault) = series_fault(&name, &family.step_ms) {
            return Some(fault);
        }
        let runs = |series: &RunsByBatch| -> Vec<(u32, usize)> {
            series.iter().map(|(batch, runs)| (*batch, runs.len())).collect()
        };
        if runs(&family.step_ms) != runs(&self.step_ms) {
            return Some(format!("{name} needs a time for every run of `step_ms`, at the same batches"));
        }
        let bad = family.roofline_ms.iter().find(|(_, ms)| !is_time(**ms));
        bad.map(|(batch, ms)| {
            format!("{name}: roofline_ms at batch {batch} is {ms}: use a time of at least 0")
        })
    }
}

fn series_fault(name: &str, series: &RunsByBatch) -> Option<String> {
    series.iter().find_map(|(batch, runs)| {
        if *batch == 0 {
            return Some(format!("{name} has batch 0: batches begin at 1"));
        }
        if runs.is_empty() || runs.len() > RUNS_MAX {
            return Some(format!("{name} has {} runs at batch {batch}: give 1 to {RUNS_MAX}", runs.len()));
        }
        let bad = runs.iter().position(|ms| !is_time(*ms))?;
        Some(format!(
            "{name}: run {} at batch {batch} is {} ms: use a time from 0 to {MS_MAX:e}",
            bad + 1,
            runs[bad]
        ))
    })
}

/// A step of no time has no throughput, and no form either.
fn no_step(step_ms: &RunsByBatch) -> Option<String> {
    step_ms.iter().find_map(|(batch, runs)| {
        let run = runs.iter().position(|ms| *ms < STEP_MS_MIN)?;
        Some(format!(
            "step_ms: run {} at batch {batch} is {} ms, and no step takes less than {STEP_MS_MIN:e} ms",
            run + 1,
            runs[run]
        ))
    })
}

fn is_time(ms: f64) -> bool {
    (0.0..=MS_MAX).contains(&ms)
}

/// As people read; the host gap is of another sort and stands last.
fn largest_first(families: &mut [Family]) {
    let most = |family: &Family| family.step_ms.values().flatten().copied().fold(0.0, f64::max);
    families.sort_by(|one, other| {
        let is_gap = |family: &Family| family.name == HOST_GAP;
        is_gap(one).cmp(&is_gap(other)).then(most(other).total_cmp(&most(one)))
    });
}

fn median(series: &RunsByBatch, batch: u32) -> Option<f64> {
    Some(Sample::new("runs", series.get(&batch)?.clone()).ok()?.median())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn series(pairs: &[(u32, &[f64])]) -> RunsByBatch {
        pairs.iter().map(|(batch, runs)| (*batch, runs.to_vec())).collect()
    }

    fn family(name: &str, pairs: &[(u32, &[f64])]) -> Family {
        Family { name: name.into(), step_ms: series(pairs), roofline_ms: BTreeMap::new() }
    }

    fn new(step: &[(u32, &[f64])], families: Vec<Family>) -> Result<Profile, LabError> {
        Profile::new("mock", Settings::new(), StepClock::Wall, series(step), families)
    }

    #[test]
    fn medians_are_found_by_batch() {
        let profile = new(&[(1, &[4.0, 5.0, 9.0]), (8, &[10.0])], vec![]).unwrap();
        assert_eq!(profile.median_step_ms(1), Some(5.0));
        assert_eq!(profile.median_step_ms(2), None);
        assert_eq!(profile.batches().collect::<Vec<_>>(), [1, 8]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let step: &[(u32, &[f64])] = &[(1, &[4.0, 5.0]), (8, &[10.0])];
        let moe: &[(u32, &[f64])] = &[(1, &[1.0, 1.0]), (8, &[2.0])];
        assert!(new(step, vec![family("moe", moe)]).is_ok());
        let mut low = family("moe", moe);
        low.roofline_ms.insert(8, f64::INFINITY);
        for (profile, part) in [
            (new(&[], vec![]), "holds no batches"),
            (new(&[(0, &[1.0])], vec![]), "batch 0"),
            (new(&[(3, &[])], vec![]), "has 0 runs at batch 3"),
            (new(&[(3, &[1.0, -1.0])], vec![]), "run 2 at batch 3 is -1 ms"),
            (new(&[(3, &[f64::NAN])], vec![]), "run 1 at batch 3 is NaN ms"),
            (new(&[(3, &[1e10])], vec![]), "is 10000000000 ms: use a time from 0 to 1e9"),
            (
                new(&[(3, &[1.0, 0.0])], vec![]),
                "run 2 at batch 3 is 0 ms, and no step takes less than 1e-6 ms",
            ),
            (new(step, vec![family("moe", &[(1, &[1.0, 1.0])])]), "a time for every run"),
            (new(step, vec![family("moe", moe), family("moe", moe)]), "`moe` is there twice"),
            (new(step, vec![family("", moe)]), "need a name"),
            (new(step, vec![low]), "roofline_ms at batch 8 is inf"),
        ] {
            let told = profile.unwrap_err().to_string();
            assert!(told.starts_with("mock: ") && told.contains(part), "{told}");
        }
    }
}
