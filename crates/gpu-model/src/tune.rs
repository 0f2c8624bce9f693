//! Finds what a kernel's launches cost from measured times, and says what the choices that follow would have lost. Least squares
//! of relative errors, as in `fit.rs`; which of its ways a launch with workers took is not measured, so fits and guesses at
//! it take turns until they agree.

use crate::choose::{COSTS, Costs, KernelShape, Target, choose};
use crate::least_squares::{Row, error, not_negative};
use crate::runs::{Run, Sample};
use crate::table::{Entry, Lost, Residuals, SharedMemory, Table};
use std::collections::BTreeMap;
use thiserror::Error;

/// Fewer points would be described well by chance.
pub const POINTS_MIN: usize = 2 * COSTS;
const TURNS_MAX: usize = 40;

#[derive(Debug, Error)]
pub enum TuneError {
    #[error("{kernel}: {points} measured times; {POINTS_MIN} are needed for {COSTS} costs")]
    Points { kernel: String, points: usize },
    #[error("{kernel}: these times cannot tell its costs apart: measure more shapes")]
    Alike { kernel: String },
    #[error("the runs are of several devices, {one} and {other}: a table is of one")]
    Devices { one: String, other: String },
    #[error("no runs are given")]
    NoRuns,
}

/// A kernel to fit and the devices it serves.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub shape: KernelShape,
    pub serves: Option<SharedMemory>,
}

/// One question whose choice was not the best: for people.
#[derive(Clone, Debug)]
pub struct Miss {
    pub question: String,
    pub chosen: String,
    pub chosen_us: f64,
    pub best: String,
    pub best_us: f64,
}

/// The device that all runs are of.
///
/// # Errors
/// No runs, or several devices.
pub fn device(runs: &[Run]) -> Result<Target, TuneError> {
    let first = &runs.first().ok_or(TuneError::NoRuns)?.device;
    if let Some(run) = runs.iter().find(|run| run.device != *first) {
        return Err(TuneError::Devices { one: first.name.clone(), other: run.device.name.clone() });
    }
    Ok(Target { name: first.name.clone(), sm: first.sm, multiprocessors: first.multiprocessors })
}

/// Costs of one kernel.
///
/// # Errors
/// Too few points, or points that leave the costs open.
pub fn fit(
    shape: &KernelShape,
    target: &Target,
    samples: &[&Sample],
) -> Result<(Costs, Residuals), TuneError> {
    let kernel = || shape.name.clone();
    if samples.len() < POINTS_MIN {
        return Err(TuneError::Points { kernel: kernel(), points: samples.len() });
    }
    let ways: Vec<Vec<Row<COSTS>>> = samples
        .iter()
        .filter_map(|sample| Some((sample, shape.deal(sample.parts).ok()?)))
        .map(|(sample, deal)| {
            let ways = shape.ways(target, &sample.load, deal);
            ways.iter().map(|terms| terms.map(|times| times / sample.us)).collect()
        })
        .collect();
    // Any costs whose ways differ do to begin with.
    let mut costs = [5.0, 2.0, 1.5, 2.0, 1.5, 4.0, 0.1];
    for _ in 0..TURNS_MAX {
        let rows: Vec<Row<COSTS>> = ways.iter().filter_map(|ways| quickest(ways, &costs)).collect();
        let found = not_negative(&rows).ok_or_else(|| TuneError::Alike { kernel: kernel() })?;
        let settled = found.iter().zip(costs).all(|(new, old)| (new - old).abs() < 1e-9);
        costs = found;
        if settled {
            break;
        }
    }
    // As a table prints them.
    costs = costs.map(|cost| (cost * 1e4).round() / 1e4);
    let errors: Vec<f64> =
        ways.iter().filter_map(|ways| quickest(ways, &costs)).map(|row| error(&row, &costs)).collect();
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    let worst = errors.iter().copied().max_by(|one, other| one.abs().total_cmp(&other.abs()));
    let percent = |share: f64| (share * 1e3).round() / 10.0;
    let residuals = Residuals {
        points: errors.len(),
        percent: percent((squares / errors.len().max(1) as f64).sqrt()),
        worst_percent: percent(worst.unwrap_or(0.0)),
    };
    Ok((Costs::of_array(costs), residuals))
}

