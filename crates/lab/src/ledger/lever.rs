//! A lever as its file says it: what it would change, what that should bring, what was measured, what was decided. The
//! fields are facts and estimates; nothing in them says how it stands, which follows from the runs (see `ruling.rs`).

use super::words::plain_number;
use super::{Date, LedgerError, Status};
use crate::stats::{Interval, difference_band, sigma_from_range};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Of a lever's file: the longest of ours has 3 kB.
pub const FILE_BYTES_MAX: u64 = 256 << 10;

/// The name of its file, without the ending.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeverName(String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lever {
    pub title: String,
    pub hypothesis: String,
    pub note: Option<String>,
    /// An estimate, as the projections are.
    pub cost_days: Option<f64>,
    #[serde(default)]
    pub depends_on: Vec<LeverName>,
    /// Levers that cannot be right if this one is.
    #[serde(default)]
    pub refutes: Vec<LeverName>,
    pub superseded_by: Option<LeverName>,
    pub mechanism: Option<Mechanism>,
    /// Oldest first; the last one counts.
    #[serde(default)]
    pub projections: Vec<Projection>,
    pub threshold: Option<Threshold>,
    /// Oldest first. Never changed, only appended to.
    #[serde(default)]
    pub runs: Vec<Run>,
    #[serde(default)]
    pub guards: Vec<Guard>,
    pub closed: Option<Closed>,
    pub reverted: Option<Reverted>,
}

/// What the lever changes about the machine's work: a number that can be looked at without a clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanism {
    pub what: String,
    #[serde(default)]
    pub unit: String,
    pub before: f64,
    pub predicted: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    /// Of what, in the words of the runs.
    pub what: String,
    /// 5, 50 and 95 of 100 cases lie below.
    pub uplift_percent: [f64; 3],
    pub date: Option<Date>,
    /// How the levers that this one depends on stood when it was made.
    #[serde(default)]
    pub after: BTreeMap<LeverName, Status>,
    /// Runs that were there when it was made: with some it is no forecast.
    #[serde(default)]
    pub after_runs: usize,
}

/// Stored before the first run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// A smaller uplift is not worth the days.
    pub tau_percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub date: Option<Date>,
    pub what: String,
    pub unit: String,
    pub better: Better,
    pub before: f64,
    pub after: f64,
    /// Equal runs differ by a factor of up to this many percent.
    pub band_percent: Option<f64>,
    /// Of the uplift, 95 %.
    pub interval_percent: Option<[f64; 2]>,
    /// Or what equal runs gave, from which the band of two single runs follows.
    pub spread: Option<Spread>,
    #[serde(default)]
    pub role: Role,
    /// The manipulation check: what the mechanism did in this run, and in those that follow until the next check.
    pub mechanism: Option<Check>,
    /// A file with the numbers.
    pub source: Option<String>,
}

/// `count` equal runs lay between `low` and `high`, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    pub low: f64,
    pub high: f64,
    pub count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Lower,
    Higher,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The lever is judged by it.
    #[default]
    Verdict,
    /// Told, not judged: a control, a part of a larger change.
    Context,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub before: f64,
    pub after: f64,
}

/// What must not get worse, whatever is won.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub what: String,
    #[serde(default)]
    pub unit: String,
    pub at_most: Option<f64>,
    pub at_least: Option<f64>,
    pub measured: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    pub date: Option<Date>,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reverted {
    pub date: Option<Date>,
    pub reason: String,
}

