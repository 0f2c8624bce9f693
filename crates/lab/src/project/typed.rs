//! A step as a few typed numbers: a floor, slopes, and perhaps the throughput seen at one batch. Enough to project from when
//! nobody has a profile at hand; as certain as whoever typed them.

use super::model::{StepModel, StepTimes};
use crate::LabError;
use crate::profile::{Curve, Form, FormKind};
use serde::Serialize;

/// The name of what belongs to no family.
pub const REST: &str = "rest";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypedStep {
    /// Of a step with no requests, by the line through large batches.
    pub floor_ms: f64,
    /// Per request, of each family.
    pub slopes_ms: Vec<(String, f64)>,
    /// One sigma of the slopes, as a share of them; of the floor as well where no throughput says better.
    pub sigma: f64,
    /// When told, draws take the floor from it, so that floor and slopes agree with what was seen.
    pub throughput: Option<SeenThroughput>,
    pub bends: Vec<TypedBend>,
}

/// Between `low` and `high` tokens a second at `batch`, all equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeenThroughput {
    pub low: f64,
    pub high: f64,
    pub batch: u32,
}

/// A family that follows another form than its slope, and takes `ms` at `batch`. The floor gives way, so that the whole step
/// is the same as on the line where the throughput was seen (else at `batch`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypedBend {
    pub family: String,
    pub ms: f64,
    pub batch: u32,
    pub form: Form,
}

/// What levers call parts of any step.
const NAMES_TAKEN: [&str; 3] = ["step", "floor", REST];
/// How far floor and slopes may miss the throughput seen, as people type few digits.
const ROUNDED: f64 = 0.01;
const MS_MAX: f64 = 1e7;
const PER_S_MAX: f64 = 1e12;

impl TypedStep {
    /// # Errors
    /// Numbers that describe no step, and bends that leave less than nothing for the floor.
    pub fn check(&self) -> Result<(), LabError> {
        let slopes = self.slopes_ms.iter().map(|(family, ms)| (family.as_str(), *ms));
        let bends = self.bends.iter().map(|bend| (bend.family.as_str(), bend.ms));
        for (what, ms) in slopes.chain(bends).chain([("the floor", self.floor_ms)]) {
            if !(0.0..=MS_MAX).contains(&ms) {
                return Err(bad(format!("{what} takes {ms} ms: use a number of at least 0")));
            }
        }
        if !(0.0..=0.5).contains(&self.sigma) {
            return Err(bad(format!("a sigma of {} % is not between 0 and 50 %", self.sigma * 100.0)));
        }
        if let Some(SeenThroughput { low, high, batch }) = self.throughput
            && !(low > 0.0 && (low..=PER_S_MAX).contains(&high) && batch > 0)
        {
            return Err(bad(format!(
                "{low} to {high} tok/s at batch {batch}: use two numbers above 0, the smaller one first"
            )));
        }
        let with_slope: Vec<&str> = self.slopes_ms.iter().map(|(family, _)| family.as_str()).collect();
        let with_bend: Vec<&str> = self.bends.iter().map(|bend| bend.family.as_str()).collect();
        for (what, families) in [("slope", &with_slope), ("bend", &with_bend)] {
            if let Some(twice) =
                (1..families.len()).find(|&index| families[..index].contains(&families[index]))
            {
                return Err(bad(format!("the {what} of {} is told twice", families[twice])));
            }
            if let Some(taken) = families.iter().find(|family| NAMES_TAKEN.contains(family)) {
                return Err(bad(format!(
                    "`{taken}` is what a part of every step is called: give the family another name"
                )));
            }
        }
        self.check_floor()?;
        for bend in &self.bends {
            if bend.batch == 0 || shape(bend.form, bend.batch) <= 0.0 {
                return Err(bad(format!("{} has no time at batch {}", bend.family, bend.batch)));
            }
        }
        let rest_ms = self.times().families.last().map_or(0.0, |(_, rest)| rest.floor_ms);
        if rest_ms < 0.0 {
            return Err(bad(format!(
                "the families that bend take {:.1} ms more than floor and slopes leave them",
                -rest_ms
            )));
        }
        Ok(())
    }

    /// Whether floor and slopes are the step whose throughput was seen: else what is told as the point and what is drawn
    /// would be two steps.
    fn check_floor(&self) -> Result<(), LabError> {
        let Some(SeenThroughput { low, high, batch }) = self.throughput else { return Ok(()) };
        let requests = f64::from(batch);
        let slopes_ms: f64 = self.slopes_ms.iter().map(|(_, slope_ms)| slope_ms).sum();
        let per_s = requests * 1e3 / (self.floor_ms + slopes_ms * requests);
        if (low * (1.0 - ROUNDED)..=high * (1.0 + ROUNDED)).contains(&per_s) {
            return Ok(());
        }
        let floor_at = |per_s: f64| requests * 1e3 / per_s - slopes_ms * requests;
        let fits = match (floor_at(high).max(0.0), floor_at(low)) {
            (_, most) if most < 0.0 => "the slopes alone take longer than was seen".to_owned(),
            (least, most) => format!("a floor of {least:.1} to {most:.1} ms would agree"),
        };
        Err(bad(format!(
            "floor and slopes make {per_s:.0} tok/s at batch {batch}, and {low} to {high} were seen: {fits}"
        )))
    }

