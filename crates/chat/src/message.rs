//! Conversations as data, in the shape of OpenAI's chat API plus the fields that V4's format knows. Reading
//! them checks types only; what a message may hold in which role is decided when it is rendered.
//!
//! Function declarations and schemas keep their exact JSON text, so read messages with `serde_json::from_str`
//! or `from_slice`: going through `serde_json::Value` respells numbers.

use std::collections::HashSet;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::python_json::Json;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    LatestReminder,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    #[serde(default)]
    pub content: Content,
    /// What the assistant thought before `content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool message: the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Functions declared by a system or developer message.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// JSON schema that the answer must satisfy, on a system or developer message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Box<RawValue>>,
    /// A built-in short task asked for instead of an answer, on a user or developer message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Leaves the end token off an assistant message, so that the model continues it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_false")]
    pub wo_eos: bool,
}

impl Message {
    /// A message with text and nothing else.
    pub fn new(role: Role, text: impl Into<String>) -> Message {
        Message {
            role,
            content: Content::Text(text.into()),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools: Vec::new(),
            response_format: None,
            task: None,
            wo_eos: false,
        }
    }

    pub fn system(text: impl Into<String>) -> Message {
        Message::new(Role::System, text)
    }

    pub fn user(text: impl Into<String>) -> Message {
        Message::new(Role::User, text)
    }

    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new(Role::Assistant, text)
    }
}

/// A message's text: a string, a list of parts, or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Content {
    #[default]
    Empty,
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Content {
    /// The text that is rendered: parts stand apart by a blank line, and what is no text is named.
    pub fn to_text(&self) -> String {
        match self {
            Content::Empty => String::new(),
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                let texts: Vec<String> = parts
                    .iter()
                    .map(|part| match part.kind.as_str() {
                        "text" => part.text.clone().unwrap_or_default(),
                        other => format!("[Unsupported {other}]"),
                    })
                    .collect();
                texts.join("\n\n")
            }
        }
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Empty => serializer.serialize_none(),
            Content::Text(text) => serializer.serialize_str(text),
            Content::Parts(parts) => parts.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct ContentVisitor;

        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a string, a list of parts or null as `content`")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
                Ok(Content::Empty)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = items.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }

        deserializer.deserialize_any(ContentVisitor)
    }
}

/// A call that an assistant made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    #[serde(default, deserialize_with = "null_as_default")]
    pub id: String,
    #[serde(rename = "type", default)]
    pub kind: FunctionTag,
    pub function: FunctionCall,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    pub name: String,
    /// JSON text. Some clients send the object itself in place of its text: both are read.
    #[serde(deserialize_with = "arguments_text")]
    pub arguments: String,
}

/// The only kind of tool there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionTag {
    #[default]
    Function,
}

/// A function that the model may call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tool {
    #[serde(rename = "type", default)]
    pub kind: FunctionTag,
    /// The function object's own JSON text: `name`, `description`, `parameters`, and whatever else it holds.
    pub function: Box<RawValue>,
}

impl Tool {
    /// The function's name, and the parameter names of its schema if it has one: none when the schema lists none.
    /// Nothing if the function object has no name.
    pub(crate) fn name_and_properties(&self) -> Option<(String, Option<HashSet<String>>)> {
        let Ok(Json::Object(function)) = Json::parse(self.function.get()) else { return None };
        let field = |object: &[(String, Json)], name: &str| {
            object.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let Some(Json::String(name)) = field(&function, "name") else { return None };
        let names = match field(&function, "parameters") {
            Some(Json::Object(schema)) => Some(match field(&schema, "properties") {
                Some(Json::Object(entries)) => entries.into_iter().map(|(key, _)| key).collect(),
                _ => HashSet::new(),
            }),
            _ => None,
        };
        Some((name, names))
    }
}

/// The built-in short tasks, each asked for by a token of its own: `Special::Task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ExtractedUrl,
    ReadUrl,
}

/// How much the model is to think before it answers. `None` is the plain chat mode, `High` the plain thinking
/// mode; what the others mean is up to the checkpoint, see `PromptTexts::effort_text`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    #[default]
    None,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

impl Effort {
    pub fn thinks(self) -> bool {
        self != Effort::None
    }
}

impl std::str::FromStr for Effort {
    type Err = String;

    fn from_str(text: &str) -> Result<Effort, String> {
        Ok(match text {
            "none" => Effort::None,
            "low" => Effort::Low,
            "medium" => Effort::Medium,
            "high" => Effort::High,
            "xhigh" => Effort::XHigh,
            "max" => Effort::Max,
            _ => return Err(format!("effort `{text}` is none of none, low, medium, high, xhigh, max")),
        })
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

fn arguments_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let raw = Box::<RawValue>::deserialize(deserializer)?;
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get()).map_err(de::Error::custom),
        Some(b'{') => Ok(raw.get().to_string()),
        _ => Err(de::Error::custom("`arguments` must be a string of JSON or an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_of_content() {
        let read = |text: &str| serde_json::from_str::<Message>(text).unwrap().content.to_text();
        assert_eq!(read(r#"{"role": "user", "content": "a"}"#), "a");
        assert_eq!(read(r#"{"role": "assistant", "content": null}"#), "");
        assert_eq!(read(r#"{"role": "assistant"}"#), "");
        let parts = r#"[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]"#;
        assert_eq!(
            read(&format!(r#"{{"role": "user", "content": {parts}}}"#)),
            "a\n\n[Unsupported image_url]"
        );
    }

    #[test]
    fn keeps_the_text_of_functions_and_arguments() {
        let function = r#"{"name":"f",  "parameters": {"z": 1.0, "a": 1e16}}"#;
        let text = format!(
            r#"{{"role": "assistant", "tools": [{{"type": "function", "function": {function}}}], "tool_calls": [
                {{"id": "a", "function": {{"name": "f", "arguments": "{{\"x\": 1.50}}"}}}},
                {{"id": null, "function": {{"name": "f", "arguments": {{"x":  2.50}}}}}}]}}"#
        );
        let message: Message = serde_json::from_str(&text).unwrap();
        assert_eq!(message.tools[0].function.get(), function);
        assert_eq!(message.tool_calls[0].function.arguments, r#"{"x": 1.50}"#);
        assert_eq!(message.tool_calls[1].function.arguments, r#"{"x":  2.50}"#);
        let again: Message = serde_json::from_str(&serde_json::to_string(&message).unwrap()).unwrap();
        assert_eq!(again.tool_calls, message.tool_calls);
    }

    #[test]
    fn a_schema_without_properties_has_none() {
        let properties = |function: &str| {
            let tool: Tool = serde_json::from_str(&format!(r#"{{"function": {function}}}"#)).unwrap();
            tool.name_and_properties().unwrap().1
        };
        assert_eq!(properties(r#"{"name": "f"}"#), None);
        assert_eq!(properties(r#"{"name": "f", "parameters": null}"#), None);
        assert_eq!(properties(r#"{"name": "f", "parameters": {"type": "object"}}"#), Some(HashSet::new()));
        let named = properties(r#"{"name": "f", "parameters": {"properties": {"a": {}}}}"#);
        assert_eq!(named, Some(HashSet::from(["a".to_string()])));
    }

    #[test]
    fn wrong_types_are_named() {
        let error = |text: &str| serde_json::from_str::<Message>(text).unwrap_err().to_string();
        assert!(error(r#"{"role": "user", "content": 5}"#).contains("`content`"));
        assert!(error(r#"{"role": "robot"}"#).contains("robot"));
        let call = r#"{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}"#;
        assert!(error(call).contains("`arguments`"));
    }
}
