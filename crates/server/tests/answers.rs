//! What comes back for good requests: whole and streamed answers agree, and every field means what it says.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, Setup, chat_body, folded, merge};
use overshot_engine::StepLoop;
use serde_json::{Value, json};

const CALL: &str = "Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
    <｜DSML｜parameter name=\"id\" string=\"true\">A7</｜DSML｜parameter>\n\
    <｜DSML｜parameter name=\"scale\" string=\"false\">0.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
    <｜DSML｜invoke name=\"read_meter\">\n<｜DSML｜parameter name=\"id\" string=\"true\">B2</｜DSML｜parameter>\n\
    </｜DSML｜invoke>\n</｜DSML｜tool_calls>";

fn tools() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"id": {"type": "string"}, "scale": {"type": "number"}}});
    json!([{"type": "function", "function": {"name": "read_meter", "parameters": parameters, "strict": null}}])
}

/// The shapes of answers that a stream and a whole response must agree on.
fn cases() -> Vec<(&'static str, Value)> {
    vec![
        ("Hello, how are you?", json!({})),
        ("naïve 中文 😀 and \"quotes\" \\ \n\t lines", json!({})),
        ("6 * 4 = 24.</think>It is 24.", json!({"thinking": {"type": "enabled"}})),
        ("only thoughts", json!({"reasoning_effort": "high", "logprobs": true})),
        ("one two three four five six", json!({"max_tokens": 3})),
        ("one two END three", json!({"stop": "END", "logprobs": true, "top_logprobs": 2})),
        ("one two END three", json!({"stop": ["nothing", "END"], "thinking": {"type": "disabled"}})),
        ("a beginning of E", json!({"stop": "END"})),
        ("Thinking.</think>Text", json!({"enable_thinking": true, "logprobs": true, "top_logprobs": 3})),
        (CALL, json!({"tools": tools()})),
        (CALL, json!({"tools": tools(), "tool_choice": "none"})),
        (CALL, json!({"tools": tools(), "max_tokens": 40})),
        (CALL, json!({})),
        ("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">", json!({"tools": tools()})),
        ("three of me", json!({"n": 3, "seed": 5, "stream_options": {"include_usage": true}})),
    ]
}

#[tokio::test]
async fn a_stream_adds_up_to_the_whole_answer() {
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let server = Server::with(Setup { step_loop, ..Setup::default() });
        for (said, more) in cases() {
            let whole = server.chat(said, more.clone()).await;
            let mut body = chat_body(said, more.clone());
            merge(&mut body, json!({"stream": true, "stream_options": {"include_usage": true}}));
            let reply = server.post("/v1/chat/completions", &body).await;
            assert_eq!(
                (reply.status, &reply.headers["content-type"]),
                (200, &"text/event-stream".parse().unwrap())
            );
            let (mut events, is_done) = reply.events();
            assert!(is_done, "{said}");
            let usage = events.pop().unwrap();
            assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &whole["usage"]), "{said}");
            assert!(events.iter().all(|event| event["usage"].is_null()));
            for choice in whole["choices"].as_array().unwrap() {
                let streamed = folded(&events, choice["index"].as_u64().unwrap());
                let (mut expected, mut found) = (choice["message"].clone(), streamed["message"].clone());
                forget_ids(&mut expected);
                forget_ids(&mut found);
                assert_eq!(found, expected, "{said} {more}");
                assert_eq!(streamed["finish_reason"], choice["finish_reason"], "{said} {more}");
                for part in ["content", "reasoning_content"] {
                    let logprobs = choice["logprobs"][part].as_array().cloned().unwrap_or_default();
                    assert_eq!(streamed[part], Value::from(logprobs), "{said} {more}");
                }
            }
        }
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, 0, "normal ends are no aborts");
    }
}

/// Ids of calls are new in every answer.
fn forget_ids(message: &mut Value) {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        call["id"] = Value::Null;
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().unwrap().remove("tool_calls");
    }
}

