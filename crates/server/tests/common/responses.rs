//! Reading the events of the Responses API as strictly as no client does.

use serde_json::{Value, json};

/// The events of a stream, whose names and numbers must be right.
pub fn events(text: &str) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    for event in text.split_terminator("\n\n") {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("no event: {event}"));
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", value["type"].as_str().unwrap()));
        if let Some(before) = values.last() {
            assert_eq!(value["sequence_number"], before["sequence_number"].as_u64().unwrap() + 1);
        }
        values.push(value);
    }
    values
}

/// What happened, without the word that all events begin with.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

/// Puts a response together from its events alone, without looking at the last one's response. What is said twice
/// must be the same twice.
pub fn folded(events: &[Value]) -> Vec<Value> {
    let mut output: Vec<Value> = Vec::new();
    for event in events {
        let kind = event["type"].as_str().unwrap().trim_start_matches("response.");
        if kind == "output_item.added" {
            assert_eq!(event["output_index"], output.len());
            assert_eq!(event["item"]["status"], "in_progress");
            output.push(event["item"].clone());
            continue;
        }
        let Some(index) = event["output_index"].as_u64() else { continue };
        let item = &mut output[index as usize];
        if let Some(id) = event.get("item_id") {
            assert_eq!((id, item["status"].as_str()), (&item["id"], Some("in_progress")));
        }
        match kind {
            "content_part.added" => item["content"].as_array_mut().unwrap().push(event["part"].clone()),
            "output_text.delta" | "reasoning_text.delta" => {
                let part = &mut item["content"][event["content_index"].as_u64().unwrap() as usize];
                append(&mut part["text"], &event["delta"]);
                if let Some(logprobs) = part.get_mut("logprobs").and_then(Value::as_array_mut) {
                    logprobs.extend(event["logprobs"].as_array().unwrap().clone());
                }
            }
            "output_text.done" | "reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
                assert_eq!(event.get("logprobs"), item["content"][0].get("logprobs"));
            }
            "content_part.done" => assert_eq!(event["part"], item["content"][0]),
            "function_call_arguments.delta" => append(&mut item["arguments"], &event["delta"]),
            "function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            "custom_tool_call_input.delta" => append(&mut item["input"], &event["delta"]),
            "custom_tool_call_input.done" => assert_eq!(event["input"], item["input"]),
            "unparsed_tool_text.delta" => {
                let field = item.as_object_mut().unwrap().entry("unparsed_tool_text").or_insert(json!(""));
                append(field, &event["delta"]);
            }
            "output_item.done" => {
                item["status"] = event["item"]["status"].clone();
                if let Some(content) = event["item"].get("encrypted_content") {
                    item["encrypted_content"] = content.clone();
                }
                assert_eq!(*item, event["item"]);
            }
            other => panic!("{other}"),
        }
    }
    // Of a call that was cut nothing more is heard.
    for item in output.iter_mut().filter(|item| item["status"] == "in_progress") {
        assert!(item["type"].as_str().unwrap().ends_with("call"), "{item}");
        item["status"] = json!("incomplete");
    }
    output
}

fn append(text: &mut Value, more: &Value) {
    *text = format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()).into();
}
