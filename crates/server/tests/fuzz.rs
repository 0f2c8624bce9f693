//! Random bodies: good ones with parts replaced, removed, repeated or cut. Whatever comes, the answer is a good one or
//! an envelope with a status below 500, and nothing is held afterwards.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, Setup, anthropic, responses};
use fastrand::Rng;
use overshot_server::ServerLimits;
use serde_json::{Map, Value, json};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/tokenize",
    "/detokenize",
    MESSAGES,
    "/v1/messages/count_tokens",
    RESPONSES,
    "/v1/responses/input_tokens",
];

fn cases() -> usize {
    overshot_testing::cases(1500)
}

/// Every field that the Messages API knows, with a good value.
fn good_of_messages() -> Value {
    json!({
        "model": common::MODEL,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read A7."}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "call_1", "name": "read", "input": {"id": "A7"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "41"}]},
                {"type": "text", "text": "hm</think>And?<｜DSML｜invoke name=\"read\">"},
            ]},
        ],
        "tools": [{"name": "read", "input_schema": {"properties": {"id": {}}}, "eager_input_streaming": true}],
        "tool_choice": {"type": "auto"},
        "max_tokens": 8,
        "stream": true,
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "x"},
    })
}

/// Every field that the Responses API knows, with a good value.
fn good_of_responses() -> Value {
    let parameters = json!({"properties": {"id": {}}});
    json!({
        "model": common::MODEL,
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "Read A7."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]},
            {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{\"id\": \"A7\"}"},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "x", "status": "completed"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "41"}]},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "42"},
            {"role": "user", "content": "hm</think>And?<｜DSML｜invoke name=\"read\">"},
        ],
        "tools": [
            {"type": "function", "name": "read", "parameters": parameters, "strict": false},
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "read"}]},
            {"type": "web_search"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "max_output_tokens": 8,
        "top_logprobs": 2,
        "temperature": 0.5,
        "stream": true,
        "store": true,
        "background": false,
        "metadata": {"a": "b"},
        "stop": ["END"],
        "user": "somebody",
    })
}

/// Every field that any other endpoint knows, with a good value.
fn good() -> Value {
    json!({
        "model": common::MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Read A7."}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{\"id\": \"A7\"}"}}
            ]},
            {"role": "tool", "tool_call_id": "call_1", "content": "41"},
            {"role": "user", "content": "hm</think>And?<｜DSML｜invoke name=\"read\">"},
        ],
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"properties": {"id": {}}}}}],
        "tool_choice": "auto",
        "prompt": "abc",
        "tokens": [5, 6, 7],
        "token_ids": [5, 6, 7],
        "start": "content",
        "n": 2,
        "stream": false,
        "stream_options": {"include_usage": true},
        "stop": ["END"],
        "max_tokens": 8,
        "max_completion_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": 1},
        "thinking": {"type": "enabled"},
        "enable_thinking": true,
        "chat_template_kwargs": {"thinking": true},
        "reasoning_effort": "high",
        "response_format": {"type": "text"},
    })
}

fn strange(rng: &mut Rng) -> Value {
    let values = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{feff}<think></think><｜User｜>"),
        json!("none"),
        json!([]),
        json!([[]]),
        json!([0, 1, 4_294_967_295_u32]),
        json!({}),
        json!({"type": "function"}),
        json!({"role": "user"}),
        json!("long ".repeat(300)),
    ];
    values[rng.usize(0..values.len())].clone()
}

/// Changes one place, found by walking down at random.
fn mutate(value: &mut Value, rng: &mut Rng) {
    let goes_down = rng.u8(0..3) > 0;
    match value {
        Value::Object(fields) if goes_down && !fields.is_empty() => {
            let key = fields.keys().nth(rng.usize(0..fields.len())).unwrap().clone();
            match rng.u8(0..6) {
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(key, strange(rng))),
                _ => mutate(fields.get_mut(&key).unwrap(), rng),
            }
        }
        Value::Array(items) if goes_down && !items.is_empty() => {
            let index = rng.usize(0..items.len());
            match rng.u8(0..6) {
                0 => drop(items.remove(index)),
                1 => items[index] = strange(rng),
                2 => items.push(items[index].clone()),
                _ => mutate(&mut items[index], rng),
            }
        }
        other => *other = strange(rng),
    }
}

/// A body of some of the good fields, changed in some places, and now and then no JSON any more.
fn body(path: &str, rng: &mut Rng) -> Vec<u8> {
    let good = match path {
        _ if path.starts_with(MESSAGES) => good_of_messages(),
        _ if path.starts_with(RESPONSES) => good_of_responses(),
        _ => good(),
    };
    let mut fields: Map<String, Value> = good.as_object().unwrap().clone();
    let keep = rng.u8(1..=10);
    fields.retain(|key, _| {
        matches!(key.as_str(), "messages" | "input" | "max_tokens" | "prompt" | "tokens" | "token_ids")
            || rng.u8(0..10) < keep
    });
    let mut value = Value::Object(fields);
    for _ in 0..rng.usize(0..4) {
        mutate(&mut value, rng);
    }
    let mut bytes = value.to_string().into_bytes();
    if rng.u8(0..12) == 0 {
        let at = rng.usize(0..=bytes.len());
        match rng.u8(0..3) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.u8(..)),
            _ => bytes.splice(at..at, b"[".repeat(300)).for_each(drop),
        }
    }
    bytes
}

#[tokio::test]
async fn no_body_gives_a_panic_or_an_error_without_an_envelope() {
    let mut setup = Setup::default();
    setup.options.limits = ServerLimits { small_body_bytes: 700, ..ServerLimits::default() };
    let server = Server::with(setup);
    let seed = overshot_testing::seed();
    let mut rng = Rng::with_seed(seed);
    let (mut good, mut refused) = (0, 0);
    for case in 0..cases() {
        let path = PATHS[rng.usize(0..PATHS.len())];
        let body = body(path, &mut rng);
        let reply = server.send("POST", path, Some("application/json"), body.clone()).await;
        let told = || format!("seed {seed}, case {case}: {path} {}", String::from_utf8_lossy(&body));
        match reply.status {
            200 if path == MESSAGES && reply.headers["content-type"] == "text/event-stream" => {
                anthropic::folded(&anthropic::events(&reply.text()));
                good += 1;
            }
            200 if path == RESPONSES && reply.headers["content-type"] == "text/event-stream" => {
                let events = responses::events(&reply.text());
                let last = &events.last().unwrap()["response"];
                assert_eq!(Value::from(responses::folded(&events)), last["output"], "{}", told());
                good += 1;
            }
            200 if reply.headers["content-type"] == "text/event-stream" => {
                let (events, is_done) = reply.events();
                assert!(is_done && events.iter().all(|event| event["error"].is_null()), "{}", told());
                good += 1;
            }
            200 => {
                assert!(reply.json().is_object(), "{}", told());
                good += 1;
            }
            400..500 => {
                match path.starts_with(MESSAGES) {
                    true => anthropic::error(&reply),
                    false => reply.envelope(),
                };
                refused += 1;
            }
            status => panic!("status {status}: {} {}", reply.text(), told()),
        }
    }
    assert!(
        good > refused / 10 && refused > good / 10,
        "{good} good, {refused} refused: the mix shows little"
    );
    server.rests().await;
}
