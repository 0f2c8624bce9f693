//! All levers of a folder, and what they mean for one another: whose projection rests on a lever that has been closed
//! since, which idea another one refutes, in which order the open ones are worth their days.

use super::LedgerError;
use super::lever::{FILE_BYTES_MAX, Lever, LeverName, Projection};
use super::odds::{Coverage, Decision, Transfer};
use super::ruling::{JudgedRun, Ruling, Status};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const LEVERS_MAX: usize = 10_000;
const LEDGER_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug)]
pub struct Ledger {
    folder: PathBuf,
    entries: BTreeMap<LeverName, Entry>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub name: LeverName,
    #[serde(flatten)]
    pub lever: Lever,
    pub ruling: Ruling,
    pub flags: Vec<Flag>,
    /// As the file has it, comments and all.
    #[serde(skip)]
    pub(super) text: String,
}

/// What another lever means for this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// Its projection was made when the other lever stood otherwise.
    Reproject {
        depends_on: LeverName,
        now: Status,
    },
    RefutedBy {
        lever: LeverName,
    },
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flag::Reproject { depends_on, now } => {
                write!(f, "re-project: depends on {depends_on}, now {now}")
            }
            Flag::RefutedBy { lever } => write!(f, "refuted by {lever}, now adopted"),
        }
    }
}

impl Ledger {
    /// Reads every `.toml` of a folder.
    ///
    /// # Errors
    /// A folder or file that cannot be read, a file that is no lever, a lever that names one that is not there.
    pub fn read(folder: &Path) -> Result<Self, LedgerError> {
        let failed = |source| LedgerError::Read { path: folder.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
            if hidden || path.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            if files.len() == LEVERS_MAX {
                let what = format!("more than {LEVERS_MAX} levers");
                return Err(LedgerError::BadFile { path: folder.to_owned(), what });
            }
            files.push(path);
        }
        files.sort();
        let (mut texts, mut bytes) = (Vec::new(), 0);
        for path in files {
            let text = read_text(&path)?;
            bytes += text.len();
            if bytes > LEDGER_BYTES_MAX {
                let what = "more than 64 MiB of levers".to_owned();
                return Err(LedgerError::BadFile { path: folder.to_owned(), what });
            }
            texts.push((path, text));
        }
        Ledger::of(folder, texts)
    }

