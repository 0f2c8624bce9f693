//! What the repository promises about itself and no compiler checks. Each check is a pure function from a
//! [`Tree`] of files to findings, one line each, so that its tests need no disk.
//!
//! Not here: formatting (rustfmt) and everything that clippy already knows.

mod allow;
mod binaries;
mod layering;
mod markdown;
mod rust_text;
mod sizes;
mod source;
mod tree;
mod unsafe_code;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use tree::Tree;

/// Something that is not as promised. `line` counts from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    sentence: String,
}

impl Finding {
    fn new(path: &str, line: usize, sentence: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line, sentence: sentence.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.sentence)
    }
}

const CHECKS: [fn(&Tree) -> Vec<Finding>; 6] =
    [layering::check, sizes::check, markdown::check, source::check, unsafe_code::check, binaries::check];

pub fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let tree = Tree::of_repository(root)?;
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing to report", tree.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: {} findings in {} files", findings.len(), tree.len());
    Ok(ExitCode::FAILURE)
}
