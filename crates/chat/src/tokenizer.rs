//! `tokenizer.json` to ids and back. The byte-pair merging is the `tokenizers` crate's; added tokens are kept
//! out of it, because it would find `<｜User｜>` in any text (only tokens flagged special can be switched off
//! there, and most of V4's are not). So plain text is plain by construction, and `split_added` is the one
//! place where text becomes added tokens.
//!
//! Only byte-level BPE is read, the one kind that V4 has. Nothing here adds a begin-of-sentence token.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, TokenizerImpl};

use crate::error::shown;
use crate::files::read_bounded;
use crate::splitting::Splitter;
use crate::tokenizer_file::TokenizerFile;
use crate::{ChatError, Special};

/// The largest that a published model has is a tenth of this.
const FILE_BYTES_MAX: u64 = 64 << 20;

type BytePairs = TokenizerImpl<BPE, NormalizerWrapper, Splitter, PostProcessorWrapper, DecoderWrapper>;

/// A loaded tokenizer; clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    /// Merges plain text; knows no added token.
    bpe: BytePairs,
    /// Bytes of every id, back to back; `spans[id]` is empty for ids that no token has.
    bytes: Vec<u8>,
    spans: Vec<Range<u32>>,
    added: HashMap<String, u32>,
    added_ids: BTreeSet<u32>,
    /// The different lengths of added tokens in bytes, longest first.
    added_lengths: Vec<usize>,
    specials: HashMap<Special, u32>,
    special_ids: HashMap<u32, Special>,
}

/// What template text is made of: plain text, and added tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stretch<'a> {
    Text(&'a str),
    Token(u32),
}

/// A text that must come back unchanged from ids: letters, digits, accents, ideographs, white space, marks.
const PROBE: &str = "Probe 1234 naïve 中文 \u{1f600}\r\n\t {\"a\": [1.5]}  <think>｜";

