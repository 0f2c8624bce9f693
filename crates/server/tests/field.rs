//! Symptoms that other servers showed to their users, each as a test that would show it here. Answers come whole and
//! streamed, by tokens and byte by byte, and must be the same in all four.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, chat_body, folded, merge};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const CHAT: &str = "/v1/chat/completions";

fn parameter(name: &str, string: bool, value: &str) -> String {
    format!("<｜DSML｜parameter name=\"{name}\" string=\"{string}\">{value}</｜DSML｜parameter>\n")
}

fn invoke(name: &str, parameters: &str) -> String {
    format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>\n")
}

fn block(inside: &str) -> String {
    format!("\n\n<｜DSML｜tool_calls>\n{inside}</｜DSML｜tool_calls>")
}

/// Declares functions `read` (of those properties) and `other`.
fn tools(properties: Value) -> Value {
    json!({"tools": [
        {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": properties}}},
        {"type": "function", "function": {"name": "other"}},
    ]})
}

/// The one choice, and the chunks of its stream.
struct Told {
    message: Value,
    finish_reason: String,
    chunks: Vec<Value>,
}

impl Told {
    fn arguments(&self) -> Vec<&str> {
        let calls = self.message["tool_calls"].as_array().into_iter().flatten();
        calls.map(|call| call["function"]["arguments"].as_str().unwrap()).collect()
    }

    fn content(&self) -> &str {
        self.message["content"].as_str().unwrap_or_default()
    }

    fn reasoning(&self) -> &str {
        self.message["reasoning_content"].as_str().unwrap_or_default()
    }

    fn unparsed(&self) -> &str {
        self.message["unparsed_tool_text"].as_str().unwrap_or_default()
    }
}

/// Has the model say something, in all four ways.
async fn tell(said: &str, more: Value) -> Told {
    let server = Server::new();
    let mut told: Option<Told> = None;
    for spells in [false, true] {
        server.control.spells.store(spells, Ordering::SeqCst);
        let whole = server.chat(said, more.clone()).await["choices"][0].take();
        let mut body = chat_body(said, more.clone());
        merge(&mut body, json!({"stream": true}));
        let (chunks, is_done) = server.post(CHAT, &body).await.events();
        assert!(is_done);
        let finishes = chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null());
        assert_eq!(finishes.count(), 1, "exactly one finish chunk");
        let streamed = folded(&chunks, 0);
        assert_eq!(plain(&streamed["message"]), plain(&whole["message"]), "{said}");
        assert_eq!(streamed["finish_reason"], whole["finish_reason"], "{said}");
        if let (Some(told), false) = (&told, more.get("max_tokens").is_some()) {
            assert_eq!(plain(&told.message), plain(&whole["message"]), "byte by byte: {said}");
        }
        let finish_reason = whole["finish_reason"].as_str().unwrap().to_owned();
        told.get_or_insert(Told { message: whole["message"].clone(), finish_reason, chunks });
    }
    server.rests().await;
    assert_eq!(server.outcome("disconnected").await, 0, "normal ends are no aborts");
    told.unwrap()
}

/// A message without what differs between two answers, or between ways of telling it.
fn plain(message: &Value) -> Value {
    let mut message = message.clone();
    let fields = message.as_object_mut().unwrap();
    let calls = fields.remove("tool_calls").unwrap_or_default();
    if fields["content"] == "" {
        fields["content"] = Value::Null;
    }
    let calls = calls.as_array().into_iter().flatten().map(|call| call["function"].clone());
    message["calls"] = calls.collect();
    message
}

