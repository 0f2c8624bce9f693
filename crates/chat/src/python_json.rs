//! JSON text spelled the way the model saw it in training: as Python's `json.dumps(..., ensure_ascii=False)`
//! writes what `json.loads` read. Numbers keep their text (integers of any size) except that floats take
//! Python's shortest form. Depth is bounded, so hostile text cannot exhaust the stack. Not a general JSON
//! library: `NaN` and `Infinity` are no JSON here, although Python reads them.

use std::collections::HashMap;
use std::fmt::Write;

/// Arrays and objects nested deeper than this are refused, as serde_json does.
const MAX_DEPTH: usize = 128;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// The number's own text, which follows JSON's grammar.
    Number(String),
    String(String),
    Array(Vec<Json>),
    /// In order of first appearance; of a repeated key the last value counts, as in a Python dict.
    Object(Vec<(String, Json)>),
}

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// The text ended too early; with more text it could become JSON.
    Incomplete,
    /// No continuation can make it JSON (or it nests too deeply).
    Invalid,
}

impl Json {
    /// # Errors
    /// [`JsonError`] if the whole of `text` is not one JSON value.
    pub fn parse(text: &str) -> Result<Json, JsonError> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(MAX_DEPTH)?;
        reader.skip_whitespace();
        if reader.at == text.len() { Ok(value) } else { Err(JsonError::Invalid) }
    }

    /// The value as Python would write it.
    pub fn to_python_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// Whether Python's `if value:` would hold.
    pub fn is_truthy(&self) -> bool {
        match self {
            Json::Null => false,
            Json::Bool(value) => *value,
            Json::Number(text) => text.parse::<f64>() != Ok(0.0),
            Json::String(text) => !text.is_empty(),
            Json::Array(items) => !items.is_empty(),
            Json::Object(entries) => !entries.is_empty(),
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(text) => out.push_str(&python_number(text)),
            Json::String(text) => quote_into(text, out),
            Json::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Json::Object(entries) => {
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    quote_into(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// `text` as a JSON string, quotes included.
pub fn quote_into(text: &str, out: &mut String) {
    out.push('"');
    escape_into(text, out);
    out.push('"');
}

/// `text` as it stands inside a JSON string: only quotes, backslashes and control characters are escaped.
/// Works on any split of a text: the escapes of the parts are the escape of the whole.
pub fn escape_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
}

/// A number's text as Python writes the number it reads: integers keep their digits, floats take `repr`.
fn python_number(text: &str) -> String {
    if !text.contains(['.', 'e', 'E']) {
        return if text == "-0" { "0".to_string() } else { text.to_string() };
    }
    match text.parse::<f64>() {
        Ok(value) => python_float(value),
        Err(_) => text.to_string(),
    }
}

/// Python's `repr` of a float: the shortest digits that read back, positional for exponents -4 to 15.
fn python_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".to_string() } else { "-Infinity".to_string() };
    }
    let mut scientific = format!("{value:e}");
    // Where two shortest spellings are equally near, Rust takes the upper one and Python the even one, as
    // rounding to that many digits does.
    let digit_count = scientific.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count();
    let rounded = format!("{value:.*e}", digit_count.saturating_sub(1));
    if rounded.parse() == Ok(value) {
        scientific = rounded;
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits = mantissa.replace('.', "");
    if !(-4..16).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let exponent_sign = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{point}{rest}e{exponent_sign}{:02}", exponent.abs());
    }
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole_digits = exponent as usize + 1;
    if digits.len() <= whole_digits {
        return format!("{sign}{digits}{}.0", "0".repeat(whole_digits - digits.len()));
    }
    let (whole, fraction) = digits.split_at(whole_digits);
    format!("{sign}{whole}.{fraction}")
}

/// A recursive-descent reader that tells a text cut short from one that is wrong.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Result<u8, JsonError> {
        self.text.as_bytes().get(self.at).copied().ok_or(JsonError::Incomplete)
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Ok(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth_left: usize) -> Result<Json, JsonError> {
        self.skip_whitespace();
        match self.peek()? {
            b'n' => self.literal("null", Json::Null),
            b't' => self.literal("true", Json::Bool(true)),
            b'f' => self.literal("false", Json::Bool(false)),
            b'"' => Ok(Json::String(self.string()?)),
            b'[' if depth_left > 0 => self.array(depth_left - 1),
            b'{' if depth_left > 0 => self.object(depth_left - 1),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(JsonError::Invalid),
        }
    }

    fn literal(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        let rest = &self.text.as_bytes()[self.at..];
        if rest.starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else if word.as_bytes().starts_with(rest) {
            Err(JsonError::Incomplete)
        } else {
            Err(JsonError::Invalid)
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !self.peek()?.is_ascii_digit() {
            return Err(JsonError::Invalid);
        }
        while self.peek().is_ok_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Ok(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Ok(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Ok(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Json::Number(self.text[start..self.at].to_string()))
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain =
                rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(rest.len());
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(JsonError::Invalid),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    for expected in *b"\\u" {
                        if self.peek()? != expected {
                            return Err(JsonError::Invalid);
                        }
                        self.at += 1;
                    }
                    let second = self.hex4()?;
                    if !(0xdc00..0xe000).contains(&second) {
                        return Err(JsonError::Invalid);
                    }
                    0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                } else {
                    first
                };
                char::from_u32(code).ok_or(JsonError::Invalid)?
            }
            _ => return Err(JsonError::Invalid),
        })
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = (self.peek()? as char).to_digit(16).ok_or(JsonError::Invalid)?;
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    fn array(&mut self, depth_left: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_whitespace();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth_left)?);
            if self.ends(b']')? {
                return Ok(Json::Array(items));
            }
        }
    }

    fn object(&mut self, depth_left: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut entries: Vec<(String, Json)> = Vec::new();
        let mut positions: HashMap<String, usize> = HashMap::new();
        self.skip_whitespace();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Json::Object(entries));
        }
        loop {
            self.skip_whitespace();
            if self.peek()? != b'"' {
                return Err(JsonError::Invalid);
            }
            let key = self.string()?;
            self.skip_whitespace();
            if self.peek()? != b':' {
                return Err(JsonError::Invalid);
            }
            self.at += 1;
            let value = self.value(depth_left)?;
            match positions.get(&key) {
                Some(&position) => entries[position].1 = value,
                None => {
                    positions.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
            if self.ends(b'}')? {
                return Ok(Json::Object(entries));
            }
        }
    }

    /// After an item: true at the closing bracket, false after a comma.
    fn ends(&mut self, close: u8) -> Result<bool, JsonError> {
        self.skip_whitespace();
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Ok(false),
            byte if byte == close => Ok(true),
            _ => Err(JsonError::Invalid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respell(text: &str) -> String {
        Json::parse(text).unwrap().to_python_text()
    }

    #[test]
    fn spells_what_python_spells() {
        for (given, python) in [
            ("1", "1"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("0e5", "0.0"),
            ("1.0", "1.0"),
            ("1e2", "100.0"),
            ("1e16", "1e+16"),
            ("1E+16", "1e+16"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("123456789012345678.0", "1.2345678901234568e+17"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("2.5e-310", "2.5e-310"),
            ("1e400", "Infinity"),
            ("0.1", "0.1"),
            ("-790534880305491.2", "-790534880305491.2"),
            ("594606249622.5312", "594606249622.5312"),
            ("100000000000000000000000000000001", "100000000000000000000000000000001"),
            (r#"{"b":1,"a":[true,null,{}],"c":[]}"#, r#"{"b": 1, "a": [true, null, {}], "c": []}"#),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
            (r#""caf\u00e9 \ud83d\ude00 \/ \u001f \u007f""#, "\"café 😀 / \\u001f \u{7f}\""),
            (r#""\b\f\n\r\t\"\\""#, r#""\b\f\n\r\t\"\\""#),
            (" [ 1 , 2 ] ", "[1, 2]"),
        ] {
            assert_eq!(respell(given), python, "{given}");
        }
    }

    #[test]
    fn every_prefix_of_json_is_incomplete_or_json_and_never_invalid() {
        let text = r#"{"a": [1.5e-3, -12, true, null, "x\u00e9\ud83d\ude00\n"], "b": {"c": false}}"#;
        for end in 0..text.len() {
            assert_eq!(Json::parse(&text[..end]), Err(JsonError::Incomplete), "{}", &text[..end]);
        }
        assert!(Json::parse(text).is_ok());
    }

    #[test]
    fn refuses_what_json_does_not_have() {
        for text in [
            "01",
            "1.",
            "+1",
            ".5",
            "NaN",
            "{a:1}",
            "[1,]",
            "'a'",
            "\"\u{1}\"",
            r#""\ud800x""#,
            r#""\udc00""#,
            "1 2",
            r#""\x41""#,
            "nul1",
            "{\"a\" 1}",
            "[1}",
            "tru e",
        ] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Json::parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(Json::parse(&nested(MAX_DEPTH + 1)), Err(JsonError::Invalid));
        assert_eq!(Json::parse(&"[".repeat(1_000_000)), Err(JsonError::Invalid));
    }

    #[test]
    fn floats_read_back_as_themselves() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let value = f64::from_bits(random.u64(..));
            if value.is_finite() {
                assert_eq!(
                    python_float(value).parse::<f64>().unwrap().to_bits(),
                    value.to_bits(),
                    "{value:e}"
                );
            }
        }
    }
}
