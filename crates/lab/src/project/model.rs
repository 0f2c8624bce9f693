//! What a step takes at any batch, family by family, with what is not known about it: `StepModel` gives the best guess, or one
//! draw from everything that agrees with the measurements. Here is the one fitted to a profile; `typed.rs` has the one of
//! numbers typed in.

use super::lever::Part;
use crate::LabError;
use crate::profile::{Curve, FormFit, FormKind, ProfileFit, SeriesFit};
use serde::Serialize;

pub trait StepModel {
    /// As shown to people: `linear`, `concave`.
    fn form(&self) -> &str;
    /// Where the uncertainty of its times comes from, or why they have none.
    fn uncertainty(&self) -> &str;
    fn best(&self) -> StepTimes;
    fn draw(&self, random: &mut fastrand::Rng) -> StepTimes;
}

/// One possible truth about a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTimes {
    /// Which add up to the step; often it is one.
    pub step: Vec<Curve>,
    /// They need not add up to the step: kernels may run side by side.
    pub families: Vec<(String, Curve)>,
}

impl StepTimes {
    pub fn step_ms(&self, batch: u32) -> f64 {
        self.step.iter().map(|curve| curve.at(batch)).sum()
    }

    /// # Errors
    /// A family that the model does not have.
    pub fn part_ms(&self, part: &Part, batch: u32) -> Result<f64, LabError> {
        match part {
            Part::Step => Ok(self.step_ms(batch)),
            Part::Floor => Ok(self.step.iter().map(|curve| curve.floor_ms).sum()),
            Part::Family(name) => self.family(name).map(|curve| curve.at(batch)),
        }
    }

    fn family(&self, wanted: &str) -> Result<&Curve, LabError> {
        let wanted_lower = wanted.to_lowercase();
        let found = self.families.iter().find(|(name, _)| name.to_lowercase() == wanted_lower);
        found.map(|(_, curve)| curve).ok_or_else(|| LabError::NoFamily {
            given: wanted.to_owned(),
            known: self.families.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// The fits of a profile, each of a form.
#[derive(Clone, Debug)]
pub struct FittedStep<'fit> {
    form: &'static str,
    step: &'fit FormFit,
    families: Vec<(&'fit str, &'fit FormFit)>,
}

impl<'fit> FittedStep<'fit> {
    /// Every series by the form that predicts it best.
    pub fn chosen(fit: &'fit ProfileFit) -> Self {
        FittedStep::by("best", fit, SeriesFit::chosen)
    }

    /// Every series by this form where it could be fitted, else by its best.
    pub fn of_kind(fit: &'fit ProfileFit, kind: FormKind) -> Self {
        FittedStep::by(kind.name(), fit, |series| series.of_kind(kind).unwrap_or_else(|| series.chosen()))
    }

    fn by(
        form: &'static str,
        fit: &'fit ProfileFit,
        pick: impl Fn(&'fit SeriesFit) -> &'fit FormFit,
    ) -> Self {
        let families = fit.families.iter().map(|(name, series)| (name.as_str(), pick(series))).collect();
        FittedStep { form, step: pick(&fit.step), families }
    }

    /// Whether another form is the same curves.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.best() == other.best()
    }

    fn times(&self, curve: impl Fn(&FormFit) -> Curve) -> StepTimes {
        let families = self.families.iter().map(|(name, fit)| ((*name).to_owned(), curve(fit)));
        StepTimes { step: vec![curve(self.step)], families: families.collect() }
    }
}

impl StepModel for FittedStep<'_> {
    fn form(&self) -> &str {
        self.form
    }

    fn uncertainty(&self) -> &str {
        if self.step.draws().is_empty() {
            "no batch has a second run, so nothing is known of the noise of the times"
        } else {
            "the runs of the profile, resampled"
        }
    }

    fn best(&self) -> StepTimes {
        self.times(|fit| fit.curve)
    }

    fn draw(&self, random: &mut fastrand::Rng) -> StepTimes {
        // Draw `i` of every series stems from the same runs.
        let draws = self.step.draws().len();
        if draws == 0 {
            return self.best();
        }
        let draw = random.usize(..draws);
        self.times(|fit| fit.draws().get(draw).copied().unwrap_or(fit.curve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Form;

    #[test]
    fn parts_are_found_by_name() {
        let line = |floor_ms, slope_ms| Curve { form: Form::Linear, floor_ms, slope_ms, shape_ms: 0.0 };
        let families = vec![("attention".into(), line(1.0, 2.0)), ("moe".into(), line(3.0, 0.5))];
        let times = StepTimes { step: vec![line(4.0, 2.5)], families };
        let part = |name: &str| Part::Family(name.into());
        assert_eq!(times.part_ms(&Part::Step, 10).unwrap(), 29.0);
        assert_eq!(times.part_ms(&Part::Floor, 10).unwrap(), 4.0);
        assert_eq!(times.part_ms(&part("Attention"), 10).unwrap(), 21.0);
        let accented = StepTimes { families: vec![("ÉCHO".into(), line(1.0, 0.0))], ..times.clone() };
        assert_eq!(accented.part_ms(&part("écho"), 10).unwrap(), 1.0, "a lever is read in small letters");
        let error = times.part_ms(&part("atention"), 10).unwrap_err().to_string();
        assert!(error.contains("attention, moe"), "{error}");
    }
}