    /// The rest comes last.
    fn times(&self) -> StepTimes {
        let mut floor_ms = self.floor_ms;
        let mut families = Vec::with_capacity(self.slopes_ms.len() + self.bends.len() + 1);
        let line = |floor_ms, slope_ms| Curve { form: Form::Linear, floor_ms, slope_ms, shape_ms: 0.0 };
        for TypedBend { family, ms, batch, form } in &self.bends {
            let shape_ms = ms / shape(*form, *batch);
            let same_at = self.throughput.map_or(*batch, |seen| seen.batch);
            floor_ms += self.slope(family) * f64::from(same_at) - shape_ms * shape(*form, same_at);
            families.push((family.clone(), Curve { form: *form, floor_ms: 0.0, slope_ms: 0.0, shape_ms }));
        }
        for (family, slope_ms) in &self.slopes_ms {
            if !self.bends.iter().any(|bend| bend.family == *family) {
                families.push((family.clone(), line(0.0, *slope_ms)));
            }
        }
        families.push((REST.into(), line(floor_ms, 0.0)));
        StepTimes { step: families.iter().map(|(_, curve)| *curve).collect(), families }
    }

    fn slope(&self, family: &str) -> f64 {
        self.slopes_ms.iter().find(|(name, _)| name == family).map_or(0.0, |(_, slope)| *slope)
    }
}

/// What a form multiplies its milliseconds by, beside floor and slope.
fn shape(form: Form, batch: u32) -> f64 {
    Curve { form, floor_ms: 0.0, slope_ms: 0.0, shape_ms: 1.0 }.at(batch)
}

fn bad(what: String) -> LabError {
    LabError::BadStep { what }
}

impl StepModel for TypedStep {
    fn form(&self) -> &str {
        let kinds = self.bends.iter().map(|bend| bend.form.kind());
        let kind = kinds.clone().find(|kind| *kind == FormKind::Staircase).or_else(|| kinds.clone().max());
        kind.unwrap_or(FormKind::Linear).name()
    }

    fn uncertainty(&self) -> &str {
        match self.throughput {
            Some(_) => "the throughput seen, and the sigma of the slopes",
            None if self.sigma > 0.0 => "the sigma of floor and slopes",
            None => "none: floor and slopes are taken as exact",
        }
    }

    fn best(&self) -> StepTimes {
        self.times()
    }

    fn draw(&self, random: &mut fastrand::Rng) -> StepTimes {
        let mut off = |ms: f64| (ms * (1.0 + self.sigma * normal(random))).max(0.0);
        let mut drawn = self.clone();
        drawn.slopes_ms.iter_mut().for_each(|(_, slope_ms)| *slope_ms = off(*slope_ms));
        drawn.bends.iter_mut().for_each(|bend| bend.ms = off(bend.ms));
        drawn.floor_ms = match self.throughput {
            Some(SeenThroughput { low, high, batch }) => {
                let slopes_ms: f64 = drawn.slopes_ms.iter().map(|(_, slope_ms)| slope_ms).sum();
                let per_s = low + (high - low) * random.f64();
                (f64::from(batch) * (1e3 / per_s - slopes_ms)).max(0.0)
            }
            None => off(self.floor_ms),
        };
        let mut times = drawn.times();
        // A draw at the edge may take more for the families that bend than there is.
        for rest in times.step.last_mut().into_iter().chain(times.families.last_mut().map(|(_, rest)| rest)) {
            rest.floor_ms = rest.floor_ms.max(0.0);
        }
        times
    }
}

/// Of mean 0 and sigma 1, by Box and Muller.
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Experts;

    fn step() -> TypedStep {
        TypedStep {
            floor_ms: 36.3,
            slopes_ms: vec![("attention".into(), 0.79), ("moe".into(), 0.015)],
            sigma: 0.05,
            throughput: Some(SeenThroughput { low: 775.0, high: 845.0, batch: 96 }),
            bends: vec![],
        }
    }

    #[test]
    fn floor_and_slopes_must_be_what_was_seen() {
        step().check().unwrap();
        let told = |floor_ms, slope_ms| {
            let slopes_ms = vec![("attention".into(), slope_ms)];
            TypedStep { floor_ms, slopes_ms, ..step() }.check().unwrap_err().to_string()
        };
        let high = told(100.0, 0.805);
        assert!(high.contains("make 542 tok/s at batch 96") && high.contains("36.3 to 46.6 ms"), "{high}");
        assert!(told(36.3, 5.0).contains("the slopes alone take longer"));
    }

    #[test]
    fn a_name_stands_for_one_thing() {
        let bend = |family: &str| TypedBend {
            family: family.into(),
            ms: 10.0,
            batch: 96,
            form: Form::Concave(Experts::default()),
        };
        TypedStep { bends: vec![bend("moe")], ..step() }.check().unwrap();
        for (bends, slope, part) in [
            (vec![bend("moe"), bend("moe")], "moe", "the bend of moe is told twice"),
            (vec![], "attention", "the slope of attention is told twice"),
            (vec![bend("rest")], "moe", "`rest` is what a part of every step is called"),
            (vec![], "step", "`step` is what"),
            (vec![], "floor", "`floor` is what"),
        ] {
            let slopes_ms = vec![("attention".into(), 0.79), (slope.into(), 0.015)];
            let told = TypedStep { bends, slopes_ms, ..step() }.check().unwrap_err().to_string();
            assert!(told.contains(part), "{told}");
        }
    }
}
