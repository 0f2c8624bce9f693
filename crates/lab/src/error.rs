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

    #[error(
        "all {pairs} ratios of B to A are {ratio}: numbers that do not scatter at all are not measurements, so nothing can \
         be said about chance"
    )]
    NoScatter { pairs: usize, ratio: f64 },
    #[error("B is 1e{power:.0} times A: numbers so far apart are damaged or of different units")]
    TooFarApart { power: f64 },
    #[error("{what} has no {quantity}; it has {known}")]
    NoQuantity { what: String, quantity: String, known: String },
    #[error("A and B were not measured alike: {differences}; compare like with like, or say --allow-unlike")]
    Unlike { differences: String },
    #[error("{a} and {b} have no point in common that was measured at least twice in each: {what}")]
    NothingInCommon { a: PathBuf, b: PathBuf, what: String },
    #[error("{path}: {what}")]
    Import { path: PathBuf, what: String },
    #[error("`{program}` {what}")]
    Program { program: String, what: String },

    #[error("the plan has no points to measure: name at least one")]
    NoPoints,
    #[error("the plan would take {runs} runs: at most {most} are possible, use fewer points or repeats")]
    TooManyRuns { runs: usize, most: usize },
    #[error("cannot read the results file {path}: {source}")]
    ReadResults { path: PathBuf, source: std::io::Error },
    #[error("another command is adding to {path}: wait until it has ended, or use another file")]
    BeingWritten { path: PathBuf },
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

    #[error(
        "`{given}` is no lever: {what}; write one such as `attention / 1.5`, `attention x 0.5`, `host gap - 50 %`, \
         `floor - 10 ms`, `CTAs/SM 1 -> 2`, `registers -> 128` or `shared memory -> 49 KB`"
    )]
    BadLever { given: String, what: String },
    #[error("the step has no family `{given}`: it has {known}, and the parts `step` and `floor`")]
    NoFamily { given: String, known: String },
    #[error("these numbers describe no step: {what}")]
    BadStep { what: String },
    #[error("the kernel cannot be launched so: {what}")]
    BadLaunch { what: String },
    #[error(
        "the lever says {told} CTAs per SM today, and this kernel has {has}: one of the two is another kernel"
    )]
    OtherKernel { told: u32, has: u32 },
    #[error("a lever of resources works through the CTAs that an SM holds: say what the kernel uses today")]
    NoKernel,
    #[error(
        "CTAs per SM move, and waves say what that brings: say the SMs of the card and the CTAs of a request"
    )]
    NoGrid,
    #[error("{have} batches are more than can be projected at once: give at most {most}")]
    TooManyBatches { have: usize, most: usize },
    #[error("nothing of the step of {step_ms:.1} ms at batch {batch} would be left, which no lever can do")]
    NothingLeft { batch: u32, step_ms: f64 },

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

    #[error(transparent)]
    Ledger(#[from] crate::ledger::LedgerError),

    #[error("{point}: {what}")]
    Target { point: String, what: String },
}

impl LabError {
    /// Whether whoever called must change something: a flag, a file. Otherwise a server or the machine failed.
    pub fn is_bad_input(&self) -> bool {
        match self {
            LabError::Ledger(error) => error.is_bad_input(),
            LabError::NoPoints
            | LabError::NoScatter { .. }
            | LabError::TooFarApart { .. }
            | LabError::NoQuantity { .. }
            | LabError::Unlike { .. }
            | LabError::NothingInCommon { .. }
            | LabError::Program { .. }
            | LabError::Import { .. }
            | LabError::NotPositive { .. }
            | LabError::TooManyRuns { .. }
            | LabError::ReadResults { .. }
            | LabError::BeingWritten { .. }
            | LabError::BadResults { .. }
            | LabError::OtherSettings { .. }
            | LabError::BadProfile { .. }
            | LabError::BadLever { .. }
            | LabError::NoFamily { .. }
            | LabError::BadStep { .. }
            | LabError::BadLaunch { .. }
            | LabError::OtherKernel { .. }
            | LabError::NoKernel
            | LabError::NoGrid
            | LabError::TooManyBatches { .. }
            | LabError::NothingLeft { .. }
            | LabError::BadUrl { .. }
            | LabError::BadHeader { .. } => true,
            LabError::TooFew { .. }
            | LabError::NotFinite { .. }
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
