//! Why an answer can't be held to what was asked.

use std::fmt;

/// Where in a demand the trouble lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The form of the answer itself.
    Form,
    /// The arguments of the function with this index.
    Function(usize),
    /// All functions together.
    Functions,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// `path` leads from the place to the trouble, as in `.properties.a.items`; empty for the place itself.
    #[error("{reason}")]
    Unusable { place: Place, path: String, reason: String },
    #[error("the tokenizer gives no grammar: {reason}")]
    Tokenizer { reason: String },
}

/// A schema's trouble, before it is known whose schema it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub path: String,
    pub reason: String,
}

impl Trouble {
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        // Names in it may be of any length.
        let path = path.into().chars().take(200).collect();
        Trouble { path, reason: reason.into() }
    }

    pub fn at(self, place: Place) -> GrammarError {
        GrammarError::Unusable { place, path: self.path, reason: self.reason }
    }
}

/// What `llguidance` says, in one line that fits into an answer. It may hold a whole grammar or a backtrace.
pub(crate) fn told(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    if line.starts_with("panic: ") {
        return "the grammar's compiler gave up on it".to_string();
    }
    if line.contains("NoExtensionBias") {
        return "nothing satisfies it".to_string();
    }
    // Places in a text that only this crate has seen.
    let line = match line.strip_prefix("at ").and_then(|rest| rest.split_once("): ")) {
        Some((_, rest)) => rest,
        None => line,
    };
    let line = line.strip_prefix("failed to compile JSON schema: ").unwrap_or(line);
    line.trim_end_matches(':').chars().take(300).collect()
}
