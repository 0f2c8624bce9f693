//! Items to the messages of a dialogue. What the model said between two things that it was told is one message:
//! thinking, text and calls.

use super::items::{CallItem, Item, ItemStatus, MessageItem, Output, Part, ReasoningItem};
use super::tools::{Tools, told_arguments, told_name};
use crate::error::ApiError;
use overshot_chat::{Content, FunctionCall, FunctionTag, Message, Role, ToolCall};
use std::collections::HashSet;

/// What the model is to read, and where the request has it.
#[derive(Debug, Default)]
pub struct History {
    messages: Vec<Message>,
    /// Of each message.
    places: Vec<String>,
}

impl History {
    /// `earlier` are the items of earlier responses, `asked` those of this request.
    pub fn new(instructions: Option<&str>, earlier: &[Item], asked: &[Item]) -> Self {
        let mut history = History::default();
        if let Some(text) = instructions.filter(|text| !text.is_empty()) {
            history.push("instructions".into(), Message::system(text));
        }
        let result = |item: &'_ Item| match item {
            Item::Result(result) => Some(result.call_id.clone()),
            _ => None,
        };
        let answered: HashSet<String> = earlier.iter().chain(asked).filter_map(result).collect();
        earlier.iter().for_each(|item| history.item("previous_response_id".into(), item, &answered));
        for (index, item) in asked.iter().enumerate() {
            history.item(format!("input[{index}]"), item, &answered);
        }
        history
    }

    /// # Errors
    /// Nothing for the model to answer.
    pub fn messages(&mut self) -> Result<Vec<Message>, ApiError> {
        match self.messages.last() {
            Some(message) if message.role != Role::Assistant => Ok(std::mem::take(&mut self.messages)),
            Some(_) => Err(ApiError::field(
                "input",
                "the last item is the model's own: add a user's message or the output of a call",
            )),
            None => Err(ApiError::field("input", "input is empty: at least one item is needed")),
        }
    }

    /// An error about a message, a tool or a field of a chat request, told about what it was made from.
    pub fn translated(&self, error: ApiError, tools: &Tools) -> ApiError {
        let ApiError::BadField { param, message } = error else { return error };
        let place = |list: &str, places: &[String]| {
            let index = param.strip_prefix(list)?.strip_prefix('[')?.split(']').next()?.parse().ok()?;
            Some((format!("{list}[{index}]"), places.get::<usize>(index)?.clone()))
        };
        let (own, theirs) = match place("messages", &self.places) {
            Some(found) => found,
            None => match place("tools", &tools.places) {
                Some((own, place)) => (format!("{own}.function"), place),
                None if param == "prompt" => return ApiError::field("input", message),
                None => return ApiError::BadField { param, message },
            },
        };
        ApiError::BadField { param: param.replace(&own, &theirs), message: message.replace(&own, &theirs) }
    }

    fn item(&mut self, place: String, item: &Item, answered: &HashSet<String>) {
        match item {
            Item::Message(message) if message.role == Role::Assistant => self.said(place, message),
            Item::Message(message) => {
                let content = texts(&message.content);
                self.push(place, Message { content, ..Message::new(message.role, "") });
            }
            Item::Reasoning(reasoning) => self.thought(place, reasoning),
            // Nobody has run it, and there is nothing to run.
            Item::Call(call)
                if call.status == ItemStatus::Incomplete && !answered.contains(&call.call_id) => {}
            Item::Call(call) => self.called(place, call),
            Item::Result(result) => {
                let content = match &result.output {
                    Output::Text(text) => Content::Text(text.clone()),
                    Output::Parts(parts) => texts(parts),
                };
                let tool_call_id = Some(result.call_id.clone());
                self.push(place, Message { content, tool_call_id, ..Message::new(Role::Tool, "") });
            }
        }
    }

    fn said(&mut self, place: String, item: &MessageItem) {
        let text: String = item.content.iter().map(Part::text).collect();
        let message = self.assistant(place);
        match &mut message.content {
            Content::Text(said) => append(said, &text),
            nothing => *nothing = Content::Text(text),
        }
    }

    /// Thinking begins a message: what was said before it belongs to another one.
    fn thought(&mut self, place: String, item: &ReasoningItem) {
        let text = item.text();
        let goes_on = self.messages.last().is_some_and(|last| {
            last.role == Role::Assistant && last.content == Content::Empty && last.tool_calls.is_empty()
        });
        if !goes_on {
            self.push(place.clone(), Message { content: Content::Empty, ..Message::assistant("") });
        }
        match &mut self.assistant(place).reasoning_content {
            Some(thought) => append(thought, &text),
            nothing => *nothing = Some(text),
        }
    }

    fn called(&mut self, place: String, call: &CallItem) {
        let name = told_name(&call.name, call.namespace.as_deref());
        let function = FunctionCall { name, arguments: told_arguments(call) };
        let call = ToolCall { id: call.call_id.clone(), kind: FunctionTag::Function, function };
        self.assistant(place).tool_calls.push(call);
    }

    /// The model's message that is being put together.
    fn assistant(&mut self, place: String) -> &mut Message {
        if self.messages.last().is_none_or(|last| last.role != Role::Assistant) {
            self.push(place, Message { content: Content::Empty, ..Message::assistant("") });
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn push(&mut self, place: String, message: Message) {
        self.messages.push(message);
        self.places.push(place);
    }
}

/// Another text of the same message, after a blank line.
fn append(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(more);
}

fn texts(parts: &[Part]) -> Content {
    let part = |part: &Part| overshot_chat::Part { kind: "text".into(), text: Some(part.text().to_owned()) };
    Content::Parts(parts.iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::super::input::{Given, Input};
    use super::super::items::ItemIds;
    use super::*;
    use serde_json::{Value, json};

    fn items(input: Value) -> Vec<Item> {
        let input: Input = serde_json::from_value(input).unwrap();
        let given = input.items(&ItemIds::new("resp_1")).unwrap().into_iter();
        given
            .map(|given| match given {
                Given::Item(item) => item,
                Given::Reference { id } => panic!("{id}"),
            })
            .collect()
    }

    fn messages(input: Value) -> Value {
        let mut history = History::new(Some("Be brief."), &[], &items(input));
        let mut told = serde_json::to_value(history.messages().unwrap()).unwrap();
        assert_eq!(told[0], json!({"role": "system", "content": "Be brief."}));
        told.as_array_mut().unwrap().drain(1..).collect()
    }

    #[test]
    fn a_turn_of_the_model_is_one_message() {
        let told = messages(json!([
            {"role": "user", "content": "a"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
            {"role": "assistant", "content": "b"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x", "namespace": "n"},
            {"type": "function_call_output", "call_id": "1", "output": "c"},
            {"type": "custom_tool_call_output", "call_id": "2", "output": "d"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "3", "output": "e"},
        ]));
        let roles: Vec<&str> =
            told.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "tool"]);
        assert_eq!(told[1]["reasoning_content"], "hm");
        assert_eq!(told[1]["content"], "b");
        assert_eq!(
            told[1]["tool_calls"][1]["function"],
            json!({"name": "n.g", "arguments": "{\"input\":\"x\"}"})
        );
        assert_eq!((&told[4]["reasoning_content"], &told[4]["content"]), (&json!("so"), &Value::Null));
    }

    #[test]
    fn calls_that_were_none_are_not_repeated() {
        let call = json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{", "status": "incomplete"});
        let told = messages(json!([call, {"role": "user", "content": "a"}]));
        assert_eq!(told.as_array().unwrap().len(), 1);
        let told = messages(json!([call, {"type": "function_call_output", "call_id": "1", "output": "no"}]));
        assert_eq!(told[0]["tool_calls"][0]["id"], "1");
    }

    #[test]
    fn something_must_be_left_to_answer() {
        for input in [json!([]), json!([{"role": "assistant", "content": "x"}])] {
            let mut history = History::new(None, &[], &items(input));
            assert!(history.messages().is_err());
        }
    }

    #[test]
    fn errors_are_told_about_items() {
        let asked = items(json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]));
        let history = History::new(Some("x"), &[], &asked);
        let mut tools = Tools::default();
        tools.places.push("tools[4]".into());
        for (param, expected) in [
            ("messages[2].content", "input[1].content"),
            ("messages[0].content", "instructions.content"),
            ("tools[0].function.name", "tools[4].name"),
            ("prompt", "input"),
            ("temperature", "temperature"),
        ] {
            let error = history.translated(ApiError::field(param, format!("{param} is wrong")), &tools);
            let ApiError::BadField { param, message } = error else { panic!("{error:?}") };
            assert_eq!(param, expected);
            assert!(expected == "input" || message.starts_with(expected), "{message}");
        }
    }
}
