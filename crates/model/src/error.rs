//! Everything that can be wrong with a checkpoint, each as one sentence that names the place and what to do.

use std::fmt;
use std::path::PathBuf;

/// Why a checkpoint was refused. Text that comes out of a file is shown escaped and cut, so that a hostile name
/// can neither break the line nor drive a terminal.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read {}: {error}", Shown(&path.to_string_lossy()))]
    Read { path: PathBuf, error: std::io::Error },

    #[error("{} is not a model: {reason}", Shown(&path.to_string_lossy()))]
    NotAModel { path: PathBuf, reason: String },

    #[error("{}: {reason}", Shown(file))]
    Malformed { file: String, reason: String },

    #[error("{}: {reason}", Shown(file))]
    Unsupported { file: String, reason: String },

    #[error("{}: field `{}` {reason}", Shown(file), Shown(field))]
    Field { file: String, field: String, reason: String },

    #[error(
        "{} has {found} bytes but its header describes {expected}: the file is truncated or overwritten, fetch it again",
        Shown(file)
    )]
    FileLength { file: String, expected: u64, found: u64 },

    #[error("{}: shard `{}` is not there: fetch the missing file", Shown(index), Shown(shard))]
    MissingShard { index: String, shard: String },

    #[error(
        "{}: tensor `{}` is missing: the checkpoint is incomplete or does not fit its config.json",
        Shown(file),
        Shown(tensor)
    )]
    MissingTensor { file: String, tensor: String },

    #[error(
        "{}: tensor `{}` has no place in the model that config.json describes{}",
        Shown(file),
        Shown(tensor),
        Others(*others)
    )]
    SurplusTensor { file: String, tensor: String, others: usize },

    #[error("tensor `{}` is in two files, {} and {}: remove one", Shown(tensor), Shown(first), Shown(second))]
    DuplicateTensor { tensor: String, first: String, second: String },

    #[error("{}: tensor `{}` has shape {found:?}, expected {expected:?}", Shown(file), Shown(tensor))]
    Shape { file: String, tensor: String, expected: Vec<usize>, found: Vec<usize> },

    #[error("{}: tensor `{}` is stored as {found}, expected {expected}", Shown(file), Shown(tensor))]
    Dtype { file: String, tensor: String, expected: &'static str, found: String },

    #[error("{}: tensor `{}` {reason}", Shown(file), Shown(tensor))]
    Value { file: String, tensor: String, reason: String },
}

/// Longest piece of foreign text in a message, in characters.
const SHOWN_CHARS_MAX: usize = 160;

struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, character) in self.0.chars().enumerate() {
            if count == SHOWN_CHARS_MAX {
                return f.write_str("...");
            }
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

struct Others(usize);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            others => write!(f, " ({others} more like it)"),
        }
    }
}

/// Foreign text for use inside a `reason`.
pub(crate) fn shown(text: &str) -> String {
    Shown(text).to_string()
}
