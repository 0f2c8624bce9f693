//! The Messages API: streams add up to whole answers in every shape, histories become the prompts that chat's would, and
//! every refusal names what to change, in Anthropic's envelope.

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::Request;
use common::anthropic::{error, events, folded};
use common::{MODEL, Server, Setup, merge};
use overshot_engine::StepLoop;
use overshot_server::router;
use serde_json::{Value, json};
use tower::ServiceExt;

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

const CALLS: &str = "Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
    <｜DSML｜parameter name=\"id\" string=\"true\">A7 \"é\"</｜DSML｜parameter>\n\
    <｜DSML｜parameter name=\"scale\" string=\"false\">0.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
    <｜DSML｜invoke name=\"read_meter\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
const BROKEN: &str = "Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
    <｜DSML｜parameter name=\"id\" string=\"true\">A7";
const NO_CALL: &str =
    "Look: <｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"no good name\">\n</｜DSML｜invoke>\n";

fn tools() -> Value {
    let schema =
        json!({"type": "object", "properties": {"id": {"type": "string"}, "scale": {"type": "number"}}});
    json!([{"name": "read_meter", "description": "Reads.", "input_schema": schema}])
}

fn eager_tools() -> Value {
    let mut tools = tools();
    tools[0]["eager_input_streaming"] = json!(true);
    tools
}

fn body(said: &str, more: Value) -> Value {
    let mut body =
        json!({"model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": said}]});
    merge(&mut body, more);
    body
}

async fn answer(server: &Server, said: &str, more: Value) -> Value {
    let reply = server.post(MESSAGES, &body(said, more)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn stream(server: &Server, said: &str, more: Value) -> Vec<Value> {
    let mut body = body(said, more);
    merge(&mut body, json!({"stream": true}));
    let reply = server.post(MESSAGES, &body).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream", "{}", reply.text());
    events(&reply.text())
}

/// Ids are new in every answer.
fn forget_ids(message: &mut Value) {
    assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
    message["id"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(!block["id"].as_str().unwrap().is_empty());
            block["id"] = Value::Null;
        }
    }
}

#[tokio::test]
async fn a_stream_adds_up_to_the_whole_answer() {
    let thinks = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let server = Server::with(Setup { step_loop, ..Setup::default() });
        for (said, more, blocks, reason) in [
            ("Hello, how are you?", json!({}), "text", "end_turn"),
            ("naïve 中文 😀 and \"quotes\" \\ \n\t lines", json!({"top_k": 3}), "text", "end_turn"),
            ("6 * 4 = 24.</think>It is 24.", thinks.clone(), "thinking text", "end_turn"),
            ("only thoughts", thinks.clone(), "thinking", "end_turn"),
            ("one two three four five six", json!({"max_tokens": 3}), "text", "max_tokens"),
            (
                "cut in the thinking",
                json!({"thinking": {"type": "adaptive"}, "max_tokens": 2}),
                "thinking",
                "max_tokens",
            ),
            ("one two END three", json!({"stop_sequences": ["no", "END"]}), "text", "stop_sequence"),
            ("END", json!({"stop_sequences": ["END"]}), "", "stop_sequence"),
            ("a beginning of E", json!({"stop_sequences": ["END"]}), "text", "end_turn"),
            (CALLS, json!({"tools": tools()}), "text tool_use tool_use", "tool_use"),
            (CALLS, json!({"tools": eager_tools()}), "text tool_use tool_use", "tool_use"),
            (CALLS, json!({"tools": tools(), "max_tokens": 40}), "text tool_use", "max_tokens"),
            (CALLS, json!({"tools": eager_tools(), "max_tokens": 40}), "text tool_use", "max_tokens"),
            (CALLS, json!({"tools": tools(), "tool_choice": {"type": "none"}}), "text", "end_turn"),
            (CALLS, json!({}), "text", "end_turn"),
            (BROKEN, json!({"tools": tools()}), "text", "end_turn"),
            (NO_CALL, json!({"tools": tools()}), "text", "end_turn"),
        ] {
            let mut whole = answer(&server, said, more.clone()).await;
            let mut streamed = folded(&stream(&server, said, more.clone()).await);
            forget_ids(&mut whole);
            forget_ids(&mut streamed);
            assert_eq!(streamed, whole, "{said} {more}");
            let kinds: Vec<&str> = whole["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| block["type"].as_str().unwrap())
                .collect();
            assert_eq!(
                (kinds.join(" ").as_str(), &whole["stop_reason"]),
                (blocks, &json!(reason)),
                "{said} {more}"
            );
        }
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, 0, "normal ends are no aborts");
    }
}

