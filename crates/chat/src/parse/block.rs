//! A tool block: calls in, deltas out. What cannot be understood is kept, raw, and is nobody's argument.
//!
//! A block is either wrapped (it has its outer tags) or bare (calls without them, which models write too). A
//! call that breaks after it was announced is withdrawn; the rest of the block still counts.

use super::call::Call;
use super::lexer::{Lexeme, Tag};
use super::{Delta, Deltas, End, Tools};
use crate::pieces::Pieces;

#[derive(Clone, Debug)]
pub struct Block {
    wrapped: bool,
    place: Place,
    /// All of it as the model wrote it, from the blank line before it on.
    raw: Pieces,
    /// The call, or what should have been one, that is being read, raw.
    current: Pieces,
    /// What could not be understood.
    junk: String,
    /// Stray text between calls has begun.
    in_junk: bool,
    /// White space behind a bare call: part of the block only if another call follows.
    tail: String,
    next_index: usize,
    finished_calls: usize,
    /// Its closing tag was read.
    closed: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Between,
    Call(Box<Call>),
    /// Inside something that is no call, until its end.
    Skipping(Skip),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    BrokenCall,
    /// A parameter outside of any call.
    OrphanParameter,
}

/// What a lexeme was to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Part of it.
    Inside,
    /// Its last part.
    Last,
    /// No part of it: the block ended before it (and before its `tail`).
    Behind,
}

/// What a block left when it ended.
#[derive(Debug)]
pub struct Ended {
    pub unparsed: String,
    pub tail: String,
    pub finished_calls: usize,
    pub cut_call: bool,
}

impl Block {
    /// A block that begins with `tag`, behind a blank line that belongs to it or nothing. `first_index` is the
    /// index of its first call.
    pub fn begin(
        blank_line: &str,
        tag: &Lexeme,
        first_index: usize,
        tools: &Tools,
        out: &mut Deltas,
    ) -> Block {
        let mut raw = Pieces::default();
        raw.push_text(blank_line);
        let wrapped = matches!(tag, Lexeme::Tag { tag: Tag::OpenBlock, .. });
        if wrapped {
            tag.append_to(&mut raw);
        }
        let mut block = Block {
            wrapped,
            place: Place::Between,
            raw,
            current: Pieces::default(),
            junk: String::new(),
            in_junk: false,
            tail: String::new(),
            next_index: first_index,
            finished_calls: 0,
            closed: false,
        };
        if !wrapped {
            block.push(tag, tools, out);
        }
        block
    }

    /// Whether nothing is missing if the output ends right here.
    pub fn is_whole(&self) -> bool {
        self.closed || (!self.wrapped && self.tail.is_empty() && matches!(self.place, Place::Between))
    }

    /// Whether its own closing tag was read.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it yields anything at all, a call or text that was none.
    pub fn has_yield(&self, tools: &Tools) -> bool {
        self.finished_calls > 0 || !self.junk.is_empty() || !tools.accepts_calls()
    }

    /// All of it, white space behind it included, as the model wrote it.
    pub fn text(&self) -> String {
        self.raw.text() + &self.tail
    }

    /// The next index after this block's calls.
    pub fn next_index(&self) -> usize {
        self.next_index
    }

    /// Takes the next lexeme, or says that the block ended before it.
    pub fn push(&mut self, lexeme: &Lexeme, tools: &Tools, out: &mut Deltas) -> Flow {
        if !self.wrapped && matches!(self.place, Place::Between) {
            match lexeme {
                Lexeme::Text(text) if is_blank(text) => {
                    self.tail.push_str(text);
                    return Flow::Inside;
                }
                Lexeme::Tag { tag, .. } if *tag != Tag::OpenBlock => {
                    self.raw.push_text(&std::mem::take(&mut self.tail));
                }
                _ => return Flow::Behind,
            }
        }
        lexeme.append_to(&mut self.raw);
        match self.place {
            Place::Between => self.between(lexeme, tools, out),
            Place::Call(_) => self.in_call(lexeme, tools, out),
            Place::Skipping(skip) => self.skipping(skip, lexeme, tools, out),
        }
    }

