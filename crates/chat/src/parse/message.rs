//! What a parser gives: deltas, and the message that they add up to.

use crate::pieces::Pieces;
use crate::{Content, FunctionCall, FunctionTag, Message, Role, ToolCall};

/// One step of an answer. Calls are numbered from 0 in the order in which they began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Reasoning(String),
    Content(String),
    ToolCallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// A piece of the call's arguments; all pieces together are a JSON object.
    ToolCallArguments {
        index: usize,
        text: String,
    },
    /// The call is whole. `exact` is what the model wrote for it: kept by call id and given back in
    /// `RenderOptions::call_texts`, it makes the next prompt repeat the same tokens.
    ToolCallEnd {
        index: usize,
        exact: Pieces,
    },
    /// The announced call proved to be none: its text is in the unparsed text. Its index is not used again.
    ToolCallWithdrawn {
        index: usize,
    },
    /// Raw text that looked like calls but is none. At most once, as the last delta.
    UnparsedToolText(String),
}

/// Deltas in their order, neighbours of one kind joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deltas(Vec<Delta>);

impl Deltas {
    pub fn push(&mut self, delta: Delta) {
        match (self.0.last_mut(), &delta) {
            (Some(Delta::Reasoning(last)), Delta::Reasoning(text))
            | (Some(Delta::Content(last)), Delta::Content(text)) => last.push_str(text),
            (
                Some(Delta::ToolCallArguments { index: last_index, text: last }),
                Delta::ToolCallArguments { index, text },
            ) if last_index == index => last.push_str(text),
            _ => self.0.push(delta),
        }
    }

    pub fn append(&mut self, other: Deltas) {
        other.0.into_iter().for_each(|delta| self.push(delta));
    }

    /// The message that they make. Its finish reason is not known here.
    pub fn message(&self) -> ParsedMessage {
        let mut message = ParsedMessage::default();
        self.0.iter().for_each(|delta| message.apply(delta));
        message
    }

    pub fn into_vec(self) -> Vec<Delta> {
        self.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinishReason {
    #[default]
    Stop,
    Length,
    ToolCalls,
}

impl FinishReason {
    /// The API's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// A call that an answer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    pub index: usize,
    pub id: String,
    pub name: String,
    /// JSON text of an object; of a call cut by a limit, its beginning.
    pub arguments: String,
    /// What the model wrote; absent for a call that was cut.
    pub exact: Option<Pieces>,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedMessage {
    pub reasoning_content: String,
    pub content: String,
    pub tool_calls: Vec<ParsedCall>,
    /// Whatever looked like a tool block but could not be parsed, raw.
    pub unparsed_tool_text: String,
    pub finish_reason: FinishReason,
}

impl ParsedMessage {
    /// Adds one delta. The fold of all deltas, with the finish reason, is the message.
    pub fn apply(&mut self, delta: &Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning_content.push_str(text),
            Delta::Content(text) => self.content.push_str(text),
            Delta::ToolCallStart { index, id, name } => self.tool_calls.push(ParsedCall {
                index: *index,
                id: id.clone(),
                name: name.clone(),
                arguments: String::new(),
                exact: None,
            }),
            Delta::ToolCallArguments { index, text } => {
                if let Some(call) = self.call(*index) {
                    call.arguments.push_str(text);
                }
            }
            Delta::ToolCallEnd { index, exact } => {
                if let Some(call) = self.call(*index) {
                    call.exact = Some(exact.clone());
                }
            }
            Delta::ToolCallWithdrawn { index } => self.tool_calls.retain(|call| call.index != *index),
            Delta::UnparsedToolText(text) => self.unparsed_tool_text.push_str(text),
        }
    }

    fn call(&mut self, index: usize) -> Option<&mut ParsedCall> {
        self.tool_calls.iter_mut().rev().find(|call| call.index == index)
    }

    /// The answer as the next message of the conversation.
    pub fn to_message(&self) -> Message {
        let call = |call: &ParsedCall| ToolCall {
            id: call.id.clone(),
            kind: FunctionTag::Function,
            function: FunctionCall { name: call.name.clone(), arguments: call.arguments.clone() },
        };
        let reasoning = Some(self.reasoning_content.clone()).filter(|text| !text.is_empty());
        Message {
            content: Content::Text(self.content.clone()),
            reasoning_content: reasoning,
            tool_calls: self.tool_calls.iter().map(call).collect(),
            ..Message::new(Role::Assistant, "")
        }
    }
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct Finished {
    pub deltas: Vec<Delta>,
    pub message: ParsedMessage,
}