impl Tokenizer {
    /// # Errors
    /// [`ChatError::NoTokenizer`], [`ChatError::Read`] or [`ChatError::Tokenizer`].
    pub fn from_file(path: &Path) -> Result<Tokenizer, ChatError> {
        let bytes = read_bounded(path, FILE_BYTES_MAX).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ChatError::NoTokenizer { path: path.to_path_buf() },
            _ => ChatError::Read { path: path.to_path_buf(), source },
        })?;
        Tokenizer::from_bytes(&bytes, &path.display().to_string())
    }

    /// Reads the content of a `tokenizer.json`; `name` stands in error messages.
    ///
    /// # Errors
    /// [`ChatError::Tokenizer`] with the first thing found wrong.
    pub fn from_bytes(json: &[u8], name: &str) -> Result<Tokenizer, ChatError> {
        let wrong = |reason: String| ChatError::Tokenizer { name: name.to_string(), reason };
        let file = TokenizerFile::parse(json).map_err(wrong)?;
        let mut bytes = Vec::new();
        let mut spans = Vec::new();
        for token_bytes in file.token_bytes().map_err(wrong)? {
            let start = bytes.len() as u32;
            bytes.extend(token_bytes.unwrap_or_default());
            spans.push(start..bytes.len() as u32);
        }

        let added: HashMap<String, u32> =
            file.added_tokens.iter().map(|token| (token.content.clone(), token.id)).collect();
        let lengths: BTreeSet<usize> = added.keys().map(String::len).collect();
        let specials: HashMap<Special, u32> = Special::ALL
            .into_iter()
            .filter_map(|special| Some((special, *added.get(special.text())?)))
            .collect();
        if let Some(absent) = Special::REQUIRED.into_iter().find(|special| !specials.contains_key(special)) {
            return Err(wrong(format!(
                "it has no added token {}, so it is not one of DeepSeek-V4",
                absent.text()
            )));
        }

        let shared = Shared {
            bpe: build_bpe(file).map_err(wrong)?,
            bytes,
            spans,
            added_ids: added.values().copied().collect(),
            added,
            added_lengths: lengths.into_iter().rev().collect(),
            special_ids: specials.iter().map(|(special, id)| (*id, *special)).collect(),
            specials,
        };
        let tokenizer = Tokenizer { shared: Arc::new(shared) };
        tokenizer.check_probe().map_err(wrong)?;
        Ok(tokenizer)
    }

    /// A lossy pre-tokenizer or normalizer would damage prompts silently.
    fn check_probe(&self) -> Result<(), String> {
        let ids = self.encode(PROBE).map_err(|error| error.to_string())?;
        let back: Vec<u8> = ids.iter().flat_map(|id| self.bytes_of(*id)).copied().collect();
        if back == PROBE.as_bytes() {
            Ok(())
        } else {
            Err(format!(
                "a text does not survive it: {PROBE:?} came back as \"{}\"",
                shown(&String::from_utf8_lossy(&back))
            ))
        }
    }

    /// Ids of `text` as ordinary tokens, whatever it spells.
    ///
    /// # Errors
    /// [`ChatError::Encode`] if the tokenizer's own pattern gives up on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// Ids of trusted `text`, in which added tokens are meant as such: for plain completion of a prompt that
    /// the caller wrote in full.
    ///
    /// # Errors
    /// [`ChatError::Encode`] as in [`Tokenizer::encode`].
    pub fn encode_with_specials(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let mut ids = Vec::new();
        for stretch in self.split_added(text) {
            match stretch {
                Stretch::Text(text) => self.encode_into(text, &mut ids)?,
                Stretch::Token(id) => ids.push(id),
            }
        }
        Ok(ids)
    }

    pub(crate) fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), ChatError> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self.shared.bpe.encode_fast(text, false).map_err(|error| ChatError::Encode {
            text_bytes: text.len(),
            reason: shown(&error.to_string()),
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Cuts `text` at added tokens, the longest one first at each place.
    pub(crate) fn split_added<'a>(&self, text: &'a str) -> Vec<Stretch<'a>> {
        let mut stretches = Vec::new();
        let mut plain_from = 0;
        let mut at = 0;
        while at < text.len() {
            let found = self.shared.added_lengths.iter().find_map(|length| {
                let candidate = text.get(at..at + length)?;
                Some((*length, *self.shared.added.get(candidate)?))
            });
            match found {
                Some((length, id)) => {
                    if plain_from < at {
                        stretches.push(Stretch::Text(&text[plain_from..at]));
                    }
                    stretches.push(Stretch::Token(id));
                    at += length;
                    plain_from = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if plain_from < text.len() {
            stretches.push(Stretch::Text(&text[plain_from..]));
        }
        stretches
    }

    /// The bytes a token stands for; they need not be whole characters. Empty for ids that no token has.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        match self.shared.spans.get(id as usize) {
            Some(span) => &self.shared.bytes[span.start as usize..span.end as usize],
            None => &[],
        }
    }

    pub fn special_id(&self, special: Special) -> Option<u32> {
        self.shared.specials.get(&special).copied()
    }

    pub fn special_of(&self, id: u32) -> Option<Special> {
        self.shared.special_ids.get(&id).copied()
    }

    /// Whether `id` is an added token: a marker, never part of ordinary text.
    pub fn is_added(&self, id: u32) -> bool {
        self.shared.added_ids.contains(&id)
    }

    /// The token that ends an answer.
    pub fn end_of_sentence(&self) -> u32 {
        self.shared.specials[&Special::EndOfSentence]
    }

    /// One more than the highest id. A model's own vocabulary may be larger, never smaller.
    pub fn vocabulary_size(&self) -> usize {
        self.shared.spans.len()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tokenizer({} ids)", self.vocabulary_size())
    }
}

fn build_bpe(file: TokenizerFile) -> Result<BytePairs, String> {
    let model = file.model;
    let bpe = BPE::builder()
        .vocab_and_merges(
            model.vocab,
            model.merges.into_iter().map(|merge| (merge.left, merge.right)).collect(),
        )
        .ignore_merges(model.ignore_merges)
        .build()
        .map_err(|error| format!("its merges do not fit its vocabulary: {}", shown(&error.to_string())))?;
    let mut tokenizer = BytePairs::new(bpe);
    tokenizer.with_pre_tokenizer(file.pre_tokenizer);
    Ok(tokenizer)
}
