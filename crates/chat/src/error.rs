//! Everything that can go wrong in this crate, each as one sentence that names the file, text or field and
//! says what to do. Model output is never an error: whatever a model writes is parsed into something.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("there is no {}: a chat needs the tokenizer that was published with the model", path.display())]
    NoTokenizer { path: PathBuf },

    /// The file is there, but this engine cannot tokenize with it.
    #[error("{name} is no usable tokenizer: {reason}")]
    Tokenizer { name: String, reason: String },

    #[error("the tokenizer failed on a text of {text_bytes} bytes: {reason}")]
    Encode { text_bytes: usize, reason: String },

    #[error("the tokenizer has no token {token}, which this prompt needs")]
    NoSpecialToken { token: &'static str },

    #[error("{name} holds no usable prompt texts: {reason}")]
    PromptTexts { name: String, reason: String },

    /// The request needs a fixed text that belongs to the checkpoint, and no file supplies it.
    #[error("this request needs the {what}, which {looked_in}")]
    NoPromptText { what: &'static str, looked_in: String },

    #[error("message {index}: `{field}` {reason}")]
    Message { index: usize, field: &'static str, reason: String },

    #[error("`{field}` {reason}")]
    Request { field: String, reason: String },
}
