//! The results file: JSON lines, appended as each run ends, each with a check of its own. The first line has the
//! settings: a file is only continued under the same ones. A last line that was cut off, by a crash or a full disk, is
//! dropped; any other damage is an error that names the line.

use super::RunKey;
use crate::{LabError, Measurement, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Of a results file that is read: a run is a few hundred bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

const FORMAT: u32 = 1;

const CHECK_KEY: &str = ",\"check\":\"";

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
    file: Option<(PathBuf, File)>,
    records: Vec<RunRecord>,
    /// Where the record of a run stands.
    places: BTreeMap<RunKey, usize>,
}

impl Results {
    pub fn in_memory() -> Self {
        Results { file: None, records: Vec::new(), places: BTreeMap::new() }
    }

    /// Opens a results file, or makes a new one.
    ///
    /// # Errors
    /// A file that was not written here, is damaged, or was measured under other settings: the first that differs is
    /// named.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, LabError> {
        let read_error = |source| LabError::ReadResults { path: path.to_owned(), source };
        // Opening a pipe or a terminal would wait for somebody at its other end.
        match std::fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(read_error(std::io::Error::other("it is not a regular file")));
            }
            _ => {}
        }
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(path)
            .map_err(read_error)?;
        let mut bytes = Vec::new();
        (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(read_error(std::io::Error::other("it is longer than 256 MiB")));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let (stored, records) = read_lines(path, &bytes[..whole])?;
        let write_error = |source| LabError::WriteResults { path: path.to_owned(), source };
        if let Some(stored) = &stored {
            check_settings(path, stored, settings)?;
        } else if whole < bytes.len() && !bytes.starts_with(b"{\"line\":\"settings\"") {
            return Err(not_ours(path, 1));
        }
        file.set_len(whole as u64).map_err(write_error)?;
        file.seek(SeekFrom::End(0)).map_err(write_error)?;
        let mut results = Results { file: Some((path.to_owned(), file)), ..Results::in_memory() };
        for record in records {
            results.keep(record);
        }
        if stored.is_none() {
            results.write(&Line::Settings { format: FORMAT, settings: settings.clone() })?;
        }
        Ok(results)
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ended_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let RunRecord { key, measurement } = record.clone();
        self.write(&Line::Run { ended_unix_ms, key, measurement })?;
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
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let text = serde_json::to_string(line).map_err(std::io::Error::from);
        let written = text.and_then(|text| {
            file.write_all(sealed(&text).as_bytes())?;
            file.sync_data()
        });
        written.map_err(|source| LabError::WriteResults { path: path.clone(), source })
    }
}

fn read_lines(path: &Path, bytes: &[u8]) -> Result<(Option<Settings>, Vec<RunRecord>), LabError> {
    let (mut settings, mut records) = (None, Vec::new());
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() && is_last(bytes, line) {
            continue;
        }
        let number = index + 1;
        let bad =
            |what: &str| LabError::BadResults { path: path.to_owned(), line: number, what: what.into() };
        let text = std::str::from_utf8(line).map_err(|_| not_ours(path, number))?;
        let body = unsealed(text).map_err(|fault| match (fault, number) {
            (_, 1) => not_ours(path, 1),
            (Fault::NoCheck, _) => bad("it has no check, so it was not written by a measurement"),
            (Fault::WrongCheck, _) => bad("it was changed after it was written"),
        })?;
        let line: Line = serde_json::from_str(&body).map_err(|error| bad(&error.to_string()))?;
        match line {
            Line::Settings { format, settings: found } if number == 1 => {
                if format != FORMAT {
                    return Err(bad(&format!(
                        "the file has format {format} where this program writes {FORMAT}"
                    )));
                }
                settings = Some(found);
            }
            Line::Run { key, measurement, .. } if number > 1 => records.push(RunRecord { key, measurement }),
            _ => return Err(bad("settings stand in the first line, and only there")),
        }
    }
    Ok((settings, records))
}

/// Whether `line`, a part of `bytes`, is what follows the last line end.
fn is_last(bytes: &[u8], line: &[u8]) -> bool {
    line.as_ptr_range().end == bytes.as_ptr_range().end
}

fn not_ours(path: &Path, line: usize) -> LabError {
    let what = "this is not a results file of a measurement".into();
    LabError::BadResults { path: path.to_owned(), line, what }
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

/// A JSON object with the check of all that stands before it as its last member, and a line end.
fn sealed(object: &str) -> String {
    let body = object.strip_suffix('}').unwrap_or(object);
    format!("{body}{CHECK_KEY}{:016x}\"}}\n", fnv1a(body.as_bytes()))
}

enum Fault {
    NoCheck,
    WrongCheck,
}

fn unsealed(line: &str) -> Result<String, Fault> {
    let (body, check) = line.rsplit_once(CHECK_KEY).ok_or(Fault::NoCheck)?;
    let check = check.strip_suffix("\"}").ok_or(Fault::NoCheck)?;
    if u64::from_str_radix(check, 16) != Ok(fnv1a(body.as_bytes())) {
        return Err(Fault::WrongCheck);
    }
    Ok(format!("{body}}}"))
}

/// Against accidents only: disks, editors, copies. Whoever wants to forge a result can.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
