//! The JSON of answers: messages, their content blocks, the events of a stream.

use crate::dialect::AllCounts;
use crate::messages::blocks::{BlockEvent, BlockPiece, Opening};
use overshot_chat::{Ending, FinishReason};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// The tokens of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageTokens {
    pub input_tokens: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct MessageShown<'a> {
    #[schema(value_type = String)]
    pub id: &'a str,
    #[schema(value_type = String)]
    pub r#type: &'static str,
    #[schema(value_type = String)]
    pub role: &'static str,
    #[schema(value_type = String)]
    pub model: &'a str,
    pub content: Vec<ContentBlock>,
    #[serde(flatten)]
    pub stop: StopShown<'a>,
    pub usage: UsageShown,
}

/// Nothing but nulls as long as the answer goes on.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct StopShown<'a> {
    #[schema(value_type = Option<String>, required)]
    stop_reason: Option<&'static str>,
    #[schema(value_type = Option<String>, required)]
    stop_sequence: Option<&'a str>,
    /// What looked like a call and could not be read as one: no field of Anthropic's.
    #[serde(skip_serializing_if = "str::is_empty")]
    #[schema(value_type = String)]
    unparsed_tool_text: &'a str,
}

impl<'a> StopShown<'a> {
    /// `limit` is what a limit that has cut the answer is called.
    pub fn new(ending: &'a Ending, limit: &'static str, unparsed_tool_text: &'a str) -> Self {
        let (stop_reason, stop_sequence) = match (ending.reason, &ending.stop_string) {
            (FinishReason::ToolCalls, _) => ("tool_use", None),
            (FinishReason::Length, _) => (limit, None),
            (FinishReason::Stop, Some(stop_string)) => ("stop_sequence", Some(stop_string.as_str())),
            (FinishReason::Stop, None) => ("end_turn", None),
        };
        StopShown { stop_reason: Some(stop_reason), stop_sequence, unparsed_tool_text }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct UsageShown {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessageOutputDetails)]
struct OutputDetails {
    thinking_tokens: usize,
}

impl From<AllCounts> for UsageShown {
    fn from(AllCounts { prompt, answers }: AllCounts) -> Self {
        UsageShown {
            input_tokens: prompt,
            // No prefix of a prompt is reused yet.
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: answers.completion,
            output_tokens_details: OutputDetails { thinking_tokens: answers.reasoning },
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Thinking {
        thinking: String,
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Box<RawValue>,
        /// The input of a call that a limit has cut, as far as it came: no field of Anthropic's.
        #[serde(skip_serializing_if = "Option::is_none")]
        partial_json: Option<String>,
    },
}

/// An event, named by its type.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event<'a> {
    MessageStart { message: MessageShown<'a> },
    ContentBlockStart { index: usize, content_block: OpeningShown<'a> },
    ContentBlockDelta { index: usize, delta: PieceShown<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: StopShown<'a>, usage: UsageShown },
    MessageStop,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OpeningShown<'a> {
    Thinking { thinking: &'static str, signature: &'static str },
    Text { text: &'static str },
    ToolUse { id: &'a str, name: &'a str, input: Empty },
}

#[derive(Debug, Serialize)]
pub struct Empty {}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the words are the API's")]
pub enum PieceShown<'a> {
    ThinkingDelta { thinking: &'a str },
    SignatureDelta { signature: &'a str },
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

impl Event<'_> {
    pub fn name(&self) -> &'static str {
        match self {
            Event::MessageStart { .. } => "message_start",
            Event::ContentBlockStart { .. } => "content_block_start",
            Event::ContentBlockDelta { .. } => "content_block_delta",
            Event::ContentBlockStop { .. } => "content_block_stop",
            Event::MessageDelta { .. } => "message_delta",
            Event::MessageStop => "message_stop",
        }
    }
}

impl<'a> From<BlockEvent<'a>> for Event<'a> {
    fn from(event: BlockEvent<'a>) -> Self {
        match event {
            BlockEvent::Start { index, opening } => {
                let content_block = match opening {
                    Opening::Thinking => OpeningShown::Thinking { thinking: "", signature: "" },
                    Opening::Text => OpeningShown::Text { text: "" },
                    Opening::ToolUse { id, name } => OpeningShown::ToolUse { id, name, input: Empty {} },
                };
                Event::ContentBlockStart { index, content_block }
            }
            BlockEvent::Grow { index, piece } => {
                let delta = match piece {
                    BlockPiece::Thinking(thinking) => PieceShown::ThinkingDelta { thinking },
                    BlockPiece::Signature(signature) => PieceShown::SignatureDelta { signature },
                    BlockPiece::Text(text) => PieceShown::TextDelta { text },
                    BlockPiece::InputJson(partial_json) => PieceShown::InputJsonDelta { partial_json },
                };
                Event::ContentBlockDelta { index, delta }
            }
            BlockEvent::Stop { index } => Event::ContentBlockStop { index },
        }
    }
}
