//! What can be wrong with a ledger, one clear sentence each.

use super::{LeverName, Status};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path}: {what}")]
    BadFile { path: PathBuf, what: String },
    #[error("{file}{}: {what}", at_line(*line))]
    BadLever { file: String, line: Option<usize>, what: String },
    #[error("`{name}` is no lever's name: use small letters, digits and -, at most 80 of them")]
    BadName { name: String },
    #[error("there is no lever `{name}` in {folder}: see `overshot lab lever list`")]
    Unknown { name: LeverName, folder: PathBuf },
    #[error("{path} exists already: append runs to it, or choose another name")]
    Exists { path: PathBuf },
    #[error("{lever}: {field} names `{named}`, {what}")]
    Link { lever: LeverName, field: &'static str, named: LeverName, what: &'static str },
    #[error("{lever} cannot be closed{}: {reason}", as_claimed(*claim))]
    NotClosed { lever: LeverName, claim: Option<Status>, reason: String },
    #[error("{lever}: {what}")]
    NotAppended { lever: LeverName, what: String },
    #[error(
        "{path}, line {line}, no longer follows from the runs: it says `{says}` where they give `{gives}`"
    )]
    Outdated { path: PathBuf, line: usize, says: String, gives: String },
}

impl LedgerError {
    /// Whether whoever called must change something: a flag, a file. Otherwise the machine failed, or a plan that was
    /// checked is not true any more.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, LedgerError::Write { .. } | LedgerError::Outdated { .. })
    }
}

fn at_line(line: Option<usize>) -> String {
    line.map_or(String::new(), |line| format!(", line {line}"))
}

fn as_claimed(claim: Option<Status>) -> String {
    claim.map_or(String::new(), |status| format!(" as {status}"))
}
