//! The `input` of a request as clients write it, read as leniently as they differ, into items.

use super::items::{
    CallItem, Item, ItemIds, ItemStatus, MessageItem, Output, Part, ReasoningItem, ResultItem, ToolKind,
};
use crate::error::ApiError;
use overshot_chat::Role;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// A text, which is a user's message, or items.
#[derive(Debug, Default)]
pub struct Input(Vec<GivenItem>);

/// Any item: its type says which fields it needs. Further ones are ignored.
#[derive(Debug, Default, Deserialize)]
struct GivenItem {
    r#type: Option<String>,
    id: Option<String>,
    role: Option<Role>,
    content: Option<GivenParts>,
    status: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
    arguments: Option<String>,
    input: Option<String>,
    output: Option<GivenParts>,
    summary: Option<GivenParts>,
    encrypted_content: Option<String>,
}

#[derive(Debug)]
enum GivenParts {
    Text(String),
    Parts(Vec<GivenPart>),
}

#[derive(Debug, Deserialize)]
struct GivenPart {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
}

/// What an item of the input stands for.
#[derive(Debug)]
pub enum Given {
    Item(Item),
    /// An item that an earlier response has.
    Reference {
        id: String,
    },
}

impl Input {
    /// The items, with ids for those that have none.
    ///
    /// # Errors
    /// An item of an unknown type, or one that lacks a field.
    pub fn items(self, ids: &ItemIds) -> Result<Vec<Given>, ApiError> {
        self.0.into_iter().enumerate().map(|(index, given)| Reader { index, ids }.item(given)).collect()
    }
}

struct Reader<'a> {
    index: usize,
    ids: &'a ItemIds,
}

impl Reader<'_> {
    fn item(&self, mut given: GivenItem) -> Result<Given, ApiError> {
        let kind = match (&given.r#type, &given.role, &given.id) {
            (Some(kind), _, _) => kind.clone(),
            (None, Some(_), _) => "message".into(),
            (None, None, Some(_)) => "item_reference".into(),
            (None, None, None) => return Err(self.wrong("type", "is missing: say what the item is")),
        };
        let item = match kind.as_str() {
            "message" => Item::Message(self.message(given)?),
            "reasoning" => Item::Reasoning(self.reasoning(given)?),
            "function_call" => Item::Call(self.call(ToolKind::Function, given)?),
            "custom_tool_call" => Item::Call(self.call(ToolKind::Custom, given)?),
            "function_call_output" => Item::Result(self.result(ToolKind::Function, given)?),
            "custom_tool_call_output" => Item::Result(self.result(ToolKind::Custom, given)?),
            "item_reference" => {
                return Ok(Given::Reference { id: self.needed("id", given.id.take())? });
            }
            other => {
                let what = format!(
                    "is `{other}`, which is not supported: use message, reasoning, function_call, \
                     function_call_output, custom_tool_call, custom_tool_call_output or item_reference"
                );
                return Err(self.wrong("type", &what));
            }
        };
        Ok(Given::Item(item))
    }

    fn message(&self, given: GivenItem) -> Result<MessageItem, ApiError> {
        let role = self.needed("role", given.role)?;
        if !matches!(role, Role::User | Role::Assistant | Role::System | Role::Developer) {
            return Err(self.wrong("role", "is no role here: use user, assistant, system or developer"));
        }
        let is_answer = role == Role::Assistant;
        let content = match given.content {
            None => Vec::new(),
            Some(GivenParts::Text(text)) if is_answer => vec![Part::output_text(text)],
            Some(GivenParts::Text(text)) => vec![Part::InputText { text }],
            Some(GivenParts::Parts(parts)) => self.parts("content", parts)?,
        };
        let id = self.id(given.id, "msg");
        let status = status(given.status.as_deref());
        Ok(MessageItem { id, status, role, content, unparsed_tool_text: String::new() })
    }

    fn reasoning(&self, given: GivenItem) -> Result<ReasoningItem, ApiError> {
        let parts = |field: &str, parts: Option<GivenParts>| match parts {
            None => Ok(Vec::new()),
            Some(GivenParts::Text(text)) => Ok(vec![Part::ReasoningText { text }]),
            Some(GivenParts::Parts(parts)) => self.parts(field, parts),
        };
        Ok(ReasoningItem {
            summary: parts("summary", given.summary)?,
            content: parts("content", given.content)?,
            id: self.id(given.id, "rs"),
            status: status(given.status.as_deref()),
            encrypted_content: given.encrypted_content,
        })
    }

    fn call(&self, kind: ToolKind, given: GivenItem) -> Result<CallItem, ApiError> {
        let (prefix, text) = match kind {
            ToolKind::Function => ("fc", self.needed("arguments", given.arguments)?),
            ToolKind::Custom => ("ctc", self.needed("input", given.input)?),
        };
        Ok(CallItem {
            kind,
            id: self.id(given.id, prefix),
            status: status(given.status.as_deref()),
            call_id: self.needed("call_id", given.call_id)?,
            name: self.needed("name", given.name)?,
            namespace: given.namespace,
            given: text,
        })
    }

    fn result(&self, kind: ToolKind, given: GivenItem) -> Result<ResultItem, ApiError> {
        let output = match self.needed("output", given.output)? {
            GivenParts::Text(text) => Output::Text(text),
            GivenParts::Parts(parts) => Output::Parts(self.parts("output", parts)?),
        };
        let prefix = if kind == ToolKind::Function { "fco" } else { "ctco" };
        Ok(ResultItem {
            kind,
            id: self.id(given.id, prefix),
            status: status(given.status.as_deref()),
            call_id: self.needed("call_id", given.call_id)?,
            output,
        })
    }

    fn parts(&self, field: &str, parts: Vec<GivenPart>) -> Result<Vec<Part>, ApiError> {
        parts.into_iter().enumerate().map(|(position, part)| self.part(field, position, part)).collect()
    }

    fn part(&self, field: &str, position: usize, part: GivenPart) -> Result<Part, ApiError> {
        let text = |text: Option<String>| self.needed(&format!("{field}[{position}].text"), text);
        Ok(match part.r#type.as_str() {
            "input_text" | "text" => Part::InputText { text: text(part.text)? },
            "output_text" => Part::output_text(text(part.text)?),
            "reasoning_text" => Part::ReasoningText { text: text(part.text)? },
            "summary_text" => Part::SummaryText { text: text(part.text)? },
            "refusal" => Part::Refusal { refusal: text(part.refusal.or(part.text))? },
            other => {
                let what = format!("is `{other}`, which is not supported: the model reads text only");
                return Err(self.wrong(&format!("{field}[{position}].type"), &what));
            }
        })
    }

    fn id(&self, given: Option<String>, prefix: &str) -> String {
        given.filter(|id| !id.is_empty()).unwrap_or_else(|| self.ids.input(prefix, self.index))
    }

    fn needed<T>(&self, field: &str, value: Option<T>) -> Result<T, ApiError> {
        value.ok_or_else(|| self.wrong(field, "is missing"))
    }

    fn wrong(&self, field: &str, what: &str) -> ApiError {
        let param = format!("input[{}].{field}", self.index);
        let message = format!("{param} {what}");
        ApiError::field(param, message)
    }
}

