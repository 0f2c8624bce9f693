//! What the model wrote, sorted as it arrives: thinking, answer, tool calls. Built for streams; the whole
//! message is the fold of its deltas, so streaming and not streaming cannot disagree. Any cut of the output into
//! pieces gives the same message.
//!
//! `lexer.rs` finds tags, `block.rs` reads tool blocks, `call.rs` makes arguments; here is what stands around
//! them. Model output is never an error: what looks like a call and is none becomes `unparsed_tool_text`.

mod block;
mod call;
mod lexer;
mod message;

use std::collections::{HashMap, HashSet};

use block::{Block, Flow};
use lexer::{Lexeme, Lexer, Tag};
pub use message::{Delta, Deltas, FinishReason, Finished, ParsedCall, ParsedMessage};

use crate::detokenize::Utf8Stream;
use crate::{Special, Tokenizer, Tool};

/// What the output begins with: `Reasoning` if the prompt ended in `<think>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    Reasoning,
    #[default]
    Content,
}

/// Why the output ended. An end token in the output counts as `Stop` by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end token, or a stop string.
    Stop,
    /// The caller's limit on tokens or on the context: the model wanted to go on.
    Limit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    #[default]
    Auto,
    /// The caller wants no calls: whatever looks like one is unparsed text.
    None,
}

#[derive(Clone, Debug)]
pub struct ParseOptions {
    pub start: Start,
    /// The functions declared in the prompt. With none, nothing is a call.
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    /// Ids of calls are this and the call's index.
    pub call_id_prefix: String,
}

impl Default for ParseOptions {
    fn default() -> ParseOptions {
        ParseOptions {
            start: Start::Content,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            call_id_prefix: "call_".to_string(),
        }
    }
}

/// What blocks need to know of the request.
#[derive(Clone, Debug)]
struct Tools {
    /// Declared names with the parameter names of their schemas, where they have one.
    declared: HashMap<String, Option<HashSet<String>>>,
    choice: ToolChoice,
    call_id_prefix: String,
}

impl Tools {
    fn new(options: ParseOptions) -> Tools {
        Tools {
            declared: options.tools.iter().filter_map(Tool::name_and_properties).collect(),
            choice: options.tool_choice,
            call_id_prefix: options.call_id_prefix,
        }
    }

    fn accepts_calls(&self) -> bool {
        !self.declared.is_empty() && self.choice != ToolChoice::None
    }

    /// Whether this can be a call of `name`. Declared or not: the client decides about undeclared ones.
    fn accepts(&self, name: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        self.accepts_calls() && (1..=64).contains(&name.len()) && name.bytes().all(allowed)
    }

    fn properties(&self, name: &str) -> Option<HashSet<String>> {
        self.declared.get(name).cloned().flatten()
    }

    fn call_id(&self, index: usize) -> String {
        format!("{}{index}", self.call_id_prefix)
    }
}

/// Parses a model's output from its tokens.
#[derive(Clone, Debug)]
pub struct OutputParser {
    tokenizer: Tokenizer,
    utf8: Utf8Stream,
    pieces: PieceParser,
}

impl OutputParser {
    pub fn new(tokenizer: &Tokenizer, options: ParseOptions) -> OutputParser {
        OutputParser {
            tokenizer: tokenizer.clone(),
            utf8: Utf8Stream::default(),
            pieces: PieceParser::new(options),
        }
    }

    /// Takes the next token; gives what can be sent now. After an end token, takes nothing more.
    pub fn push(&mut self, token: u32) -> Vec<Delta> {
        let tokenizer = self.tokenizer.clone();
        match tokenizer.special_of(token) {
            Some(special) => {
                let mut deltas = self.end_character();
                deltas.extend(self.pieces.push_special(special));
                deltas
            }
            None if tokenizer.is_added(token) => {
                let text = String::from_utf8_lossy(tokenizer.bytes_of(token));
                let mut deltas = self.end_character();
                deltas.extend(self.pieces.push_other_token(&text));
                deltas
            }
            None => self.push_bytes(tokenizer.bytes_of(token)),
        }
    }

    /// Takes bytes of ordinary text, cut anywhere.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Vec<Delta> {
        let text = self.utf8.push(bytes);
        self.pieces.push_text(&text)
    }

    /// Ends the output: the last deltas, and the whole message.
    pub fn finish(mut self, end: End) -> Finished {
        let mut deltas = self.end_character();
        let mut finished = self.pieces.finish(end);
        deltas.append(&mut finished.deltas);
        Finished { deltas, message: finished.message }
    }

    /// A character that something other than its next byte follows stays cut.
    fn end_character(&mut self) -> Vec<Delta> {
        let text = self.utf8.finish();
        self.pieces.push_text(text)
    }
}

