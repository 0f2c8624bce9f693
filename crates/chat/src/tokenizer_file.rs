//! What `tokenizer.json` says, read with its types and checked before any of it is used. Post-processor,
//! decoder, padding and truncation are not read: prompts carry their own special tokens, and decoding is done
//! from bytes.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokenizers::models::bpe::Vocab;

use crate::error::shown;
use crate::splitting::Splitter;

/// Ids at or above this are refused: a hostile file must not make tables of billions of entries.
const MAX_IDS: u32 = 1 << 20;

#[derive(Deserialize)]
pub struct TokenizerFile {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    pub model: BpeModel,
    #[serde(default)]
    pub pre_tokenizer: Option<Splitter>,
    #[serde(default)]
    normalizer: Option<Normalizer>,
}

/// Byte-level BPE takes text as it is, so only a sequence of no steps is read.
#[derive(Deserialize)]
struct Normalizer {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    normalizers: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
pub struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
pub struct BpeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(deserialize_with = "distinct_entries")]
    pub vocab: Vocab,
    pub merges: Vec<Merge>,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Two neighbours that merge, written as `"left right"` or as `["left", "right"]`.
pub struct Merge {
    pub left: String,
    pub right: String,
}

impl TokenizerFile {
    /// Reads and checks everything but the pattern's behaviour. The error is the reason alone.
    pub fn parse(bytes: &[u8]) -> Result<TokenizerFile, String> {
        let file: TokenizerFile = serde_json::from_slice(bytes).map_err(|error| shown(&error.to_string()))?;
        let changes_text = |it: &Normalizer| it.kind != "Sequence" || !it.normalizers.is_empty();
        if file.normalizer.as_ref().is_some_and(changes_text) {
            return Err("`normalizer` changes texts, which no tokenizer of DeepSeek-V4 does".to_string());
        }
        let model = &file.model;
        match model.kind.as_deref() {
            Some("BPE") => {}
            Some(other) => {
                return Err(format!("`model.type` is `{}` where DeepSeek-V4 has `BPE`", shown(other)));
            }
            None => return Err("`model.type` is absent".to_string()),
        }
        let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        for (field, is_set) in [
            ("byte_fallback", model.byte_fallback),
            ("dropout", model.dropout.is_some_and(|rate| rate != 0.0)),
            ("continuing_subword_prefix", set(&model.continuing_subword_prefix)),
            ("end_of_word_suffix", set(&model.end_of_word_suffix)),
        ] {
            if is_set {
                return Err(format!("`model.{field}` is set, which byte-level BPE does not use"));
            }
        }
        for token in &file.added_tokens {
            if token.content.is_empty() {
                return Err(format!("added token {} has no text", token.id));
            }
            if token.single_word || token.lstrip || token.rstrip {
                return Err(format!(
                    "added token `{}` asks for stripping, which no token of V4 does",
                    shown(&token.content)
                ));
            }
        }
        Ok(file)
    }

    /// The bytes of every id, absent for ids that no token has. Fails on an id with two texts, a text with two
    /// ids, or a byte without a token.
    pub fn token_bytes(&self) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut texts: Vec<Option<&str>> = Vec::new();
        let vocab = self.model.vocab.iter().map(|(text, id)| (text.as_str(), *id));
        let added = self.added_tokens.iter().map(|token| (token.content.as_str(), token.id));
        for (text, id) in vocab.chain(added) {
            if id >= MAX_IDS {
                let text = shown(text);
                return Err(format!("token `{text}` has id {id}; more than {MAX_IDS} ids are refused"));
            }
            let id = id as usize;
            texts.resize(texts.len().max(id + 1), None);
            match texts[id].replace(text) {
                Some(other) if other != text => {
                    let (other, text) = (shown(other), shown(text));
                    return Err(format!("id {id} belongs to both `{other}` and `{text}`"));
                }
                _ => {}
            }
        }
        let vocab = &self.model.vocab;
        let mut added: HashMap<&str, u32> = HashMap::new();
        for token in &self.added_tokens {
            let also = added.insert(&token.content, token.id).or(vocab.get(&token.content).copied());
            if let Some(other) = also.filter(|other| *other != token.id) {
                let text = shown(&token.content);
                return Err(format!("token `{text}` has both id {other} and id {}", token.id));
            }
        }
        let alphabet = ByteAlphabet::new();
        if let Some((c, byte)) = alphabet.characters().find(|(c, _)| !vocab.contains_key(&c.to_string())) {
            return Err(format!("byte 0x{byte:02x} has no token ({c:?} is not in `model.vocab`)"));
        }
        let mut bytes: Vec<Option<Vec<u8>>> =
            texts.into_iter().map(|text| text.map(|text| alphabet.bytes_of(text))).collect();
        for token in &self.added_tokens {
            bytes[token.id as usize] = Some(token.content.as_bytes().to_vec());
        }
        Ok(bytes)
    }
}