fn quickest(ways: &[Row<COSTS>], costs: &[f64; COSTS]) -> Option<Row<COSTS>> {
    ways.iter().copied().min_by(|one, other| error(one, costs).total_cmp(&error(other, costs)))
}

/// A table of all candidates that were timed often enough, with the names of those that were not.
///
/// # Errors
/// Runs of several devices, or of none.
pub fn tune(
    candidates: &[Candidate],
    card: &str,
    runs: &[(String, Run)],
) -> Result<(Table, Vec<TuneError>), TuneError> {
    let all: Vec<Run> = runs.iter().map(|(_, run)| run.clone()).collect();
    let target = device(&all)?;
    let (mut kernels, mut left_out) = (Vec::new(), Vec::new());
    for Candidate { shape, serves } in candidates {
        let samples = all.iter().flat_map(|run| &run.samples);
        let samples: Vec<&Sample> = samples.filter(|sample| sample.kernel == shape.name).collect();
        match fit(shape, &target, &samples) {
            Ok((costs, residuals)) => {
                kernels.push(Entry { shape: shape.clone(), serves: *serves, costs, residuals })
            }
            Err(error) => left_out.push(error),
        }
    }
    let nothing = Lost { shapes: 0, mean_percent: 0.0, worst_percent: 0.0 };
    let names = runs.iter().map(|(name, _)| name.clone()).collect();
    let mut table = Table { card: card.into(), runs: names, lost: nothing, kernels };
    table.lost = lost(&table, &target, &all).0;
    Ok((table, left_out))
}

/// What the table's choices would have lost at each question that several of its kernels were timed at in one run, and where.
/// A kernel counts with the time it was measured with, whatever parts it had then.
pub fn lost(table: &Table, target: &Target, runs: &[Run]) -> (Lost, Vec<Miss>) {
    let (mut losses, mut misses) = (Vec::new(), Vec::new());
    for run in runs {
        let mut questions: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
        let serving =
            |sample: &&Sample| table.serving(target.sm).any(|entry| entry.shape.name == sample.kernel);
        for sample in run.samples.iter().filter(serving) {
            questions.entry(&sample.question).or_default().push(sample);
        }
        for (question, timed) in questions.into_iter().filter(|(_, timed)| timed.len() > 1) {
            let Some((chosen, best)) = judge(table, target, &timed) else { continue };
            losses.push(chosen.us / best.us - 1.0);
            if chosen.kernel != best.kernel {
                misses.push(Miss {
                    question: question.into(),
                    chosen: chosen.kernel.clone(),
                    chosen_us: chosen.us,
                    best: best.kernel.clone(),
                    best_us: best.us,
                });
            }
        }
    }
    misses.sort_by(|one, other| (other.chosen_us / other.best_us).total_cmp(&(one.chosen_us / one.best_us)));
    let percent = |share: f64| (share * 1e4).round() / 100.0;
    let lost = Lost {
        shapes: losses.len(),
        mean_percent: percent(losses.iter().sum::<f64>() / losses.len().max(1) as f64),
        worst_percent: percent(losses.iter().copied().fold(0.0, f64::max)),
    };
    (lost, misses)
}

/// The sample of the kernel that the table would have chosen of those that were timed, and the quickest sample.
fn judge<'run>(
    table: &Table,
    target: &Target,
    timed: &[&'run Sample],
) -> Option<(&'run Sample, &'run Sample)> {
    let quickest = |kernel: Option<&str>| {
        let of = timed.iter().filter(|sample| kernel.is_none_or(|name| sample.kernel == name));
        of.min_by(|one, other| one.us.total_cmp(&other.us)).copied()
    };
    let choice = choose(table, target, &timed.first()?.load, None).ok()?;
    let order = std::iter::once(&choice.plan).chain(&choice.rejected);
    let chosen = order.filter_map(|plan| quickest(Some(&plan.kernel))).next()?;
    Some((chosen, quickest(None)?))
}
