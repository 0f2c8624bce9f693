//! Every way in which a request can be wrong is answered with a status, and an envelope that names what to change.

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use common::{MODEL, Server, Setup, chat_body};
use overshot_engine::Limits;
use overshot_server::ServerLimits;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::new();
    let tool = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    for (more, param) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"99999999": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 1000}}), "logit_bias"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": 100_000}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": vec!["x"; 1000]}), "stop"),
        (json!({"stop": "x".repeat(100_000)}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stop_token_ids": vec![1; 1000]}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 64]}), "stop_token_ids"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 100}), "top_logprobs"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user"}, {"role": "nobody"}]}), "messages[1].role"),
        (json!({"messages": [{"content": "x"}]}), "messages[0]"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]}), "messages[1].role"),
        (json!({"messages": [{"role": "user", "content": "a", "prefix": true}]}), "messages[0].prefix"),
        (
            json!({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}),
            "messages[0].tool_calls",
        ),
        (json!({"tools": "x"}), "tools"),
        (json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name"),
        (json!({"tools": tool("no spaces")}), "tools[0].function.name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": tool("f"), "tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tools": tool("f"), "tool_choice": 5}), "tool_choice"),
        (json!({"functions": []}), "functions"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"grammar": "root ::= x"}), "grammar"),
        (json!({"thinking": {"type": "perhaps"}}), "thinking.type"),
        (json!({"thinking": true}), "thinking"),
        (json!({"reasoning_effort": "enormous"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": 5}), "chat_template_kwargs"),
        (json!({"enable_thinking": "yes"}), "enable_thinking"),
    ] {
        let reply = server.post(CHAT, &chat_body("hi", more.clone())).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.text());
        let error = reply.envelope();
        assert_eq!(error["param"], param, "{more}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{more}");
    }
    for (body, param) in [
        (json!({}), Value::Null),
        (json!({"prompt": 5}), "prompt".into()),
        (json!({"prompt": []}), "prompt".into()),
        (json!({"prompt": [99_999_999]}), "prompt".into()),
        (json!({"prompt": [[]]}), "prompt".into()),
        (json!({"prompt": "a", "echo": true}), "echo".into()),
        (json!({"prompt": "a", "suffix": "b"}), "suffix".into()),
        (json!({"prompt": "a", "best_of": 3}), "best_of".into()),
        (json!({"prompt": "a", "logprobs": 100}), "logprobs".into()),
        (json!({"prompt": vec!["a"; 100], "n": 2}), "n".into()),
    ] {
        let reply = server.post(TEXT, &body).await;
        assert_eq!((reply.status, &reply.envelope()["param"]), (400, &param), "{body}: {}", reply.text());
    }
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/detokenize", json!({"tokens": [99_999_999]}), "tokens"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/v1/chat/completions/derender", json!({"token_ids": [1], "start": "x"}), "start"),
        ("/v1/chat/completions/derender", json!({"token_ids": [1], "finish_reason": "x"}), "finish_reason"),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!((reply.status, reply.envelope()["param"].as_str()), (400, Some(param)), "{path} {body}");
    }
    server.rests().await;
}