#[tokio::test]
async fn blocks_hold_what_was_thought_said_and_called() {
    let server = Server::new();
    let thinks = json!({"output_config": {"effort": "high"}});
    let message = answer(&server, "Six fours.</think>24", thinks).await;
    assert_eq!(message["content"][0]["thinking"], "Six fours.");
    assert_eq!(message["content"][1], json!({"type": "text", "text": "24"}));
    let thought = common::tokenizer().encode("Six fours.").unwrap().len() + 1;
    assert_eq!(message["usage"]["output_tokens_details"]["thinking_tokens"], thought);
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );

    let message = answer(&server, CALLS, json!({"tools": tools()})).await;
    let calls = &message["content"].as_array().unwrap()[1..];
    assert_eq!(calls[0]["input"], json!({"id": "A7 \"é\"", "scale": 0.5}));
    assert_eq!((&calls[1]["input"], &calls[1]["name"]), (&json!({}), &json!("read_meter")));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let message = answer(&server, "one two END three", json!({"stop_sequences": ["two E", "END"]})).await;
    assert_eq!(
        (&message["content"][0]["text"], &message["stop_sequence"]),
        (&json!("one "), &json!("two E"))
    );
    let message = answer(&server, CALLS, json!({"tools": tools(), "max_tokens": 40})).await;
    let cut = &message["content"][1];
    assert_eq!(cut["input"], json!({}));
    assert!(cut["partial_json"].as_str().unwrap().starts_with("{\"id\": \"A7 \\\"é"), "{cut}");
}

#[tokio::test]
async fn what_is_no_call_is_never_told_as_one_and_never_lost() {
    let server = Server::new();
    for (said, tools) in [(BROKEN, tools()), (NO_CALL, tools()), (CALLS, json!([]))] {
        let message = answer(&server, said, json!({"tools": tools})).await;
        assert_eq!(message["content"].as_array().unwrap().len(), 1, "{message}");
        let text = message["content"][0]["text"].as_str().unwrap();
        assert!(!text.contains('｜'), "{text}");
        let unparsed = message["unparsed_tool_text"].as_str().unwrap();
        assert!(
            unparsed.starts_with("<｜DSML｜tool_calls>") || unparsed.contains("<｜DSML｜invoke"),
            "{unparsed}"
        );
    }
    // A call that is told as it is made cannot be taken back: its input never becomes whole, and none was called.
    let message = folded(&stream(&server, BROKEN, json!({"tools": eager_tools()})).await);
    assert_eq!((&message["stop_reason"], &message["content"][1]["input"]), (&json!("end_turn"), &json!({})));
    assert!(
        message["content"][1]["partial_json"].as_str().unwrap().starts_with("{\"id\": \"A7"),
        "{message}"
    );
    assert!(message["unparsed_tool_text"].as_str().unwrap().contains("<｜DSML｜invoke"));
}

#[tokio::test]
async fn calls_are_told_whole_or_as_they_are_made() {
    let server = Server::new();
    let pieces = |events: &[Value]| {
        let of_first = |event: &&Value| event["index"] == 1 && event["delta"]["type"] == "input_json_delta";
        events.iter().filter(of_first).count()
    };
    assert_eq!(pieces(&stream(&server, CALLS, json!({"tools": tools()})).await), 1);
    assert!(pieces(&stream(&server, CALLS, json!({"tools": eager_tools()})).await) > 4);
    let mut never = tools();
    never[0]["eager_input_streaming"] = json!(false);
    for (tools, is_eager) in [(tools(), true), (never, false)] {
        let body = body(CALLS, json!({"tools": tools, "stream": true}));
        let beta =
            ("anthropic-beta", "interleaved-thinking-2025-05-14, fine-grained-tool-streaming-2025-05-14");
        let reply = server.send_with(MESSAGES, &[beta, ("anthropic-version", "2023-06-01")], &body).await;
        assert_eq!(pieces(&events(&reply.text())) > 4, is_eager);
    }
}