impl Lever {
    /// Reads what a file of this name says.
    ///
    /// # Errors
    /// Text that is not TOML, a field that is missing, unknown or of the wrong kind, a number that cannot be.
    pub fn parse(file: &str, text: &str) -> Result<Self, LedgerError> {
        let bad = |line, what| LedgerError::BadLever { file: file.to_owned(), line, what };
        let lever: Lever = toml_edit::de::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            bad(line, plain(error.message()))
        })?;
        lever.check().map_err(|what| bad(None, what))?;
        Ok(lever)
    }

    fn check(&self) -> Result<(), String> {
        one_line("title", &self.title)?;
        some_text("hypothesis", &self.hypothesis)?;
        self.note.as_deref().map_or(Ok(()), |note| some_text("note", note))?;
        self.cost_days.map_or(Ok(()), |days| positive("cost_days", days))?;
        if let Some(mechanism) = &self.mechanism {
            mechanism.check()?;
        }
        for (index, projection) in self.projections.iter().enumerate() {
            projection.check().map_err(|what| format!("projection {}: {what}", index + 1))?;
        }
        self.threshold.map_or(Ok(()), |threshold| percent("tau_percent", threshold.tau_percent))?;
        for (index, run) in self.runs.iter().enumerate() {
            run.check(self.mechanism.as_ref()).map_err(|what| format!("run {}: {what}", index + 1))?;
        }
        for (index, guard) in self.guards.iter().enumerate() {
            guard.check().map_err(|what| format!("guard {}: {what}", index + 1))?;
        }
        let closed = self.closed.as_ref().and_then(|closed| closed.note.as_deref());
        closed.map_or(Ok(()), |note| some_text("closed.note", note))?;
        self.reverted.as_ref().map_or(Ok(()), |reverted| some_text("reverted.reason", &reverted.reason))
    }
}

impl Mechanism {
    fn check(&self) -> Result<(), String> {
        one_line("mechanism.what", &self.what)?;
        unit("mechanism.unit", &self.unit)?;
        finite("mechanism.before", self.before)?;
        finite("mechanism.predicted", self.predicted)?;
        if self.before == self.predicted {
            return Err(format!(
                "the mechanism is predicted to stay at {}: name a number that the lever moves",
                self.before
            ));
        }
        Ok(())
    }
}

impl Projection {
    fn check(&self) -> Result<(), String> {
        one_line("what", &self.what)?;
        let [low, middle, high] = self.uplift_percent;
        for percent in self.uplift_percent {
            finite("uplift_percent", percent)?;
        }
        if low > middle || middle > high || low < -100.0 || high > 1e6 {
            return Err(format!(
                "uplift_percent is [{low}, {middle}, {high}]: give the 5, 50 and 95 % points, lowest first"
            ));
        }
        Ok(())
    }
}

impl Run {
    /// How much faster, or how much more, than before; negative when it got worse.
    pub fn uplift_percent(&self) -> f64 {
        let ratio = match self.better {
            Better::Lower => self.before / self.after,
            Better::Higher => self.after / self.before,
        };
        100.0 * (ratio - 1.0)
    }

    /// 95 % of the uplift; `None` where nobody knows what chance does. Chance multiplies: what was twice as fast may be
    /// off by twice as many percent of the speed before.
    pub fn interval_percent(&self) -> Option<Interval> {
        match (self.interval_percent, self.band()) {
            (Some([low, high]), _) => Some(Interval { low, high }),
            (None, Some(band)) => {
                let (ratio, by) = (1.0 + self.uplift_percent() / 100.0, 1.0 + band / 100.0);
                Some(Interval { low: 100.0 * (ratio / by - 1.0), high: 100.0 * (ratio * by - 1.0) })
            }
            (None, None) => None,
        }
    }

    /// Of the uplift, in percent: typed in, or of two single runs that scatter as the spread says.
    pub fn band(&self) -> Option<f64> {
        self.band_percent.or_else(|| Some(100.0 * difference_band(self.spread?.sigma()?, 1)))
    }

    fn check(&self, mechanism: Option<&Mechanism>) -> Result<(), String> {
        one_line("what", &self.what)?;
        unit("unit", &self.unit)?;
        positive("before", self.before)?;
        positive("after", self.after)?;
        let uplift = self.uplift_percent();
        if !(-100.0..=1e9).contains(&uplift) {
            let [before, after] = [self.before, self.after].map(plain_number);
            return Err(format!("from {before} to {after} is no ratio that a measurement gives"));
        }
        let noise = [self.band_percent.is_some(), self.interval_percent.is_some(), self.spread.is_some()];
        if noise.iter().filter(|given| **given).count() > 1 {
            return Err("give one of band_percent, interval_percent and spread".into());
        }
        self.band_percent.map_or(Ok(()), |band| percent("band_percent", band))?;
        if let Some([low, high]) = self.interval_percent {
            finite("interval_percent", low)?;
            finite("interval_percent", high)?;
            if !(low..=high).contains(&uplift) {
                return Err(format!(
                    "interval_percent is [{low}, {high}] and does not hold the uplift of {uplift:.2} %"
                ));
            }
        }
        self.spread.map_or(Ok(()), |spread| spread.check())?;
        if let Some(check) = self.mechanism {
            finite("mechanism.before", check.before)?;
            finite("mechanism.after", check.after)?;
            if mechanism.is_none() {
                return Err("it checks a mechanism that the lever does not name".into());
            }
        }
        self.source.as_deref().map_or(Ok(()), |source| one_line("source", source))
    }
}

