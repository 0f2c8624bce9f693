//! Appending to a lever's file. What stands there stays, comments and layout included: a run, a guard's measurement or an
//! end is added, and nothing can be changed or taken out. The result is read again before it is written, with all
//! other levers, so that no command can leave a ledger behind that the next one refuses.

use super::book::{Entry, Ledger};
use super::lever::{
    Better, Closed, FILE_BYTES_MAX, Guard, Lever, LeverName, Mechanism, Projection, Reverted, Role, Run,
};
use super::ruling::{Ruling, Status};
use super::{Date, LedgerError};
use std::path::PathBuf;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

/// What can be added to a lever.
#[derive(Clone, Debug)]
pub enum Addition {
    Run(Run),
    /// A guard, or the measurement of one that has none yet.
    Guard(Guard),
    Projection(Projection),
    /// Refused where the runs do not decide, or say something else than `claim`.
    Closed {
        claim: Option<Status>,
        closed: Closed,
    },
    Reverted(Reverted),
    SupersededBy(LeverName),
}

/// What a lever is before anything was measured.
#[derive(Clone, Debug)]
pub struct NewLever {
    pub title: String,
    pub hypothesis: String,
    pub cost_days: f64,
    pub depends_on: Vec<LeverName>,
    pub refutes: Vec<LeverName>,
    pub mechanism: Mechanism,
    pub projection: Projection,
    pub tau_percent: f64,
}

/// A file that is ready to be written.
#[derive(Debug)]
pub struct Edited {
    pub path: PathBuf,
    pub text: String,
    /// The ledger as it is then.
    pub ledger: Ledger,
}

impl Edited {
    /// Writes the file beside its place first: a full disk must not cost a lever its history.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), LedgerError> {
        let failed = |source| LedgerError::Write { path: self.path.clone(), source };
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let beside = self.path.with_file_name(format!(".{name}.new"));
        std::fs::write(&beside, &self.text).map_err(failed)?;
        std::fs::rename(&beside, &self.path).map_err(failed)
    }
}

impl Ledger {
    /// # Errors
    /// No such lever, an end that its runs do not support, or a file that cannot take the addition.
    pub fn append(&self, name: &LeverName, addition: Addition) -> Result<Edited, LedgerError> {
        let entry = self.entry(name)?;
        let cannot = |what: &str| LedgerError::NotAppended { lever: name.clone(), what: what.to_owned() };
        let mut document: DocumentMut =
            entry.text.parse().map_err(|_| cannot("its file is not TOML any more"))?;
        match addition {
            Addition::Run(run) => {
                refuse_when_ended(entry, "run")?;
                push(&mut document, "runs", run_table(&run)).map_err(|what| cannot(&what))?;
            }
            Addition::Projection(mut projection) => {
                refuse_when_ended(entry, "projection")?;
                projection.after = self.standing_of(&entry.lever.depends_on)?;
                projection.after_runs = entry.lever.runs.len();
                push(&mut document, "projections", projection_table(&projection))
                    .map_err(|what| cannot(&what))?;
            }
            Addition::Guard(guard) => append_guard(&mut document, &guard).map_err(|what| cannot(&what))?,
            Addition::Closed { claim, closed } => {
                refuse_when_ended(entry, "end")?;
                // What is decided, is decided by runs alone.
                let as_if = Lever { closed: Some(closed.clone()), ..entry.lever.clone() };
                Ruling::of(&as_if).closing(claim).map_err(|reason| LedgerError::NotClosed {
                    lever: name.clone(),
                    claim,
                    reason,
                })?;
                document["closed"] = Item::Table(ended_table(closed.date, "note", closed.note.as_deref()));
            }
            Addition::Reverted(reverted) => {
                if entry.lever.reverted.is_some() {
                    return Err(cannot("it is reverted already"));
                }
                document["reverted"] =
                    Item::Table(ended_table(reverted.date, "reason", Some(&reverted.reason)));
            }
            Addition::SupersededBy(by) => {
                if entry.lever.superseded_by.is_some() {
                    return Err(cannot("it is superseded already"));
                }
                document["superseded_by"] = value(by.as_str());
            }
        }
        self.with(name, document.to_string())
    }

    /// # Errors
    /// A name that is taken, or fields that are no lever's.
    pub fn create(&self, name: &LeverName, new: &NewLever) -> Result<Edited, LedgerError> {
        if self.entry(name).is_ok() {
            return Err(LedgerError::Exists { path: self.path_of(name) });
        }
        let mut document = DocumentMut::new();
        document["title"] = value(&new.title);
        document["hypothesis"] = value(format!("{}\n", new.hypothesis.trim_end()));
        document["cost_days"] = Item::Value(number(new.cost_days));
        document["depends_on"] = Item::Value(names(&new.depends_on));
        document["refutes"] = Item::Value(names(&new.refutes));
        let Mechanism { what, unit, before, predicted } = &new.mechanism;
        let mut mechanism = Table::new();
        mechanism["what"] = value(what);
        mechanism["unit"] = value(unit);
        mechanism["before"] = Item::Value(number(*before));
        mechanism["predicted"] = Item::Value(number(*predicted));
        document["mechanism"] = Item::Table(mechanism);
        // Links to levers that are not there are refused with the whole ledger, below.
        let after = self.standing_of(&new.depends_on)?;
        let projection = Projection { after, ..new.projection.clone() };
        document["projections"] =
            Item::ArrayOfTables(ArrayOfTables::from_iter([projection_table(&projection)]));
        let mut threshold = Table::new();
        threshold["tau_percent"] = Item::Value(number(new.tau_percent));
        document["threshold"] = Item::Table(threshold);
        self.with(name, document.to_string())
    }

    fn path_of(&self, name: &LeverName) -> PathBuf {
        self.folder().join(format!("{name}.toml"))
    }

