//! Pieces of `llguidance`'s grammar language, which is a kind of Lark: literals, patterns, tokens, JSON.

use serde_json::{Map, Value, json};

/// White space between the parts of JSON: a space, or a new line with its indentation. Without an end to it, a
/// model could fill an answer with spaces.
const WHITE_SPACE: &str = r"[\x20]|\r?\n[\x20\x09]{0,64}";

/// Any text up to `</`, that included: only the token behind it makes it the end.
pub(crate) fn text_to_closing(least: u64, most: Option<u64>) -> String {
    let count = match (least, most) {
        (0, None) => "*".to_string(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    };
    format!(r"/(.|\n){count}<\//")
}

pub(crate) fn literal(text: &str) -> String {
    // The grammar language takes JSON's strings, except that it wants this character escaped too.
    Value::from(text).to_string().replace('\u{7f}', r"\u007f")
}

pub(crate) fn token(id: u32) -> String {
    format!("<[{id}]>")
}

/// The whole text has to match: anchors at the ends mean nothing more. Digits and word characters are ASCII's, as in
/// JSON schemas.
pub(crate) fn pattern(regex: &str) -> String {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let escapes = regex.trim_end_matches('$').bytes().rev().take_while(|byte| *byte == b'\\').count();
    let regex = if escapes % 2 == 0 { regex.strip_suffix('$').unwrap_or(regex) } else { regex };
    format!("/(?:{})/", llguidance::regex_to_lark(regex, "dw"))
}

pub(crate) fn json(schema: &Value) -> String {
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => Map::new(),
        // No value satisfies it, which is told when the grammar is compiled.
        other => Map::from_iter([("allOf".to_string(), json!([other]))]),
    };
    // Whatever the client wrote there: these options could switch checks off.
    schema.insert(
        "x-guidance".to_string(),
        json!({ "whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE }),
    );
    format!("%json {}", Value::Object(schema))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_go_and_escapes_stay() {
        assert_eq!(pattern("^a/b$"), r"/(?:a\/b)/");
        assert_eq!(pattern(r"a\$"), r"/(?:a\$)/");
        assert_eq!(pattern(r"a\\$"), r"/(?:a\\)/");
        assert_eq!(literal("a\"\n\u{7f}"), r#""a\"\n\u007f""#);
    }
}