impl Spread {
    /// Of one run, as a share; `None` for a count that has no table.
    pub fn sigma(self) -> Option<f64> {
        sigma_from_range(self.low, self.high, self.count)
    }

    fn check(self) -> Result<(), String> {
        let Spread { low, high, count } = self;
        positive("spread.low", low)?;
        positive("spread.high", high)?;
        if low > high {
            return Err(format!("spread is from {low} to {high}: give the lowest run first"));
        }
        if low == high {
            return Err(format!(
                "spread is from {low} to {high}: runs that are equal to the last digit do not tell what chance does, write \
                 more digits"
            ));
        }
        match self.sigma() {
            Some(sigma) if sigma.is_finite() => Ok(()),
            _ => Err(format!("spread.count is {count}: 2 to 6, 8 or 10 runs tell how far one scatters")),
        }
    }
}

impl Guard {
    /// `None` while it is not measured.
    pub fn holds(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(
            self.at_most.is_none_or(|limit| measured <= limit)
                && self.at_least.is_none_or(|limit| measured >= limit),
        )
    }

    fn check(&self) -> Result<(), String> {
        one_line("what", &self.what)?;
        unit("unit", &self.unit)?;
        for (field, number) in
            [("at_most", self.at_most), ("at_least", self.at_least), ("measured", self.measured)]
        {
            number.map_or(Ok(()), |number| finite(field, number))?;
        }
        if self.at_most.is_some() == self.at_least.is_some() {
            return Err("give at_most or at_least".into());
        }
        Ok(())
    }
}

impl LeverName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LeverName {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=80).contains(&text.len()) && text.chars().all(allowed) && !text.starts_with('-') {
            Ok(LeverName(text.to_owned()))
        } else {
            // A name may be as long as a file.
            let name = if text.chars().count() > 80 {
                text.chars().take(80).chain("...".chars()).collect()
            } else {
                text.to_owned()
            };
            Err(LedgerError::BadName { name })
        }
    }
}

impl TryFrom<String> for LeverName {
    type Error = LedgerError;

    fn try_from(text: String) -> Result<Self, LedgerError> {
        text.parse()
    }
}

impl From<LeverName> for String {
    fn from(name: LeverName) -> Self {
        name.0
    }
}

impl fmt::Display for LeverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the parser says, on one line; a status that somebody wrote down gets the reason why there is none.
fn plain(message: &str) -> String {
    if message.contains("unknown field `status`") {
        return "`status` follows from the runs and is not stored: remove it".into();
    }
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn some_text(field: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("{field} is empty"));
    }
    match text.chars().find(|character| character.is_control() && *character != '\n') {
        Some(character) => Err(format!("{field} holds the control character {}", character.escape_unicode())),
        None => Ok(()),
    }
}

fn one_line(field: &str, text: &str) -> Result<(), String> {
    if text.contains('\n') {
        return Err(format!("{field} must stand on one line"));
    }
    some_text(field, text)
}

/// Numbers without a unit are counts.
fn unit(field: &str, text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { one_line(field, text) }
}

fn finite(field: &str, number: f64) -> Result<(), String> {
    if number.is_finite() { Ok(()) } else { Err(format!("{field} is {number}: use a finite number")) }
}

fn percent(field: &str, number: f64) -> Result<(), String> {
    if (0.0..=1e6).contains(&number) {
        return Ok(());
    }
    Err(format!("{field} is {}: use a number from 0 to 1,000,000", plain_number(number)))
}

fn positive(field: &str, number: f64) -> Result<(), String> {
    if number.is_finite() && number > 0.0 {
        return Ok(());
    }
    Err(format!("{field} is {}: use a number above 0", plain_number(number)))
}
