//! How the time of a kernel family may grow with the batch B:
//!
//! ```text
//! linear     T(B) = floor + slope B
//! concave    T(B) = floor + slope B + shape (1 - (1 - k/E)^B)     experts touched: k of E by a request, any of them
//! staircase  T(B) = floor + shape ceil(B CTAs / slots)            waves of a kernel with so many CTAs a request
//! ```
//!
//! No coefficient is below 0, as no part of a step takes negative time. A linear floor is too high at small batches where
//! the truth is concave: few requests touch few experts, and their weights are most of what such a step reads.

use crate::stats::{Row, nonnegative_least_squares};
use overshot_gpu_model::Waves;
use serde::Serialize;
use std::num::NonZeroU32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum Form {
    Linear,
    Concave(Experts),
    Staircase(Stairs),
}

/// A form without its parameters, the simplest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FormKind {
    Linear,
    Staircase,
    Concave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    pub all: NonZeroU32,
    pub used_by_a_request: NonZeroU32,
}

impl Default for Experts {
    /// DeepSeek-V4-Flash.
    fn default() -> Self {
        const ALL: NonZeroU32 = NonZeroU32::new(256).expect("256 is above 0");
        const USED: NonZeroU32 = NonZeroU32::new(6).expect("6 is above 0");
        Experts { all: ALL, used_by_a_request: USED }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stairs {
    /// SMs times CTAs per SM.
    pub slots: NonZeroU32,
    pub ctas_per_request: NonZeroU32,
}

/// The forms that are tried. Linear always is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forms {
    pub experts: Option<Experts>,
    /// Any of these; of those that describe the times equally well, the first.
    pub stairs: Vec<Stairs>,
}

/// A form with its coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Curve {
    #[serde(flatten)]
    pub form: Form,
    pub floor_ms: f64,
    /// A request.
    pub slope_ms: f64,
    /// All experts, or one wave; 0 of a line.
    pub shape_ms: f64,
}

/// The time at one batch, in the middle of its runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub batch: u32,
    pub ms: f64,
    /// What an error is measured by.
    pub scale_ms: f64,
}

impl Form {
    pub fn kind(self) -> FormKind {
        match self {
            Form::Linear => FormKind::Linear,
            Form::Concave(_) => FormKind::Concave,
            Form::Staircase(_) => FormKind::Staircase,
        }
    }

    /// What `floor`, `slope` and `shape` are multiplied by.
    fn columns(self, batch: u32) -> [f64; 3] {
        let requests = f64::from(batch);
        match self {
            Form::Linear => [1.0, requests, 0.0],
            Form::Concave(experts) => [1.0, requests, experts.touched_share(batch)],
            Form::Staircase(stairs) => [1.0, 0.0, stairs.waves(batch)],
        }
    }

    fn free(self) -> [bool; 3] {
        match self {
            Form::Linear => [true, true, false],
            Form::Concave(_) => [true, true, true],
            Form::Staircase(_) => [true, false, true],
        }
    }

    pub(super) fn fit(self, places: &[Place]) -> Curve {
        let row = |place: &Place| Row {
            columns: self.columns(place.batch),
            value: place.ms,
            weight: place.scale_ms.powi(-2),
        };
        let rows: Vec<Row<3>> = places.iter().map(row).collect();
        let [floor_ms, slope_ms, shape_ms] = nonnegative_least_squares(&rows, self.free());
        Curve { form: self, floor_ms, slope_ms, shape_ms }
    }
}

impl FormKind {
    pub fn name(self) -> &'static str {
        match self {
            FormKind::Linear => "linear",
            FormKind::Concave => "concave",
            FormKind::Staircase => "staircase",
        }
    }

    /// Its coefficients: as many batches are needed.
    pub fn coefficients(self) -> usize {
        match self {
            FormKind::Linear | FormKind::Staircase => 2,
            FormKind::Concave => 3,
        }
    }

    /// The curve of this kind that describes the places best; `None` when it is not tried, or the places are too few or
    /// too alike to tell its coefficients.
    pub(super) fn fit(self, forms: &Forms, places: &[Place]) -> Option<Curve> {
        if places.len() < self.coefficients() {
            return None;
        }
        match self {
            FormKind::Linear => Some(Form::Linear.fit(places)),
            FormKind::Concave => forms.experts.map(|experts| Form::Concave(experts).fit(places)),
            FormKind::Staircase => {
                let told_apart = |stairs: &&Stairs| {
                    places.iter().any(|place| stairs.waves(place.batch) != stairs.waves(places[0].batch))
                };
                let curves = forms.stairs.iter().filter(told_apart);
                let curves = curves.map(|stairs| Form::Staircase(*stairs).fit(places));
                curves.min_by(|one, other| one.error(places).total_cmp(&other.error(places)))
            }
        }
    }
}

impl Experts {
    /// Of all experts, how many a batch touches in the mean when each request picks at random.
    pub fn touched_share(self, batch: u32) -> f64 {
        let used = f64::from(self.used_by_a_request.get()) / f64::from(self.all.get());
        1.0 - (1.0 - used.min(1.0)).powf(f64::from(batch))
    }
}

impl Stairs {
    pub fn waves(self, batch: u32) -> f64 {
        let ctas = u64::from(batch) * u64::from(self.ctas_per_request.get());
        Waves::of(ctas, self.slots).waves as f64
    }