#[tokio::test]
async fn every_path_has_an_envelope() {
    let limits = ServerLimits { body_bytes: 10_000, ..ServerLimits::default() };
    let mut setup = Setup::default();
    setup.options.limits = limits;
    let server = Server::with(setup);
    let json_kind = Some("application/json");
    let big = format!("{{\"prompt\": \"{}\"}}", "x".repeat(20_000));
    for (method, path, kind, body, status, code) in [
        ("GET", "/nothing", None, "", 404, "unknown_url"),
        ("POST", "/v1/embeddings", json_kind, "{}", 404, "unknown_url"),
        ("GET", CHAT, None, "", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", None, "", 405, "method_not_allowed"),
        ("POST", "/health", json_kind, "{}", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", None, "", 404, "model_not_found"),
        ("POST", CHAT, json_kind, "", 400, "invalid_json"),
        ("POST", CHAT, json_kind, "{", 400, "invalid_json"),
        ("POST", CHAT, json_kind, "[]", 400, "invalid_json"),
        ("POST", CHAT, json_kind, "{\"messages\": []} {}", 400, "invalid_json"),
        ("POST", CHAT, json_kind, "\u{0}", 400, "invalid_json"),
        ("POST", CHAT, Some("text/plain"), "{}", 415, "unsupported_content_type"),
        ("POST", CHAT, Some("application/x-www-form-urlencoded"), "{}", 415, "unsupported_content_type"),
        ("POST", TEXT, json_kind, &big, 413, "body_too_large"),
    ] {
        let reply = server.send(method, path, kind, body.to_owned()).await;
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text());
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(reply.envelope()["code"], code, "{method} {path}");
    }
    let invalid = server.send("POST", CHAT, json_kind, Body::from(vec![0xff, 0xfe, b'{'])).await;
    assert_eq!(invalid.envelope()["code"], "invalid_json");
    let allowed = server.get(CHAT).await;
    assert_eq!(allowed.headers["allow"], "POST");
    // No content type at all, and one with a parameter.
    for kind in [None, Some("application/json; charset=utf-8")] {
        let body = chat_body("hi", json!({})).to_string();
        assert_eq!(server.send("POST", CHAT, kind, body).await.status, 200);
    }
}

#[tokio::test]
async fn unknown_models_are_refused_and_no_model_is_the_one_there_is() {
    let server = Server::new();
    for (name, status) in [(json!(MODEL), 200), (Value::Null, 200), (json!("gpt-4"), 404)] {
        let reply = server.post(CHAT, &chat_body("hi", json!({"model": name}))).await;
        assert_eq!(reply.status, status);
        if status == 404 {
            assert_eq!(reply.envelope()["code"], "model_not_found");
        }
    }
    let reply = server.post(CHAT, &chat_body("hi", json!({"model": 5}))).await;
    assert_eq!((reply.status, reply.envelope()["param"].as_str()), (400, Some("model")));
}

#[tokio::test]
async fn prompts_are_bounded_over_all_answers() {
    let mut setup = Setup::default();
    setup.options.limits.prompt_tokens = 1000;
    let server = Server::with(setup);
    for (body, param) in
        [(json!({"prompt": vec![5; 400], "n": 3}), "n"), (json!({"prompt": vec![vec![5; 400]; 3]}), "prompt")]
    {
        let reply = server.post(TEXT, &body).await;
        assert_eq!(
            (reply.status, reply.envelope()["param"].as_str()),
            (400, Some(param)),
            "{}",
            reply.text()
        );
    }
    let chat = server.post(CHAT, &chat_body(&"word ".repeat(200), json!({"n": 20}))).await;
    assert_eq!((chat.status, chat.envelope()["param"].as_str()), (400, Some("n")), "{}", chat.text());
    let body = json!({"prompt": vec![5; 400], "n": 2, "max_tokens": 1});
    assert_eq!(server.post(TEXT, &body).await.status, 200);
}

#[tokio::test]
async fn prompts_that_are_too_long_tell_both_numbers() {
    let server = Server::new();
    let long = vec![5; common::CONTEXT + 1];
    let error = server.post(TEXT, &json!({"prompt": long})).await.envelope();
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("2001") && message.contains("2000"), "{message}");

    let small = Server::with(Setup {
        kv_pool_tokens: 256,
        engine: Limits { running_requests: 1, ..Limits::default() },
        ..Setup::default()
    });
    let error = small.post(TEXT, &json!({"prompt": vec![5; 1000]})).await.envelope();
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1000") && message.contains("512"), "{message}");
    assert_eq!(small.post(TEXT, &json!({"prompt": "hi"})).await.status, 200);
}
