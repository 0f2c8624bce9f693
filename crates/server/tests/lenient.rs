//! What clients send that OpenAI's specification does not have, or has in other words: what is taken, what is refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, Setup};
use overshot_engine::Limits;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Bodies as they come over the wire, so that the order of keys is theirs.
#[tokio::test]
async fn what_clients_differ_in_is_taken() {
    let server = Server::new();
    let hi = r#""messages":[{"role":"user","content":"hi"}]"#;
    let tool = |function: &str| format!(r#"{{{hi},"tools":[{{"type":"function","function":{function}}}]}}"#);
    for body in [
        format!("{{{hi}}}"),
        format!(r#"{{{hi},"unknown":{{"deep":[1,{{}}]}},"user":"u","metadata":{{}},"store":true,"service_tier":"auto"}}"#),
        r#"{"messages":[{"content":"hi","role":"user","name":"bob"}]}"#.into(),
        r#"{"messages":[{"content":[{"text":"hi","type":"text","cache_control":{"type":"ephemeral"}}],"role":"user"}]}"#.into(),
        r#"{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"hi"}]}"#.into(),
        r#"{"messages":[{"role":"system","content":null},{"role":"user","content":"hi"}]}"#.into(),
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"refusal":null,"tool_calls":null},{"role":"user","content":"hi"}]}"#.into(),
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"arguments":"{}","name":"f"}}]},{"role":"tool","content":"1","tool_call_id":"c"},{"role":"user","content":"hi"}]}"#.into(),
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"x":1}}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"1"}]},{"role":"user","content":"hi"}]}"#.into(),
        format!(r#"{{{hi},"max_completion_tokens":5}}"#),
        format!(r#"{{{hi},"max_tokens":5,"max_completion_tokens":7}}"#),
        format!(r#"{{{hi},"max_tokens":100000000}}"#),
        format!(r#"{{{hi},"stop":null,"n":null,"stream":null,"tools":null,"tool_choice":null,"seed":null,"logit_bias":null,"response_format":null,"stream_options":null,"temperature":null,"logprobs":null,"top_logprobs":null,"thinking":null,"reasoning_effort":null,"chat_template_kwargs":null,"enable_thinking":null,"functions":null,"function_call":null}}"#),
        format!(r#"{{{hi},"stop":["",""],"top_k":-1,"seed":-5,"tools":[]}}"#),
        format!(r#"{{{hi},"parallel_tool_calls":true,"tool_choice":"auto"}}"#),
        format!(r#"{{{hi},"response_format":{{"type":"text"}},"temperature":0,"top_p":1}}"#),
        tool(r#"{"name":"f","strict":null,"description":null,"parameters":null}"#),
        tool(r#"{"parameters":{"type":"object","properties":{}},"name":"f","strict":false}"#),
        format!(r#"{{"stream":false,{hi},"model":"{}"}}"#, common::MODEL),
        format!("\u{20}\n\t{{{hi}}}\r\n "),
    ] {
        let reply = server.send("POST", CHAT, Some("application/json"), body.clone()).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        // Results of calls stand before it, in the same turn.
        let content = reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(content.ends_with("hi"), "{body}: {content}");
    }
    server.rests().await;
}

#[tokio::test]
async fn where_silence_would_hurt_requests_are_refused() {
    let server = Server::new();
    for (field, values) in [
        ("n", vec![json!(0), json!(-1), json!(129), json!(1.5), json!("2"), json!(true)]),
        ("max_tokens", vec![json!(0), json!(-1), json!("5"), json!(1.5)]),
        ("temperature", vec![json!(-0.1), json!("1"), json!([1])]),
        ("stream", vec![json!("true"), json!(1)]),
        ("stop", vec![json!(1), json!([1]), json!({})]),
        ("seed", vec![json!("5"), json!(0.5)]),
        ("tools", vec![json!({}), json!("f"), json!([1])]),
        ("logprobs", vec![json!(3), json!("yes")]),
    ] {
        for value in values {
            let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
            body[field] = value;
            let reply = server.post(CHAT, &body).await;
            assert_eq!(reply.status, 400, "{body}: {}", reply.text());
            let error = reply.envelope();
            assert!(error["param"].as_str().is_some_and(|param| param.starts_with(field)), "{body}: {error}");
        }
    }
    server.rests().await;
}

/// Larger than the context, and within the context but larger than the cache.
#[tokio::test]
async fn prompts_that_can_never_be_computed_are_refused_with_both_numbers() {
    let small = Server::with(Setup {
        kv_pool_tokens: 256,
        engine: Limits { running_requests: 1, ..Limits::default() },
        ..Setup::default()
    });
    for (server, words, limit) in [(Server::new(), 3000, "2000"), (small, 1000, "512")] {
        for stream in [false, true] {
            let body =
                json!({"messages": [{"role": "user", "content": "word ".repeat(words)}], "stream": stream});
            let tokens = server.post("/tokenize", &body).await.json()["count"].as_u64().unwrap();
            let reply = server.post(CHAT, &body).await;
            let error = reply.envelope();
            assert_eq!((reply.status, &error["code"]), (400, &Value::from("context_length_exceeded")));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&tokens.to_string()) && message.contains(limit), "{message}");
        }
        server.rests().await;
    }
}