    /// Of texts that are in memory already; `folder` is for messages.
    ///
    /// # Errors
    /// As of [`Ledger::read`].
    pub fn of(folder: &Path, texts: Vec<(PathBuf, String)>) -> Result<Self, LedgerError> {
        let mut entries = BTreeMap::new();
        for (path, text) in texts {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            let name: LeverName = stem.parse()?;
            let lever = Lever::parse(&path.display().to_string(), &text)?;
            let ruling = Ruling::of(&lever);
            entries.insert(name.clone(), Entry { name, lever, ruling, flags: Vec::new(), text });
        }
        let mut ledger = Ledger { folder: folder.to_owned(), entries };
        ledger.check_links()?;
        ledger.raise_flags();
        Ok(ledger)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// By name.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// # Errors
    /// No lever of this name.
    pub fn entry(&self, name: &LeverName) -> Result<&Entry, LedgerError> {
        let unknown = || LedgerError::Unknown { name: name.clone(), folder: self.folder.clone() };
        self.entries.get(name).ok_or_else(unknown)
    }

    /// Open levers and those under way, most gain a day first, and those that cannot be ranked last.
    pub fn ranked(&self) -> Vec<&Entry> {
        let mut open: Vec<&Entry> = self.entries().filter(|entry| !entry.ruling.status.is_closed()).collect();
        let worth = |entry: &Entry| entry.gain_a_day_percent().unwrap_or(f64::NEG_INFINITY);
        open.sort_by(|one, other| worth(other).total_cmp(&worth(one)));
        open
    }

    /// By name.
    pub fn of_status(&self, status: Status) -> impl Iterator<Item = &Entry> {
        self.entries().filter(move |entry| entry.ruling.status == status)
    }

    /// What does not fit together although each file is well formed.
    pub fn problems(&self) -> Vec<(LeverName, String)> {
        let told = self.entries().flat_map(|entry| {
            let problems = entry.problems().into_iter();
            problems.map(|problem| (entry.name.clone(), problem))
        });
        told.collect()
    }

    /// Files that runs name and that are not there, seen from where the folder stands.
    pub fn missing_sources(&self) -> Vec<(LeverName, String)> {
        // Of `.` the path alone does not tell what it stands in.
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        let root = folder.parent().unwrap_or(Path::new(""));
        let sources = self.entries().flat_map(|entry| {
            let sources: BTreeSet<&String> =
                entry.lever.runs.iter().filter_map(|run| run.source.as_ref()).collect();
            sources.into_iter().map(move |source| (entry, source))
        });
        let missing = sources.filter(|(_, source)| !root.join(source).exists());
        missing
            .map(|(entry, source)| (entry.name.clone(), format!("its source {source} is not there")))
            .collect()
    }

    /// Over closed levers that had a projection before their first run.
    pub fn coverage(&self) -> Coverage {
        Coverage::of(self.projected_and_measured())
    }

    pub fn transfer(&self) -> Option<Transfer> {
        Transfer::of(self.projected_and_measured())
    }

    /// Closed levers whose mechanism moved or was not looked at: what came where something was projected.
    pub fn projected_and_measured(&self) -> impl Iterator<Item = (&Projection, f64)> {
        let closed = self.entries().filter(|entry| entry.lever.closed.is_some());
        closed.filter_map(|entry| entry.forecast()).map(|(projection, run)| (projection, run.uplift_percent))
    }

    fn check_links(&self) -> Result<(), LedgerError> {
        for Entry { name, lever, .. } in self.entries() {
            let superseded: &[LeverName] = lever.superseded_by.as_slice();
            let after: Vec<LeverName> =
                lever.projections.iter().flat_map(|projection| projection.after.keys().cloned()).collect();
            for (field, named) in [
                ("depends_on", &lever.depends_on[..]),
                ("refutes", &lever.refutes),
                ("superseded_by", superseded),
                ("after", &after),
            ] {
                for to in named {
                    let wrong =
                        |what| LedgerError::Link { lever: name.clone(), field, named: to.clone(), what };
                    if to == name {
                        return Err(wrong("which is itself"));
                    }
                    if !self.entries.contains_key(to) {
                        return Err(wrong("which is not in this ledger"));
                    }
                }
            }
        }
        self.check_order()
    }

    /// Takes away, again and again, levers that depend on none that is left.
    fn check_order(&self) -> Result<(), LedgerError> {
        let mut needed_by: BTreeMap<&LeverName, Vec<&LeverName>> = BTreeMap::new();
        let mut waits_for: BTreeMap<&LeverName, usize> = BTreeMap::new();
        for Entry { name, lever, .. } in self.entries() {
            let needs: BTreeSet<&LeverName> = lever.depends_on.iter().collect();
            waits_for.insert(name, needs.len());
            for need in needs {
                needed_by.entry(need).or_default().push(name);
            }
        }
        let mut free: Vec<&LeverName> =
            waits_for.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
        while let Some(name) = free.pop() {
            waits_for.remove(name);
            for waiting in needed_by.remove(name).unwrap_or_default() {
                if let Some(count) = waits_for.get_mut(waiting) {
                    *count -= 1;
                    if *count == 0 {
                        free.push(waiting);
                    }
                }
            }
        }
        let circular = waits_for.keys().find_map(|name| {
            let needs = &self.entries[*name].lever.depends_on;
            Some(((*name).clone(), needs.iter().find(|need| waits_for.contains_key(need))?.clone()))
        });
        circular.map_or(Ok(()), |(lever, named)| {
            Err(LedgerError::Link { lever, field: "depends_on", named, what: "which depends on it in turn" })
        })
    }

    fn raise_flags(&mut self) {
        let statuses: BTreeMap<LeverName, Status> =
            self.entries().map(|entry| (entry.name.clone(), entry.ruling.status)).collect();
        let mut refuted_by: BTreeMap<LeverName, Vec<LeverName>> = BTreeMap::new();
        for entry in self.of_status(Status::Adopted) {
            for refuted in &entry.lever.refutes {
                refuted_by.entry(refuted.clone()).or_default().push(entry.name.clone());
            }
        }
        for entry in self.entries.values_mut().filter(|entry| !entry.ruling.status.is_closed()) {
            let assumed = entry.lever.projections.last().map(|projection| &projection.after);
            for on in &entry.lever.depends_on {
                let now = statuses[on];
                if now.is_closed() && assumed.and_then(|after| after.get(on)) != Some(&now) {
                    entry.flags.push(Flag::Reproject { depends_on: on.clone(), now });
                }
            }
            for lever in refuted_by.remove(&entry.name).unwrap_or_default() {
                entry.flags.push(Flag::RefutedBy { lever });
            }
        }
    }
}

impl Entry {
    /// The mean gain, losses counted as 0, for each day that it takes. 0 when it rests on a lever that failed since, or
    /// another one refutes it: nothing may be expected of it until somebody projects it again.
    pub fn gain_a_day_percent(&self) -> Option<f64> {
        let (projection, days) = (self.lever.projections.last()?, self.lever.cost_days?);
        let rests_on_nothing = self.flags.iter().any(|flag| match flag {
            Flag::Reproject { now, .. } => !matches!(now, Status::Adopted | Status::Superseded),
            Flag::RefutedBy { .. } => true,
        });
        Some(if rests_on_nothing { 0.0 } else { projection.expected_gain_percent() / days })
    }