/// The prompt that a Messages request makes is known by its size, and by what chat makes of the same history.
async fn same_prompt(server: &Server, asked: Value, chat: Value) {
    let mut body = json!({"model": MODEL});
    merge(&mut body, asked);
    let counted = server.post(COUNT, &body).await;
    assert_eq!(counted.status, 200, "{}", counted.text());
    let rendered = server.post("/v1/chat/completions/render", &chat).await;
    assert_eq!(rendered.status, 200, "{}", rendered.text());
    assert_eq!(
        counted.json(),
        json!({"input_tokens": rendered.json()["prompt_tokens"]}),
        "{body} {}",
        rendered.json()["prompt"]
    );
    merge(&mut body, json!({"max_tokens": 1}));
    let answer = server.post(MESSAGES, &body).await.json();
    assert_eq!(answer["usage"]["input_tokens"], rendered.json()["prompt_tokens"], "{answer}");
}

#[tokio::test]
async fn histories_make_the_prompts_that_chats_would() {
    let server = Server::new();
    same_prompt(
        &server,
        json!({"system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}]}),
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}),
    )
    .await;
    let cached = json!({"type": "ephemeral"});
    same_prompt(
        &server,
        json!({
            "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief.", "cache_control": cached}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<｜User｜>"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": "c"},
                {"role": "assistant", "content": "It "},
                {"role": "assistant", "content": [{"type": "text", "text": "is."}]},
                {"role": "system", "content": "Mind."},
                {"role": "user", "content": []},
            ],
        }),
        json!({"messages": [
            {"role": "system", "content": "Be\n\nbrief."},
            {"role": "user", "content": "<｜User｜>\n\nb\n\nc"},
            {"role": "assistant", "content": "It \n\nis."},
            {"role": "system", "content": "Mind."},
            {"role": "user", "content": ""},
        ]}),
    )
    .await;
    same_prompt(
        &server,
        json!({"messages": [
            {"role": "user", "content": "Count."},
            {"role": "assistant", "content": "one two"},
        ]}),
        json!({"messages": [
            {"role": "user", "content": "Count."},
            {"role": "assistant", "content": "one two", "prefix": true},
        ]}),
    )
    .await;
}

#[tokio::test]
async fn thinking_and_calls_go_back_as_they_came() {
    let server = Server::new();
    let call = |id: &str, meter: &str| json!({"type": "tool_use", "id": id, "name": "read_meter", "input": {"id": meter, "scale": 1.50}});
    let called = |id: &str, meter: &str| {
        let arguments = format!("{{\"id\":\"{meter}\",\"scale\":1.5}}");
        json!({"id": id, "type": "function", "function": {"name": "read_meter", "arguments": arguments}})
    };
    let function =
        json!({"name": "read_meter", "description": "Reads.", "parameters": tools()[0]["input_schema"]});
    same_prompt(
        &server,
        json!({
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "tools": tools(),
            "messages": [
                {"role": "user", "content": "Read A7 and B2."},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Two reads.", "signature": "anything"},
                    {"type": "redacted_thinking", "data": "???"},
                    {"type": "text", "text": "Reading."},
                    call("a", "A7"),
                    call("b", "B2"),
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "b", "content": "41", "is_error": true},
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "{\"v\": 3}"}]},
                    {"type": "text", "text": "Well?"},
                ]},
            ],
        }),
        json!({
            "thinking": {"type": "enabled"},
            "tools": [{"type": "function", "function": function}],
            "messages": [
                {"role": "user", "content": "Read A7 and B2."},
                {"role": "assistant", "content": "Reading.", "reasoning_content": "Two reads.", "tool_calls": [
                    called("a", "A7"), called("b", "B2"),
                ]},
                {"role": "tool", "tool_call_id": "a", "content": "{\"v\": 3}"},
                {"role": "tool", "tool_call_id": "b", "content": "41"},
                {"role": "user", "content": "Well?"},
            ],
        }),
    )
    .await;
    // What was answered goes back as it is.
    let mut history = vec![json!({"role": "user", "content": CALLS})];
    let answered = answer(&server, CALLS, json!({"tools": tools()})).await;
    let results: Vec<Value> = answered["content"].as_array().unwrap()[1..]
        .iter()
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "7"}))
        .collect();
    history.push(json!({"role": "assistant", "content": answered["content"]}));
    history.push(json!({"role": "user", "content": results}));
    let reply = server.post(MESSAGES, &body("", json!({"tools": tools(), "messages": history}))).await;
    assert_eq!(
        reply.json()["content"][0]["text"],
        "<tool_result>7</tool_result>\n\n<tool_result>7</tool_result>"
    );
}

