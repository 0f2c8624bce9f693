//! The items that a conversation is made of in the Responses API: what clients send, what answers consist of, and what
//! is kept between requests, as one type. How items become a prompt is told in `history.rs`.

use crate::wire::ChatLogprob;
use overshot_chat::Role;
use serde::ser::{Serialize, SerializeStruct, Serializer};

#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum Item {
    Message(MessageItem),
    Reasoning(ReasoningItem),
    Call(CallItem),
    Result(ResultItem),
}

impl Item {
    pub fn id(&self) -> &str {
        match self {
            Item::Message(item) => &item.id,
            Item::Reasoning(item) => &item.id,
            Item::Call(item) => &item.id,
            Item::Result(item) => &item.id,
        }
    }

    /// Of an item of an answer, once it is known.
    pub fn set_status(&mut self, status: ItemStatus) {
        match self {
            Item::Message(item) => item.status = status,
            Item::Reasoning(item) => item.status = status,
            Item::Call(item) => item.status = status,
            Item::Result(item) => item.status = status,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    InProgress,
    Completed,
    /// Cut by a limit, or a call that proved to be none.
    Incomplete,
}

#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "type", rename = "message")]
pub struct MessageItem {
    pub id: String,
    pub status: ItemStatus,
    pub role: Role,
    pub content: Vec<Part>,
    /// What looked like calls and could not be parsed, raw: never part of the content.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unparsed_tool_text: String,
}

#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "type", rename = "reasoning")]
pub struct ReasoningItem {
    pub id: String,
    pub status: ItemStatus,
    /// Only ever the client's own: nothing here summarises.
    pub summary: Vec<Part>,
    pub content: Vec<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// What an `encrypted_content` of this server begins with. Behind it stands the thinking as it is: what it protects
/// is only that clients which send back nothing else do not lose it.
pub const PLAIN_CONTENT: &str = "overshot:plain:";

impl ReasoningItem {
    /// The thinking, from whichever field has it.
    pub fn text(&self) -> String {
        let told = joined(&self.content);
        if !told.is_empty() {
            return told;
        }
        match self.encrypted_content.as_deref().and_then(|content| content.strip_prefix(PLAIN_CONTENT)) {
            Some(content) => content.to_owned(),
            None => joined(&self.summary),
        }
    }
}

fn joined(parts: &[Part]) -> String {
    parts.iter().map(Part::text).collect::<Vec<_>>().join("\n\n")
}

/// What a tool is to the client that declared it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// Takes a JSON object.
    Function,
    /// Takes a text.
    Custom,
}

#[derive(Clone, Debug)]
pub struct CallItem {
    pub kind: ToolKind,
    pub id: String,
    pub status: ItemStatus,
    pub call_id: String,
    pub name: String,
    pub namespace: Option<String>,
    /// The arguments of a function, the input of a custom tool.
    pub given: String,
}

impl CallItem {
    /// The field that has what was given.
    pub fn given_field(&self) -> &'static str {
        match self.kind {
            ToolKind::Function => "arguments",
            ToolKind::Custom => "input",
        }
    }
}

impl Serialize for CallItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("CallItem", 7)?;
        let kind = match self.kind {
            ToolKind::Function => "function_call",
            ToolKind::Custom => "custom_tool_call",
        };
        fields.serialize_field("type", kind)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("status", &self.status)?;
        fields.serialize_field("call_id", &self.call_id)?;
        fields.serialize_field("name", &self.name)?;
        match &self.namespace {
            Some(namespace) => fields.serialize_field("namespace", namespace)?,
            None => fields.skip_field("namespace")?,
        }
        fields.serialize_field(self.given_field(), &self.given)?;
        fields.end()
    }
}

/// What a call gave.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ResultItem {
    #[serde(rename = "type", serialize_with = "result_type")]
    pub kind: ToolKind,
    pub id: String,
    pub status: ItemStatus,
    pub call_id: String,
    pub output: Output,
}

fn result_type<S: Serializer>(kind: &ToolKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        ToolKind::Function => "function_call_output",
        ToolKind::Custom => "custom_tool_call_output",
    })
}

#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum Output {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message, of a thinking or of a result. All of them are texts.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        /// Always empty: nothing here cites.
        annotations: [(); 0],
        logprobs: Vec<ChatLogprob>,
    },
    ReasoningText {
        text: String,
    },
    SummaryText {
        text: String,
    },
    Refusal {
        refusal: String,
    },
}

impl Part {
    pub fn output_text(text: String) -> Self {
        Part::OutputText { text, annotations: [], logprobs: Vec::new() }
    }

    pub fn text(&self) -> &str {
        match self {
            Part::InputText { text }
            | Part::OutputText { text, .. }
            | Part::ReasoningText { text }
            | Part::SummaryText { text }
            | Part::Refusal { refusal: text } => text,
        }
    }
}

/// The ids of one response's items. They begin with the response's own digits, so that an item can be found by its id.
#[derive(Clone, Debug)]
pub struct ItemIds {
    digits: String,
}

/// What ids of responses begin with.
pub const RESPONSE_PREFIX: &str = "resp_";

impl ItemIds {
    pub fn new(response_id: &str) -> Self {
        ItemIds { digits: response_id.trim_start_matches(RESPONSE_PREFIX).to_owned() }
    }

    /// The item number `index` of the answer.
    pub fn output(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", self.digits)
    }

    /// The item number `index` of what was asked.
    pub fn input(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_in{index}", self.digits)
    }

    /// Whose item it is, if it is one of this server's.
    pub fn response_of(item_id: &str) -> Option<String> {
        let digits = item_id.split('_').nth(1)?;
        Some(format!("{RESPONSE_PREFIX}{digits}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_are_told_in_the_words_of_the_api() {
        let call = CallItem {
            kind: ToolKind::Custom,
            id: "ctc_1_0".into(),
            status: ItemStatus::Completed,
            call_id: "call_a".into(),
            name: "patch".into(),
            namespace: None,
            given: "text".into(),
        };
        let told = serde_json::to_value(Item::Call(call)).unwrap();
        let expected = json!({
            "type": "custom_tool_call", "id": "ctc_1_0", "status": "completed", "call_id": "call_a",
            "name": "patch", "input": "text",
        });
        assert_eq!(told, expected);
        let message = MessageItem {
            id: "msg_1_0".into(),
            status: ItemStatus::InProgress,
            role: Role::Assistant,
            content: vec![Part::output_text("hi".into())],
            unparsed_tool_text: String::new(),
        };
        let told = serde_json::to_value(Item::Message(message)).unwrap();
        let part = json!({"type": "output_text", "text": "hi", "annotations": [], "logprobs": []});
        let expected = json!({
            "type": "message", "id": "msg_1_0", "status": "in_progress", "role": "assistant", "content": [part],
        });
        assert_eq!(told, expected);
    }

    #[test]
    fn an_item_knows_its_response() {
        let ids = ItemIds::new("resp_0af3");
        assert_eq!(ItemIds::response_of(&ids.output("msg", 3)).as_deref(), Some("resp_0af3"));
        assert_eq!(ItemIds::response_of(&ids.input("fco", 0)).as_deref(), Some("resp_0af3"));
        assert_eq!(ItemIds::response_of("nothing"), None);
    }
}
