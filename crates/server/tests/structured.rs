//! Answers held to a form and to tools, from the real small model through the whole server.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Reply, Server, chat_body};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn point() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99},
        "color": {"$ref": "#/$defs/color"}, "note": {"type": ["string", "null"], "maxLength": 6}},
        "required": ["x", "color", "note"], "additionalProperties": false,
        "$defs": {"color": {"enum": ["red", "green"]}}})
}

fn is_point(value: &Value) -> bool {
    value["x"].as_u64().is_some_and(|x| x < 100)
        && ["red", "green"].iter().any(|color| value["color"] == *color)
        && (value["note"].is_null() || value["note"].as_str().is_some_and(|note| note.chars().count() <= 6))
        && value.as_object().unwrap().len() == 3
}

fn as_schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}})
}

fn tool(name: &str, strict: bool, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
}

fn parsed(text: &Value) -> Value {
    let text = text.as_str().unwrap();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn ok(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[tokio::test]
async fn json_stands_in_the_content_of_every_choice_streamed_or_not() {
    let server = Server::over_mini();
    let body = chat_body(
        "Where is it?",
        json!({"response_format": as_schema(point()), "n": 3, "seed": 5, "temperature": 1, "max_tokens": 120}),
    );
    let whole = ok(&server.post(CHAT, &body).await);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (events, _) = server.post(CHAT, &streamed).await.events();
    for choice in whole["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let content = &choice["message"]["content"];
        assert!(is_point(&parsed(content)), "{content}");
        assert!(choice["message"]["reasoning_content"].is_null(), "{choice}");
        let of_choice =
            events.iter().map(|event| &event["choices"][0]).filter(|one| one["index"] == choice["index"]);
        let text: String = of_choice.filter_map(|one| one["delta"]["content"].as_str()).collect();
        assert_eq!(content, &text);
    }
    let cut = ok(&server.chat_reply(json!({"response_format": as_schema(point()), "max_tokens": 2})).await);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn thinking_comes_first_and_is_free() {
    let server = Server::over_mini();
    let more = json!({"response_format": as_schema(point()), "reasoning_effort": "high", "seed": 1, "max_tokens": 200});
    let answer = ok(&server.post(CHAT, &chat_body("What is 6 times 4?", more)).await);
    let message = &answer["choices"][0]["message"];
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{answer}");
    assert!(is_point(&parsed(&message["content"])), "{answer}");
}

#[tokio::test]
async fn other_forms_hold_too_and_completions_know_them() {
    let server = Server::over_mini();
    for more in [
        json!({"response_format": {"type": "regex", "pattern": "[a-c]{2}-[0-9]"}}),
        json!({"guided_regex": "[a-c]{2}-[0-9]"}),
    ] {
        let answer = ok(&server.chat_reply(more).await);
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap().as_bytes().to_vec();
        assert!(matches!(content[..], [b'a'..=b'c', b'a'..=b'c', b'-', b'0'..=b'9']), "{answer}");
    }
    let body = json!({"prompt": "The answer is", "guided_choice": ["yes", "no"], "max_tokens": 9});
    let answer = ok(&server.post("/v1/completions", &body).await);
    assert!(["yes", "no"].iter().any(|choice| answer["choices"][0]["text"] == *choice), "{answer}");
    let object =
        ok(&server.chat_reply(json!({"response_format": {"type": "json_object"}, "max_tokens": 60})).await);
    let choice = &object["choices"][0];
    assert!(
        choice["finish_reason"] == "length" || parsed(&choice["message"]["content"]).is_object(),
        "{object}"
    );
}

#[tokio::test]
async fn calls_come_when_they_are_required_and_their_arguments_fit() {
    let server = Server::over_mini();
    let tools = json!([
        tool("place", true, point()),
        tool("reset", false, json!({"type": "object", "properties": {}, "additionalProperties": false}))
    ]);
    let named = json!({"type": "function", "function": {"name": "place"}});
    for (choice, only_place) in [(json!("required"), false), (named, true)] {
        for seed in 0..2 {
            let more = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "seed": seed,
                "temperature": 1, "max_tokens": 200});
            let answer = ok(&server.post(CHAT, &chat_body("Put it somewhere.", more)).await);
            let message = &answer["choices"][0]["message"];
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
            let calls = message["tool_calls"].as_array().unwrap();
            assert_eq!((calls.len(), message.get("unparsed_tool_text")), (1, None), "{answer}");
            let function = &calls[0]["function"];
            let arguments = parsed(&function["arguments"]);
            match function["name"].as_str().unwrap() {
                "place" => assert!(is_point(&arguments), "{arguments}"),
                name => assert_eq!((name, only_place, arguments), ("reset", false, json!({}))),
            }
        }
    }
}

#[tokio::test]
async fn unusable_schemas_are_told_by_their_path_before_anything_is_computed() {
    let server = Server::over_mini();
    let remote = json!({"properties": {"a": {"$ref": "https://example.com/a"}}});
    let unknown = json!({"type": "array", "uniqueItems": true});
    for (more, param) in [
        (
            json!({"response_format": as_schema(remote.clone())}),
            "response_format.json_schema.schema.properties.a.$ref",
        ),
        (json!({"response_format": as_schema(unknown.clone())}), "response_format.json_schema.schema"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (
            json!({"tools": [tool("a", false, json!({})), tool("b", true, remote)]}),
            "tools[1].function.parameters.properties.a.$ref",
        ),
        (
            json!({"tools": [tool("b", true, json!({"properties": {"a": unknown}}))]}),
            "tools[0].function.parameters",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tools": [tool("a", false, json!({}))],
            "tool_choice": {"type": "function", "function": {"name": "b"}}}),
            "tool_choice",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "{", "prefix": true}]}),
            "response_format",
        ),
    ] {
        let reply = server.chat_reply(more.clone()).await;
        assert_eq!(
            (reply.status, reply.envelope()["param"].as_str()),
            (400, Some(param)),
            "{more}: {}",
            reply.text()
        );
    }
    server.rests().await;
}