/// Byte-level BPE writes each byte as one printable character: printable Latin-1 bytes as themselves, the
/// other 68 as U+0100 onwards, in order.
struct ByteAlphabet {
    byte_of: [Option<u8>; ALPHABET_END],
}

const ALPHABET_END: usize = 0x100 + 68;

impl ByteAlphabet {
    fn new() -> ByteAlphabet {
        let mut byte_of = [None; ALPHABET_END];
        let mut next_stand_in = 0x100;
        for byte in 0..=255u8 {
            let place = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as usize,
                _ => {
                    next_stand_in += 1;
                    next_stand_in - 1
                }
            };
            byte_of[place] = Some(byte);
        }
        ByteAlphabet { byte_of }
    }

    /// Each character of the alphabet with its byte.
    fn characters(&self) -> impl Iterator<Item = (char, u8)> {
        let places = (0u32..).zip(&self.byte_of);
        places.filter_map(|(code, byte)| Some((char::from_u32(code)?, (*byte)?)))
    }

    /// The bytes that a token of the vocabulary stands for; one with a character outside the alphabet stands
    /// for its own text.
    fn bytes_of(&self, token: &str) -> Vec<u8> {
        let bytes: Option<Vec<u8>> =
            token.chars().map(|c| self.byte_of.get(c as usize).copied().flatten()).collect();
        bytes.unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

/// A map in which a repeated key is an error, not a silent replacement.
fn distinct_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vocab, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vocab;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("token texts with their ids as `vocab`")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut vocab = Vocab::default();
            while let Some((text, id)) = entries.next_entry::<String, u32>()? {
                if vocab.contains_key(&text) {
                    let text = shown(&text);
                    return Err(de::Error::custom(format!("token `{text}` appears twice in `vocab`")));
                }
                vocab.insert(text, id);
            }
            Ok(vocab)
        }
    }

    deserializer.deserialize_map(Entries)
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("two token texts as an entry of `merges`")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<Merge, E> {
                let wrong = || E::invalid_value(de::Unexpected::Str(&shown(line)), &self);
                let (left, right) = line.split_once(' ').ok_or_else(wrong)?;
                Ok(Merge { left: left.to_string(), right: right.to_string() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Merge, A::Error> {
                let mut next = |index| {
                    items.next_element()?.ok_or_else(|| de::Error::invalid_length(index, &"two token texts"))
                };
                let merge = Merge { left: next(0)?, right: next(1)? };
                match items.next_element::<String>()? {
                    None => Ok(merge),
                    Some(_) => Err(de::Error::invalid_length(3, &"two token texts")),
                }
            }
        }

        deserializer.deserialize_any(MergeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_file_are_shown_escaped_and_cut() {
        let hostile = format!("\u{1b}[2J\n{}", "x".repeat(5_000));
        let quoted = serde_json::to_string(&hostile).unwrap();
        let model = |kind: &str, vocab: &str, merges: &str| {
            format!(r#"{{"model": {{"type": {kind}, "vocab": {vocab}, "merges": {merges}}}}}"#)
        };
        let twice = format!("{{{quoted}: 1, {quoted}: 2}}");
        let large = format!("{{{quoted}: 4000000000}}");
        for json in [
            model(&quoted, "{}", "[]"),
            model("\"BPE\"", &twice, "[]"),
            model("\"BPE\"", &large, "[]"),
            model("\"BPE\"", "{}", &format!("[{quoted}]")),
        ] {
            let read = TokenizerFile::parse(json.as_bytes()).and_then(|file| file.token_bytes());
            let reason = read.unwrap_err();
            assert!(reason.len() < 400 && !reason.chars().any(char::is_control), "{reason:?}");
            assert!(reason.contains("[2J"), "{reason}");
        }
    }

    #[test]
    fn a_normalizer_that_does_something_is_refused() {
        for normalizer in [r#"{"type": "NFC"}"#, r#"{"type": "Sequence", "normalizers": [{"type": "NFC"}]}"#]
        {
            let json = format!(
                r#"{{"normalizer": {normalizer}, "model": {{"type": "BPE", "vocab": {{}}, "merges": []}}}}"#
            );
            let reason = TokenizerFile::parse(json.as_bytes()).err().unwrap();
            assert!(reason.contains("`normalizer` changes texts"), "{reason}");
        }
    }

    #[test]
    fn the_alphabet_names_every_byte_once() {
        let alphabet = ByteAlphabet::new();
        let mut bytes: Vec<u8> = alphabet.characters().map(|(_, byte)| byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(alphabet.bytes_of("ĠAĊé"), [b' ', b'A', b'\n', 0xe9]);
        assert_eq!(alphabet.bytes_of("中"), "中".as_bytes());
    }
}
