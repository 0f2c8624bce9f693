//! The results file: a journal whose first line has the settings, and every other line a run. A file is only continued
//! under the same settings.

use super::RunKey;
use crate::journal::{self, Journal, Kind};
use crate::{LabError, Measurement, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

const FORMAT: u32 = 1;

const KIND: Kind = Kind { name: "a results file of a measurement", begins: "{\"line\":\"settings\"" };

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub key: RunKey,
    pub measurement: Measurement,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    Settings { format: u32, settings: Settings },
    Run { ended_unix_ms: u64, key: RunKey, measurement: Measurement },
}

/// Runs that were measured: those in the file, or only in memory when there is none.
#[derive(Debug)]
pub struct Results {
    journal: Option<Journal>,
    records: Vec<RunRecord>,
    /// Where the record of a run stands.
    places: BTreeMap<RunKey, usize>,
}

impl Results {
    pub fn in_memory() -> Self {
        Results { journal: None, records: Vec::new(), places: BTreeMap::new() }
    }

    /// Opens a results file, or makes a new one.
    ///
    /// # Errors
    /// A file that was not written here, is damaged, or was measured under other settings: the first that differs is
    /// named.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, LabError> {
        let (journal, lines) = Journal::open(path, KIND)?;
        let (stored, records) = understood(path, lines)?;
        if let Some(stored) = &stored {
            check_settings(path, stored, settings)?;
        }
        let mut results = Results { journal: Some(journal), ..Results::in_memory() };
        for record in records {
            results.keep(record);
        }
        if stored.is_none() {
            results.write(&Line::Settings { format: FORMAT, settings: settings.clone() })?;
        }
        Ok(results)
    }

    /// The settings and runs of a file that is only looked at.
    ///
    /// # Errors
    /// A file that is not there, was not written here, is damaged or has no settings yet.
    pub fn read(path: &Path) -> Result<(Settings, Self), LabError> {
        let (settings, records) = understood(path, journal::read(path, KIND)?)?;
        let settings = settings.ok_or_else(|| bad(path, 1, "the file has no runs"))?;
        let mut results = Results::in_memory();
        for record in records {
            results.keep(record);
        }
        Ok((settings, results))
    }

    /// In the order in which they were first measured.
    pub fn records(&self) -> &[RunRecord] {
        &self.records
    }

    /// Writes a run down. A run of the same name is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, record: RunRecord) -> Result<&RunRecord, LabError> {
        let RunRecord { key, measurement } = record.clone();
        self.write(&Line::Run { ended_unix_ms: journal::unix_ms_now(), key, measurement })?;
        let place = self.keep(record);
        Ok(&self.records[place])
    }

    fn keep(&mut self, record: RunRecord) -> usize {
        match self.places.entry(record.key) {
            Entry::Occupied(known) => {
                let place = *known.get();
                self.records[place] = record;
                place
            }
            Entry::Vacant(new) => {
                let place = *new.insert(self.records.len());
                self.records.push(record);
                place
            }
        }
    }

    fn write(&mut self, line: &Line) -> Result<(), LabError> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.append(line))
    }
}

fn understood(path: &Path, lines: Vec<Line>) -> Result<(Option<Settings>, Vec<RunRecord>), LabError> {
    let (mut settings, mut records) = (None, Vec::new());
    for (index, line) in lines.into_iter().enumerate() {
        match line {
            Line::Settings { format: FORMAT, settings: found } if index == 0 => settings = Some(found),
            Line::Settings { format, .. } if index == 0 => {
                let what = format!("the file has format {format} where this program writes {FORMAT}");
                return Err(bad(path, 1, &what));
            }
            Line::Run { key, measurement, .. } if index > 0 => records.push(RunRecord { key, measurement }),
            _ => return Err(bad(path, index + 1, "settings stand in the first line, and only there")),
        }
    }
    Ok((settings, records))
}

fn bad(path: &Path, line: usize, what: &str) -> LabError {
    LabError::BadResults { path: path.to_owned(), line, what: what.into() }
}

