//! The history file: one line for each A/A block, with the four values of every number that it gave. What a band is made of
//! are the blocks of one subject, point and machine: another driver or governor begins anew.

use crate::journal::{self, Journal, Kind};
use crate::stats::{AbbaBlock, Noise};
use crate::sweep::RunRecord;
use crate::{LabError, Point, Quantity, Settings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const KIND: Kind = Kind { name: "a history of noise", begins: "{\"line\":\"noise\"" };

const FORMAT: u32 = 1;

/// The newest blocks of a key: older ones tell of another state of the machine.
const BLOCKS_MAX: usize = 100;

/// What must be equal for A/A blocks to tell of the same noise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What was measured: a command, a model with its lengths, flags.
    pub subject: String,
    pub point: Point,
    pub machine: Settings,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    line: LineName,
    format: u32,
    ended_unix_ms: u64,
    key: Key,
    /// In the order of the runs: A, B, B, A.
    values: BTreeMap<String, [f64; 4]>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LineName {
    Noise,
}

#[derive(Debug)]
pub struct History {
    journal: Option<Journal>,
    lines: Vec<Line>,
}

impl History {
    pub fn in_memory() -> Self {
        History { journal: None, lines: Vec::new() }
    }

    /// Opens a history to add to, or begins one.
    ///
    /// # Errors
    /// A file that is none or is damaged.
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let (journal, lines) = Journal::open(path, KIND)?;
        check_formats(path, &lines)?;
        Ok(History { journal: Some(journal), lines })
    }

    /// # Errors
    /// A file that is not there, is none or is damaged.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let lines = journal::read(path, KIND)?;
        check_formats(path, &lines)?;
        Ok(History { journal: None, lines })
    }

    /// Writes a block down: all numbers above 0 that all four runs have.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, key: &Key, runs: [&RunRecord; 4]) -> Result<(), LabError> {
        let first = &runs[0].measurement;
        let known = first.metrics.keys().map(|metric| Quantity::Known(*metric));
        let named = first.named.keys().map(|name| Quantity::Named(name.clone()));
        let values = known.chain(named).filter_map(|quantity| {
            let [a1, b1, b2, a2] = runs.map(|run| quantity.of(&run.measurement));
            let values = [a1?, b1?, b2?, a2?];
            values.iter().all(|value| *value > 0.0).then(|| (quantity.to_string(), values))
        });
        let line = Line {
            line: LineName::Noise,
            format: FORMAT,
            ended_unix_ms: journal::unix_ms_now(),
            key: key.clone(),
            values: values.collect(),
        };
        if let Some(journal) = &mut self.journal {
            journal.append(&line)?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// The newest blocks of a key that have the quantity, oldest first.
    pub fn blocks(&self, key: &Key, quantity: &Quantity) -> Vec<AbbaBlock> {
        let name = quantity.to_string();
        let values =
            self.lines.iter().filter(|line| line.key == *key).filter_map(|line| line.values.get(&name));
        let blocks: Vec<AbbaBlock> = values.map(|values| AbbaBlock::in_order(*values)).collect();
        blocks[blocks.len().saturating_sub(BLOCKS_MAX)..].to_vec()
    }

    /// `None` when there are no blocks.
    ///
    /// # Errors
    /// A value that has no logarithm.
    pub fn noise(&self, key: &Key, quantity: &Quantity) -> Result<Option<Noise>, LabError> {
        let ratios: Result<Vec<f64>, LabError> =
            self.blocks(key, quantity).iter().map(AbbaBlock::log_ratio).collect();
        let ratios = ratios?;
        if ratios.is_empty() { Ok(None) } else { Noise::new(ratios).map(Some) }
    }

    /// Names of what the blocks of a key have.
    pub fn quantities(&self, key: &Key) -> Vec<Quantity> {
        let lines = self.lines.iter().filter(|line| line.key == *key);
        let mut names: Vec<&String> = lines.flat_map(|line| line.values.keys()).collect();
        names.sort();
        names.dedup();
        names.into_iter().map(|name| Quantity::from(name.as_str())).collect()
    }
}

fn check_formats(path: &Path, lines: &[Line]) -> Result<(), LabError> {
    match lines.iter().position(|line| line.format != FORMAT) {
        None => Ok(()),
        Some(index) => Err(LabError::BadResults {
            path: path.to_owned(),
            line: index + 1,
            what: format!("it has format {} where this program reads {FORMAT}", lines[index].format),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::RunKey;
    use crate::{Measurement, Metric};

    fn key(kernel: &str) -> Key {
        Key {
            subject: "x".into(),
            point: Point::Program,
            machine: Settings::from([("kernel".into(), kernel.into())]),
        }
    }

    fn runs(values: [f64; 4]) -> [RunRecord; 4] {
        let mut place = 0;
        values.map(|value| {
            let mut measurement = Measurement::default();
            measurement.set(Metric::WallS, value);
            measurement.named.insert("a.b".into(), value - 1.0);
            place += 1;
            RunRecord {
                key: RunKey::Noise { block: 0, place: place - 1, point: Point::Program },
                measurement,
            }
        })
    }

    #[test]
    fn blocks_come_back_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("noise.jsonl");
        let (wall, named) = (Quantity::from("wall_s"), Quantity::from("a.b"));
        let mut history = History::open(&path).unwrap();
        assert!(history.noise(&key("6.1"), &wall).unwrap().is_none());
        for values in [[1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]] {
            history.append(&key("6.1"), runs(values).each_ref()).unwrap();
        }
        history.append(&key("6.2"), runs([2.0; 4]).each_ref()).unwrap();
        let taken = History::open(&path).unwrap_err().to_string();
        assert!(taken.contains("another command is adding to"), "{taken}");
        drop(history);
        let read = History::read(&path).unwrap();
        let blocks = read.blocks(&key("6.1"), &wall);
        assert_eq!(
            blocks,
            [AbbaBlock::in_order([1.0, 1.1, 1.2, 1.3]), AbbaBlock::in_order([2.0, 2.1, 2.2, 2.3])]
        );
        // 1 less is 0 in the first run of the first block: there is no such number then.
        assert_eq!(read.blocks(&key("6.1"), &named).len(), 1);
        assert_eq!(read.noise(&key("6.2"), &wall).unwrap().unwrap().sigma(), 0.0);
        assert_eq!(read.quantities(&key("6.1")), [named, wall]);
        std::fs::write(&path, "my notes\n").unwrap();
        assert!(History::open(&path).unwrap_err().to_string().contains("this is not a history of noise"));
    }
}