#[tokio::test]
async fn thinking_and_calls_are_told_apart_from_content() {
    let server = Server::new();
    let answer = server.chat("Six fours.</think>24", json!({"reasoning_effort": "high"})).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message, &json!({"role": "assistant", "content": "24", "reasoning_content": "Six fours."}));
    let details = &answer["usage"]["completion_tokens_details"];
    let thought = common::tokenizer().encode("Six fours.").unwrap().len() + 1;
    assert_eq!(details["reasoning_tokens"], thought);

    let answer = server.chat(CALL, json!({"tools": tools()})).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let arguments: Vec<&str> =
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, [r#"{"id": "A7", "scale": 0.5}"#, r#"{"id": "B2"}"#]);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test]
async fn calls_stream_by_index_and_arguments_as_they_are_made() {
    let server = Server::new();
    let body = chat_body(CALL, json!({"tools": tools(), "stream": true}));
    let (events, _) = server.post("/v1/chat/completions", &body).await.events();
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    let indices: Vec<u64> = deltas.iter().map(|delta| delta["index"].as_u64().unwrap()).collect();
    assert!(indices.is_sorted() && indices.contains(&0) && indices.contains(&1), "{indices:?}");
    assert_eq!(deltas.iter().filter(|delta| delta.get("id").is_some()).count(), 2);
    assert!(deltas.len() > 6, "arguments come in pieces: {deltas:?}");
}

#[tokio::test]
async fn usage_counts_tokens_and_each_prompt_once() {
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let rendered = server.post("/v1/chat/completions/render", &body).await.json();
    let answer = server.chat("Hello", json!({"n": 4})).await;
    let answer_tokens = common::tokenizer().encode("Hello").unwrap().len() + 1;
    assert_eq!(answer["usage"]["prompt_tokens"], rendered["prompt_tokens"]);
    assert_eq!(answer["usage"]["completion_tokens"], 4 * answer_tokens);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn text_completions_take_every_form_of_prompt() {
    let server = Server::new();
    let ids = common::tokenizer().encode_with_specials("<｜begin▁of▁sentence｜>abc def").unwrap();
    for (prompt, expected) in [
        (json!("abc def"), vec!["abc def"]),
        (json!("<｜begin▁of▁sentence｜>abc def"), vec!["abc def"]),
        (json!(["abc", "def"]), vec!["abc", "def"]),
        (json!(ids), vec!["abc def"]),
        (json!([ids, ids]), vec!["abc def", "abc def"]),
    ] {
        let body = json!({"prompt": prompt, "n": 2, "logprobs": 1});
        let answer = server.post("/v1/completions", &body).await.json();
        let texts: Vec<&str> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        let expected: Vec<&str> = expected.iter().flat_map(|text| [*text; 2]).collect();
        assert_eq!(texts, expected, "{prompt}");
        let logprobs = &answer["choices"][0]["logprobs"];
        let tokens: String =
            logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        assert_eq!(tokens, texts[0]);
        assert_eq!(logprobs["text_offset"][0], 0);
    }
}

#[tokio::test]
async fn a_text_stream_adds_up_too() {
    let server = Server::new();
    for more in [json!({}), json!({"stop": " def"}), json!({"max_tokens": 2}), json!({"logprobs": 0})] {
        let mut body = json!({"prompt": "abc 中 def ghi"});
        merge(&mut body, more.clone());
        let whole = server.post("/v1/completions", &body).await.json();
        merge(&mut body, json!({"stream": true}));
        let (events, is_done) = server.post("/v1/completions", &body).await.events();
        let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
        let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap(), "{more}");
        let reasons: Vec<&Value> = choices
            .iter()
            .map(|choice| &choice["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        assert_eq!((reasons, is_done), (vec![&whole["choices"][0]["finish_reason"]], true), "{more}");
        let offsets =
            |choice: &Value| choice["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default();
        let streamed: Vec<Value> = choices.iter().flat_map(|choice| offsets(choice)).collect();
        assert_eq!(streamed, offsets(&whole["choices"][0]), "{more}");
    }
}

#[tokio::test]
async fn prompts_and_messages_can_be_looked_at() {
    let server = Server::new();
    let messages = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "<｜User｜>"}, {"type": "text", "text": "b"}], "x": 1},
    ]);
    let body = json!({"messages": messages, "reasoning_effort": "high", "unknown": {"a": []}});
    let rendered = server.post("/v1/chat/completions/render", &body).await.json();
    let expected = "<｜begin▁of▁sentence｜>Be brief.<｜User｜><｜User｜>\n\nb<｜Assistant｜><think>";
    assert_eq!(
        (rendered["prompt"].as_str(), rendered["start"].as_str()),
        (Some(expected), Some("reasoning"))
    );
    let tokenized = server.post("/tokenize", &body).await.json();
    assert_eq!(tokenized["tokens"], rendered["token_ids"]);
    let back = server.post("/detokenize", &json!({"tokens": rendered["token_ids"]})).await.json();
    assert_eq!(back["prompt"], expected);

    let ids = common::tokenizer().encode_with_specials(&format!("hm</think>{CALL}")).unwrap();
    let body = json!({"token_ids": ids, "tools": tools(), "enable_thinking": true});
    let message = server.post("/v1/chat/completions/derender", &body).await.json();
    assert_eq!(message["finish_reason"], "tool_calls");
    assert_eq!(message["message"]["reasoning_content"], "hm");
    assert_eq!(message["message"]["tool_calls"].as_array().unwrap().len(), 2);
    let plain = server.post("/tokenize", &json!({"prompt": "abc", "add_special_tokens": false})).await.json();
    assert_eq!(plain["tokens"], json!(common::tokenizer().encode("abc").unwrap()));
}

#[tokio::test]
async fn models_and_health_are_told() {
    let server = Server::new();
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], common::MODEL);
    for path in ["/v1/models/deepseek/parrot", "/v1/models/deepseek%2Fparrot"] {
        assert_eq!(server.get(path).await.json()["id"], common::MODEL);
    }
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/ready").await.status, 200);
    assert!(server.get("/metrics").await.text().contains("overshot_http_responses_total{route=\"/health\""));
}

#[tokio::test]
async fn an_assistants_message_can_be_continued() {
    let server = Server::new();
    let messages = json!([
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "one two", "prefix": true},
    ]);
    let rendered = server.post("/v1/chat/completions/render", &json!({"messages": messages})).await.json();
    assert!(rendered["prompt"].as_str().unwrap().ends_with("</think>one two"), "{rendered}");
}
