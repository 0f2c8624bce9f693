//! The chunks of a stream, written straight into the buffer that goes to the socket: what is the same in every chunk
//! of a response is written once, ahead. Each chunk is one server-sent event.

use crate::app::{App, now};
use crate::choice::{LogprobsWanted, Piece, TokenLogprob};
use crate::dialect::{AllCounts, EventWriter};
use crate::error::ApiError;
use crate::fields::UsageChunk;
use crate::openai::{Format, OpenAi};
use crate::wire::{ChatLogprobs, TextLogprobs, Usage};
use bytes::{BufMut, BytesMut};
use overshot_chat::{Delta, Ending, Tokenizer};
use serde::Serialize;
use std::fmt::Write;

pub struct ChunkWriter {
    format: Format,
    /// `data: {"id":..,..,"choices":[`
    head: Vec<u8>,
    usage: UsageChunk,
    tokenizer: Tokenizer,
    logprobs: LogprobsWanted,
    /// Characters delivered by choice, for the offsets of text completions.
    offsets: Vec<usize>,
}

impl ChunkWriter {
    pub fn new(dialect: OpenAi, choices: usize, app: &App) -> Self {
        let OpenAi { format, id, usage, logprobs } = dialect;
        let object = match format {
            Format::Chat => "chat.completion.chunk",
            Format::Text => "text_completion",
        };
        #[derive(Serialize)]
        struct Head<'a> {
            id: &'a str,
            object: &'a str,
            created: u64,
            model: &'a str,
        }
        let mut head = b"data: ".to_vec();
        head.extend(json(&Head { id: &id, object, created: now(), model: &app.model.name }));
        // The object goes on.
        head.pop();
        head.extend_from_slice(b",\"choices\":[");
        let tokenizer = app.model.tokenizer.clone();
        ChunkWriter { format, head, usage, tokenizer, logprobs, offsets: vec![0; choices] }
    }

    fn open(&self, choice: usize, out: &mut BytesMut) {
        out.put_slice(&self.head);
        out.put_slice(b"{\"index\":");
        put_number(choice, out);
        out.put_slice(b",");
    }

    fn close(&self, out: &mut BytesMut) {
        out.put_slice(match self.usage {
            UsageChunk::Sent => b"],\"usage\":null}\n\n".as_slice(),
            UsageChunk::Left => b"]}\n\n",
        });
    }

    fn put_logprobs(&mut self, choice: usize, logprobs: &[TokenLogprob], out: &mut BytesMut) {
        out.put_slice(b",\"logprobs\":");
        if self.logprobs == LogprobsWanted::No {
            return out.put_slice(b"null");
        }
        match self.format {
            Format::Chat => out.put_slice(&json(&ChatLogprobs::new(&self.tokenizer, logprobs))),
            Format::Text => {
                let offset = &mut self.offsets[choice];
                out.put_slice(&json(&TextLogprobs::new(&self.tokenizer, logprobs, offset)));
            }
        }
    }
}

impl EventWriter for ChunkWriter {
    /// A chat answer begins with its role.
    fn begin(&mut self, _prompt_tokens: usize, out: &mut BytesMut) {
        if self.format == Format::Text {
            return;
        }
        for choice in 0..self.offsets.len() {
            self.open(choice, out);
            out.put_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
            self.close(out);
        }
    }

    fn piece(&mut self, choice: usize, piece: &Piece, out: &mut BytesMut) {
        if matches!(piece.delta, Some(Delta::ToolCallEnd { .. })) && piece.logprobs.is_empty() {
            return;
        }
        self.open(choice, out);
        match self.format {
            Format::Chat => {
                out.put_slice(b"\"delta\":{");
                if let Some(delta) = &piece.delta {
                    put_delta(delta, out);
                }
                out.put_slice(b"}");
            }
            Format::Text => {
                out.put_slice(b"\"text\":");
                match &piece.delta {
                    Some(Delta::Content(text)) => put_string(text, out),
                    _ => out.put_slice(b"\"\""),
                }
            }
        }
        self.put_logprobs(choice, &piece.logprobs, out);
        out.put_slice(b",\"finish_reason\":null}");
        self.close(out);
    }

    /// The one chunk with a reason.
    fn finish(&mut self, choice: usize, ending: &Ending, out: &mut BytesMut) {
        self.open(choice, out);
        out.put_slice(match self.format {
            Format::Chat => b"\"delta\":{}",
            Format::Text => b"\"text\":\"\"",
        });
        out.put_slice(b",\"logprobs\":null,\"finish_reason\":\"");
        out.put_slice(ending.reason.as_str().as_bytes());
        out.put_slice(b"\"}");
        self.close(out);
    }

    fn end(&mut self, counts: AllCounts, out: &mut BytesMut) {
        if self.usage == UsageChunk::Sent {
            out.put_slice(&self.head);
            out.put_slice(b"],\"usage\":");
            out.put_slice(&json(&Usage::new(counts)));
            out.put_slice(b"}\n\n");
        }
        out.put_slice(b"data: [DONE]\n\n");
    }

    /// No `[DONE]` follows: the answer is not whole.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        out.put_slice(b"data: ");
        out.put_slice(&error.envelope());
        out.put_slice(b"\n\n");
    }
}

fn put_delta(delta: &Delta, out: &mut BytesMut) {
    match delta {
        Delta::Content(text) => {
            out.put_slice(b"\"content\":");
            put_string(text, out);
        }
        Delta::Reasoning(text) => {
            out.put_slice(b"\"reasoning_content\":");
            put_string(text, out);
        }
        Delta::ToolCallStart { index, id, name } => {
            put_call(*index, out);
            out.put_slice(b",\"id\":");
            put_string(id, out);
            out.put_slice(b",\"type\":\"function\",\"function\":{\"name\":");
            put_string(name, out);
            out.put_slice(b",\"arguments\":\"\"}}]");
        }
        Delta::ToolCallArguments { index, text } => {
            put_call(*index, out);
            out.put_slice(b",\"function\":{\"arguments\":");
            put_string(text, out);
            out.put_slice(b"}}]");
        }
        // Nothing that a client would have to know.
        Delta::ToolCallEnd { .. } => {}
        Delta::ToolCallWithdrawn { index } => {
            out.put_slice(b"\"withdrawn_tool_calls\":[");
            put_number(*index, out);
            out.put_slice(b"]");
        }
        Delta::UnparsedToolText(text) => {
            out.put_slice(b"\"unparsed_tool_text\":");
            put_string(text, out);
        }
    }
}

fn put_call(index: usize, out: &mut BytesMut) {
    out.put_slice(b"\"tool_calls\":[{\"index\":");
    put_number(index, out);
}

fn put_string(text: &str, out: &mut BytesMut) {
    // Writing into memory cannot fail, and strings always serialise.
    let _ = serde_json::to_writer(out.writer(), text);
}

fn put_number(number: usize, out: &mut BytesMut) {
    let _ = write!(out, "{number}");
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers, strings and structs of them always serialise")
}