    /// Every number of CTAs a request up to `ctas_max`, on cards with any of these slots.
    pub fn search(slots: &[NonZeroU32], ctas_max: NonZeroU32) -> Vec<Stairs> {
        let ctas = (1..=ctas_max.get()).filter_map(NonZeroU32::new);
        ctas.flat_map(|ctas_per_request| {
            slots.iter().map(move |slots| Stairs { slots: *slots, ctas_per_request })
        })
        .collect()
    }
}

impl Curve {
    pub fn at(&self, batch: u32) -> f64 {
        let [one, slope, shape] = self.form.columns(batch);
        self.floor_ms * one + self.slope_ms * slope + self.shape_ms * shape
    }

    /// What a request adds when there are very many, in the mean over the stairs.
    pub fn last_slope_ms(&self) -> f64 {
        match self.form {
            Form::Linear | Form::Concave(_) => self.slope_ms,
            Form::Staircase(stairs) => {
                self.shape_ms * f64::from(stairs.ctas_per_request.get()) / f64::from(stairs.slots.get())
            }
        }
    }

    /// Root of the mean square of the errors, each as a share of its place's scale.
    pub(super) fn error(&self, places: &[Place]) -> f64 {
        let squares: f64 = places.iter().map(|place| self.error_at(place).powi(2)).sum();
        (squares / places.len().max(1) as f64).sqrt()
    }

    pub(super) fn error_at(&self, place: &Place) -> f64 {
        (place.ms - self.at(place.batch)) / place.scale_ms
    }
}

impl Place {
    /// Errors count by their share of the time, as the noise of times grows with them; a family that is nearly absent
    /// at some batch would then count above all others, so its time counts as at least a hundredth of the largest.
    pub(super) fn all(medians: &[(u32, f64)]) -> Vec<Place> {
        let largest = medians.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
        let least = if largest > 0.0 { largest / 100.0 } else { 1.0 };
        medians.iter().map(|&(batch, ms)| Place { batch, ms, scale_ms: ms.max(least) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    const BATCHES: [u32; 8] = [1, 8, 16, 32, 48, 64, 80, 96];

    fn places(time: impl Fn(u32) -> f64) -> Vec<Place> {
        Place::all(&BATCHES.map(|batch| (batch, time(batch))))
    }

    #[test]
    fn each_form_comes_back_from_its_own_times() {
        let stairs = Stairs { slots: number(188), ctas_per_request: number(6) };
        for form in [Form::Linear, Form::Concave(Experts::default()), Form::Staircase(stairs)] {
            let truth = match form {
                Form::Linear => Curve { form, floor_ms: 36.3, slope_ms: 0.8, shape_ms: 0.0 },
                Form::Concave(_) => Curve { form, floor_ms: 11.0, slope_ms: 0.8, shape_ms: 25.0 },
                Form::Staircase(_) => Curve { form, floor_ms: 3.0, slope_ms: 0.0, shape_ms: 21.0 },
            };
            let forms = Forms {
                experts: Some(Experts::default()),
                stairs: Stairs::search(&[number(188)], number(16)),
            };
            let found = form.kind().fit(&forms, &places(|batch| truth.at(batch))).unwrap();
            assert_eq!(found.form, form);
            for (one, other) in [
                (found.floor_ms, truth.floor_ms),
                (found.slope_ms, truth.slope_ms),
                (found.shape_ms, truth.shape_ms),
            ] {
                assert!((one - other).abs() < 1e-6, "{found:?}");
            }
        }
    }

    /// What the model of step times says of experts: 147 GB over four cards at 80 % of 1.792 TB/s.
    #[test]
    fn experts_are_touched_as_the_model_says() {
        let experts = Experts::default();
        let bytes = 3.0 * 4096.0 * 2048.0 * (0.5 + 1.0 / 32.0) * 43.0 * 256.0;
        let all_ms = bytes / 4.0 / (1.792e12 * 0.8) * 1e3;
        for (batch, ms) in [(1, 0.6), (32, 13.6), (96, 23.0)] {
            assert!((experts.touched_share(batch) * all_ms - ms).abs() < 0.06, "{batch}");
        }
    }

    #[test]
    fn too_few_or_equal_places_are_no_form() {
        let forms =
            Forms { experts: Some(Experts::default()), stairs: Stairs::search(&[number(1000)], number(2)) };
        let two = Place::all(&[(1, 4.0), (8, 5.0)]);
        assert!(FormKind::Linear.fit(&forms, &two).is_some());
        assert!(FormKind::Concave.fit(&forms, &two).is_none());
        assert!(FormKind::Staircase.fit(&forms, &two).is_none(), "one wave at both");
        let absent = FormKind::Linear.fit(&forms, &Place::all(&[(1, 0.0), (8, 0.0)])).unwrap();
        assert_eq!((absent.at(1), absent.at(100)), (0.0, 0.0));
    }

    #[test]
    fn the_last_slope_is_that_of_many_requests() {
        let stairs = Stairs { slots: number(188), ctas_per_request: number(4) };
        let curve = Curve { form: Form::Staircase(stairs), floor_ms: 5.0, slope_ms: 0.0, shape_ms: 10.0 };
        let far = (curve.at(1_000_000) - 5.0) / 1e6;
        assert!((curve.last_slope_ms() - far).abs() < 1e-4, "{far}");
    }
}
