//! A whole answer: its blocks, filled by the events that a stream would send.

use crate::app::App;
use crate::dialect::{AllCounts, Answer};
use crate::job::json_response;
use crate::messages::Messages;
use crate::messages::blocks::{BlockBuilder, BlockEvent, BlockPiece, Opening};
use crate::messages::tools::EagerTools;
use crate::messages::wire::{ContentBlock, MessageShown, StopShown};
use axum::body::Body;
use axum::http::Response;
use serde_json::value::RawValue;

pub fn response(dialect: &Messages, answer: Answer, counts: AllCounts, app: &App) -> Response<Body> {
    let mut filling = Filling::default();
    let mut tell = |event: BlockEvent<'_>| filling.take(event);
    // Nobody watches: a call is told once it is whole.
    let mut blocks = BlockBuilder::new(EagerTools::none());
    for delta in answer.deltas.into_vec() {
        blocks.push(&delta, &mut tell);
    }
    let unparsed_tool_text = blocks.finish(&mut tell);
    json_response(&MessageShown {
        id: &dialect.id,
        r#type: "message",
        role: "assistant",
        model: &app.model.name,
        content: filling.content,
        stop: StopShown::new(&answer.ending, dialect.limit, &unparsed_tool_text),
        usage: counts.into(),
    })
}

#[derive(Default)]
struct Filling {
    content: Vec<ContentBlock>,
    /// Of the call that is being told.
    input: String,
}

impl Filling {
    fn take(&mut self, event: BlockEvent<'_>) {
        match event {
            BlockEvent::Start { opening, .. } => self.content.push(match opening {
                Opening::Thinking => {
                    ContentBlock::Thinking { thinking: String::new(), signature: String::new() }
                }
                Opening::Text => ContentBlock::Text { text: String::new() },
                Opening::ToolUse { id, name } => ContentBlock::ToolUse {
                    id: id.to_owned(),
                    name: name.to_owned(),
                    input: empty_object(),
                    partial_json: None,
                },
            }),
            BlockEvent::Grow { piece, .. } => self.grow(piece),
            BlockEvent::Stop { .. } => self.end_call(),
        }
    }

    fn grow(&mut self, piece: BlockPiece<'_>) {
        match (piece, self.content.last_mut()) {
            (BlockPiece::Thinking(more), Some(ContentBlock::Thinking { thinking, .. })) => {
                thinking.push_str(more);
            }
            (BlockPiece::Signature(more), Some(ContentBlock::Thinking { signature, .. })) => {
                signature.push_str(more);
            }
            (BlockPiece::Text(more), Some(ContentBlock::Text { text })) => text.push_str(more),
            (BlockPiece::InputJson(more), Some(ContentBlock::ToolUse { .. })) => self.input.push_str(more),
            // Pieces are of their block's kind.
            _ => {}
        }
    }

    /// The input is an object in every case: half a one is given as text beside an empty one.
    fn end_call(&mut self) {
        let Some(ContentBlock::ToolUse { input, partial_json, .. }) = self.content.last_mut() else { return };
        let told = std::mem::take(&mut self.input);
        match serde_json::from_str(&told) {
            Ok(whole) => *input = whole,
            Err(_) => *partial_json = Some(told),
        }
    }
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("it is JSON")
}
