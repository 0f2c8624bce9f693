//! What the tests share: the small model's folder and tokenizer, declared tools, and output as units that can
//! be cut anywhere.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::OnceLock;

use overshot_chat::{
    Delta, End, OutputParser, ParseOptions, ParsedMessage, PieceParser, PromptTexts, Special, Start,
    Tokenizer, Tool,
};

pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

pub fn model_folder() -> PathBuf {
    repository().join("models/dsv4-mini")
}

pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_file(&model_folder().join("tokenizer.json")).unwrap())
}

/// Each of the checkpoint's fixed texts is its own name, as the vectors have it.
pub fn placeholder_texts() -> PromptTexts {
    let text = r#"{"tools_prefix": "<<TOOLS_PREFIX>>", "tools_suffix": "<<TOOLS_SUFFIX>>",
        "effort_max": "<<EFFORT_MAX>>", "response_format_prefix": "<<RESPONSE_FORMAT_PREFIX>>"}"#;
    PromptTexts::from_json(text, "placeholders").unwrap()
}

pub fn tools() -> Vec<Tool> {
    serde_json::from_str(
        r#"[
        {"type": "function", "function": {"name": "read_meter", "parameters": {"type": "object", "properties":
            {"id": {"type": "string"}, "scale": {"type": "number"}, "on": {"type": "boolean"}}}}},
        {"type": "function", "function": {"name": "wrap", "parameters": {"type": "object", "properties":
            {"arguments": {"type": "object"}}}}},
        {"type": "function", "function": {"name": "stop"}}]"#,
    )
    .unwrap()
}

pub fn options(start: Start) -> ParseOptions {
    ParseOptions { start, tools: tools(), ..ParseOptions::default() }
}

pub fn parse(text: &str, start: Start, end: End) -> ParsedMessage {
    overshot_chat::parse_text(text, options(start), end)
}

/// A part of an output: a marker, which arrives as one token, or a byte of text.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    Marker(Special),
    Byte(u8),
}

pub fn units(mut text: &str) -> Vec<Unit> {
    let mut units = Vec::new();
    while let Some((at, special)) = Special::find(text) {
        units.extend(text[..at].bytes().map(Unit::Byte));
        units.push(Unit::Marker(special));
        text = &text[at + special.text().len()..];
    }
    units.extend(text.bytes().map(Unit::Byte));
    units
}

/// Feeds the units in stretches that end at `cuts`, checks that the deltas add up to the message, gives both.
pub fn parse_cut(
    units: &[Unit],
    cuts: &[usize],
    options: &ParseOptions,
    end: End,
) -> (ParsedMessage, Vec<Delta>) {
    let mut parser = OutputParser::new(tokenizer(), options.clone());
    let mut deltas = Vec::new();
    let mut bytes = Vec::new();
    let mut ends = vec![false; units.len() + 1];
    cuts.iter().for_each(|cut| ends[*cut] = true);
    for (position, unit) in units.iter().enumerate() {
        match unit {
            Unit::Byte(byte) => bytes.push(*byte),
            Unit::Marker(special) => {
                deltas.extend(parser.push_bytes(&std::mem::take(&mut bytes)));
                deltas.extend(parser.push(tokenizer().special_id(*special).unwrap()));
            }
        }
        if ends[position + 1] {
            deltas.extend(parser.push_bytes(&std::mem::take(&mut bytes)));
        }
    }
    deltas.extend(parser.push_bytes(&bytes));
    let finished = parser.finish(end);
    deltas.extend(finished.deltas);
    let mut folded = ParsedMessage { finish_reason: finished.message.finish_reason, ..Default::default() };
    deltas.iter().for_each(|delta| folded.apply(delta));
    assert_eq!(folded, finished.message, "deltas {deltas:?}");
    (finished.message, deltas)
}

/// Whether ordinary text holds parts of markers: where a marker between them is dropped, what is left may
/// spell one, which is the model's own doing.
fn types_parts_of_markers(mut output: &str) -> bool {
    let typed = |text: &str| ["｜", "th", "hi", "nk", "k>"].iter().any(|part| text.contains(part));
    while let Some((at, special)) = Special::find(output) {
        if typed(&output[..at]) {
            return true;
        }
        output = &output[at + special.text().len()..];
    }
    typed(output)
}

/// What holds for every message, whatever the model wrote.
pub fn check_invariants(message: &ParsedMessage, output: &str) {
    let markers = if types_parts_of_markers(output) { &[] } else { Special::ALL.as_slice() };
    for special in markers {
        let text = special.text();
        assert!(!message.content.contains(text), "{text} in the content of {output:?}: {message:?}");
        for call in &message.tool_calls {
            assert!(!call.name.contains(text), "{output:?}");
            assert!(!call.arguments.contains(text), "{text} in the arguments of {output:?}: {message:?}");
        }
        if *special == Special::EndOfSentence {
            assert!(!message.reasoning_content.contains(text), "{output:?}");
            assert!(!message.unparsed_tool_text.contains(text), "{output:?}");
        }
    }
    for call in message.tool_calls.iter().filter(|call| call.exact.is_some()) {
        let parsed: serde_json::Value = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|error| panic!("{error}: {:?} of {output:?}", call.arguments));
        assert!(parsed.is_object(), "{output:?}");
    }
}

pub fn piece_parser(start: Start) -> PieceParser {
    PieceParser::new(options(start))
}
