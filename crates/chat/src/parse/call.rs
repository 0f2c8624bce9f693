//! One call's arguments, from parameters to the text of a JSON object, as far as it can be sent at each moment.
//! Text values stream; values that should be JSON wait for their end, since they may prove not to be.

use std::collections::HashSet;

use super::lexer::ValueKind;
use super::{Delta, Deltas};
use crate::python_json::{self, Json, JsonError};

/// Parameters in which models wrap the whole arguments object.
const WRAPPERS: [&str; 2] = ["arguments", "input"];

#[derive(Clone, Debug)]
pub struct Call {
    index: usize,
    /// Parameter names of the tool's schema; absent if the tool or its schema is unknown.
    properties: Option<HashSet<String>>,
    keys: HashSet<String>,
    value: Option<Value>,
    /// A first parameter that may turn out to wrap the whole object, with its finished text.
    wrapper: Option<(String, String)>,
    /// The text sent so far is open: it starts with `{` and wants `}`.
    begun: bool,
}

#[derive(Clone, Debug)]
enum Value {
    /// Sent as it comes.
    Text,
    /// Held to its end; the key is already sent.
    Json(String),
    /// Held to the end of the call; the key is not sent.
    Wrapper { key: String, text: String },
    /// A repeated parameter, of which the first counts.
    Repeated,
}

impl Call {
    pub fn new(index: usize, properties: Option<HashSet<String>>) -> Call {
        Call { index, properties, keys: HashSet::new(), value: None, wrapper: None, begun: false }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn in_value(&self) -> bool {
        self.value.is_some()
    }

    pub fn open_parameter(&mut self, key: &str, kind: ValueKind, out: &mut Deltas) {
        if !self.keys.insert(key.to_string()) {
            self.value = Some(Value::Repeated);
            return;
        }
        let unknown = self.properties.as_ref().is_some_and(|properties| !properties.contains(key));
        if self.keys.len() == 1 && kind == ValueKind::Json && unknown && WRAPPERS.contains(&key) {
            self.value = Some(Value::Wrapper { key: key.to_string(), text: String::new() });
            return;
        }
        self.send_wrapper(out);
        self.send_key(key, out);
        self.value = Some(match kind {
            ValueKind::Text => {
                self.send("\"", out);
                Value::Text
            }
            ValueKind::Json => Value::Json(String::new()),
        });
    }

    pub fn value_text(&mut self, text: &str, out: &mut Deltas) {
        match &mut self.value {
            Some(Value::Text) => {
                let mut escaped = String::new();
                python_json::escape_into(text, &mut escaped);
                self.send(&escaped, out);
            }
            Some(Value::Json(held) | Value::Wrapper { text: held, .. }) => held.push_str(text),
            Some(Value::Repeated) | None => {}
        }
    }

    pub fn close_parameter(&mut self, out: &mut Deltas) {
        match self.value.take() {
            Some(Value::Text) => self.send("\"", out),
            Some(Value::Json(text)) => self.send(&json_or_string(&text), out),
            Some(Value::Wrapper { key, text }) => self.wrapper = Some((key, text)),
            Some(Value::Repeated) | None => {}
        }
    }

    /// The call is whole.
    pub fn close(&mut self, out: &mut Deltas) {
        if let Some((_, text)) = &self.wrapper
            && matches!(Json::parse(text), Ok(Json::Object(_)))
        {
            let object = text.trim().to_string();
            self.send(&object, out);
            return;
        }
        self.send_wrapper(out);
        self.send(if self.begun { "}" } else { "{}" }, out);
    }

    /// A limit ended the output in this call: sends what is still held, as far as it came and not further.
    pub fn cut(&mut self, out: &mut Deltas) {
        self.send_wrapper(out);
        match self.value.take() {
            Some(Value::Json(text)) => self.send(&begun_json_or_string(&text), out),
            Some(Value::Wrapper { key, text }) => {
                self.send_key(&key, out);
                self.send(&begun_json_or_string(&text), out);
            }
            Some(Value::Text | Value::Repeated) | None => {}
        }
    }

    fn send_wrapper(&mut self, out: &mut Deltas) {
        if let Some((key, text)) = self.wrapper.take() {
            self.send_key(&key, out);
            self.send(&json_or_string(&text), out);
        }
    }

    fn send_key(&mut self, key: &str, out: &mut Deltas) {
        let mut text = if self.begun { ", ".to_string() } else { "{".to_string() };
        self.begun = true;
        python_json::quote_into(key, &mut text);
        text.push_str(": ");
        self.send(&text, out);
    }

    fn send(&self, text: &str, out: &mut Deltas) {
        out.push(Delta::ToolCallArguments { index: self.index, text: text.to_string() });
    }
}

/// The text itself if it is JSON, else the text as a JSON string.
fn json_or_string(text: &str) -> String {
    match Json::parse(text) {
        Ok(_) => text.to_string(),
        Err(_) => {
            let mut quoted = String::new();
            python_json::quote_into(text, &mut quoted);
            quoted
        }
    }
}

/// The same for a text that was cut: what may still become JSON goes out as it is, anything else as a string
/// without an end.
fn begun_json_or_string(text: &str) -> String {
    match Json::parse(text) {
        Ok(_) | Err(JsonError::Incomplete) => text.to_string(),
        Err(JsonError::Invalid) => {
            let mut quoted = "\"".to_string();
            python_json::escape_into(text, &mut quoted);
            quoted
        }
    }
}
