//! The events of a streamed message: its start, its blocks one after the other, how it ended, its stop.

use crate::app::App;
use crate::choice::{Piece, TokenCounts};
use crate::dialect::{AllCounts, EventWriter};
use crate::error::ApiError;
use crate::messages::Messages;
use crate::messages::blocks::{BlockBuilder, BlockEvent};
use crate::messages::envelope::envelope;
use crate::messages::wire::{Event, MessageShown, StopShown};
use bytes::{BufMut, BytesMut};
use overshot_chat::Ending;

pub struct MessageEvents {
    /// The first event; empty once it is sent.
    start: BytesMut,
    blocks: BlockBuilder,
    limit: &'static str,
    ending: Ending,
    unparsed_tool_text: String,
}

impl MessageEvents {
    pub fn new(dialect: Messages, app: &App) -> Self {
        let mut start = BytesMut::new();
        let counts = AllCounts { prompt: dialect.prompt_tokens, answers: TokenCounts::default() };
        let message = MessageShown {
            id: &dialect.id,
            r#type: "message",
            role: "assistant",
            model: &app.model.name,
            content: Vec::new(),
            stop: StopShown::default(),
            usage: counts.into(),
        };
        put(&Event::MessageStart { message }, &mut start);
        MessageEvents {
            start,
            blocks: BlockBuilder::new(dialect.eager),
            limit: dialect.limit,
            ending: Ending::default(),
            unparsed_tool_text: String::new(),
        }
    }
}

impl EventWriter for MessageEvents {
    /// Clients count on it while a long prompt is computed.
    fn announce(&mut self, out: &mut BytesMut) {
        out.put(self.start.split());
    }

    fn begin(&mut self, _prompt_tokens: usize, _out: &mut BytesMut) {}

    fn piece(&mut self, _choice: usize, piece: &Piece, out: &mut BytesMut) {
        if let Some(delta) = &piece.delta {
            self.blocks.push(delta, &mut |event: BlockEvent<'_>| put(&event.into(), out));
        }
    }

    fn finish(&mut self, _choice: usize, ending: &Ending, out: &mut BytesMut) {
        self.unparsed_tool_text = self.blocks.finish(&mut |event: BlockEvent<'_>| put(&event.into(), out));
        self.ending = ending.clone();
    }

    fn end(&mut self, counts: AllCounts, out: &mut BytesMut) {
        let delta = StopShown::new(&self.ending, self.limit, &self.unparsed_tool_text);
        put(&Event::MessageDelta { delta, usage: counts.into() }, out);
        put(&Event::MessageStop, out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        out.put_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    /// No `message_stop` follows: the answer is not whole.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        out.put_slice(b"event: error\ndata: ");
        out.put_slice(&envelope(error, None));
        out.put_slice(b"\n\n");
    }
}

fn put(event: &Event<'_>, out: &mut BytesMut) {
    out.put_slice(b"event: ");
    out.put_slice(event.name().as_bytes());
    out.put_slice(b"\ndata: ");
    // Writing into memory cannot fail, and structs of strings, numbers and lists always serialise.
    let _ = serde_json::to_writer((&mut *out).writer(), event);
    out.put_slice(b"\n\n");
}