#[tokio::test]
async fn a_closing_parameter_tag_split_over_chunks_is_no_argument() {
    let said = block(&invoke("read", &parameter("path", true, "a < b </ c 2>&1")));
    let told = tell(&said, tools(json!({"path": {"type": "string"}}))).await;
    assert_eq!(told.arguments(), [r#"{"path": "a < b </ c 2>&1"}"#]);
    assert_eq!((told.content(), told.finish_reason.as_str()), ("", "tool_calls"));
}

#[tokio::test]
async fn a_malformed_block_is_neither_shown_nor_lost() {
    for said in [
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read\">\n<｜DSML｜parameter name=\"path\"",
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read\">\n",
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"not a name\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ] {
        let told = tell(&format!("Before.{said}"), tools(json!({"path": {}}))).await;
        assert_eq!((told.content(), told.finish_reason.as_str()), ("Before.", "stop"), "{said}");
        assert!(told.arguments().is_empty(), "{said}");
        assert!(
            told.unparsed().contains("DSML") && told.unparsed().contains("invoke"),
            "{:?}",
            told.unparsed()
        );
    }
}

#[tokio::test]
async fn arguments_wrapped_in_one_parameter_are_unwrapped_unless_that_is_the_parameter() {
    let wrapped = block(&invoke("read", &parameter("arguments", false, r#"{"path": "a"}"#)));
    let told = tell(&wrapped, tools(json!({"path": {}}))).await;
    assert_eq!(told.arguments(), [r#"{"path": "a"}"#]);
    let told = tell(&wrapped, tools(json!({"arguments": {}}))).await;
    assert_eq!(told.arguments(), [r#"{"arguments": {"path": "a"}}"#]);
}

#[tokio::test]
async fn booleans_and_numbers_keep_their_types() {
    let parameters = [
        parameter("deep", false, "true"),
        parameter("count", false, "1.50"),
        parameter("word", true, "true"),
        parameter("none", false, "null"),
    ];
    let told = tell(&block(&invoke("read", &parameters.concat())), tools(json!({"deep": {}}))).await;
    assert_eq!(told.arguments(), [r#"{"deep": true, "count": 1.50, "word": "true", "none": null}"#]);
}

#[tokio::test]
async fn a_value_that_is_no_json_becomes_a_string_not_broken_json() {
    for (value, expected) in [("{a: 1}", r#""{a: 1}""#), ("yes", r#""yes""#), ("[1, 2", r#""[1, 2""#)] {
        let told =
            tell(&block(&invoke("read", &parameter("x", false, value))), tools(json!({"x": {}}))).await;
        let arguments: Value = serde_json::from_str(told.arguments()[0]).unwrap();
        assert_eq!(arguments["x"].to_string(), expected);
    }
}

#[tokio::test]
async fn calls_that_nobody_declared_are_no_calls() {
    let call = block(&invoke("read", &parameter("path", true, "a")));
    let mut none = tools(json!({"path": {}}));
    merge(&mut none, json!({"tool_choice": "none"}));
    for more in [json!({}), none] {
        let told = tell(&format!("Text.{call}"), more).await;
        assert_eq!((told.content(), told.finish_reason.as_str()), ("Text.", "stop"));
        assert!(told.arguments().is_empty() && told.unparsed().contains("read"));
    }
}

#[tokio::test]
async fn an_end_token_alone_in_the_last_step_still_ends_in_tool_calls() {
    // The parrot draws its end token in a step of its own.
    let told = tell(&block(&invoke("other", "")), tools(json!({}))).await;
    assert_eq!((told.arguments(), told.finish_reason.as_str()), (vec!["{}"], "tool_calls"));
    let last = told.chunks.last().unwrap();
    assert_eq!(
        (&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]),
        (&json!({}), &json!("tool_calls"))
    );
}

#[tokio::test]
async fn parallel_calls_have_indices_and_ids_of_their_own() {
    let calls = (0..4).map(|call| invoke("read", &parameter("path", true, &call.to_string())));
    let told = tell(&block(&calls.collect::<String>()), tools(json!({"path": {}}))).await;
    assert_eq!(told.arguments().len(), 4);
    let started: Vec<&Value> = told
        .chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0))
        .filter(|call| call.get("id").is_some())
        .collect();
    let indices: Vec<u64> = started.iter().map(|call| call["index"].as_u64().unwrap()).collect();
    let ids: std::collections::BTreeSet<&str> =
        started.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!((indices, ids.len()), (vec![0, 1, 2, 3], 4));
}

#[tokio::test]
async fn arguments_stream_while_they_are_made() {
    let text = "a long value that has many words ".repeat(20);
    let told =
        tell(&block(&invoke("read", &parameter("path", true, &text))), tools(json!({"path": {}}))).await;
    let pieces = told
        .chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str());
    assert!(pieces.filter(|piece| !piece.is_empty()).count() > 50);
}

#[tokio::test]
async fn a_stream_cut_inside_a_call_is_not_reported_as_complete() {
    let call = block(&invoke("read", &parameter("path", true, &"word ".repeat(60))));
    let mut more = tools(json!({"path": {}}));
    merge(&mut more, json!({"max_tokens": 40}));
    let told = tell(&call, more).await;
    assert_eq!(told.finish_reason, "length");
    assert!(told.arguments().iter().all(|arguments| !arguments.ends_with('}')), "{:?}", told.arguments());
}

#[tokio::test]
async fn the_prompt_decides_whether_an_answer_begins_with_thoughts() {
    let said = "Six fours.</think>24";
    let told = tell(said, json!({"thinking": {"type": "enabled"}})).await;
    assert_eq!((told.reasoning(), told.content()), ("Six fours.", "24"));
    for more in [json!({"chat_template_kwargs": {"thinking": true}}), json!({"reasoning_effort": "max"})] {
        assert_eq!(tell(said, more).await.reasoning(), "Six fours.");
    }
    let told = tell("plain", json!({"thinking": {"type": "disabled"}, "reasoning_effort": "high"})).await;
    assert_eq!((told.reasoning(), told.content()), ("", "plain"));
}

#[tokio::test]
async fn tags_do_not_leak_when_thinking_is_off() {
    for said in ["</think>24", "<think></think>24", "<think>Six fours.</think>24", "24"] {
        let told = tell(said, json!({"enable_thinking": false})).await;
        assert_eq!(told.content(), "24", "{said}");
    }
}

#[tokio::test]
async fn an_empty_visible_answer_keeps_the_reasoning() {
    for (said, more) in [
        ("only thoughts", json!({"enable_thinking": true})),
        ("only thoughts</think>", json!({"enable_thinking": true})),
        ("only thoughts", json!({"enable_thinking": true, "stop": "never"})),
    ] {
        let told = tell(said, more).await;
        assert_eq!((told.reasoning(), told.content()), ("only thoughts", ""));
    }
}

#[tokio::test]
async fn histories_with_and_without_reasoning_are_read() {
    let server = Server::new();
    let rendered = async |fields: Value| {
        let mut answer = json!({"role": "assistant", "content": "24"});
        merge(&mut answer, fields);
        let messages =
            json!([{"role": "user", "content": "6*4?"}, answer, {"role": "user", "content": "And?"}]);
        let reply = server.post("/v1/chat/completions/render", &json!({"messages": messages})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["prompt"].as_str().unwrap().to_owned()
    };
    let without = rendered(json!({})).await;
    for fields in [json!({"reasoning_content": null}), json!({"reasoning_content": ""})] {
        assert_eq!(rendered(fields).await, without);
    }
    assert!(without.contains("24") && !rendered(json!({"reasoning_content": "hm"})).await.is_empty());
}

#[tokio::test]
async fn messages_of_the_wrong_type_are_refused_at_once() {
    let server = Server::new();
    for messages in
        [json!("hello"), json!(5), json!({"role": "user"}), json!([[]]), json!(["x"]), Value::Null]
    {
        let body = json!({"messages": messages, "stream": true});
        let reply =
            tokio::time::timeout(std::time::Duration::from_secs(10), server.post(CHAT, &body)).await.unwrap();
        assert_eq!(reply.status, 400, "{messages}");
        assert!(
            reply.envelope()["param"].as_str().is_some_and(|param| param.starts_with("messages")),
            "{messages}"
        );
    }
}

#[tokio::test]
async fn completion_tokens_are_tokens_not_events() {
    let server = Server::new();
    let said = "naïve 中文 😀 words";
    let body = chat_body(said, json!({"stream": true, "stream_options": {"include_usage": true}}));
    for spells in [false, true] {
        server.control.spells.store(spells, Ordering::SeqCst);
        let (chunks, _) = server.post(CHAT, &body).await.events();
        let drawn = if spells { said.len() } else { common::tokenizer().encode(said).unwrap().len() } + 1;
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], drawn);
        assert!(chunks.len() - 3 <= drawn, "fewer pieces than tokens where characters are split");
    }
}

#[tokio::test]
async fn several_answers_do_not_overwrite_each_other() {
    let server = Server::new();
    let body = chat_body("one two three", json!({"stream": true, "n": 3}));
    let (chunks, _) = server.post(CHAT, &body).await.events();
    for choice in 0..3 {
        let told = folded(&chunks, choice);
        assert_eq!(
            (&told["message"]["content"], &told["finish_reason"]),
            (&json!("one two three"), &json!("stop"))
        );
    }
}

#[tokio::test]
async fn finish_reasons_say_what_happened() {
    let call = block(&invoke("other", ""));
    for (said, more, reason) in [
        ("words", json!({}), "stop"),
        ("some words", json!({"max_tokens": 1}), "length"),
        ("one END", json!({"stop": "END"}), "stop"),
        (call.as_str(), tools(json!({})), "tool_calls"),
    ] {
        assert_eq!(tell(said, more).await.finish_reason, reason, "{said}");
    }
}

#[tokio::test]
async fn stop_strings_work_across_tokens_and_on_every_endpoint() {
    let said = "alpha beta gamma delta";
    for stop in ["a gam", "gamma", "mma d", " "] {
        let expected = &said[..said.find(stop).unwrap()];
        assert_eq!(tell(said, json!({"stop": [stop]})).await.content(), expected, "{stop}");
        let server = Server::new();
        for stream in [false, true] {
            let body = json!({"prompt": said, "stop": stop, "stream": stream});
            let reply = server.post("/v1/completions", &body).await;
            let text: String = match stream {
                false => reply.json()["choices"][0]["text"].as_str().unwrap().to_owned(),
                true => reply
                    .events()
                    .0
                    .iter()
                    .map(|event| event["choices"][0]["text"].as_str().unwrap())
                    .collect(),
            };
            assert_eq!(text, expected, "{stop}");
        }
    }
}

#[tokio::test]
async fn emoji_are_never_split_into_replacement_characters() {
    let said = "👩‍👩‍👧‍👦 中文 é 😀";
    let told = tell(said, json!({})).await;
    assert_eq!(told.content(), said);
    assert!(told.chunks.iter().all(|chunk| !chunk.to_string().contains('\u{fffd}')));
    let call = block(&invoke("read", &parameter("path", true, said)));
    let told = tell(&call, tools(json!({"path": {}}))).await;
    assert_eq!(serde_json::from_str::<Value>(told.arguments()[0]).unwrap()["path"], said);
}
