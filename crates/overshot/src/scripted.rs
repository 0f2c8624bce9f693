//! Reads the scripts that `--backend scripted:FILE` plays, and turns them into tokens.
//!
//! The file has one JSON object a line, one line an answer, in the order in which requests draw their first token;
//! after the last line the first comes again. A line is `{"chunks": [..]}`, and what one decode step yields is one of
//!
//! * `"text"`: its tokens, all in one step; markers such as `</think>` become the special tokens that they spell,
//! * `{"hex": "ef bd"}`: raw bytes, a token each, which may end within a character,
//! * `{"eos": true}`: the end of the answer, which also follows by itself behind the last chunk.
//!
//! `{"delay_ms": 50}` before one of these is how long that step takes. Everything but the model is real: prompts,
//! tokenizer, parsing, limits.

use crate::failure::{bad_input, one_line};
use crate::input::read_file;
use overshot_backend::{Script, ScriptStep};
use overshot_chat::Tokenizer;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;
use std::time::Duration;

const SCRIPT_BYTES_MAX: u64 = 64 << 20;
const DELAY_MS_MAX: u64 = 3_600_000;

const CHUNK_KINDS: &str = r#""text", {"hex": "ef bd"}, {"delay_ms": 50} or {"eos": true}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    chunks: Vec<Value>,
}

/// # Errors
/// A file that cannot be read, has no line, or the first thing in it that cannot be played, by line and chunk.
pub fn read_scripts(path: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Script>> {
    let text = read_file(path, SCRIPT_BYTES_MAX)?;
    let shown = path.display();
    let bytes = ByteTokens::of(tokenizer);
    let mut scripts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let script = read_line(line, tokenizer, &bytes)
            .map_err(|what| bad_input(format!("{shown}, line {}: {what}", index + 1)))?;
        scripts.push(script);
    }
    if scripts.is_empty() {
        return Err(bad_input(format!(
            "{shown} has no line: write one {{\"chunks\": [..]}} for each answer"
        )));
    }
    Ok(scripts)
}

fn read_line(line: &str, tokenizer: &Tokenizer, bytes: &ByteTokens) -> Result<Script, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => format!("write {{\"chunks\": [..]}}: {error}"),
        _ => format!("it is no JSON: {error}"),
    })?;
    let mut steps = Vec::new();
    let mut delay_ms = 0_u64;
    for (index, chunk) in line.chunks.iter().enumerate() {
        match read_chunk(chunk, tokenizer, bytes).map_err(|what| format!("chunk {}: {what}", index + 1))? {
            Chunk::Delay(ms) => delay_ms = delay_ms.saturating_add(ms).min(DELAY_MS_MAX),
            Chunk::Tokens(tokens) => {
                let delay = Duration::from_millis(std::mem::take(&mut delay_ms));
                steps.push(ScriptStep { delay, tokens });
            }
        }
    }
    let eos = tokenizer.end_of_sentence();
    if steps.last().is_none_or(|step| step.tokens.last() != Some(&eos)) {
        steps.push(ScriptStep { delay: Duration::from_millis(delay_ms), tokens: vec![eos] });
    }
    Ok(Script::new(steps))
}

enum Chunk {
    Tokens(Vec<u32>),
    /// Milliseconds, for the step that follows.
    Delay(u64),
}

