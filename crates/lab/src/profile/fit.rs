//! Which form the times of a profile have, and how well that is known. Every form that the batches can tell is fitted; the
//! one that predicts a batch best from the others is chosen, and the simplest of those that do about equally well.
//!
//! Uncertainty comes from resampling the runs, whole runs at a time: draw `i` of the step and of every family stem from the
//! same runs, so what a projection draws together belongs together. It holds the noise of the runs and nothing else.

use super::forms::Place;
use super::{Curve, FormKind, Forms, Profile, RunsByBatch};
use crate::LabError;
use crate::stats::{Interval, RESAMPLES, Sample, middle};
use serde::Serialize;

const CONFIDENCE: f64 = 0.95;

/// A form with more to bend must predict better by this factor than a simpler one.
const BETTER_BY: f64 = 1.15;
/// The true form misses a batch left out by the noise of its median and that of the prediction together: by up to about
/// this many times the noise, nothing speaks against a form.
const NOISE_TIMES: f64 = 1.5;
/// What errs by so many times more than is about as good as the best is not what made the times.
const REFUTED_BY: f64 = 2.0;
/// Where no noise is known: rounding and timers.
const ERROR_THAT_IS_NONE: f64 = 0.002;

/// The fits of the whole step and of every family, in the order of the profile.
#[derive(Clone, Debug)]
pub struct ProfileFit {
    pub step: SeriesFit,
    pub families: Vec<(String, SeriesFit)>,
}

/// All forms that could be fitted to one series of times, the simplest first.
#[derive(Clone, Debug)]
pub struct SeriesFit {
    fits: Vec<FormFit>,
    chosen: usize,
    why: Why,
    /// A form whose error at the batches left out is no larger is about as good as the best.
    good_error: f64,
}

/// Why a form was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// By its error at the batch left out.
    LeaveOneOut,
    /// No form can be tested with so few batches: linear is assumed.
    TooFewBatches,
    /// By whoever asked.
    Asked,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FormFit {
    /// Through the medians.
    pub curve: Curve,
    /// Root mean square of the relative errors of predicting each batch from all others; `None` when too few are left.
    pub leave_one_out_error: Option<f64>,
    /// Where the medians lie farthest from the curve, and by how much of the time: what the form does not explain.
    pub worst_batch: u32,
    pub worst_error: f64,
    /// Empty when no batch has a second run: then nothing is known of the noise.
    draws: Vec<Curve>,
}

impl ProfileFit {
    /// # Errors
    /// Fewer than two batches.
    pub fn of(profile: &Profile, forms: &Forms, random: &mut fastrand::Rng) -> Result<Self, LabError> {
        let have = profile.batches().len();
        if have < 2 {
            return Err(LabError::TooFew { what: "the fit of a profile over its batches", have, need: 2 });
        }
        let resampled = Resamples::of(profile.step_ms(), random);
        let fit = |series| SeriesFit::of(series, forms, &resampled);
        Ok(ProfileFit {
            step: fit(profile.step_ms()),
            families: profile.families().iter().map(|f| (f.name.clone(), fit(&f.step_ms))).collect(),
        })
    }

    pub fn family(&self, name: &str) -> Option<&SeriesFit> {
        self.families.iter().find(|(found, _)| found == name).map(|(_, fit)| fit)
    }
}

impl SeriesFit {
    fn of(series: &RunsByBatch, forms: &Forms, resamples: &Resamples) -> Self {
        let places = Place::all(&medians(series, None));
        let drawn: Vec<Vec<Place>> =
            resamples.0.iter().map(|runs| Place::all(&medians(series, Some(runs)))).collect();
        let kinds = [FormKind::Linear, FormKind::Staircase, FormKind::Concave];
        let fits: Vec<FormFit> =
            kinds.into_iter().filter_map(|kind| FormFit::of(kind, forms, &places, &drawn)).collect();
        let least = fits.iter().filter_map(|fit| fit.leave_one_out_error).min_by(f64::total_cmp);
        let unexplained = (NOISE_TIMES * noise(&places, &drawn)).max(ERROR_THAT_IS_NONE);
        let good = least.map_or(0.0, |least| (least * BETTER_BY).max(unexplained));
        let chosen = fits.iter().position(|fit| fit.leave_one_out_error.is_some_and(|error| error <= good));
        let why = if least.is_some() { Why::LeaveOneOut } else { Why::TooFewBatches };
        SeriesFit { fits, chosen: chosen.unwrap_or(0), why, good_error: good }
    }

    /// The same times, with the form that whoever asked is sure of; `None` when it could not be fitted.
    pub fn asked(&self, kind: FormKind) -> Option<Self> {
        let chosen = self.fits.iter().position(|fit| fit.curve.form.kind() == kind)?;
        Some(SeriesFit { chosen, why: Why::Asked, ..self.clone() })
    }

