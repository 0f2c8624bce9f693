//! String constants out of Python source, read and never run: `NAME = <strings>` at the top level, where the
//! strings may be raw, formatted (`f"{OTHER_NAME}"`), triple-quoted, put side by side or added, in parentheses,
//! or the values of a dict display. Anything else is skipped, and its name remembered as unreadable. Also
//! splits `str.format` templates at their fields.

use std::collections::HashMap;

/// Parentheses nested deeper than this are not read.
const MAX_DEPTH: usize = 32;
/// A constant longer than this is not read, nor more than that many bytes in all: `f"{A}{A}"`, repeated,
/// doubles.
const MAX_CONSTANT_BYTES: usize = 1 << 18;
const MAX_TOTAL_BYTES: usize = 1 << 23;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constant {
    Text(String),
    Dict(Vec<(String, String)>),
    /// Assigned, but by something that is no string; says why.
    Unreadable(&'static str),
}

impl Constant {
    fn len_bytes(&self) -> usize {
        match self {
            Constant::Text(text) => text.len(),
            Constant::Dict(entries) => entries.iter().map(|(key, text)| key.len() + text.len()).sum(),
            Constant::Unreadable(_) => 0,
        }
    }
}

/// The top-level constants of `source`; of a name assigned twice, the last assignment.
pub fn constants(source: &str) -> HashMap<String, Constant> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut reader = Reader { text: &source, at: 0, constants: HashMap::new(), bytes_left: MAX_TOTAL_BYTES };
    while reader.at < source.len() {
        reader.logical_line();
    }
    reader.constants
}

/// A part of a `str.format` template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatPart {
    Text(String),
    Field(String),
}