/// Whatever else stands there is taken for whole, as absence is.
fn status(word: Option<&str>) -> ItemStatus {
    if word == Some("incomplete") { ItemStatus::Incomplete } else { ItemStatus::Completed }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        Ok(Input(match TextOrList::deserialize(deserializer)? {
            TextOrList::Text(text) => vec![GivenItem {
                role: Some(Role::User),
                content: Some(GivenParts::Text(text)),
                ..GivenItem::default()
            }],
            TextOrList::List(items) => items,
        }))
    }
}

impl<'de> Deserialize<'de> for GivenParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GivenParts, D::Error> {
        Ok(match TextOrList::deserialize(deserializer)? {
            TextOrList::Text(text) => GivenParts::Text(text),
            TextOrList::List(parts) => GivenParts::Parts(parts),
        })
    }
}

/// Not serde's `untagged`, whose errors name no path within the list.
enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = TextOrList<T>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a string or a list")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrList::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(TextOrList::List(list))
            }
        }

        deserializer.deserialize_any(Either(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body;

    #[derive(Debug, Deserialize)]
    struct Fields {
        input: Input,
    }

    fn read(input: &str) -> Result<Vec<Given>, ApiError> {
        let fields: Fields = body::parse(format!(r#"{{"input":{input}}}"#).as_bytes())?;
        fields.input.items(&ItemIds::new("resp_1"))
    }

    fn refused(input: &str) -> (String, String) {
        match read(input) {
            Err(ApiError::BadField { param, message }) => (param, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_form_of_an_item_is_read() {
        let given = read(
            r#"[{"role":"user","content":"a"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},
            {"type":"reasoning","id":"rs_x","summary":[],"content":null,"encrypted_content":"overshot:plain:hm"},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"d"}]},
            {"id":"msg_1_0","type":null}]"#,
        )
        .unwrap();
        assert_eq!(given.len(), 6);
        let Given::Item(Item::Reasoning(reasoning)) = &given[2] else { panic!("{given:?}") };
        assert_eq!((reasoning.id.as_str(), reasoning.text().as_str()), ("rs_x", "hm"));
        let Given::Item(item) = &given[3] else { panic!("{given:?}") };
        assert_eq!(item.id(), "fc_1_in3");
        assert!(matches!(&given[5], Given::Reference { id } if id == "msg_1_0"));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        for (input, param, word) in [
            (r#"[{"type":"function_call","name":"f","arguments":"{}"}]"#, "input[0].call_id", "missing"),
            (r#"[{"type":"web_search_call","id":"w"}]"#, "input[0].type", "web_search_call"),
            (
                r#"[{"role":"user","content":[{"type":"input_image"}]}]"#,
                "input[0].content[0].type",
                "input_image",
            ),
            (r#"[{"role":"user","content":[{"type":"input_text"}]}]"#, "input[0].content[0].text", "missing"),
            (r#"[{"role":"user","content":5}]"#, "input[0].content", "a string or a list"),
            (r#"[{"role":"robot","content":"x"}]"#, "input[0].role", "robot"),
            (r#"[{"role":"tool","content":"x"}]"#, "input[0].role", "user"),
            ("[{}]", "input[0].type", "missing"),
            ("5", "input", "a string or a list"),
        ] {
            let (found, message) = refused(input);
            assert_eq!(found, param, "{message}");
            assert!(message.contains(word), "{message}");
        }
    }
}