    pub fn chosen(&self) -> &FormFit {
        &self.fits[self.chosen]
    }

    pub fn why(&self) -> Why {
        self.why
    }

    pub fn linear(&self) -> &FormFit {
        &self.fits[0]
    }

    pub fn of_kind(&self, kind: FormKind) -> Option<&FormFit> {
        self.fits.iter().find(|fit| fit.curve.form.kind() == kind)
    }

    /// The simplest first; linear is always there.
    pub fn all(&self) -> &[FormFit] {
        &self.fits
    }

    /// Whether the times speak against a form: it predicts the batches left out far worse than the best one does.
    pub fn refutes(&self, kind: FormKind) -> bool {
        let error = self.of_kind(kind).and_then(|fit| fit.leave_one_out_error);
        error.is_some_and(|error| error > self.good_error * REFUTED_BY)
    }

    /// By the chosen form.
    pub fn at(&self, batch: u32) -> f64 {
        self.chosen().curve.at(batch)
    }

    pub fn interval_at(&self, batch: u32) -> Option<Interval> {
        self.chosen().interval_at(batch)
    }
}

impl FormFit {
    fn of(kind: FormKind, forms: &Forms, places: &[Place], drawn: &[Vec<Place>]) -> Option<Self> {
        let curve = kind.fit(forms, places)?;
        let worst = places
            .iter()
            .max_by(|one, other| curve.error_at(one).abs().total_cmp(&curve.error_at(other).abs()))?;
        Some(FormFit {
            curve,
            leave_one_out_error: leave_one_out_error(kind, forms, places),
            worst_batch: worst.batch,
            worst_error: curve.error_at(worst),
            draws: drawn.iter().map(|places| curve.form.fit(places)).collect(),
        })
    }

    /// Curves through resampled runs; draw `i` belongs to draw `i` of every other fit of the same profile. Empty when every
    /// batch has one run only.
    pub fn draws(&self) -> &[Curve] {
        &self.draws
    }

    /// 95 %, of the time at a batch.
    pub fn interval_at(&self, batch: u32) -> Option<Interval> {
        self.interval_of(|curve| curve.at(batch))
    }

    /// 95 %, of whatever follows from a curve.
    pub fn interval_of(&self, value: impl Fn(&Curve) -> f64) -> Option<Interval> {
        let values = self.draws.iter().map(value).collect();
        Some(middle(&Sample::new("resampled curves", values).ok()?, CONFIDENCE))
    }
}

/// How far resampled medians lie off, as a share of their times: root mean square over all places.
fn noise(places: &[Place], drawn: &[Vec<Place>]) -> f64 {
    let off = |(place, drawn): (&Place, &Place)| ((drawn.ms - place.ms) / place.scale_ms).powi(2);
    let squares: f64 = drawn.iter().map(|drawn| places.iter().zip(drawn).map(off).sum::<f64>()).sum();
    (squares / (drawn.len() * places.len()).max(1) as f64).sqrt()
}

/// The search for stairs is part of the form, so it is done anew without each batch.
fn leave_one_out_error(kind: FormKind, forms: &Forms, places: &[Place]) -> Option<f64> {
    let mut squares = 0.0;
    for left_out in places {
        let rest: Vec<Place> = places.iter().filter(|place| place.batch != left_out.batch).copied().collect();
        squares += kind.fit(forms, &rest)?.error_at(left_out).powi(2);
    }
    Some((squares / places.len() as f64).sqrt())
}

/// For every draw and batch, which runs are taken.
struct Resamples(Vec<Vec<Vec<usize>>>);

impl Resamples {
    fn of(series: &RunsByBatch, random: &mut fastrand::Rng) -> Self {
        if series.values().all(|runs| runs.len() < 2) {
            return Resamples(Vec::new());
        }
        let mut draw = || {
            let batches = series.values();
            batches.map(|runs| runs.iter().map(|_| random.usize(..runs.len())).collect()).collect()
        };
        Resamples((0..RESAMPLES).map(|_| draw()).collect())
    }
}

