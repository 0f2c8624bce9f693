//! How a lever stands, computed from its runs. Each run is judged against its own noise and the threshold that was
//! stored beforehand; runs whose mechanism did not move are no evidence, whatever the clock said; of several runs of the
//! same thing the last counts. What the runs do not decide stays undecided.

use super::lever::{Check, Lever, Mechanism, Role, Run};
use super::words::{arrow, guard_limit, plain_number, signed_percent, with_unit};
use crate::report::percent;
use crate::stats::{Interval, difference_band, runs_needed, t_quantile};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Nothing was measured.
    Open,
    /// Runs are there, and not closed or not deciding.
    Measuring,
    Adopted,
    /// A gain, and less than the threshold.
    Marginal,
    /// No gain, although the mechanism moved.
    Refuted,
    /// The mechanism did not move, or nobody looked: the idea was not tested.
    NotTested,
    /// Was in, and was taken out.
    Reverted,
    Superseded,
}

impl Status {
    /// Whether levers that depend on this one must be projected again.
    pub fn is_closed(self) -> bool {
        !matches!(self, Status::Open | Status::Measuring)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Open => "open",
            Status::Measuring => "measuring",
            Status::Adopted => "adopted",
            Status::Marginal => "marginal",
            Status::Refuted => "refuted",
            Status::NotTested => "not-tested",
            Status::Reverted => "reverted",
            Status::Superseded => "superseded",
        })
    }
}

/// What one run says by itself. With tau the larger of the stored threshold and the run's band:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval lies above 0 and the uplift is at least tau.
    Win,
    /// The interval lies above 0 and the uplift is below tau.
    Marginal,
    /// The interval holds 0 and lies below tau.
    BelowThreshold,
    /// The interval lies below 0.
    Loss,
    /// The interval holds 0 and tau, or there is none.
    Inconclusive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Movement {
    NotChecked,
    /// By at least half of what was predicted, in that direction.
    Moved,
    DidNotMove,
}

/// Whether the lever is judged by a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    Counts,
    Context,
    MeasuredAgain,
    MechanismDidNotMove,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedRun {
    pub uplift_percent: f64,
    pub interval_percent: Option<Interval>,
    pub tau_percent: f64,
    pub verdict: Verdict,
    pub movement: Movement,
    /// The check that it goes by.
    pub check: Option<Check>,
    pub standing: Standing,
}

impl JudgedRun {
    /// Its verdict, or why it has none.
    pub fn word(&self) -> &'static str {
        match (self.standing, self.verdict) {
            (Standing::Context, _) => "context",
            (Standing::MeasuredAgain, _) => "measured again",
            (Standing::MechanismDidNotMove, _) => "mechanism did not move",
            (Standing::Counts, Verdict::Win) => "win",
            (Standing::Counts, Verdict::Marginal) => "marginal",
            (Standing::Counts, Verdict::BelowThreshold) => "below threshold",
            (Standing::Counts, Verdict::Loss) => "loss",
            (Standing::Counts, Verdict::Inconclusive) => "inconclusive",
        }
    }
}

/// What all runs say together, before anybody closes the lever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    NoRuns,
    MechanismDidNotMove,
    Undecided,
    Win,
    Marginal,
    BelowThreshold,
    Loss,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ruling {
    pub status: Status,
    pub outcome: Outcome,
    pub movement: Movement,
    /// One sentence.
    pub because: String,
    /// In the order of the lever's runs.
    pub runs: Vec<JudgedRun>,
}

impl Ruling {
    pub fn of(lever: &Lever) -> Self {
        let runs = judge(lever);
        let movement = movement(&runs);
        let (outcome, mut because) = decide(lever, &runs);
        let status = if let Some(reverted) = &lever.reverted {
            because = reverted.reason.trim().to_owned();
            Status::Reverted
        } else if let Some(by) = &lever.superseded_by {
            because = format!("its place is taken by {by}");
            Status::Superseded
        } else if lever.closed.is_some() {
            settled(outcome, movement).unwrap_or(unsettled(lever))
        } else {
            unsettled(lever)
        };
        if settled(outcome, movement) == Some(Status::NotTested) && outcome != Outcome::MechanismDidNotMove {
            because = format!("{because}, {}", not_looked_at(lever.mechanism.as_ref()));
        }
        Ruling { status, outcome, movement, because, runs }
    }

    /// The status that closing would give.
    ///
    /// # Errors
    /// Runs that do not decide, or that say something else than `claim`; the reason as a sentence.
    pub fn closing(&self, claim: Option<Status>) -> Result<Status, String> {
        let Some(status) = settled(self.outcome, self.movement) else {
            return Err(self.because.clone());
        };
        match claim {
            Some(claim) if claim != status => {
                Err(format!("its runs say {status}: {}; close it as {status}", self.because))
            }
            _ => Ok(status),
        }
    }