fn check_settings(path: &Path, before: &Settings, now: &Settings) -> Result<(), LabError> {
    let names: BTreeMap<&String, ()> = before.keys().chain(now.keys()).map(|name| (name, ())).collect();
    let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), |value| format!("`{value}`"));
    match names.into_keys().find(|name| before.get(*name) != now.get(*name)) {
        None => Ok(()),
        Some(field) => Err(LabError::OtherSettings {
            path: path.to_owned(),
            field: field.clone(),
            before: shown(before.get(field)),
            now: shown(now.get(field)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, Point};

    fn settings(model: &str) -> Settings {
        Settings::from([("model".into(), model.into()), ("threads".into(), "2".into())])
    }

    fn record(round: usize, step_ms: f64) -> RunRecord {
        let mut measurement = Measurement::default();
        measurement.set(Metric::StepMs, step_ms);
        RunRecord { key: RunKey::Round { round, point: Point::Decode { streams: 4 } }, measurement }
    }

    fn written(path: &Path) {
        let mut results = Results::open(path, &settings("a")).unwrap();
        for round in 0..3 {
            results.append(record(round, 1.5 + round as f64)).unwrap();
        }
    }

    #[test]
    fn what_was_written_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        written(&path);
        let mut results = Results::open(&path, &settings("a")).unwrap();
        assert_eq!(results.records(), [record(0, 1.5), record(1, 2.5), record(2, 3.5)]);
        results.append(record(1, 9.0)).unwrap();
        drop(results);
        let results = Results::open(&path, &settings("a")).unwrap();
        assert_eq!(results.records(), [record(0, 1.5), record(1, 9.0), record(2, 3.5)]);
    }

    #[test]
    fn other_settings_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        written(&path);
        let error = Results::open(&path, &settings("b")).unwrap_err().to_string();
        assert!(error.contains("was measured with another model (`a` there, `b` now)"), "{error}");
        let mut more = settings("a");
        more.insert("context".into(), "64".into());
        let error = Results::open(&path, &more).unwrap_err().to_string();
        assert!(error.contains("another context (nothing there, `64` now)"), "{error}");
    }

    #[test]
    fn a_line_that_was_cut_is_dropped_and_other_damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        written(&path);
        let good = std::fs::read(&path).unwrap();
        for cut in [1, 20, 100] {
            std::fs::write(&path, &good[..good.len() - cut]).unwrap();
            let mut results = Results::open(&path, &settings("a")).unwrap();
            assert_eq!(results.records().len(), 2, "cut by {cut}");
            results.append(record(7, 1.0)).unwrap();
            drop(results);
            assert_eq!(Results::open(&path, &settings("a")).unwrap().records().len(), 3);
        }
        let text = String::from_utf8(good.clone()).unwrap().replace("2.5", "1.5");
        std::fs::write(&path, text).unwrap();
        let error = Results::open(&path, &settings("a")).unwrap_err().to_string();
        assert!(error.contains("line 3: it was changed after it was written"), "{error}");
        // A file cut within its first line is one that was never begun.
        std::fs::write(&path, &good[..30]).unwrap();
        assert!(Results::open(&path, &settings("a")).unwrap().records().is_empty());
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for text in ["my notes\n", "my notes", "{}\n", "\n\n", "{\"line\":\"run\"}\n"] {
            std::fs::write(&path, text).unwrap();
            let error = Results::open(&path, &settings("a")).unwrap_err().to_string();
            assert!(error.contains("not a results file"), "{text:?}: {error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(Results::open(folder.path(), &settings("a")).is_err());
    }

    #[test]
    fn no_mutation_makes_it_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        written(&path);
        let good = std::fs::read(&path).unwrap();
        let seed = 23;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, random.u8(..)),
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            // An error or fewer records, never other ones.
            if let Ok(results) = Results::open(&path, &settings("a")) {
                let known = [record(0, 1.5), record(1, 2.5), record(2, 3.5)];
                assert!(results.records().iter().all(|found| known.contains(found)), "seed {seed}");
            }
        }
    }
}