    /// Go or no-go by the stored threshold.
    pub fn decision(&self) -> Option<Decision> {
        Some(self.lever.projections.last()?.decision(self.lever.threshold?.tau_percent))
    }

    /// The uplift that counts: the median over the runs that do.
    pub fn measured_percent(&self) -> Option<f64> {
        let uplifts = self.ruling.counting().map(|(_, run)| run.uplift_percent).collect();
        Some(crate::stats::Sample::new("uplifts", uplifts).ok()?.median())
    }

    /// The last projection from before the first run, and the run of what it projected.
    pub(super) fn forecast(&self) -> Option<(&Projection, &JudgedRun)> {
        let projection = self.projection_before_runs()?;
        let mut counting = self.ruling.counting();
        let (_, run) = counting.find(|(index, _)| self.lever.runs[*index].what == projection.what)?;
        Some((projection, run))
    }

    fn projection_before_runs(&self) -> Option<&Projection> {
        let first = self.lever.runs.first()?.date;
        let is_younger = |projection: &Projection| {
            projection.date.zip(first).is_some_and(|(projected, measured)| projected > measured)
        };
        let mut youngest_first = self.lever.projections.iter().rev();
        youngest_first.find(|made| made.after_runs == 0 && !is_younger(made))
    }

    fn problems(&self) -> Vec<String> {
        let Entry { lever, ruling, .. } = self;
        let mut problems = Vec::new();
        if lever.closed.is_some() && !ruling.status.is_closed() {
            problems.push(format!("it is closed, but {}", ruling.because));
        }
        if let Some(projection) = self
            .projection_before_runs()
            .filter(|_| lever.closed.is_some() && ruling.counting().count() > 0 && self.forecast().is_none())
        {
            problems.push(format!(
                "it projected `{}`, and no run of these words counts: name a run as the projection does",
                projection.what
            ));
        }
        if ruling.status == Status::Open {
            let missing: Vec<&str> = [
                (lever.mechanism.is_none(), "mechanism"),
                (lever.projections.is_empty(), "projections"),
                (lever.threshold.is_none(), "threshold"),
                (lever.cost_days.is_none(), "cost_days"),
            ]
            .into_iter()
            .filter_map(|(is_missing, field)| is_missing.then_some(field))
            .collect();
            if !missing.is_empty() {
                problems.push(format!(
                    "it is open without {}: write it down before the first run",
                    missing.join(", ")
                ));
            }
        }
        problems
    }
}

/// # Errors
/// A file that cannot be read, is longer than a lever can be, or is not text.
pub(super) fn read_text(path: &Path) -> Result<String, LedgerError> {
    let failed = |source| LedgerError::Read { path: path.to_owned(), source };
    let bad = |what: &str| LedgerError::BadFile { path: path.to_owned(), what: what.to_owned() };
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(bad("this is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(bad("longer than 256 KiB, which no lever is"));
    }
    String::from_utf8(bytes).map_err(|_| bad("this is not UTF-8 text"))
}
