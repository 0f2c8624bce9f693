//! Everything that can go wrong while measuring, one clear sentence each.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{what} needs at least {need} values and has {have}")]
    TooFew { what: &'static str, have: usize, need: usize },
    #[error("value {index} of {what} is {value}: only finite numbers can be measured with")]
    NotFinite { what: &'static str, index: usize, value: f64 },
    #[error("value {index} of {what} is {value}: only numbers above 0 have a ratio")]
    NotPositive { what: &'static str, index: usize, value: f64 },
    #[error("all {what} are the same: a line through one place has no slope")]
    OnePlace { what: &'static str },

    #[error("the plan has no points to measure: name at least one")]
    NoPoints,
    #[error("the plan would take {runs} runs: at most {most} are possible, use fewer points or repeats")]
    TooManyRuns { runs: usize, most: usize },
    #[error("cannot read the results file {path}: {source}")]
    ReadResults { path: PathBuf, source: std::io::Error },
    #[error("cannot write the results file {path}: {source}")]
    WriteResults { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {what}; move the file away to begin anew")]
    BadResults { path: PathBuf, line: usize, what: String },
    #[error(
        "{path} was measured with another {field} ({before} there, {now} now): use the same settings to go on, or \
         another file"
    )]
    OtherSettings { path: PathBuf, field: String, before: String, now: String },

    #[error("{subject}: {what}")]
    BadProfile { subject: String, what: String },
    #[error("cannot write {path}: {source}")]
    WriteFile { path: PathBuf, source: std::io::Error },

    #[error("`{url}` is not an address to measure: {what}")]
    BadUrl { url: String, what: &'static str },
    #[error("{what} cannot be sent in a header: use printable ASCII")]
    BadHeader { what: &'static str },
    #[error("the measuring runtime could not be started: {0}")]
    Runtime(std::io::Error),
    #[error("the certificates of this machine that https:// needs cannot be used: {what}")]
    Certificates { what: String },
    #[error("{url}: {what}")]
    Server { url: String, what: String },
    #[error("{point}: none of {requests} requests was answered; the first failed so: {first}")]
    NothingAnswered { point: String, requests: usize, first: String },

    #[error("{point}: {what}")]
    Target { point: String, what: String },
}

impl LabError {
    /// Whether whoever called must change something: a flag, a file. Otherwise a server or the machine failed.
    pub fn is_bad_input(&self) -> bool {
        match self {
            LabError::NoPoints
            | LabError::TooManyRuns { .. }
            | LabError::ReadResults { .. }
            | LabError::BadResults { .. }
            | LabError::OtherSettings { .. }
            | LabError::BadProfile { .. }
            | LabError::BadUrl { .. }
            | LabError::BadHeader { .. } => true,
            LabError::TooFew { .. }
            | LabError::NotFinite { .. }
            | LabError::NotPositive { .. }
            | LabError::OnePlace { .. }
            | LabError::WriteResults { .. }
            | LabError::WriteFile { .. }
            | LabError::Runtime(_)
            | LabError::Certificates { .. }
            | LabError::Server { .. }
            | LabError::NothingAnswered { .. }
            | LabError::Target { .. } => false,
        }
    }
}