    /// This ledger with one file as `text`.
    fn with(&self, name: &LeverName, text: String) -> Result<Edited, LedgerError> {
        let path = self.path_of(name);
        if text.len() as u64 > FILE_BYTES_MAX {
            let what = "its file would be longer than 256 KiB: say less, or begin a new lever".to_owned();
            return Err(LedgerError::NotAppended { lever: name.clone(), what });
        }
        let others = self.entries().filter(|entry| entry.name != *name);
        let mut texts: Vec<(PathBuf, String)> =
            others.map(|entry| (self.path_of(&entry.name), entry.text.clone())).collect();
        texts.push((path.clone(), text.clone()));
        Ok(Edited { path, text, ledger: Ledger::of(self.folder(), texts)? })
    }

    fn standing_of(
        &self,
        names: &[LeverName],
    ) -> Result<std::collections::BTreeMap<LeverName, Status>, LedgerError> {
        names.iter().map(|name| Ok((name.clone(), self.entry(name)?.ruling.status))).collect()
    }
}

/// A closed lever's history is over: what comes later belongs to a new one.
fn refuse_when_ended(entry: &Entry, what: &str) -> Result<(), LedgerError> {
    if entry.lever.closed.is_none() && !entry.ruling.status.is_closed() {
        return Ok(());
    }
    let status = entry.ruling.status;
    Err(LedgerError::NotAppended {
        lever: entry.name.clone(),
        what: format!("it is closed ({status}) and takes no {what}: begin a new lever"),
    })
}

fn push(document: &mut DocumentMut, key: &str, table: Table) -> Result<(), String> {
    let tables = document.entry(key).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    let tables = tables.as_array_of_tables_mut();
    tables.ok_or_else(|| format!("its {key} are a list on one line: write them as [[{key}]]"))?.push(table);
    Ok(())
}

fn append_guard(document: &mut DocumentMut, guard: &Guard) -> Result<(), String> {
    let known = document.get_mut("guards").and_then(Item::as_array_of_tables_mut);
    let known = known.and_then(|guards| {
        guards.iter_mut().find(|known| known.get("what").and_then(Item::as_str) == Some(&guard.what))
    });
    let Some(known) = known else {
        if guard.at_most.is_none() && guard.at_least.is_none() {
            return Err(format!("it has no guard `{}`: say what is allowed", guard.what));
        }
        return push(document, "guards", guard_table(guard));
    };
    if guard.at_most.is_some() || guard.at_least.is_some() {
        return Err(format!("the guard `{}` has its limit already", guard.what));
    }
    match guard.measured {
        Some(_) if known.contains_key("measured") => {
            Err(format!("the guard `{}` was measured already", guard.what))
        }
        Some(measured) => {
            known["measured"] = Item::Value(number(measured));
            Ok(())
        }
        None => Err(format!("nothing is told about the guard `{}`", guard.what)),
    }
}

fn run_table(run: &Run) -> Table {
    let mut table = Table::new();
    if let Some(date) = run.date {
        table["date"] = value(date.to_toml());
    }
    table["what"] = value(&run.what);
    table["unit"] = value(&run.unit);
    table["better"] = value(match run.better {
        Better::Lower => "lower",
        Better::Higher => "higher",
    });
    table["before"] = Item::Value(number(run.before));
    table["after"] = Item::Value(number(run.after));
    if let Some(band) = run.band_percent {
        table["band_percent"] = Item::Value(number(band));
    }
    if let Some(interval) = run.interval_percent {
        table["interval_percent"] = value(Array::from_iter(interval.map(number)));
    }
    if let Some(spread) = run.spread {
        let count = i64::try_from(spread.count).unwrap_or(i64::MAX);
        let fields = [("low", number(spread.low)), ("high", number(spread.high)), ("count", count.into())];
        table["spread"] = value(InlineTable::from_iter(fields));
    }
    if run.role == Role::Context {
        table["role"] = value("context");
    }
    if let Some(check) = run.mechanism {
        let fields = [("before", number(check.before)), ("after", number(check.after))];
        table["mechanism"] = value(InlineTable::from_iter(fields));
    }
    if let Some(source) = &run.source {
        table["source"] = value(source);
    }
    table
}

fn projection_table(projection: &Projection) -> Table {
    let mut table = Table::new();
    if let Some(date) = projection.date {
        table["date"] = value(date.to_toml());
    }
    table["what"] = value(&projection.what);
    table["uplift_percent"] = value(Array::from_iter(projection.uplift_percent.map(number)));
    if !projection.after.is_empty() {
        let after =
            projection.after.iter().map(|(name, status)| (name.as_str(), Value::from(status.to_string())));
        table["after"] = value(InlineTable::from_iter(after));
    }
    if projection.after_runs > 0 {
        table["after_runs"] = Item::Value(number(projection.after_runs as f64));
    }
    table
}

fn guard_table(guard: &Guard) -> Table {
    let mut table = Table::new();
    table["what"] = value(&guard.what);
    table["unit"] = value(&guard.unit);
    for (key, given) in
        [("at_most", guard.at_most), ("at_least", guard.at_least), ("measured", guard.measured)]
    {
        if let Some(given) = given {
            table[key] = Item::Value(number(given));
        }
    }
    table
}

fn ended_table(date: Option<Date>, key: &str, text: Option<&str>) -> Table {
    let mut table = Table::new();
    if let Some(date) = date {
        table["date"] = value(date.to_toml());
    }
    if let Some(text) = text {
        table[key] = value(text);
    }
    table
}

fn names(names: &[LeverName]) -> Value {
    Value::Array(Array::from_iter(names.iter().map(LeverName::as_str)))
}

/// Whole numbers without a point, as people write them.
fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}
