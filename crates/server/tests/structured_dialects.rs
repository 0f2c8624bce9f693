//! What `structured.rs` asks of chat, in the words of the Messages and the Responses API: whatever the real small model
//! would say by itself, answers and calls are what was asked for.
#![allow(clippy::unwrap_used)]

mod common;

use common::anthropic::error;
use common::responses::{events, folded};
use common::{MODEL, Server, merge};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn point() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer"}, "color": {"enum": ["red", "green"]}},
        "required": ["x", "color"], "additionalProperties": false})
}

fn is_point(value: &Value) -> bool {
    value["x"].is_i64() && (value["color"] == "red" || value["color"] == "green")
}

/// What no answer can be held to.
fn unusable() -> Value {
    json!({"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}, "required": ["x"]})
}

fn parsed(text: &Value) -> Value {
    let text = text.as_str().unwrap_or_else(|| panic!("no text: {text}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn message_body(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "max_tokens": 200, "seed": 7, "messages": [{"role": "user", "content": "Where?"}]});
    merge(&mut body, more);
    body
}

async fn message(server: &Server, more: Value) -> Value {
    let reply = server.post(MESSAGES, &message_body(more)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn response_body(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "max_output_tokens": 200, "seed": 7, "input": "Where?"});
    merge(&mut body, more);
    body
}

async fn response(server: &Server, more: Value) -> Value {
    let reply = server.post(RESPONSES, &response_body(more)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[tokio::test]
async fn messages_have_the_form_and_the_calls_that_were_asked_for() {
    let server = Server::over_mini();
    let form = json!({"type": "json_schema", "schema": point()});
    for more in [
        json!({"output_config": {"format": form}}),
        json!({"output_format": form, "thinking": {"type": "disabled"}}),
    ] {
        let message = message(&server, more.clone()).await;
        assert!(is_point(&parsed(&message["content"][0]["text"])), "{more} {message}");
    }
    let tool = |name: &str| json!({"name": name, "input_schema": point(), "strict": true});
    let mut late = tool("late");
    late["defer_loading"] = json!(true);
    // A tool that the prompt does not list moves the place of the others, and can be called all the same.
    let tools = json!([late, tool("draw"), tool("erase")]);
    for (choice, name) in [
        (json!({"type": "any", "disable_parallel_tool_use": true}), None),
        (json!({"type": "tool", "name": "erase"}), Some("erase")),
        (json!({"type": "tool", "name": "late"}), Some("late")),
    ] {
        let message = message(&server, json!({"tools": tools, "tool_choice": choice})).await;
        let [call] = &message["content"].as_array().unwrap()[..] else { panic!("{choice}: {message}") };
        let told = (&call["type"], &message["stop_reason"]);
        assert_eq!(told, (&json!("tool_use"), &json!("tool_use")), "{choice}");
        let is_named = name.is_none_or(|name| call["name"] == name);
        assert!(is_named && is_point(&call["input"]), "{choice}: {message}");
    }
    server.rests().await;
}

#[tokio::test]
async fn messages_name_the_schema_that_is_unusable() {
    let server = Server::new();
    let form = json!({"type": "json_schema", "schema": unusable()});
    let late = json!({"name": "late", "input_schema": unusable(), "strict": true, "defer_loading": true});
    let strict = json!({"name": "f", "input_schema": unusable(), "strict": true});
    let plain = json!({"name": "g", "input_schema": {"type": "object"}});
    for (more, param) in [
        (json!({"output_config": {"format": form}}), "output_config.format.schema.properties.x.$ref"),
        (json!({"tools": [strict, plain]}), "tools[0].input_schema.properties.x.$ref"),
        (json!({"tools": [late, plain]}), "tools[0].input_schema.properties.x.$ref"),
    ] {
        let reply = server.post(MESSAGES, &message_body(more.clone())).await;
        let error = error(&reply);
        assert_eq!((reply.status, error["details"]["param"].as_str()), (400, Some(param)), "{more}: {error}");
    }
    server.rests().await;
}

#[tokio::test]
async fn responses_have_the_form_that_was_asked_for_streamed_or_not() {
    let server = Server::over_mini();
    let schema =
        json!({"format": {"type": "json_schema", "name": "point", "strict": true, "schema": point()}});
    for more in [
        json!({"text": schema}),
        json!({"text": schema, "reasoning": {"effort": "high"}}),
        json!({"text": schema, "parallel_tool_calls": false, "tools": [{"type": "web_search"}]}),
    ] {
        let whole = response(&server, more.clone()).await;
        assert_eq!((&whole["status"], &whole["text"]), (&json!("completed"), &schema), "{whole}");
        let text = &whole["output"].as_array().unwrap().last().unwrap()["content"][0]["text"];
        assert!(is_point(&parsed(text)), "{more} {whole}");
        let mut streamed = response_body(more);
        streamed["stream"] = json!(true);
        let output = folded(&events(&server.post(RESPONSES, &streamed).await.text()));
        assert_eq!(&output.last().unwrap()["content"][0]["text"], text);
    }
    let object =
        response(&server, json!({"text": {"format": {"type": "json_object"}}, "max_output_tokens": 60}))
            .await;
    let text = &object["output"][0]["content"][0]["text"];
    assert!(object["status"] == "incomplete" || parsed(text).is_object(), "{object}");
    server.rests().await;
}

#[tokio::test]
async fn responses_have_the_calls_that_were_asked_for() {
    let server = Server::over_mini();
    let draw = json!({"type": "function", "name": "draw", "parameters": point(), "strict": true});
    let tools = json!([{"type": "web_search"}, draw, {"type": "custom", "name": "note"},
        {"type": "namespace", "name": "board", "tools": [draw]}]);
    for (choice, called) in [
        (json!("required"), None),
        (json!({"type": "function", "name": "draw"}), Some(("function_call", "draw", Value::Null))),
        (
            json!({"type": "function", "name": "draw", "namespace": "board"}),
            Some(("function_call", "draw", json!("board"))),
        ),
        (json!({"type": "custom", "name": "note"}), Some(("custom_tool_call", "note", Value::Null))),
    ] {
        let more = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
        let response = response(&server, more).await;
        let [call] = &response["output"].as_array().unwrap()[..] else { panic!("{choice}: {response}") };
        if let Some((kind, name, namespace)) = called {
            let told = (call["type"].as_str(), call["name"].as_str(), &call["namespace"]);
            assert_eq!(told, (Some(kind), Some(name), &namespace), "{choice}");
        }
        // A text may be of any length, so that a limit may cut it.
        if call["type"] == "function_call" {
            assert_eq!(response["status"], "completed", "{response}");
            assert!(is_point(&parsed(&call["arguments"])), "{choice}: {call}");
        }
    }
    server.rests().await;
}

#[tokio::test]
async fn responses_name_the_schema_that_is_unusable() {
    let server = Server::new();
    let strict = json!({"type": "function", "name": "f", "parameters": unusable(), "strict": true});
    for (more, param) in [
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": unusable()}}}),
            "text.format.schema.properties.x.$ref",
        ),
        (json!({"tools": [{"type": "web_search"}, strict]}), "tools[1].parameters.properties.x.$ref"),
        (
            json!({"tools": [{"type": "namespace", "name": "n", "tools": [strict]}], "background": true}),
            "tools[0].tools[0].parameters.properties.x.$ref",
        ),
    ] {
        let reply = server.post(RESPONSES, &response_body(more.clone())).await;
        let error = reply.envelope();
        assert_eq!((reply.status, error["param"].as_str()), (400, Some(param)), "{more}: {error}");
    }
    server.rests().await;
}