/// Of all runs, or of those that were drawn.
fn medians(series: &RunsByBatch, drawn: Option<&Vec<Vec<usize>>>) -> Vec<(u32, f64)> {
    let median = |(place, (batch, runs)): (usize, (&u32, &Vec<f64>))| {
        let mut values = match drawn {
            None => runs.clone(),
            Some(drawn) => drawn[place].iter().map(|run| runs[*run]).collect(),
        };
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        (*batch, median)
    };
    series.iter().enumerate().map(median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::profile::{Experts, Family, Form, Stairs, StepClock};
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    const BATCHES: [u32; 8] = [1, 8, 16, 32, 48, 64, 80, 96];

    fn forms() -> Forms {
        let number = |value| NonZeroU32::new(value).unwrap();
        Forms { experts: Some(Experts::default()), stairs: Stairs::search(&[number(188)], number(16)) }
    }

    fn noisy(curve: &Curve, share: f64, random: &mut fastrand::Rng) -> RunsByBatch {
        let mut runs = |batch| {
            (0..5)
                .map(|_| curve.at(batch) * (1.0 + share * (random.f64() - 0.5) * 3.46))
                .collect::<Vec<f64>>()
        };
        BATCHES.iter().map(|batch| (*batch, runs(*batch))).collect()
    }

    fn profile(step_ms: RunsByBatch, families: Vec<(&str, RunsByBatch)>) -> Profile {
        let families = families.into_iter().map(|(name, step_ms)| Family {
            name: name.into(),
            step_ms,
            roofline_ms: BTreeMap::new(),
        });
        Profile::new("mock", Settings::new(), StepClock::Wall, step_ms, families.collect()).unwrap()
    }

    #[test]
    fn the_form_that_made_the_times_is_chosen() {
        let stairs =
            Stairs { slots: NonZeroU32::new(188).unwrap(), ctas_per_request: NonZeroU32::new(4).unwrap() };
        let seed = 41;
        let mut random = fastrand::Rng::with_seed(seed);
        let trials = 40;
        for (form, floor_ms, slope_ms, shape_ms) in [
            (Form::Linear, 36.3, 0.8, 0.0),
            (Form::Concave(Experts::default()), 11.0, 0.3, 40.0),
            (Form::Staircase(stairs), 3.0, 0.0, 21.0),
        ] {
            let truth = Curve { form, floor_ms, slope_ms, shape_ms };
            let right = (0..trials)
                .filter(|_| {
                    let profile = profile(noisy(&truth, 0.01, &mut random), vec![]);
                    let fit = ProfileFit::of(&profile, &forms(), &mut random).unwrap().step;
                    fit.chosen().curve.form.kind() == form.kind()
                })
                .count();
            assert!(right * 10 >= trials * 9, "{form:?}: {right} of {trials}, seed {seed}");
        }
    }

    #[test]
    fn draws_of_step_and_family_stem_from_the_same_runs() {
        let seed = 43;
        let mut random = fastrand::Rng::with_seed(seed);
        let line = Curve { form: Form::Linear, floor_ms: 10.0, slope_ms: 0.5, shape_ms: 0.0 };
        let family = noisy(&line, 0.05, &mut random);
        let step: RunsByBatch =
            family.iter().map(|(batch, runs)| (*batch, runs.iter().map(|ms| 3.0 * ms).collect())).collect();
        let profile = profile(step, vec![("attention", family)]);
        let fit = ProfileFit::of(&profile, &Forms::default(), &mut random).unwrap();
        let attention = fit.family("attention").unwrap();
        for (step, family) in fit.step.chosen().draws().iter().zip(attention.chosen().draws()) {
            assert!((step.at(64) - 3.0 * family.at(64)).abs() < 1e-6);
        }
        assert!(attention.interval_at(64).unwrap().contains(attention.at(64)));
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        let seed = 47;
        let mut random = fastrand::Rng::with_seed(seed);
        let truth = Curve { form: Form::Linear, floor_ms: 10.0, slope_ms: 0.5, shape_ms: 0.0 };
        let (trials, mut held) = (40, 0);
        for _ in 0..trials {
            let profile = profile(noisy(&truth, 0.03, &mut random), vec![]);
            let fit = ProfileFit::of(&profile, &Forms::default(), &mut random).unwrap().step;
            held += usize::from(fit.interval_at(200).unwrap().contains(truth.at(200)));
        }
        // Five runs a batch: their resampled medians scatter a little less than medians do.
        assert!(held * 100 >= trials * 80, "{held} of {trials}, seed {seed}");
    }

    #[test]
    fn few_batches_and_single_runs_are_told() {
        let random = &mut fastrand::Rng::with_seed(1);
        let single = |batches: &[u32]| batches.iter().map(|b| (*b, vec![2.0 + f64::from(*b)])).collect();
        let fit = ProfileFit::of(&profile(single(&[8, 64]), vec![]), &forms(), random).unwrap().step;
        assert_eq!((fit.why(), fit.chosen().curve.form), (Why::TooFewBatches, Form::Linear));
        assert!(fit.interval_at(8).is_none() && (fit.at(100) - 102.0).abs() < 1e-6);
        assert!(fit.asked(FormKind::Concave).is_none());
        assert!(matches!(
            ProfileFit::of(&profile(single(&[8]), vec![]), &forms(), random),
            Err(LabError::TooFew { have: 1, need: 2, .. })
        ));
    }
}
