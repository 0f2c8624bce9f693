//! Text whose origin is known: special tokens and template text written by the engine, and text that came
//! from anyone else. This is what keeps a user from typing a special token: only `ids` turns pieces into
//! tokens, and it never looks for special tokens in foreign text.

use crate::tokenizer::Stretch;
use crate::{ChatError, Special, Tokenizer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Special(Special),
    /// Text of the checkpoint's own templates: special tokens spelled in it are meant.
    Template(String),
    /// Text of users, tools, clients and models: never more than ordinary tokens.
    Text(String),
}

impl Piece {
    pub fn text(&self) -> &str {
        match self {
            Piece::Special(special) => special.text(),
            Piece::Template(text) | Piece::Text(text) => text,
        }
    }
}

/// A sequence of [`Piece`]s; neighbouring texts of one kind are always merged, so equal content compares equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Piece>);

impl Pieces {
    pub fn special(&mut self, special: Special) {
        self.0.push(Piece::Special(special));
    }

    pub fn template(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Template(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Template(text.to_string())),
        }
    }

    pub fn push_text(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Text(text.to_string())),
        }
    }

    pub fn extend(&mut self, other: &Pieces) {
        for piece in &other.0 {
            match piece {
                Piece::Special(special) => self.special(*special),
                Piece::Template(text) => self.template(text),
                Piece::Text(text) => self.push_text(text),
            }
        }
    }

    pub fn last(&self) -> Option<&Piece> {
        self.0.last()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.0.iter()
    }

    /// The whole as one string, special tokens spelled out.
    pub fn text(&self) -> String {
        self.0.iter().map(Piece::text).collect()
    }

    /// Token ids. Text between two special tokens is encoded in one go, whoever wrote its parts: that is how
    /// the model saw it in training, and merges may cross the seams.
    ///
    /// # Errors
    /// [`ChatError::NoSpecialToken`] if the tokenizer lacks a token used here, [`ChatError::Encode`] if it fails.
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatError> {
        let mut ids = Vec::new();
        let mut pending = String::new();
        let flush_then = |id: u32, pending: &mut String, ids: &mut Vec<u32>| {
            tokenizer.encode_into(pending, ids)?;
            pending.clear();
            ids.push(id);
            Ok::<(), ChatError>(())
        };
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => pending.push_str(text),
                Piece::Template(text) => {
                    for stretch in tokenizer.split_added(text) {
                        match stretch {
                            Stretch::Text(text) => pending.push_str(text),
                            Stretch::Token(id) => flush_then(id, &mut pending, &mut ids)?,
                        }
                    }
                }
                Piece::Special(special) => {
                    let token = special.text();
                    let id = tokenizer.special_id(*special).ok_or(ChatError::NoSpecialToken { token })?;
                    flush_then(id, &mut pending, &mut ids)?;
                }
            }
        }
        tokenizer.encode_into(&pending, &mut ids)?;
        Ok(ids)
    }
}