/// Parses output given as text and markers, for callers without a tokenizer.
#[derive(Clone, Debug)]
pub struct PieceParser {
    tools: Tools,
    lexer: Lexer,
    phase: Phase,
    block: Option<Block>,
    /// What a block in the reasoning would send if it counted.
    block_deltas: Deltas,
    /// `\n`s at the end of the text so far, at most two: they may belong to a block.
    newlines: usize,
    /// Nothing of the answer has come yet, and thinking is off.
    at_head: bool,
    /// Thinking that the request did not ask for: shown only if it turns out to be all there is.
    hidden_reasoning: Option<String>,
    next_index: usize,
    finished_calls: usize,
    /// The limit came in the middle of a call.
    cut_call: bool,
    unparsed: String,
    ended: bool,
    message: ParsedMessage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reasoning,
    /// The answer, before, between and after tool blocks.
    Content,
}

impl PieceParser {
    pub fn new(options: ParseOptions) -> PieceParser {
        PieceParser {
            phase: match options.start {
                Start::Reasoning => Phase::Reasoning,
                Start::Content => Phase::Content,
            },
            at_head: options.start == Start::Content,
            tools: Tools::new(options),
            lexer: Lexer::default(),
            block: None,
            block_deltas: Deltas::default(),
            newlines: 0,
            hidden_reasoning: None,
            next_index: 0,
            finished_calls: 0,
            cut_call: false,
            unparsed: String::new(),
            ended: false,
            message: ParsedMessage::default(),
        }
    }

    /// Takes text that holds no markers; strings that look like markers stay text.
    pub fn push_text(&mut self, text: &str) -> Vec<Delta> {
        self.step(|lexer, lexemes| lexer.text(text, lexemes))
    }

    pub fn push_special(&mut self, special: Special) -> Vec<Delta> {
        if special == Special::EndOfSentence {
            self.ended = true;
            return Vec::new();
        }
        self.step(|lexer, lexemes| lexer.special(special, lexemes))
    }

    /// Takes an added token that has no meaning in the format.
    pub fn push_other_token(&mut self, text: &str) -> Vec<Delta> {
        self.step(|lexer, lexemes| lexer.other_token(text, lexemes))
    }

    /// Takes text in which markers are spelled out, as in stored transcripts.
    pub fn push_marked_text(&mut self, mut text: &str) -> Vec<Delta> {
        let mut deltas = Vec::new();
        while let Some((at, special)) = Special::find(text) {
            deltas.extend(self.push_text(&text[..at]));
            deltas.extend(self.push_special(special));
            text = &text[at + special.text().len()..];
        }
        deltas.extend(self.push_text(text));
        deltas
    }

    fn step(&mut self, read: impl FnOnce(&mut Lexer, &mut Vec<Lexeme>)) -> Vec<Delta> {
        if self.ended {
            return Vec::new();
        }
        let mut lexemes = Vec::new();
        read(&mut self.lexer, &mut lexemes);
        let mut out = Deltas::default();
        for lexeme in &lexemes {
            self.lexeme(lexeme, &mut out);
        }
        self.record(out)
    }

    fn record(&mut self, out: Deltas) -> Vec<Delta> {
        let deltas = out.into_vec();
        deltas.iter().for_each(|delta| self.message.apply(delta));
        deltas
    }

    fn lexeme(&mut self, lexeme: &Lexeme, out: &mut Deltas) {
        match (self.phase, self.block.take()) {
            (Phase::Reasoning, None) => self.reasoning(lexeme, out),
            (Phase::Content, None) => self.content(lexeme, out),
            (Phase::Reasoning, Some(block)) => self.block_in_reasoning(block, lexeme, out),
            (Phase::Content, Some(block)) => self.block_in_content(block, lexeme, out),
        }
    }

    fn content(&mut self, lexeme: &Lexeme, out: &mut Deltas) {
        match lexeme {
            Lexeme::Text(text) => self.text(text, out),
            Lexeme::Tail(text) => self.text(text, out),
            Lexeme::Tag {
                tag: Tag::OpenBlock | Tag::OpenInvoke { .. } | Tag::OpenParameter { .. }, ..
            } => {
                self.at_head = false;
                let blank_line = self.take_blank_line(out);
                self.block = Some(Block::begin(blank_line, lexeme, self.next_index, &self.tools, out));
            }
            Lexeme::Broken { raw } => {
                self.at_head = false;
                self.unparsed.push_str(&raw.text());
            }
            Lexeme::Special(Special::ThinkOpen) if self.at_head => {
                self.at_head = false;
                self.newlines = 0;
                self.phase = Phase::Reasoning;
                self.hidden_reasoning = Some(String::new());
            }
            // Its blank line goes with it.
            Lexeme::Begun { .. } if self.newlines == 2 => self.newlines = 0,
            // Stray closing tags and markers are not part of an answer.
            Lexeme::Tag { .. } | Lexeme::Begun { .. } | Lexeme::Special(_) | Lexeme::OtherToken(_) => {}
        }
    }