/// Splits a `str.format` template: `{{` and `}}` are braces, `{name}` is a field.
pub fn format_parts(template: &str) -> Result<Vec<FormatPart>, &'static str> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(brace) = ["{{", "}}"].into_iter().find(|brace| rest.starts_with(brace)) {
            text.push_str(&brace[..1]);
            rest = &rest[2..];
            continue;
        }
        let field = rest.strip_prefix('{').and_then(|field| field.split_once('}'));
        let (name, behind) = field.ok_or("holds a lone brace")?;
        if !is_identifier(name) {
            return Err("holds a field that is not a plain name");
        }
        parts.push(FormatPart::Text(std::mem::take(&mut text)));
        parts.push(FormatPart::Field(name.to_string()));
        rest = behind;
    }
    text.push_str(rest);
    parts.push(FormatPart::Text(text));
    Ok(parts)
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    constants: HashMap<String, Constant>,
    bytes_left: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn identifier(&mut self) -> Option<String> {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let name = rest[..end].to_string();
        is_identifier(&name).then(|| {
            self.at += end;
            name
        })
    }

    /// Spaces, comments and continued lines; newlines too inside brackets.
    fn skip_space(&mut self, in_brackets: bool) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\u{c}') => self.at += 1,
                Some('\n') if in_brackets => self.at += 1,
                Some('\\') if self.rest().starts_with("\\\n") => self.at += 2,
                Some('#') => {
                    let rest = self.rest();
                    self.at += rest.find('\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    /// One statement from its first column on: an assignment is read, anything else is skipped.
    fn logical_line(&mut self) {
        if let Some(name) = self.identifier()
            && self.take_assignment()
        {
            let start = self.at;
            let value = self.expression(false, MAX_DEPTH).and_then(|value| {
                self.skip_space(false);
                match self.peek() {
                    None | Some('\n' | ';') => Ok(value),
                    _ => Err("is more than string literals"),
                }
            });
            let value = value.unwrap_or_else(|reason| {
                self.at = start;
                Constant::Unreadable(reason)
            });
            let value = match self.bytes_left.checked_sub(value.len_bytes()) {
                Some(left) => {
                    self.bytes_left = left;
                    value
                }
                None => Constant::Unreadable("is too long"),
            };
            self.constants.insert(name, value);
        }
        self.skip_to_next_line();
    }

    /// `=` or `: annotation =`, on this line.
    fn take_assignment(&mut self) -> bool {
        self.skip_space(false);
        if self.take(":") {
            let line = self.rest().split('\n').next().unwrap_or("");
            match line.find('=') {
                Some(equals) => self.at += equals,
                None => return false,
            }
        }
        !self.rest().starts_with("==") && self.take("=")
    }

    /// Moves behind the newline that ends the statement, stepping over strings, comments and brackets.
    fn skip_to_next_line(&mut self) {
        let mut depth = 0usize;
        loop {
            self.skip_space(depth > 0);
            match self.peek() {
                None => return,
                Some('\'' | '"') => {
                    // Prefixes do not matter for finding the end: a backslash hides a quote in raw strings too.
                    if self.string_end().is_none() {
                        self.at = self.text.len();
                    }
                }
                Some(c) => {
                    self.at += c.len_utf8();
                    match c {
                        '(' | '[' | '{' => depth += 1,
                        ')' | ']' | '}' => depth = depth.saturating_sub(1),
                        '\n' => return,
                        _ => {}
                    }
                }
            }
        }
    }

    fn quote(&mut self) -> Option<&'static str> {
        ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| self.take(quote))
    }

    fn string_end(&mut self) -> Option<()> {
        let quote = self.quote()?;
        while !self.take(quote) {
            match self.next()? {
                '\\' => drop(self.next()?),
                '\n' if quote.len() == 1 => return Some(()),
                _ => {}
            }
        }
        Some(())
    }

    fn expression(&mut self, in_brackets: bool, depth_left: usize) -> Result<Constant, &'static str> {
        let mut value = self.operand(in_brackets, depth_left)?;
        loop {
            self.skip_space(in_brackets);
            let next = match self.peek() {
                Some('+') => {
                    self.at += 1;
                    self.operand(in_brackets, depth_left)?
                }
                // Side by side: only literals follow each other without an operator.
                Some(c) if c == '"' || c == '\'' || c.is_ascii_alphabetic() => {
                    Constant::Text(self.literal()?)
                }
                _ => return Ok(value),
            };
            match (&mut value, next) {
                (Constant::Text(left), Constant::Text(right)) => append(left, &right)?,
                _ => return Err("adds something that is no string"),
            }
        }
    }

    fn operand(&mut self, in_brackets: bool, depth_left: usize) -> Result<Constant, &'static str> {
        self.skip_space(in_brackets);
        match self.peek() {
            Some('(') if depth_left > 0 => {
                self.at += 1;
                let value = self.expression(true, depth_left - 1)?;
                self.skip_space(true);
                if self.take(")") { Ok(value) } else { Err("is more than string literals") }
            }
            Some('{') if depth_left > 0 => {
                self.at += 1;
                self.dict(depth_left - 1)
            }
            _ => {
                let start = self.at;
                if let Some(name) = self.identifier() {
                    if !matches!(self.peek(), Some('"' | '\'')) {
                        return self.constants.get(&name).cloned().ok_or("uses a name that is no constant");
                    }
                    self.at = start;
                }
                Ok(Constant::Text(self.literal()?))
            }
        }
    }

    fn dict(&mut self, depth_left: usize) -> Result<Constant, &'static str> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        loop {
            self.skip_space(true);
            if self.take("}") {
                return Ok(Constant::Dict(entries));
            }
            let key = self.expression(true, depth_left)?;
            self.skip_space(true);
            if !self.take(":") {
                return Err("is no dict of strings");
            }
            let value = self.expression(true, depth_left)?;
            match (key, value) {
                (Constant::Text(key), Constant::Text(value)) => {
                    bytes += key.len() + value.len();
                    entries.push((key, value));
                }
                _ => return Err("is no dict of strings"),
            }
            if bytes > MAX_CONSTANT_BYTES {
                return Err("is too long");
            }
            self.skip_space(true);
            if !self.take(",") && self.peek() != Some('}') {
                return Err("is no dict of strings");
            }
        }
    }

    /// One string literal with its prefix.
    fn literal(&mut self) -> Result<String, &'static str> {
        const NO_LITERAL: &str = "is more than string literals";
        let rest = self.rest();
        let prefix_bytes = rest.find(['"', '\'']).filter(|end| *end <= 2).ok_or(NO_LITERAL)?;
        let prefix = rest[..prefix_bytes].to_ascii_lowercase();
        if !matches!(prefix.as_str(), "" | "r" | "u" | "f" | "rf" | "fr") {
            return Err(NO_LITERAL);
        }
        self.at += prefix_bytes;
        let raw = prefix.contains('r');
        let formatted = prefix.contains('f');
        let quote = self.quote().ok_or(NO_LITERAL)?;
        let mut out = String::new();
        while !self.take(quote) {
            let doubled = formatted && (self.rest().starts_with("{{") || self.rest().starts_with("}}"));
            match self.next().ok_or("is a string without an end")? {
                '\\' if raw => {
                    out.push('\\');
                    out.extend(self.next());
                }
                '\\' => self.escape(&mut out)?,
                '\n' if quote.len() == 1 => return Err("is a string without an end"),
                c @ ('{' | '}') if doubled => {
                    self.at += 1;
                    out.push(c);
                }
                '{' if formatted => append(&mut out, &self.formatted_field()?)?,
                c => out.push(c),
            }
        }
        Ok(out)
    }

    fn formatted_field(&mut self) -> Result<String, &'static str> {
        const NO_NAME: &str = "formats something other than a constant's name";
        let name = self.identifier().ok_or(NO_NAME)?;
        match (self.take("}"), self.constants.get(&name)) {
            (true, Some(Constant::Text(text))) => Ok(text.clone()),
            _ => Err(NO_NAME),
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), &'static str> {
        let c = self.next().ok_or("is a string without an end")?;
        let code = match c {
            '\n' => return Ok(()),
            '\\' | '\'' | '"' => c,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => self.code(16, 2, 2)?,
            'u' => self.code(16, 4, 4)?,
            'U' => self.code(16, 8, 8)?,
            'N' => return Err("names a character by `\\N`"),
            '0'..='7' => {
                self.at -= 1;
                self.code(8, 1, 3)?
            }
            other => {
                out.push('\\');
                other
            }
        };
        out.push(code);
        Ok(())
    }

    fn code(&mut self, radix: u32, min_digits: usize, max_digits: usize) -> Result<char, &'static str> {
        let digits: String = self.rest().chars().take(max_digits).take_while(|c| c.is_digit(radix)).collect();
        self.at += digits.len();
        let code = u32::from_str_radix(&digits, radix).ok().filter(|_| digits.len() >= min_digits);
        code.and_then(char::from_u32).ok_or("holds a malformed escape")
    }
}