/// Claude Code tells about its surroundings between the question and the answer.
#[tokio::test]
async fn instructions_before_the_answer_join_the_users_turn() {
    let server = Server::new();
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    for (asked, chat) in [
        (
            vec![turn("user", "Hello"), turn("system", "Here."), turn("system", "Now.")],
            vec![turn("user", "Hello\n\nHere.\n\nNow.")],
        ),
        (
            vec![turn("user", "a"), turn("system", "b"), turn("assistant", "c"), turn("system", "d")],
            vec![turn("user", "a\n\nb"), turn("assistant", "c"), turn("user", "d")],
        ),
        (
            vec![turn("user", "a"), turn("assistant", "c"), turn("system", "d"), turn("user", "e")],
            vec![turn("user", "a"), turn("assistant", "c"), turn("system", "d"), turn("user", "e")],
        ),
    ] {
        same_prompt(&server, json!({"messages": asked}), json!({"messages": chat})).await;
        // The same holds for chat, by both of its words.
        let developer = serde_json::to_string(&asked).unwrap().replace("system", "developer");
        let developer: Value = serde_json::from_str(&developer).unwrap();
        same_prompt(&server, json!({"messages": chat}), json!({"messages": developer})).await;
    }
    let said = json!({"messages": [turn("user", "Hello"), turn("system", "Here.")]});
    assert_eq!(answer(&server, "", said).await["content"][0]["text"], "Hello\n\nHere.");
}

#[tokio::test]
async fn deferred_tools_are_read_where_a_search_has_found_them() {
    let server = Server::new();
    let mut both = tools();
    both.as_array_mut()
        .unwrap()
        .push(json!({"name": "late", "input_schema": {"type": "object"}, "defer_loading": true}));
    let call = json!({"type": "tool_use", "id": "a", "name": "search", "input": {}});
    let references = json!([
        {"type": "tool_reference", "tool_name": "late"},
        {"type": "tool_reference", "tool_name": "read_meter"},
    ]);
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": references});
    let history = json!([
        {"role": "user", "content": "Search."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]);
    let message = answer(&server, "", json!({"tools": both, "messages": history})).await;
    let read = r#"{"name":"late","parameters":{"type":"object"}}"#;
    let expected = format!("<tool_result>{read}\n\nread_meter</tool_result>");
    assert_eq!(message["content"][0]["text"], expected.as_str());
    let count = |tools: Value| {
        let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}], "tools": tools});
        let server = server.clone();
        async move { server.post(COUNT, &body).await.json()["input_tokens"].as_u64().unwrap() }
    };
    assert_eq!(count(both).await, count(tools()).await);
}

#[tokio::test]
async fn a_message_starts_before_its_first_token() {
    let server = Server::new();
    server.control.hold();
    let body = body("hi", json!({"stream": true})).to_string();
    let request = Request::builder().method("POST").uri(MESSAGES).body(Body::from(body)).unwrap();
    let mut stream = router(server.app.clone()).oneshot(request).await.unwrap().into_body();
    let frame = http_body_util::BodyExt::frame(&mut stream).await.unwrap().unwrap();
    let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
    let [start] = &events(&text)[..] else { panic!("{text}") };
    assert_eq!(start["type"], "message_start");
    assert!(start["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0, "{start}");
    server.control.release();
}

#[tokio::test]
async fn wrong_requests_are_refused_by_the_field() {
    let server = Server::new();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let ends_with = |block: Value| json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [block]}]});
    for (more, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "x"}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"content": "x"}]}), "messages[0]"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (user(json!(5)), "messages[0].content"),
        (user(json!([{"text": "x"}])), "messages[0].content[0]"),
        (user(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0].type"),
        (user(json!([{"type": "document", "source": {}}])), "messages[0].content[0].type"),
        (
            user(json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])),
            "messages[0].content[0].type",
        ),
        (user(json!([{"type": "tool_result", "content": "x"}])), "messages[0].content[0].tool_use_id"),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}])),
            "messages[0].content[0].content[0].type",
        ),
        (ends_with(json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})), "messages[1].content"),
        (
            ends_with(json!({"type": "tool_use", "id": "a", "name": "f", "input": 5})),
            "messages[1].content[0].input",
        ),
        (ends_with(json!({"type": "tool_use", "name": "f", "input": {}})), "messages[1].content[0].id"),
        (ends_with(json!({"type": "tool_result", "tool_use_id": "a"})), "messages[1].content[0].type"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"system": 5}), "system"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
        (json!({"tools": [{"name": "no spaces", "input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "other"}}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tools": tools(), "tool_choice": {"type": "x"}}), "tool_choice.type"),
        (json!({"tools": tools(), "tool_choice": "auto"}), "tool_choice"),
        (json!({"thinking": {"type": "perhaps"}}), "thinking.type"),
        (json!({"thinking": true}), "thinking"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"output_format": {"type": "json_schema"}}), "output_format.schema"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"stop_sequences": "END"}), "stop_sequences"),
        (json!({"stop_sequences": vec!["x"; 1000]}), "stop_sequences"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": -5}), "top_k"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"model": 5}), "model"),
    ] {
        let reply = server.post(MESSAGES, &body("hi", more.clone())).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.text());
        let error = error(&reply);
        assert_eq!(
            (&error["type"], &error["details"]["param"]),
            (&json!("invalid_request_error"), &json!(param)),
            "{more}"
        );
    }
    // What others send and nothing here needs.
    let more = json!({
        "metadata": {"user_id": "x"}, "service_tier": "auto", "context_management": {"edits": []}, "unknown": [1],
        "system": null, "tools": null, "tool_choice": null, "thinking": {"type": "disabled"}, "stop_sequences": null,
        "output_config": null, "temperature": null, "mcp_servers": [], "n": null,
    });
    assert_eq!(answer(&server, "hi", more).await["content"][0]["text"], "hi");
    server.rests().await;
}