    fn reasoning(&mut self, lexeme: &Lexeme, out: &mut Deltas) {
        match lexeme {
            Lexeme::Special(Special::ThinkClose) => {
                self.flush_newlines(out);
                self.hidden_reasoning = None;
                self.phase = Phase::Content;
            }
            Lexeme::Tag { tag: Tag::OpenBlock | Tag::OpenInvoke { .. }, .. } => {
                let blank_line = self.take_blank_line(out);
                let mut held = Deltas::default();
                self.block = Some(Block::begin(blank_line, lexeme, self.next_index, &self.tools, &mut held));
                self.block_deltas = held;
            }
            other => {
                let mut raw = crate::Pieces::default();
                other.append_to(&mut raw);
                self.text(&raw.text(), out);
            }
        }
    }

    fn block_in_content(&mut self, mut block: Block, lexeme: &Lexeme, out: &mut Deltas) {
        match block.push(lexeme, &self.tools, out) {
            Flow::Inside => self.block = Some(block),
            Flow::Last => self.end_block(block, End::Stop, out),
            Flow::Behind => {
                self.end_block(block, End::Stop, out);
                self.content(lexeme, out);
            }
        }
    }

    /// A block in the reasoning counts only if the output ends right behind it; anything that follows shows
    /// that it was only thought about.
    fn block_in_reasoning(&mut self, mut block: Block, lexeme: &Lexeme, out: &mut Deltas) {
        let thought = block.is_closed()
            || *lexeme == Lexeme::Special(Special::ThinkClose)
            || block.push(lexeme, &self.tools, &mut self.block_deltas) == Flow::Behind;
        if thought {
            self.text(&block.text(), out);
            self.reasoning(lexeme, out);
        } else {
            self.block = Some(block);
        }
    }

    fn end_block(&mut self, block: Block, end: End, out: &mut Deltas) {
        self.next_index = block.next_index();
        let ended = block.finish(end, &self.tools, out);
        self.finished_calls += ended.finished_calls;
        self.unparsed.push_str(&ended.unparsed);
        self.cut_call = ended.cut_call;
        self.text(&ended.tail, out);
    }

    /// Text of the answer or of the thinking; newlines at its end wait for what follows.
    fn text(&mut self, text: &str, out: &mut Deltas) {
        if text.is_empty() {
            return;
        }
        let all = "\n".repeat(self.newlines) + text;
        let without = all.trim_end_matches('\n').len();
        self.newlines = (all.len() - without).min(2);
        self.send(&all[..all.len() - self.newlines], out);
    }

    fn send(&mut self, text: &str, out: &mut Deltas) {
        if text.is_empty() {
            return;
        }
        match (self.phase, &mut self.hidden_reasoning) {
            (Phase::Reasoning, Some(hidden)) => hidden.push_str(text),
            (Phase::Reasoning, None) => out.push(Delta::Reasoning(text.to_string())),
            (Phase::Content, _) => {
                self.at_head = false;
                out.push(Delta::Content(text.to_string()));
            }
        }
    }

    fn flush_newlines(&mut self, out: &mut Deltas) {
        let newlines = "\n".repeat(std::mem::take(&mut self.newlines));
        self.send(&newlines, out);
    }

    /// The blank line that belongs to a block; a single newline is text.
    fn take_blank_line(&mut self, out: &mut Deltas) -> &'static str {
        if self.newlines == 2 {
            self.newlines = 0;
            return "\n\n";
        }
        self.flush_newlines(out);
        ""
    }

    /// Ends the output: the last deltas, and the whole message.
    pub fn finish(mut self, end: End) -> Finished {
        let end = if self.ended { End::Stop } else { end };
        let mut out = Deltas::default();
        let mut lexemes = Vec::new();
        self.lexer.finish(&mut lexemes);
        lexemes.iter().for_each(|lexeme| self.lexeme(lexeme, &mut out));

        let block = match (self.phase, self.block.take()) {
            (Phase::Reasoning, Some(block)) if !(block.is_whole() && block.has_yield(&self.tools)) => {
                self.text(&block.text(), &mut out);
                None
            }
            (_, block) => block,
        };
        if block.is_none() || self.phase == Phase::Reasoning {
            self.flush_newlines(&mut out);
        }
        if let Some(hidden) = self.hidden_reasoning.take().filter(|hidden| !hidden.is_empty()) {
            out.push(Delta::Reasoning(hidden));
        }
        if let Some(block) = block {
            if self.phase == Phase::Reasoning {
                out.append(std::mem::take(&mut self.block_deltas));
            }
            self.end_block(block, end, &mut out);
            self.flush_newlines(&mut out);
        }
        if !self.unparsed.is_empty() {
            out.push(Delta::UnparsedToolText(std::mem::take(&mut self.unparsed)));
        }
        let deltas = self.record(out);
        let mut message = self.message;
        message.finish_reason = match end {
            End::Limit if self.cut_call => FinishReason::Length,
            _ if self.finished_calls > 0 => FinishReason::ToolCalls,
            End::Limit => FinishReason::Length,
            End::Stop => FinishReason::Stop,
        };
        Finished { deltas, message }
    }
}

/// Parses a whole output in which markers are spelled out.
pub fn parse_text(text: &str, options: ParseOptions, end: End) -> ParsedMessage {
    let mut parser = PieceParser::new(options);
    parser.push_marked_text(text);
    parser.finish(end).message
}
