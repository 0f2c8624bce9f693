//! Output to lexemes: plain text, markers and whole tool tags. A tag is `<` or `</`, the DSML token, and text
//! up to its closing; it comes out whole or, when it cannot be completed, as `Broken`. Text flows through at
//! once except for a `<` or `</` at its end, which may belong to a tag.
//!
//! Only spelling is judged here; what a tag means where it stands is `block.rs`'s and `mod.rs`'s business.

use crate::Special;
use crate::pieces::Pieces;

/// A tag's text is held until it is whole, so a tag that never closes must end somewhere.
const MAX_TAG_BYTES: usize = 1024;
/// Names that the publisher's block goes by, and what models write instead.
const BLOCK_NAMES: [&str; 3] = ["tool_calls", "toolcalls", "tool"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `string="true"`: the text itself is the value.
    Text,
    /// `string="false"`: the text should be JSON.
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    OpenBlock,
    CloseBlock,
    OpenInvoke { name: String },
    CloseInvoke,
    OpenParameter { key: String, kind: ValueKind },
    CloseParameter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lexeme {
    Text(String),
    /// A marker that is part of no tag.
    Special(Special),
    /// An added token without a meaning here, with its text.
    OtherToken(String),
    Tag {
        tag: Tag,
        raw: Pieces,
    },
    /// Markup that is no tag.
    Broken {
        raw: Pieces,
    },
    /// A tag that the end of the output cut.
    Begun {
        raw: Pieces,
    },
    /// A `<` or `</` that the end of the output cut: a tag's beginning where only tags stand, text elsewhere.
    Tail(&'static str),
}

impl Lexeme {
    /// Appends what the model wrote.
    pub fn append_to(&self, out: &mut Pieces) {
        match self {
            Lexeme::Text(text) => out.push_text(text),
            Lexeme::Tail(text) => out.push_text(text),
            Lexeme::Special(special) => out.special(*special),
            Lexeme::OtherToken(text) => out.template(text),
            Lexeme::Tag { raw, .. } | Lexeme::Broken { raw } | Lexeme::Begun { raw } => out.extend(raw),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Lexer {
    /// `<` or `</` at the end of the text so far, else empty.
    held: &'static str,
    /// The tag being read.
    tag: Option<OpenTag>,
}

#[derive(Clone, Debug)]
struct OpenTag {
    /// What stood before the DSML token: `<`, `</`, or nothing, which makes it no tag.
    opening: &'static str,
    /// The text behind the DSML token.
    body: String,
}

enum Verdict {
    NeedsMore,
    Whole(Tag),
    /// No tag, the last character included.
    Broken,
    /// No tag, and the last character is no part of it.
    BrokenBefore,
}

impl Lexer {
    pub fn text(&mut self, text: &str, out: &mut Vec<Lexeme>) {
        let mut plain = String::new();
        for c in text.chars() {
            if self.tag.is_none() {
                match (self.held, c) {
                    ("", '<') => self.held = "<",
                    ("<", '/') => self.held = "</",
                    (held, '<') => {
                        plain.push_str(held);
                        self.held = "<";
                    }
                    (held, c) => {
                        plain.push_str(held);
                        plain.push(c);
                        self.held = "";
                    }
                }
            } else {
                flush(&mut plain, out);
                self.tag_character(c, &mut plain, out);
            }
        }
        flush(&mut plain, out);
    }

    fn tag_character(&mut self, c: char, plain: &mut String, out: &mut Vec<Lexeme>) {
        let Some(mut tag) = self.tag.take() else { return };
        tag.body.push(c);
        match tag.verdict() {
            Verdict::NeedsMore => self.tag = Some(tag),
            Verdict::Whole(whole) => out.push(Lexeme::Tag { tag: whole, raw: tag.raw() }),
            Verdict::Broken => out.push(Lexeme::Broken { raw: tag.raw() }),
            Verdict::BrokenBefore => {
                tag.body.pop();
                out.push(Lexeme::Broken { raw: tag.raw() });
                if c == '<' {
                    self.held = "<";
                } else {
                    plain.push(c);
                }
            }
        }
    }

    pub fn special(&mut self, special: Special, out: &mut Vec<Lexeme>) {
        let opening = self.interrupt(special == Special::Dsml, out);
        if special == Special::Dsml {
            self.tag = Some(OpenTag { opening, body: String::new() });
        } else {
            out.push(Lexeme::Special(special));
        }
    }

    pub fn other_token(&mut self, text: &str, out: &mut Vec<Lexeme>) {
        self.interrupt(false, out);
        out.push(Lexeme::OtherToken(text.to_string()));
    }

    /// A token ends whatever was held. Before a DSML token, a `<` or `</` at the end is kept as its opening.
    fn interrupt(&mut self, before_dsml: bool, out: &mut Vec<Lexeme>) -> &'static str {
        let mut opening = std::mem::take(&mut self.held);
        if let Some(mut tag) = self.tag.take() {
            opening = ["</", "<"].into_iter().find(|end| tag.body.ends_with(end)).unwrap_or("");
            if before_dsml {
                tag.body.truncate(tag.body.len() - opening.len());
            }
            out.push(Lexeme::Broken { raw: tag.raw() });
        } else if !before_dsml && !opening.is_empty() {
            out.push(Lexeme::Text(opening.to_string()));
        }
        opening
    }

    /// The end of the output: what was held for the rest of a tag.
    pub fn finish(&mut self, out: &mut Vec<Lexeme>) {
        if let Some(tag) = self.tag.take() {
            out.push(Lexeme::Begun { raw: tag.raw() });
        }
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            out.push(Lexeme::Tail(held));
        }
    }
}

impl OpenTag {
    fn raw(&self) -> Pieces {
        let mut raw = Pieces::default();
        raw.push_text(self.opening);
        raw.special(Special::Dsml);
        raw.push_text(&self.body);
        raw
    }

    /// What the text so far is, given that everything before its last character needed more.
    fn verdict(&self) -> Verdict {
        let body = self.body.as_str();
        if !body.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Verdict::BrokenBefore;
        }
        if body.len() > MAX_TAG_BYTES {
            return Verdict::Broken;
        }
        match self.opening {
            "<" => match (body.strip_prefix("invoke name=\""), body.strip_prefix("parameter name=\"")) {
                (Some(rest), _) => invoke_verdict(rest),
                (_, Some(rest)) => parameter_verdict(rest),
                _ => simple_verdict(body, |name| BLOCK_NAMES.contains(&name).then_some(Tag::OpenBlock)),
            },
            "</" => simple_verdict(body, |name| match name {
                "invoke" => Some(Tag::CloseInvoke),
                "parameter" => Some(Tag::CloseParameter),
                name => BLOCK_NAMES.contains(&name).then_some(Tag::CloseBlock),
            }),
            // A DSML token that nothing opened: markup only as far as it goes on like a tag.
            _ => {
                match ["tool_calls>", "toolcalls>", "tool>", "invoke ", "parameter ", "invoke>", "parameter>"]
                    .iter()
                    .any(|tag| tag.starts_with(body) || body.starts_with(tag))
                {
                    true => simple_verdict(body, |_| None),
                    false => Verdict::BrokenBefore,
                }
            }
        }
    }
}

/// The publisher's own reader takes a name up to the first `">`, a key up to the first `" string="..">`: there
/// is no escaping, so nothing else would read back what rendering writes.
fn invoke_verdict(rest: &str) -> Verdict {
    match rest.strip_suffix("\">") {
        Some(name) => Verdict::Whole(Tag::OpenInvoke { name: name.to_string() }),
        None if rest.ends_with('\n') => Verdict::BrokenBefore,
        None => Verdict::NeedsMore,
    }
}

fn parameter_verdict(rest: &str) -> Verdict {
    let kinds = [("\" string=\"true\">", ValueKind::Text), ("\" string=\"false\">", ValueKind::Json)];
    let whole = kinds.into_iter().find_map(|(end, kind)| Some((rest.strip_suffix(end)?.to_string(), kind)));
    match whole {
        Some((key, kind)) => Verdict::Whole(Tag::OpenParameter { key, kind }),
        None => Verdict::NeedsMore,
    }
}

fn simple_verdict(body: &str, known: impl Fn(&str) -> Option<Tag>) -> Verdict {
    match body.strip_suffix('>') {
        Some(name) => known(name).map_or(Verdict::Broken, Verdict::Whole),
        None if body.ends_with(['<', '\n']) => Verdict::BrokenBefore,
        None => Verdict::NeedsMore,
    }
}

fn flush(plain: &mut String, out: &mut Vec<Lexeme>) {
    if !plain.is_empty() {
        out.push(Lexeme::Text(std::mem::take(plain)));
    }
}