    /// Runs that the lever is judged by.
    pub fn counting(&self) -> impl Iterator<Item = (usize, &JudgedRun)> {
        self.runs.iter().enumerate().filter(|(_, run)| run.standing == Standing::Counts)
    }
}

/// What a closed lever is; `None` where the runs do not say.
fn settled(outcome: Outcome, movement: Movement) -> Option<Status> {
    match outcome {
        Outcome::NoRuns | Outcome::Undecided => None,
        Outcome::MechanismDidNotMove => Some(Status::NotTested),
        Outcome::Win => Some(Status::Adopted),
        Outcome::Marginal => Some(Status::Marginal),
        Outcome::BelowThreshold | Outcome::Loss => {
            Some(if movement == Movement::Moved { Status::Refuted } else { Status::NotTested })
        }
    }
}

fn unsettled(lever: &Lever) -> Status {
    if lever.runs.is_empty() { Status::Open } else { Status::Measuring }
}

fn judge(lever: &Lever) -> Vec<JudgedRun> {
    let mut check = None;
    let mut judged = Vec::with_capacity(lever.runs.len());
    for (index, run) in lever.runs.iter().enumerate() {
        check = run.mechanism.or(check);
        let movement = moved(lever.mechanism.as_ref(), check);
        let measured_again = || {
            lever.runs[index + 1..].iter().any(|later| later.role == Role::Verdict && later.what == run.what)
        };
        let same = |earlier: &&Run| earlier.role == Role::Verdict && earlier.what == run.what;
        let standing = if run.role == Role::Context {
            Standing::Context
        } else if measured_again() {
            Standing::MeasuredAgain
        } else if movement == Movement::DidNotMove {
            Standing::MechanismDidNotMove
        } else {
            Standing::Counts
        };
        let stored = lever.threshold.map_or(0.0, |threshold| threshold.tau_percent);
        let tau_percent = stored.max(run.band().unwrap_or(0.0));
        let uplift_percent = run.uplift_percent();
        let mut interval_percent = run.interval_percent();
        if matches!(standing, Standing::Counts | Standing::MechanismDidNotMove) {
            let looks = 1 + lever.runs[..index].iter().filter(same).count();
            interval_percent = interval_percent.map(|interval| widened(interval, uplift_percent, looks));
        }
        judged.push(JudgedRun {
            uplift_percent,
            interval_percent,
            tau_percent,
            verdict: verdict(uplift_percent, interval_percent, tau_percent),
            movement,
            check,
            standing,
        });
    }
    judged
}

/// Whoever measures the same thing until it wins has more chances of a lucky run: of `looks` looks each gets its share of
/// the 5 %.
fn widened(of: Interval, uplift_percent: f64, looks: usize) -> Interval {
    if looks == 1 {
        return of;
    }
    // As good as the normal distribution.
    const FREEDOM: f64 = 1e4;
    let wider = t_quantile(0.05 / looks as f64, FREEDOM) / t_quantile(0.05, FREEDOM);
    let ratio = 1.0 + uplift_percent / 100.0;
    let stretched = |percent: f64| {
        let bound = (1.0 + percent / 100.0).max(0.0);
        100.0 * (ratio * (bound / ratio).powf(wider) - 1.0)
    };
    Interval { low: stretched(of.low), high: stretched(of.high) }
}

fn verdict(uplift_percent: f64, interval_percent: Option<Interval>, tau_percent: f64) -> Verdict {
    let Some(Interval { low, high }) = interval_percent else { return Verdict::Inconclusive };
    if high < 0.0 {
        Verdict::Loss
    } else if low > 0.0 {
        if uplift_percent >= tau_percent { Verdict::Win } else { Verdict::Marginal }
    } else if high < tau_percent {
        Verdict::BelowThreshold
    } else {
        Verdict::Inconclusive
    }
}

fn moved(mechanism: Option<&Mechanism>, check: Option<Check>) -> Movement {
    let (Some(mechanism), Some(check)) = (mechanism, check) else { return Movement::NotChecked };
    let share = (check.after - check.before) / (mechanism.predicted - mechanism.before);
    if share >= 0.5 { Movement::Moved } else { Movement::DidNotMove }
}

/// Of all runs that are not mere context: one in which it moved is enough. What was lost must have been lost while it moved.
fn movement(runs: &[JudgedRun]) -> Movement {
    let judged = |run: &&JudgedRun| !matches!(run.standing, Standing::Context | Standing::MeasuredAgain);
    let is_loss = |run: &JudgedRun| run.standing == Standing::Counts && run.verdict == Verdict::Loss;
    let any_loss = runs.iter().any(is_loss);
    let any = |movement| {
        let mut deciding = runs.iter().filter(judged).filter(|run| !any_loss || is_loss(run));
        deciding.any(|run| run.movement == movement)
    };
    [Movement::Moved, Movement::DidNotMove]
        .into_iter()
        .find(|movement| any(*movement))
        .unwrap_or(Movement::NotChecked)
}