    fn between(&mut self, lexeme: &Lexeme, tools: &Tools, out: &mut Deltas) -> Flow {
        if let Lexeme::Text(text) = lexeme {
            let text = if self.in_junk { text } else { text.trim_ascii_start() };
            self.in_junk |= !text.is_empty();
            self.junk.push_str(text);
            return Flow::Inside;
        }
        if let (true, Lexeme::Tail(text)) = (self.in_junk, lexeme) {
            self.junk.push_str(text);
        }
        self.in_junk = false;
        match lexeme {
            Lexeme::Tag { tag: Tag::OpenInvoke { name }, raw } => self.begin_call(name, raw, tools, out),
            Lexeme::Tag { tag: Tag::CloseBlock, .. } => {
                self.closed = true;
                return Flow::Last;
            }
            Lexeme::Tag { tag: Tag::OpenParameter { .. }, raw } => {
                self.current = raw.clone();
                self.place = Place::Skipping(Skip::OrphanParameter);
            }
            Lexeme::Tag { tag: Tag::OpenBlock, raw } | Lexeme::Broken { raw } => {
                self.junk.push_str(&raw.text())
            }
            // Stray closing tags, markers, a tag or its first character cut by the end.
            _ => {}
        }
        Flow::Inside
    }

    fn begin_call(&mut self, name: &str, raw: &Pieces, tools: &Tools, out: &mut Deltas) {
        self.current = raw.clone();
        if !tools.accepts(name) {
            self.place = Place::Skipping(Skip::BrokenCall);
            return;
        }
        let index = self.next_index;
        self.next_index += 1;
        out.push(Delta::ToolCallStart { index, id: tools.call_id(index), name: name.to_string() });
        self.place = Place::Call(Box::new(Call::new(index, tools.properties(name))));
    }

    fn in_call(&mut self, lexeme: &Lexeme, tools: &Tools, out: &mut Deltas) -> Flow {
        let Place::Call(call) = &mut self.place else { return Flow::Inside };
        let in_value = call.in_value();
        match lexeme {
            Lexeme::Text(text) if in_value => call.value_text(text, out),
            Lexeme::Tail(text) if in_value => call.value_text(text, out),
            Lexeme::Text(text) if is_blank(text) => {}
            Lexeme::Tag { tag: Tag::OpenParameter { key, kind }, .. } if !in_value => {
                call.open_parameter(key, *kind, out)
            }
            // Outside a value this one is stray, and closes nothing.
            Lexeme::Tag { tag: Tag::CloseParameter, .. } => call.close_parameter(out),
            Lexeme::Tag { tag: Tag::CloseInvoke, .. } if !in_value => {
                let index = call.index();
                call.close(out);
                lexeme.append_to(&mut self.current);
                out.push(Delta::ToolCallEnd { index, exact: std::mem::take(&mut self.current) });
                self.finished_calls += 1;
                self.place = Place::Between;
                return Flow::Inside;
            }
            Lexeme::Special(_) | Lexeme::OtherToken(_) | Lexeme::Begun { .. } | Lexeme::Tail(_) => {}
            _ => {
                out.push(Delta::ToolCallWithdrawn { index: call.index() });
                self.place = Place::Skipping(Skip::BrokenCall);
                return self.skipping(Skip::BrokenCall, lexeme, tools, out);
            }
        }
        lexeme.append_to(&mut self.current);
        Flow::Inside
    }

    fn skipping(&mut self, skip: Skip, lexeme: &Lexeme, tools: &Tools, out: &mut Deltas) -> Flow {
        let ends = match lexeme {
            Lexeme::Tag { tag: Tag::OpenInvoke { .. } | Tag::CloseBlock, .. } => {
                self.end_skipping();
                return self.between(lexeme, tools, out);
            }
            Lexeme::Tag { tag: Tag::CloseInvoke, .. } => true,
            Lexeme::Tag { tag: Tag::CloseParameter, .. } => skip == Skip::OrphanParameter,
            _ => false,
        };
        lexeme.append_to(&mut self.current);
        if ends {
            self.end_skipping();
        }
        Flow::Inside
    }

    fn end_skipping(&mut self) {
        self.junk.push_str(&std::mem::take(&mut self.current).text());
        self.place = Place::Between;
    }

    /// The end of the block, or of the output in the middle of it.
    pub fn finish(mut self, end: End, tools: &Tools, out: &mut Deltas) -> Ended {
        let mut cut_call = false;
        match (&mut self.place, end) {
            (Place::Call(call), End::Limit) => {
                call.cut(out);
                cut_call = true;
            }
            (Place::Call(call), End::Stop) => {
                out.push(Delta::ToolCallWithdrawn { index: call.index() });
                self.end_skipping();
            }
            (Place::Skipping(_), _) => self.end_skipping(),
            (Place::Between, _) => {}
        }
        let has_calls = self.finished_calls > 0 || cut_call;
        let never_closed = self.wrapped && !self.closed;
        let nothing_parsed = !has_calls && (never_closed || !self.junk.is_empty());
        let unparsed = match !tools.accepts_calls() || nothing_parsed {
            true => self.raw.text(),
            false => self.junk,
        };
        Ended { unparsed, tail: self.tail, finished_calls: self.finished_calls, cut_call }
    }
}

/// Nothing but the white space that stands between tags.
fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_whitespace())
}