#[tokio::test]
async fn every_error_has_anthropics_envelope() {
    let mut setup = Setup::default();
    setup.options.limits.body_bytes = 10_000;
    let server = Server::with(setup);
    let json_kind = Some("application/json");
    let big = format!("{{\"system\": \"{}\"}}", "x".repeat(20_000));
    let other = body("hi", json!({"model": "claude-sonnet"})).to_string();
    for (method, path, kind, body, status, error_type) in [
        ("GET", MESSAGES, None, "", 405, "invalid_request_error"),
        ("GET", COUNT, None, "", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", json_kind, "{}", 404, "not_found_error"),
        ("POST", MESSAGES, json_kind, "{", 400, "invalid_request_error"),
        ("POST", MESSAGES, json_kind, "[]", 400, "invalid_request_error"),
        ("POST", COUNT, json_kind, "{}", 400, "invalid_request_error"),
        ("POST", MESSAGES, Some("text/plain"), "{}", 415, "invalid_request_error"),
        ("POST", MESSAGES, json_kind, &big, 413, "request_too_large"),
        ("POST", MESSAGES, json_kind, &other, 404, "not_found_error"),
    ] {
        let reply = server.send(method, path, kind, body.to_owned()).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(error(&reply)["type"], error_type, "{method} {path} {body}");
    }
    let reply = server.post(MESSAGES, &body("hi", json!({}))).await;
    assert!(reply.headers["request-id"].to_str().unwrap().starts_with("req_"));
    // Others keep theirs.
    assert_eq!(server.post("/v1/messagesx", &json!({})).await.envelope()["code"], "unknown_url");
}

#[tokio::test]
async fn prompts_and_answers_that_do_not_fit_say_so() {
    let server = Server::new();
    let long = "word ".repeat(common::CONTEXT);
    let reply = server.post(MESSAGES, &body(&long, json!({}))).await;
    let error = error(&reply);
    assert_eq!((reply.status, &error["details"]["error_code"]), (400, &json!("context_length_exceeded")));
    assert!(error["message"].as_str().unwrap().starts_with("prompt is too long: "), "{error}");
    assert!(
        server.post(COUNT, &body(&long, json!({}))).await.json()["input_tokens"].as_u64().unwrap() > 2000
    );

    let forever = format!("{}word ", common::backend::FOREVER);
    let message = answer(&server, &forever, json!({"max_tokens": 100_000})).await;
    assert_eq!(message["stop_reason"], "model_context_window_exceeded");
    let message = answer(&server, &forever, json!({"max_tokens": 10})).await;
    assert_eq!(
        (&message["stop_reason"], &message["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(10))
    );
}

#[tokio::test]
async fn an_answer_that_fails_on_the_way_ends_with_an_error_and_no_stop() {
    let server = Server::new();
    let said = format!("some {} here please", common::backend::POISON);
    let events = stream(&server, &said, json!({})).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")), "{last}");
    assert!(events.iter().all(|event| event["type"] != "message_stop"));
    let reply = server.post(MESSAGES, &body(&said, json!({}))).await;
    assert_eq!((reply.status, &error(&reply)["type"]), (500, &json!("api_error")));
    server.rests().await;
}