type Counting<'a> = (&'a Run, &'a JudgedRun);

fn decide(lever: &Lever, judged: &[JudgedRun]) -> (Outcome, String) {
    let counting: Vec<Counting> =
        lever.runs.iter().zip(judged).filter(|(_, run)| run.standing == Standing::Counts).collect();
    if counting.is_empty() {
        let still = judged.iter().find(|run| run.standing == Standing::MechanismDidNotMove);
        return match (still.and_then(|run| run.check), &lever.mechanism) {
            (Some(check), Some(mechanism)) => (Outcome::MechanismDidNotMove, did_not_move(mechanism, check)),
            _ => (Outcome::NoRuns, "nothing was measured that decides it".into()),
        };
    }
    if let Some(guard) = lever.guards.iter().find(|guard| guard.holds() == Some(false)) {
        let measured = guard.measured.map_or(String::new(), |measured| with_unit(measured, &guard.unit));
        let told = format!("guard `{}`: {measured}, {} allowed", guard.what, guard_limit(guard));
        return (Outcome::Loss, told);
    }
    let unmeasured = lever.guards.iter().find(|guard| guard.measured.is_none());
    match (best(&counting), first(&counting, Verdict::Loss), unmeasured) {
        (Some(win), Some(loss), _) => {
            (Outcome::Undecided, format!("{}, but {}: split it by where it applies", at(win), at(loss)))
        }
        (Some(win), None, Some(guard)) => {
            (Outcome::Undecided, format!("{}, but the guard `{}` was not measured", at(win), guard.what))
        }
        (Some(win), None, None) => (Outcome::Win, at(win)),
        (None, Some(loss), _) => (Outcome::Loss, at(loss)),
        (None, None, _) => decide_without_win_or_loss(&counting),
    }
}

fn decide_without_win_or_loss(counting: &[Counting]) -> (Outcome, String) {
    let tau = |run: &Counting| plain_number(run.1.tau_percent);
    if let Some(run) = first(counting, Verdict::Inconclusive) {
        (Outcome::Undecided, doubt(run))
    } else if let Some(run) = first(counting, Verdict::Marginal) {
        (Outcome::Marginal, format!("{}, below the threshold of {} %", at(run), tau(run)))
    } else {
        let told = counting.first().map(|run| format!("{}, less than {} % for sure", at(run), tau(run)));
        (Outcome::BelowThreshold, told.unwrap_or_default())
    }
}

fn first<'a, 'b>(counting: &'a [Counting<'b>], verdict: Verdict) -> Option<&'a Counting<'b>> {
    counting.iter().find(|(_, run)| run.verdict == verdict)
}

/// The largest win.
fn best<'a, 'b>(counting: &'a [Counting<'b>]) -> Option<&'a Counting<'b>> {
    let wins = counting.iter().filter(|(_, run)| run.verdict == Verdict::Win);
    wins.max_by(|(_, one), (_, other)| one.uplift_percent.total_cmp(&other.uplift_percent))
}

fn at((run, judged): &Counting) -> String {
    format!("{} at `{}`", signed_percent(judged.uplift_percent), run.what)
}

/// Nobody measures that often.
const TIMES_MAX: u64 = 1000;

fn doubt(of: &Counting) -> String {
    let (run, judged) = of;
    match (judged.interval_percent, run.band()) {
        (None, _) => {
            format!("{}, and nothing says how far equal runs differ: give a band or an interval", at(of))
        }
        (Some(_), Some(band)) => {
            let sigma = band / difference_band(1.0, 1);
            let times = runs_needed(sigma, judged.uplift_percent, 0.0).filter(|times| *times <= TIMES_MAX);
            let times = times.map_or(String::new(), |times| format!("; {times} times the runs would tell"));
            format!("{} lies inside the noise band of {}{times}", at(of), percent(band / 100.0))
        }
        (Some(interval), _) => format!(
            "{} may be anything from {} to {}: neither nothing nor the threshold of {} % is ruled out",
            at(of),
            signed_percent(interval.low),
            signed_percent(interval.high),
            plain_number(judged.tau_percent)
        ),
    }
}

fn did_not_move(mechanism: &Mechanism, check: Check) -> String {
    format!(
        "its mechanism did not move: {} {} where {} was predicted, so the idea was not tested",
        mechanism.what,
        arrow(check.before, check.after, &mechanism.unit),
        plain_number(mechanism.predicted)
    )
}

fn not_looked_at(mechanism: Option<&Mechanism>) -> String {
    match mechanism {
        Some(mechanism) => format!(
            "but nobody looked whether its mechanism moved ({} {}), so the idea was not tested",
            mechanism.what,
            arrow(mechanism.before, mechanism.predicted, &mechanism.unit)
        ),
        None => "but it names no mechanism, so only this change was tested and not the idea".into(),
    }
}