fn read_chunk(chunk: &Value, tokenizer: &Tokenizer, bytes: &ByteTokens) -> Result<Chunk, String> {
    let unknown = || format!("{} is none of {CHUNK_KINDS}", one_line(&chunk.to_string()));
    match chunk {
        Value::String(text) if text.is_empty() => Err("an empty text yields no token: leave it out".into()),
        Value::String(text) => {
            tokenizer.encode_with_specials(text).map(Chunk::Tokens).map_err(|error| error.to_string())
        }
        Value::Object(fields) => match only_entry(fields).ok_or_else(unknown)? {
            ("hex", Value::String(hex)) => bytes.tokens(hex).map(Chunk::Tokens),
            ("delay_ms", Value::Number(number)) => {
                let delay = number.as_u64().filter(|ms| *ms <= DELAY_MS_MAX);
                delay
                    .map(Chunk::Delay)
                    .ok_or_else(|| format!("delay_ms is {number}: use 0 to {DELAY_MS_MAX}, at most an hour"))
            }
            ("eos", Value::Bool(true)) => Ok(Chunk::Tokens(vec![tokenizer.end_of_sentence()])),
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

fn only_entry(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let mut entries = fields.iter();
    let (name, value) = entries.next()?;
    entries.next().is_none().then_some((name.as_str(), value))
}

/// The tokens of single bytes, of which a byte-level vocabulary has all 256.
struct ByteTokens([Option<u32>; 256]);

impl ByteTokens {
    fn of(tokenizer: &Tokenizer) -> Self {
        let mut tokens = [None; 256];
        for id in 0..tokenizer.vocabulary_size() as u32 {
            if let ([byte], false) = (tokenizer.bytes_of(id), tokenizer.is_added(id)) {
                tokens[usize::from(*byte)].get_or_insert(id);
            }
        }
        ByteTokens(tokens)
    }

    fn tokens(&self, hex: &str) -> Result<Vec<u32>, String> {
        let digits: Vec<char> = hex.chars().filter(|character| !character.is_whitespace()).collect();
        if digits.is_empty() || !digits.len().is_multiple_of(2) {
            return Err(format!("hex is {hex:?}: write two digits for each byte"));
        }
        let mut tokens = Vec::with_capacity(digits.len() / 2);
        for pair in digits.chunks_exact(2) {
            let (Some(high), Some(low)) = (pair[0].to_digit(16), pair[1].to_digit(16)) else {
                return Err(format!("hex is {hex:?}: write two digits for each byte"));
            };
            let byte = high * 16 + low;
            tokens.push(self.0[byte as usize].ok_or_else(|| {
                format!("byte {byte:02x} has no token of its own in this model's tokenizer")
            })?);
        }
        Ok(tokens)
    }
}

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use crate::embedded::embedded_model;
    use overshot_chat::Special;

    fn tokenizer() -> Tokenizer {
        let model = embedded_model().unwrap();
        Tokenizer::from_bytes(model.tokenizer.as_bytes(), "tokenizer.json").unwrap()
    }

    fn read(line: &str) -> Result<Script, String> {
        let tokenizer = tokenizer();
        read_line(line, &tokenizer, &ByteTokens::of(&tokenizer))
    }

    #[test]
    fn chunks_become_the_tokens_of_one_step_each() {
        let tokenizer = tokenizer();
        let eos = tokenizer.end_of_sentence();
        let script = read(
            r#"{"chunks": ["Two words", {"delay_ms": 20}, {"delay_ms": 30}, "a</think>", {"hex": "EF bd9c"}]}"#,
        )
        .unwrap();
        let words = tokenizer.encode("Two words").unwrap();
        assert_eq!(script.step_from(0), words);
        let mut thought = tokenizer.encode("a").unwrap();
        thought.push(tokenizer.special_id(Special::ThinkClose).unwrap());
        assert_eq!(script.step_from(words.len()), thought);
        assert_eq!(script.delay_at(words.len()), Duration::from_millis(50));
        let bytes = script.step_from(words.len() + thought.len());
        let spelled: Vec<u8> = bytes.iter().flat_map(|id| tokenizer.bytes_of(*id)).copied().collect();
        assert_eq!((bytes.len(), spelled), (3, "｜".as_bytes().to_vec()));
        assert_eq!(script.tokens().last(), Some(&eos), "an answer that does not end is ended");
    }

    #[test]
    fn an_end_is_not_added_twice() {
        let eos = tokenizer().end_of_sentence();
        for line in
            [r#"{"chunks":[{"eos":true}]}"#, r#"{"chunks":["<｜end▁of▁sentence｜>"]}"#, r#"{"chunks":[]}"#]
        {
            assert_eq!(read(line).unwrap().tokens(), [eos], "{line}");
        }
        let delayed = read(r#"{"chunks":["a",{"delay_ms":7}]}"#).unwrap();
        assert_eq!(delayed.delay_at(delayed.tokens().len() - 1), Duration::from_millis(7));
    }

    #[test]
    fn what_cannot_be_played_is_named() {
        for (line, expected) in [
            ("{", "it is no JSON"),
            (r#"{"chunk": []}"#, r#"write {"chunks": [..]}: unknown field `chunk`"#),
            ("[3]", "write {\"chunks\": [..]}"),
            (r#"{"chunks":["a",""]}"#, "chunk 2: an empty text yields no token"),
            (r#"{"chunks":[7]}"#, "chunk 1: 7 is none of"),
            (r#"{"chunks":[{"text":"a"}]}"#, r#"chunk 1: {"text":"a"} is none of"#),
            (r#"{"chunks":[{"hex":"61","eos":true}]}"#, "is none of"),
            (r#"{"chunks":[{"eos":false}]}"#, "is none of"),
            (r#"{"chunks":[{"hex":"e"}]}"#, "two digits for each byte"),
            (r#"{"chunks":[{"hex":"+1"}]}"#, "two digits for each byte"),
            (r#"{"chunks":[{"hex":""}]}"#, "two digits for each byte"),
            (r#"{"chunks":[{"delay_ms":-1}]}"#, "delay_ms is -1"),
            (r#"{"chunks":[{"delay_ms":3600001}]}"#, "at most an hour"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.contains(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn every_byte_has_a_token_in_the_built_in_model() {
        assert!(ByteTokens::of(&tokenizer()).0.iter().all(Option::is_some));
    }

    #[test]
    fn files_are_read_line_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.jsonl");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_scripts(&path, &tokenizer())
        };
        assert_eq!(read("{\"chunks\":[\"a\"]}\n\n{\"chunks\":[\"b\"]}\n").unwrap().len(), 2);
        assert!(read("\n").unwrap_err().to_string().contains("has no line"));
        let wrong = read("{\"chunks\":[\"a\"]}\n\n{\"chunks\":[1]}").unwrap_err().to_string();
        assert!(wrong.contains("script.jsonl, line 3: chunk 1: 1 is none of"), "{wrong}");
    }
}
