//! The events of a response, each with its number, written into the buffer that goes to the socket or into a log.

use super::items::{Item, Part};
use super::response::Response;
use crate::wire::ChatLogprob;
use bytes::{BufMut, BytesMut};
use serde::Serialize;
use std::fmt::Write;

/// Numbers events from 0 on.
#[derive(Debug, Default)]
pub struct Events {
    next_number: u64,
}

impl Events {
    /// Writes one event. `fields` serialises as an object with at least one field.
    pub fn put(&mut self, kind: &str, fields: &impl Serialize, out: &mut BytesMut) {
        put_event(kind, self.next_number, fields, out);
        self.next_number += 1;
    }
}

pub fn put_event(kind: &str, number: u64, fields: &impl Serialize, out: &mut BytesMut) {
    // Writing into memory cannot fail, and structs of strings, numbers and lists always serialise.
    let _ = write!(out, "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number}");
    let brace = out.len();
    let _ = serde_json::to_writer((&mut *out).writer(), fields);
    // The object goes on where that of the fields would begin.
    if let Some(begun) = out.get_mut(brace) {
        *begun = b',';
    }
    out.put_slice(b"\n\n");
}

#[derive(Serialize)]
pub struct ResponseFields<'a> {
    pub response: &'a Response,
}

#[derive(Serialize)]
pub struct ItemFields<'a> {
    pub output_index: usize,
    pub item: &'a Item,
}

/// The one part that a message or a thinking has.
#[derive(Serialize)]
pub struct PartFields<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
    pub content_index: usize,
    pub part: &'a Part,
}

#[derive(Serialize)]
pub struct TextFields<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
    pub content_index: usize,
    #[serde(flatten)]
    pub text: TextField<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<&'a [ChatLogprob]>,
}

/// Of a call, or of text that belongs to no part.
#[derive(Serialize)]
pub struct CallFields<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
    #[serde(flatten)]
    pub text: TextField<'a>,
}

/// A piece, or the whole under the name that it has there.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TextField<'a> {
    Delta(&'a str),
    Text(&'a str),
    Arguments(&'a str),
    Input(&'a str),
}

#[derive(Serialize)]
pub struct ErrorFields<'a> {
    pub code: Option<&'a str>,
    pub message: &'a str,
    pub param: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_and_named_twice() {
        let mut events = Events::default();
        let mut out = BytesMut::new();
        for delta in ["a\n", "\"b"] {
            let text = TextField::Delta(delta);
            let fields = TextFields { item_id: "m", output_index: 1, content_index: 0, text, logprobs: None };
            events.put("response.output_text.delta", &fields, &mut out);
        }
        let expected = concat!(
            "event: response.output_text.delta\n",
            r#"data: {"type":"response.output_text.delta","sequence_number":0,"item_id":"m","output_index":1,"#,
            r#""content_index":0,"delta":"a\n"}"#,
            "\n\nevent: response.output_text.delta\n",
            r#"data: {"type":"response.output_text.delta","sequence_number":1,"item_id":"m","output_index":1,"#,
            r#""content_index":0,"delta":"\"b"}"#,
            "\n\n",
        );
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
    }
}
