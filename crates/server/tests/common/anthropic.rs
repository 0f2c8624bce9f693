//! Streams and errors of the Messages API, checked for everything that holds for all of them.

use super::Reply;
use serde_json::{Map, Value, json};

/// The events of a stream, each named by its type.
pub fn events(text: &str) -> Vec<Value> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("no event: {event}"));
        let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("no name: {event}"));
        let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event}"));
        let value: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        assert_eq!(value["type"], name, "{event}");
        value
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// The message that events add up to, in the shape of a whole one. Panics unless they come in order.
pub fn folded(events: &[Value]) -> Value {
    let events: Vec<&Value> = events.iter().filter(|event| event["type"] != "ping").collect();
    let [start, blocks @ .., delta, stop] = &events[..] else { panic!("too few events: {events:?}") };
    assert_eq!((&start["type"], &stop["type"]), (&json!("message_start"), &json!("message_stop")));
    assert_eq!(delta["type"], "message_delta");
    let mut message = start["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["message"]["usage"]["input_tokens"], delta["usage"]["input_tokens"]);
    let mut content: Vec<Value> = Vec::new();
    let (mut open, mut input) = (None, String::new());
    for event in blocks {
        let index = event["index"].as_u64().unwrap() as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, content.len()), "{event}");
                content.push(event["content_block"].clone());
                open = Some(index);
            }
            "content_block_delta" => {
                assert_eq!(open, Some(index), "{event}");
                grow(&mut content[index], &event["delta"], &mut input);
            }
            "content_block_stop" => {
                assert_eq!(open.take(), Some(index), "{event}");
                end(&mut content[index], std::mem::take(&mut input));
            }
            other => panic!("{other} among blocks"),
        }
    }
    assert_eq!(open, None, "a block is still open");
    message["content"] = content.into();
    extend(&mut message, delta["delta"].as_object().unwrap());
    message["usage"] = delta["usage"].clone();
    message
}

fn grow(block: &mut Value, delta: &Value, input: &mut String) {
    let (field, kind) = match delta["type"].as_str().unwrap() {
        "thinking_delta" => ("thinking", "thinking"),
        "signature_delta" => ("signature", "thinking"),
        "text_delta" => ("text", "text"),
        "input_json_delta" => ("partial_json", "tool_use"),
        other => panic!("{other}"),
    };
    assert_eq!(block["type"], kind, "{delta}");
    let more = delta[field].as_str().unwrap();
    match field {
        "partial_json" => input.push_str(more),
        field => block[field] = format!("{}{more}", block[field].as_str().unwrap()).into(),
    }
}

fn end(block: &mut Value, input: String) {
    match block["type"].as_str().unwrap() {
        "thinking" => assert_ne!(block["signature"], "", "clients drop thinking without a signature"),
        "tool_use" => match serde_json::from_str(&input) {
            Ok(whole) => block["input"] = whole,
            Err(_) => block["partial_json"] = input.into(),
        },
        _ => assert_ne!(block["text"], ""),
    }
}

fn extend(message: &mut Value, more: &Map<String, Value>) {
    message.as_object_mut().unwrap().extend(more.clone());
}

/// The error of a response, whose envelope must be complete.
pub fn error(reply: &Reply) -> Value {
    let json = reply.json();
    assert_eq!(json["type"], "error", "{json}");
    assert_eq!(json["request_id"], reply.headers["request-id"].to_str().unwrap(), "{json}");
    for field in ["type", "message"] {
        assert!(json["error"][field].as_str().is_some_and(|text| !text.is_empty()), "no {field}: {json}");
    }
    json["error"].clone()
}
