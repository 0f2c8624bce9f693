//! What a profile says: which family is the slope and which the floor, where throughput saturates, what a tenth less of each
//! family would bring, how far each is from what the hardware allows. Numbers only; `text` and `plots` show them.

use super::fit::Why;
use super::{Curve, FormFit, FormKind, Forms, Profile, ProfileFit, SeriesFit, Stairs, StepClock};
use crate::stats::Interval;
use crate::{LabError, Settings};
use serde::Serialize;
use std::num::NonZeroU32;

/// What is said of the smallest batches reaches so far.
const BATCH_MAX: u32 = 1 << 20;

/// How a family's kernel walks its tiles one after another: what one step of that walk takes follows from its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    pub family: String,
    /// Launches a step.
    pub layers: NonZeroU32,
    /// Of a request; shared by its CTAs.
    pub tiles: NonZeroU32,
    pub stairs: Stairs,
}

#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    pub subject: String,
    pub settings: Settings,
    pub clock: StepClock,
    /// By batch, ascending, as in every row.
    pub batches: Vec<BatchSummary>,
    pub families: Vec<FamilySummary>,
    /// Absent when one batch is all there is.
    pub growth: Option<Growth>,
    pub saturation: Option<Saturation>,
    /// The family that grows most, and the one that is most of what does not; none where no family is known.
    pub slope_family: Option<String>,
    pub floor_family: Option<String>,
    /// Where throughput falls although requests are added.
    pub falls: Vec<Fall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BatchSummary {
    pub batch: u32,
    pub runs: usize,
    /// The median.
    pub step_ms: f64,
    pub tokens_per_s: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FamilySummary {
    pub name: String,
    pub cells: Vec<Cell>,
    pub growth: Option<Growth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    pub batch: u32,
    pub ms: f64,
    /// Of the step.
    pub share: f64,
    /// Throughput gained, as a share, by a tenth less of this family.
    pub gain_of_a_tenth: f64,
    /// Time over the least that the hardware needs.
    pub times_roofline: Option<f64>,
    /// One step of the walk over tiles.
    pub iteration_us: Option<f64>,
}

/// How a time grows with the batch.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    pub linear: FormSummary,
    pub chosen: FormSummary,
    pub why: Why,
    pub tried: Vec<FormSummary>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FormSummary {
    #[serde(flatten)]
    pub curve: Curve,
    /// 95 %.
    pub floor_interval_ms: Option<Interval>,
    pub slope_interval_ms: Option<Interval>,
    pub shape_interval_ms: Option<Interval>,
    pub leave_one_out_error: Option<f64>,
    pub worst_batch: u32,
    pub worst_error: f64,
}

/// By the form that was chosen for the step, or by the line where that form has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Saturation {
    pub by: FormKind,
    /// The throughput that no batch exceeds.
    pub tokens_per_s: f64,
    pub interval: Option<Interval>,
    pub half_at_batch: Option<u32>,
    pub nine_tenths_at_batch: Option<u32>,
    /// The largest throughput that was measured, as a share.
    pub reached: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fall {
    pub from_batch: u32,
    pub to_batch: u32,
    /// Of the throughput, below 0.
    pub change: f64,
}

impl Analysis {
    /// `random` is for the intervals.
    ///
    /// # Errors
    /// Iterations of a family that the profile does not have.
    pub fn of(
        profile: &Profile,
        forms: &Forms,
        iterations: &[Iterations],
        random: &mut fastrand::Rng,
    ) -> Result<Self, LabError> {
        if let Some(missing) = iterations.iter().find(|walk| profile.family(&walk.family).is_none()) {
            return Err(unknown_family(profile, &missing.family));
        }
        let fit =
            if profile.batches().len() < 2 { None } else { Some(ProfileFit::of(profile, forms, random)?) };
        let batches: Vec<BatchSummary> = profile
            .step_ms()
            .iter()
            .map(|(batch, runs)| {
                let step_ms = profile.median_step_ms(*batch).unwrap_or(0.0);
                BatchSummary {
                    batch: *batch,
                    runs: runs.len(),
                    step_ms,
                    tokens_per_s: tokens_per_s(*batch, step_ms),
                }
            })
            .collect();
        let families: Vec<FamilySummary> = profile
            .families()
            .iter()
            .map(|family| FamilySummary {
                name: family.name.clone(),
                cells: batches.iter().map(|at| cell(family, at, iterations)).collect(),
                growth: fit.as_ref().and_then(|fit| fit.family(&family.name)).map(Growth::of),
            })
            .collect();
        let most = |value: fn(&Curve) -> f64| {
            let grown = families.iter().filter_map(|family| {
                Some((family, value(&family.growth.as_ref()?.linear.curve))).filter(|(_, ms)| *ms > 0.0)
            });
            let most = grown.max_by(|one, other| one.1.total_cmp(&other.1));
            most.map(|(family, _)| family.name.clone())
        };
        Ok(Analysis {
            subject: profile.subject().to_owned(),
            settings: profile.settings().clone(),
            clock: profile.clock(),
            saturation: fit.as_ref().and_then(|fit| Saturation::of(&fit.step, &batches)),
            growth: fit.as_ref().map(|fit| Growth::of(&fit.step)),
            slope_family: most(|curve| curve.slope_ms),
            floor_family: most(|curve| curve.floor_ms),
            falls: falls(&batches),
            batches,
            families,
        })
    }
}

/// For whoever names a family that is not there.
pub fn unknown_family(profile: &Profile, name: &str) -> LabError {
    let known: Vec<&str> = profile.families().iter().map(|family| family.name.as_str()).collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    let what = format!("it has no family `{name}`; its families: {known}");
    LabError::BadProfile { subject: profile.subject().to_owned(), what }
}

/// 0 where no time is known.
fn tokens_per_s(batch: u32, step_ms: f64) -> f64 {
    if step_ms > 0.0 { f64::from(batch) / step_ms * 1e3 } else { 0.0 }
}

fn cell(family: &super::Family, at: &BatchSummary, iterations: &[Iterations]) -> Cell {
    let ms = family.median_ms(at.batch).unwrap_or(0.0);
    let left_ms = at.step_ms - ms / 10.0;
    let walk = iterations.iter().find(|walk| walk.family == family.name);
    Cell {
        batch: at.batch,
        ms,
        share: if at.step_ms > 0.0 { ms / at.step_ms } else { 0.0 },
        gain_of_a_tenth: if left_ms > 0.0 { at.step_ms / left_ms - 1.0 } else { 0.0 },
        times_roofline: family
            .roofline_ms
            .get(&at.batch)
            .filter(|least| **least > 0.0)
            .map(|least| ms / least),
        iteration_us: walk.map(|walk| ms * 1e3 / walk.in_a_row(at.batch)),
    }
}

impl Iterations {
    /// That follow one another in a step.
    fn in_a_row(&self, batch: u32) -> f64 {
        let tiles_per_cta = self.tiles.get().div_ceil(self.stairs.ctas_per_request.get());
        f64::from(self.layers.get()) * self.stairs.waves(batch) * f64::from(tiles_per_cta)
    }
}

impl Growth {
    fn of(fit: &SeriesFit) -> Self {
        Growth {
            linear: FormSummary::of(fit.linear()),
            chosen: FormSummary::of(fit.chosen()),
            why: fit.why(),
            tried: fit.all().iter().map(FormSummary::of).collect(),
        }
    }
}

impl FormSummary {
    fn of(fit: &FormFit) -> Self {
        FormSummary {
            curve: fit.curve,
            floor_interval_ms: fit.interval_of(|curve| curve.floor_ms),
            slope_interval_ms: fit.interval_of(|curve| curve.slope_ms),
            shape_interval_ms: fit.interval_of(|curve| curve.shape_ms),
            leave_one_out_error: fit.leave_one_out_error,
            worst_batch: fit.worst_batch,
            worst_error: fit.worst_error,
        }
    }
}

impl Saturation {
    /// `None` when time does not grow.
    fn of(step: &SeriesFit, batches: &[BatchSummary]) -> Option<Self> {
        let has_limit = |fit: &&FormFit| fit.curve.last_slope_ms() > 0.0;
        let chosen = [step.chosen(), step.linear()].into_iter().find(has_limit)?;
        let last_slope_ms = chosen.curve.last_slope_ms();
        let tokens_per_s = 1e3 / last_slope_ms;
        let first_at = |share: f64| {
            (1..=BATCH_MAX)
                .find(|batch| self::tokens_per_s(*batch, chosen.curve.at(*batch)) >= share * tokens_per_s)
        };
        let largest = batches.iter().map(|at| at.tokens_per_s).fold(0.0, f64::max);
        // A draw may not grow at all: its limit is infinite and belongs into no interval.
        let slopes = chosen.interval_of(Curve::last_slope_ms).filter(|slopes| slopes.low > 0.0);
        Some(Saturation {
            by: chosen.curve.form.kind(),
            tokens_per_s,
            interval: slopes.map(|slopes| Interval { low: 1e3 / slopes.high, high: 1e3 / slopes.low }),
            half_at_batch: first_at(0.5),
            nine_tenths_at_batch: first_at(0.9),
            reached: largest / tokens_per_s,
        })
    }
}

fn falls(batches: &[BatchSummary]) -> Vec<Fall> {
    let pairs = batches.windows(2).filter(|pair| pair[1].tokens_per_s < pair[0].tokens_per_s);
    pairs
        .map(|pair| Fall {
            from_batch: pair[0].batch,
            to_batch: pair[1].batch,
            change: pair[1].tokens_per_s / pair[0].tokens_per_s - 1.0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Experts, Family, RunsByBatch};
    use std::collections::BTreeMap;

    const BATCHES: [u32; 8] = [1, 8, 16, 32, 48, 64, 80, 96];

    fn number(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    fn series(time: impl Fn(f64) -> f64) -> RunsByBatch {
        BATCHES.map(|batch| (batch, vec![time(f64::from(batch)); 2])).into()
    }

    fn family(name: &str, time: impl Fn(f64) -> f64) -> Family {
        Family { name: name.into(), step_ms: series(time), roofline_ms: BTreeMap::new() }
    }

    /// The worked example: 845 tokens/s at 96, attention 0.79 ms and experts 0.015 ms a request.
    fn campaign() -> Profile {
        let floor = 96e3 / 845.0 - 0.805 * 96.0;
        let mut attention = family("attention", |batch| 0.79 * batch);
        attention.roofline_ms.insert(80, 80.0 * 43.0 * 640.0 * 584.0 / 1.792e12 * 1e3);
        let families = vec![attention, family("experts", |batch| floor + 0.015 * batch)];
        let step = series(|batch| floor + 0.805 * batch);
        Profile::new("campaign", Settings::new(), StepClock::Wall, step, families).unwrap()
    }

    #[test]
    fn the_worked_example_is_told() {
        let stairs = Stairs { slots: number(188), ctas_per_request: number(6) };
        let walk = Iterations { family: "attention".into(), layers: number(43), tiles: number(32), stairs };
        let random = &mut fastrand::Rng::with_seed(1);
        let told = Analysis::of(&campaign(), &Forms::default(), &[walk], random).unwrap();
        assert_eq!(told.slope_family.as_deref(), Some("attention"));
        assert_eq!(told.floor_family.as_deref(), Some("experts"));
        let saturation = told.saturation.unwrap();
        assert!((saturation.tokens_per_s - 1242.0).abs() < 0.5 && (saturation.reached - 0.68).abs() < 0.001);
        // Half at floor / slope, nine tenths at nine times that.
        assert_eq!((saturation.half_at_batch, saturation.nine_tenths_at_batch), (Some(46), Some(407)));
        let attention = &told.families[0];
        let at = |batch| attention.cells.iter().find(|cell| cell.batch == batch).unwrap();
        assert!((at(96).share - 0.67).abs() < 0.005);
        assert!((at(80).iteration_us.unwrap() - 82.0).abs() < 0.5);
        assert!((at(80).times_roofline.unwrap() - 88.0).abs() < 0.5);
        let gain = 113.61 / (113.61 - 7.584) - 1.0;
        assert!((at(96).gain_of_a_tenth - gain).abs() < 1e-4);
        assert!(told.falls.is_empty());
    }

    #[test]
    fn one_batch_and_steps_that_do_not_grow_have_no_limit() {
        let random = &mut fastrand::Rng::with_seed(1);
        let forms = Forms { experts: Some(Experts::default()), stairs: Vec::new() };
        let one =
            Profile::new("x", Settings::new(), StepClock::Wall, [(4, vec![2.0])].into(), vec![]).unwrap();
        let told = Analysis::of(&one, &forms, &[], random).unwrap();
        assert!(told.growth.is_none() && told.saturation.is_none());
        let flat = Profile::new("x", Settings::new(), StepClock::Wall, series(|_| 5.0), vec![]).unwrap();
        let told = Analysis::of(&flat, &forms, &[], random).unwrap();
        assert!(told.growth.is_some() && told.saturation.is_none());
    }

    #[test]
    fn families_that_are_not_there_are_told_with_those_that_are() {
        let stairs = Stairs { slots: number(188), ctas_per_request: number(6) };
        let walk = Iterations { family: "atention".into(), layers: number(43), tiles: number(32), stairs };
        let random = &mut fastrand::Rng::with_seed(1);
        let told = Analysis::of(&campaign(), &Forms::default(), &[walk], random).unwrap_err().to_string();
        assert_eq!(told, "campaign: it has no family `atention`; its families: attention, experts");
    }
}
