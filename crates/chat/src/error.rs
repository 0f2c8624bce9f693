//! Everything that can go wrong in this crate, each as one sentence that names the file, text or field and
//! says what to do. Model output is never an error: whatever a model writes is parsed into something.

use std::fmt;
use std::path::PathBuf;

/// Text that comes out of a file is shown escaped and cut, so that a hostile file can neither break the line nor
/// drive a terminal.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("cannot read {}: {source}", Shown(&path.to_string_lossy()))]
    Read { path: PathBuf, source: std::io::Error },

    #[error(
        "there is no {}: text needs the tokenizer that was published with the model",
        Shown(&path.to_string_lossy())
    )]
    NoTokenizer { path: PathBuf },

    /// The file is there, but this engine cannot tokenize with it.
    #[error("{} is no usable tokenizer: {reason}", Shown(name))]
    Tokenizer { name: String, reason: String },

    #[error("the tokenizer failed on a text of {text_bytes} bytes: {reason}")]
    Encode { text_bytes: usize, reason: String },

    #[error("the tokenizer has no token {token}, which this prompt needs")]
    NoSpecialToken { token: &'static str },

    #[error("{} holds no usable prompt texts: {reason}", Shown(name))]
    PromptTexts { name: String, reason: String },

    /// The request needs a fixed text that belongs to the checkpoint, and no file supplies it.
    #[error("this request needs the {what}, which {looked_in}")]
    NoPromptText { what: &'static str, looked_in: String },

    #[error("message {index}: `{field}` {reason}")]
    Message { index: usize, field: &'static str, reason: String },

    #[error("`{field}` {reason}")]
    Request { field: String, reason: String },
}

/// Longest piece of foreign text in a message, in characters.
const SHOWN_CHARS_MAX: usize = 200;

struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, character) in self.0.chars().enumerate() {
            if count == SHOWN_CHARS_MAX {
                return out.write_str("...");
            }
            if character.is_control() {
                write!(out, "{}", character.escape_default())?;
            } else {
                write!(out, "{character}")?;
            }
        }
        Ok(())
    }
}

/// Foreign text for use inside a `reason`.
pub(crate) fn shown(text: &str) -> String {
    Shown(text).to_string()
}
