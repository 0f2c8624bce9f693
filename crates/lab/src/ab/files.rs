//! A comparison of runs that were measured elsewhere: two results files, point by point. Runs of the same round are pairs
//! where both files have the same rounds; otherwise the samples are compared as they are. There is one look, so the usual 5 %
//! of false alarms are shared out among the points.

use super::comparison::{Comparison, Pairing, logarithms};
use super::looks::Look;
use super::outcome::{Outcome, Question};
use crate::stats::Sample;
use crate::sweep::{Results, RunKey};
use crate::{Better, LabError, Metric, Point, Quantity, Settings, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ALPHA: f64 = 0.05;

const RUNS_MIN: usize = 2;

#[derive(Debug)]
pub struct ResultsFile {
    pub path: PathBuf,
    pub settings: Settings,
    results: Results,
}

impl ResultsFile {
    /// # Errors
    /// No results file.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let (settings, results) = Results::read(path)?;
        Ok(ResultsFile { path: path.to_owned(), settings, results })
    }

    /// Runs by point and round, of those that were measured for their own sake.
    fn rounds(&self, quantity: &Quantity) -> BTreeMap<Point, BTreeMap<usize, f64>> {
        let mut rounds: BTreeMap<Point, BTreeMap<usize, f64>> = BTreeMap::new();
        for record in self.results.records() {
            if let RunKey::Round { round, point } = record.key
                && let Some(value) = quantity.of(&record.measurement)
            {
                rounds.entry(point).or_default().insert(round, value);
            }
        }
        rounds
    }

    fn points(&self) -> BTreeSet<Point> {
        self.results.records().iter().map(|record| record.key.point()).collect()
    }
}

/// The number in which points of this kind are compared unless told otherwise, most telling first.
fn preferred(work: Work) -> &'static [Metric] {
    match work {
        Work::Decode => &[Metric::StepMs, Metric::TokenMs, Metric::TokensPerS],
        Work::Prefill => &[Metric::FirstTokenMs, Metric::PromptTokensPerS],
        Work::Mixed => &[Metric::TokensPerS, Metric::RequestsPerS, Metric::TokenMs],
        Work::Program => &[Metric::WallS],
    }
}

/// `quantity` and its direction: `None` for the most telling number that both files have. `points`: empty for all that both
/// files have.
///
/// # Errors
/// Nothing to compare, a quantity without a direction, or numbers that cannot be compared.
pub fn compare_files(
    a: &ResultsFile,
    b: &ResultsFile,
    quantity: Option<(Quantity, Better)>,
    threshold: f64,
    points: &[Point],
) -> Result<Vec<Outcome>, LabError> {
    let mut comparable = Vec::new();
    for point in a.points().intersection(&b.points()) {
        if !points.is_empty() && !points.contains(point) {
            continue;
        }
        let candidates = match &quantity {
            Some(told) => vec![told.clone()],
            None => preferred(point.work())
                .iter()
                .filter_map(|metric| Some((Quantity::Known(*metric), metric.better()?)))
                .collect(),
        };
        let found = candidates.into_iter().find_map(|(quantity, better)| {
            let side = |file: &ResultsFile| {
                file.rounds(&quantity).remove(point).filter(|rounds| rounds.len() >= RUNS_MIN)
            };
            Some((side(a)?, side(b)?, quantity.clone(), better))
        });
        comparable.extend(found.map(|found| (*point, found)));
    }
    if comparable.is_empty() {
        return Err(nothing_in_common(a, b, quantity.as_ref()));
    }
    let alpha = ALPHA / comparable.len() as f64;
    let outcome = |(point, (a, b, quantity, better)): (Point, (_, _, _, _))| {
        at_point(
            point,
            &a,
            &b,
            Question { quantity, better, threshold, guards: Vec::new(), history: None },
            alpha,
        )
    };
    comparable.into_iter().map(outcome).collect()
}

fn at_point(
    point: Point,
    a: &BTreeMap<usize, f64>,
    b: &BTreeMap<usize, f64>,
    question: Question,
    alpha: f64,
) -> Result<Outcome, LabError> {
    let what = "runs of a file";
    let values = |rounds: &BTreeMap<usize, f64>| rounds.values().copied().collect::<Vec<f64>>();
    let (of_a, of_b) = (values(a), values(b));
    let comparison = if a.keys().eq(b.keys()) {
        let ratios: Vec<f64> =
            logarithms(what, &of_a)?.into_iter().zip(logarithms(what, &of_b)?).map(|(a, b)| b - a).collect();
        let pairing = Pairing::Rounds { rounds: ratios.len() };
        Comparison::of_pairs(&ratios, pairing, &Look::new(ratios.len(), alpha), question.better)?
    } else {
        Comparison::of_samples(&of_a, &of_b, alpha, question.better)?
    };
    let spread = |values| Sample::new(what, values).map(|sample| sample.spread());
    Ok(question.outcome(point, spread(of_a)?, spread(of_b)?, comparison, None, Vec::new()))
}

/// Says what each file has instead.
fn nothing_in_common(a: &ResultsFile, b: &ResultsFile, quantity: Option<&(Quantity, Better)>) -> LabError {
    let of = |file: &ResultsFile| {
        let mut runs: BTreeMap<Point, usize> = BTreeMap::new();
        for record in file.results.records() {
            let counts = matches!(record.key, RunKey::Round { .. })
                && quantity.is_none_or(|(quantity, _)| quantity.of(&record.measurement).is_some());
            *runs.entry(record.key.point()).or_default() += usize::from(counts);
        }
        let told = runs.iter().take(8).map(|(point, count)| format!("{point}: {count}"));
        told.collect::<Vec<_>>().join("; ")
    };
    let metric = quantity.map_or(String::new(), |(quantity, _)| format!(" with {quantity}"));
    let what = format!("runs{metric} in A are {}, in B {}", of(a), of(b));
    LabError::NothingInCommon { a: a.path.clone(), b: b.path.clone(), what }
}