fn append(text: &mut String, more: &str) -> Result<(), &'static str> {
    text.push_str(more);
    if text.len() > MAX_CONSTANT_BYTES { Err("is too long") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str, name: &str) -> Result<String, &'static str> {
        match constants(source).remove(name) {
            Some(Constant::Text(text)) => Ok(text),
            Some(Constant::Unreadable(reason)) => Err(reason),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn reads_every_kind_of_literal() {
        for (source, expected) in [
            (r#"A = "x\ty""#, "x\ty"),
            (r#"A = 'it''s'"#, "its"),
            (r#"A = r"x\ty\"" "#, r#"x\ty\""#),
            ("A = \"\"\"one\ntwo \"q\" '''\\\nthree\"\"\"", "one\ntwo \"q\" '''three"),
            ("A = '''x''' # comment", "x"),
            ("A: str = (\n  'a'  # first\n  \"b\"\n)\n", "ab"),
            ("A = 'a' + \\\n  ('b' + 'c')", "abc"),
            (r#"A = '\x41\u4e2d\U0001F600\101\0\q'"#, "A中😀A\0\\q"),
            ("B = 'in'\nA = f'{{{B}}} {B}'", "{in} in"),
            ("B = 'in'\nA = rf'\\{B}' B_ = 2\nA = B + '!'", "in!"),
            ("A = u'x'; B = 3", "x"),
            ("A = 'x'\r\nB = '''1\r\n2'''\r\nA = B", "1\n2"),
            ("A = ''", ""),
        ] {
            assert_eq!(text(source, "A").as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn is_not_misled_by_other_code() {
        let source = r#"
"""Docstring with
A = "no"
"""
import json  # A = "no"
def f(a, b="A = 'no'"):
    A = "no"
    return {"A": 1,
A: "no"}
class C: A = "no"
if x == 1: A = "no"
A = "yes"
A == "no"
print(
A = "no"
)
"#;
        assert_eq!(text(source, "A").as_deref(), Ok("yes"));
    }

    #[test]
    fn says_why_a_constant_is_unreadable() {
        for source in [
            "A = f(1)",
            "A = 'x'.strip()",
            "A = 'x' % 3",
            "A = b'x'",
            "A = f'{x!r}'",
            "A = B",
            "A = '\\N{DASH}'",
            "A = ('x'",
            "A = 'x",
            "A = '''x",
            "A = ",
            "A = {'a': 1} + 'b'",
            "A = '\\ud800'",
            "A = '\\x4'",
            "A = 5",
        ] {
            assert!(text(source, "A").is_err(), "{source}");
        }
        let nested = format!("A = {}'x'{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(text(&nested, "A").is_err());
        let doubling: String = (0..60).map(|i| format!("A{} = f'{{A{i}}}{{A{i}}}'\n", i + 1)).collect();
        assert_eq!(
            text(&format!("A0 = 'xxxxxxxx'\n{doubling}"), "A40"),
            Err("formats something other than a constant's name")
        );
    }

    #[test]
    fn reads_dicts_of_strings() {
        let source = "A = {\n  'max': 'M' 'M',  # most\n  \"low\": '''L''',\n}\n";
        let expected = vec![("max".to_string(), "MM".to_string()), ("low".to_string(), "L".to_string())];
        assert_eq!(constants(source)["A"], Constant::Dict(expected));
    }

    #[test]
    fn splits_templates() {
        use FormatPart::{Field, Text};
        let parts = format_parts("a{{b}}{x}{y}c").unwrap();
        let expected = [
            Text("a{b}".into()),
            Field("x".into()),
            Text(String::new()),
            Field("y".into()),
            Text("c".into()),
        ];
        assert_eq!(parts, expected);
        for template in ["{", "}", "{a", "{a.b}", "{0}", "{a}}"] {
            assert!(format_parts(template).is_err(), "{template}");
        }
    }
}
