//! `/v1/responses` through the router: streams add up to whole responses for every shape of answer, what is kept can be
//! fetched and continued, what runs in the background can be followed and cancelled.

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use common::backend::POISON;
use common::responses::{events, folded, kinds};
use common::{Reply, Server, Setup, merge};
use overshot_engine::StepLoop;
use overshot_server::{ServerLimits, router};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tower::ServiceExt;

const PATH: &str = "/v1/responses";

const CALL: &str = "Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
    <｜DSML｜parameter name=\"id\" string=\"true\">A7</｜DSML｜parameter>\n\
    <｜DSML｜parameter name=\"scale\" string=\"false\">0.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
    <｜DSML｜invoke name=\"patch\">\n<｜DSML｜parameter name=\"input\" string=\"true\">*** é \"q\"\n+x</｜DSML｜parameter>\n\
    </｜DSML｜invoke>\n</｜DSML｜tool_calls>";

/// Announced, and broken off by the end of the text.
const BROKEN: &str = "Look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
    <｜DSML｜parameter name=\"id\" string=\"true\">A7";

fn tools() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"id": {"type": "string"}, "scale": {"type": "number"}}});
    json!([
        {"type": "function", "name": "read_meter", "parameters": parameters, "strict": null},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": false},
    ])
}

fn body(said: &str, more: Value) -> Value {
    let mut body = json!({"model": common::MODEL, "input": said});
    merge(&mut body, more);
    body
}

/// The shapes of answers that a stream and a whole response must agree on.
fn cases() -> Vec<(&'static str, Value)> {
    let logprobs = json!(["message.output_text.logprobs"]);
    vec![
        ("Hello, how are you?", json!({})),
        ("naïve 中文 😀 and \"quotes\" \\ \n\t lines", json!({})),
        ("6 * 4 = 24.</think>It is 24.", json!({"reasoning": {"effort": "high", "summary": "auto"}})),
        ("hm</think>so", json!({"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]})),
        ("only thoughts", json!({"reasoning": {"effort": "high"}, "include": logprobs})),
        ("one two three four five six", json!({"max_output_tokens": 3})),
        ("one two three four five six", json!({"max_output_tokens": 3, "reasoning": {"effort": "max"}})),
        ("one two END three", json!({"stop": "END", "include": logprobs, "top_logprobs": 2})),
        ("a beginning of E", json!({"stop": "END"})),
        ("hm</think>Text", json!({"reasoning": {"effort": "high"}, "include": logprobs, "top_logprobs": 3})),
        (CALL, json!({"tools": tools()})),
        (CALL, json!({"tools": tools(), "include": logprobs})),
        (CALL, json!({"tools": tools(), "tool_choice": "none"})),
        (CALL, json!({"tools": tools(), "max_output_tokens": 40})),
        (CALL, json!({"tools": tools(), "max_output_tokens": 90})),
        (CALL, json!({})),
        (BROKEN, json!({"tools": tools()})),
        ("", json!({"instructions": "Say nothing."})),
    ]
}

/// Without what is new in every response.
fn timeless(response: &Value) -> Value {
    let mut response = response.clone();
    let digits = response["id"].as_str().unwrap().trim_start_matches("resp_").to_owned();
    for field in ["id", "created_at", "completed_at"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        assert!(item["id"].as_str().unwrap().contains(&digits), "{item}");
        item["id"] = Value::Null;
        if let Some(id) = item.get_mut("call_id") {
            assert!(id.as_str().unwrap().starts_with("call_"));
            *id = Value::Null;
        }
    }
    response
}

async fn whole(server: &Server, said: &str, more: Value) -> Value {
    let reply = server.post(PATH, &body(said, more)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn streamed(server: &Server, said: &str, mut more: Value) -> Vec<Value> {
    more["stream"] = json!(true);
    let reply = server.post(PATH, &body(said, more)).await;
    assert_eq!((reply.status, &reply.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    let events = events(&reply.text());
    assert_eq!(events[0]["sequence_number"], 0);
    events
}

/// Waits for a response in the background to end.
async fn ended(server: &Server, id: &str) -> Value {
    loop {
        let response = server.get(&format!("{PATH}/{id}")).await.json();
        if !matches!(response["status"].as_str().unwrap(), "queued" | "in_progress") {
            return response;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn stream_whole_and_background_agree() {
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let server = Server::with(Setup { step_loop, ..Setup::default() });
        for (said, more) in cases() {
            let whole = whole(&server, said, more.clone()).await;
            let events = streamed(&server, said, more.clone()).await;
            let kinds = kinds(&events);
            assert_eq!(kinds[..2], ["created", "in_progress"], "{said}");
            assert_eq!(*kinds.last().unwrap(), whole["status"].as_str().unwrap(), "{said} {more}");
            let last = &events.last().unwrap()["response"];
            assert_eq!(timeless(last), timeless(&whole), "{said} {more}");
            assert_eq!(Value::from(folded(&events)), last["output"], "{said} {more}");

            let mut more = more;
            more["background"] = json!(true);
            let reply = server.post(PATH, &body(said, more)).await.json();
            assert_eq!((reply["status"].as_str(), &reply["background"]), (Some("queued"), &json!(true)));
            let mut fetched = timeless(&ended(&server, reply["id"].as_str().unwrap()).await);
            fetched["background"] = json!(false);
            assert_eq!(fetched, timeless(&whole), "{said}");
        }
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, 0, "normal ends are no aborts");
    }
}

#[tokio::test]
async fn thinking_text_and_calls_are_items_of_their_own() {
    let server = Server::new();
    let answer = whole(&server, "Six fours.</think>24", json!({"reasoning": {"effort": "high"}})).await;
    let output = &answer["output"];
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "Six fours."}]));
    assert_eq!(output[1]["content"][0]["text"], "24");
    let thought = common::tokenizer().encode("Six fours.").unwrap().len() + 1;
    assert_eq!(answer["usage"]["output_tokens_details"]["reasoning_tokens"], thought);
    let total = answer["usage"]["input_tokens"].as_u64().unwrap()
        + answer["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["total_tokens"], total);

    let answer = whole(&server, CALL, json!({"tools": tools()})).await;
    let kinds: Vec<&str> =
        answer["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call", "custom_tool_call"]);
    assert_eq!(answer["output"][1]["arguments"], r#"{"id": "A7", "scale": 0.5}"#);
    assert_eq!(answer["output"][2]["input"], "*** é \"q\"\n+x");
    assert_eq!(answer["status"], "completed");
}

#[tokio::test]
async fn arguments_stream_as_they_are_made() {
    let server = Server::new();
    let events = streamed(&server, CALL, json!({"tools": tools()})).await;
    let deltas = kinds(&events).iter().filter(|kind| **kind == "function_call_arguments.delta").count();
    assert!(deltas > 3, "{deltas}");
}

#[tokio::test]
async fn a_call_that_is_not_whole_is_never_done() {
    let server = Server::new();
    let cut = json!({"tools": tools(), "max_output_tokens": 40});
    for (said, more, status) in [(CALL, cut, "incomplete"), (BROKEN, json!({"tools": tools()}), "completed")]
    {
        let events = streamed(&server, said, more).await;
        let kinds = kinds(&events);
        let dones = events.iter().filter(|event| event["type"] == "response.output_item.done");
        assert!(dones.into_iter().all(|event| event["item"]["type"] == "message"), "{events:?}");
        assert!(!kinds.contains(&"function_call_arguments.done"));
        assert_eq!(*kinds.last().unwrap(), status);
        let output = &events.last().unwrap()["response"]["output"];
        assert_eq!(
            (&output[1]["type"], &output[1]["status"]),
            (&json!("function_call"), &json!("incomplete"))
        );
        let arguments = output[1]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(arguments).is_err(), "{arguments}");
    }
    let answer = whole(&server, BROKEN, json!({"tools": tools()})).await;
    let last = answer["output"].as_array().unwrap().last().unwrap().clone();
    assert!(last["unparsed_tool_text"].as_str().unwrap().contains("invoke name=\"read_meter\""), "{last}");
    assert_eq!(last["content"], json!([]));
}

#[tokio::test]
async fn created_comes_before_anything_is_computed() {
    let server = Server::new();
    server.control.hold();
    let response =
        router(server.app.clone()).oneshot(request(&body("x", json!({"stream": true})))).await.unwrap();
    let mut stream = response.into_body();
    let frame = http_body_util::BodyExt::frame(&mut stream).await.unwrap().unwrap();
    let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
    assert_eq!(kinds(&events(&text)), ["created", "in_progress"]);
    server.control.release();
}

#[tokio::test]
async fn kept_responses_are_fetched_continued_and_deleted() {
    let server = Server::new();
    let more = json!({"instructions": "Be brief.", "metadata": {"a": "b"}, "tools": tools()});
    let first = whole(&server, CALL, more).await;
    let id = first["id"].as_str().unwrap();
    let path = format!("{PATH}/{id}");
    assert_eq!(server.get(&path).await.json(), first);
    assert_eq!((&first["instructions"], &first["metadata"]), (&json!("Be brief."), &json!({"a": "b"})));

    let results: Vec<Value> = first["output"].as_array().unwrap()[1..]
        .iter()
        .map(|call| json!({"type": format!("{}_output", call["type"].as_str().unwrap()), "call_id": call["call_id"], "output": "41"}))
        .collect();
    let input: Vec<Value> = results.into_iter().chain([json!({"role": "user", "content": "And?"})]).collect();
    let again = json!({"input": input, "previous_response_id": id, "tools": tools()});
    let second = server.post(PATH, &again).await.json();
    assert_eq!(second["previous_response_id"], id);

    // The same conversation with all of its items has the same prompt.
    let mut items = vec![json!({"role": "user", "content": CALL})];
    items.extend(first["output"].as_array().unwrap().iter().cloned());
    items.extend(input);
    let spelled_out = json!({"input": items, "tools": tools()});
    let counted = server.post(&format!("{PATH}/input_tokens"), &spelled_out).await.json();
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(second["usage"]["input_tokens"], counted["input_tokens"]);

    let referring = json!({"input": [{"id": first["output"][0]["id"]}, {"role": "user", "content": "x"}]});
    assert_eq!(server.post(PATH, &referring).await.status, 200);

    let deleted = server.send("DELETE", &path, None, Body::empty()).await;
    assert_eq!(deleted.json(), json!({"id": id, "object": "response", "deleted": true}));
    for (reply, status, code) in [
        (server.get(&path).await, 404, "response_not_found"),
        (server.post(PATH, &again).await, 400, "previous_response_not_found"),
        (server.post(PATH, &referring).await, 400, "invalid_value"),
    ] {
        assert_eq!((reply.status, reply.envelope()["code"].as_str()), (status, Some(code)));
    }
}

#[tokio::test]
async fn what_is_not_to_be_kept_is_not() {
    let server = Server::new();
    for more in [json!({"store": false}), json!({"store": false, "stream": true})] {
        let reply = server.post(PATH, &body("x", more)).await;
        let id = match serde_json::from_slice::<Value>(&reply.body) {
            Ok(response) => response["id"].as_str().unwrap().to_owned(),
            Err(_) => events(&reply.text())[0]["response"]["id"].as_str().unwrap().to_owned(),
        };
        assert_eq!(server.get(&format!("{PATH}/{id}")).await.status, 404);
    }
    let reply = server.post(PATH, &body("x", json!({"store": false, "background": true}))).await;
    assert_eq!(reply.envelope()["param"], "background");
}

#[tokio::test]
async fn input_items_come_in_pages() {
    let server = Server::new();
    let said: Vec<Value> = (0..5).map(|n| json!({"role": "user", "content": format!("{n}")})).collect();
    let response = server.post(PATH, &json!({"input": said})).await.json();
    let path = format!("{PATH}/{}/input_items", response["id"].as_str().unwrap());
    let all = server.get(&path).await.json();
    assert_eq!((all["object"].as_str(), all["data"].as_array().unwrap().len()), (Some("list"), 5));
    assert_eq!(all["data"][0]["content"], json!([{"type": "input_text", "text": "4"}]));
    assert_eq!((&all["first_id"], &all["has_more"]), (&all["data"][0]["id"], &json!(false)));
    let page = server.get(&format!("{path}?limit=2&order=asc")).await.json();
    assert_eq!((&page["data"][1]["content"][0]["text"], &page["has_more"]), (&json!("1"), &json!(true)));
    let after = page["last_id"].as_str().unwrap();
    let page = server.get(&format!("{path}?limit=3&order=asc&after={after}")).await.json();
    assert_eq!((&page["data"][0]["content"][0]["text"], &page["has_more"]), (&json!("2"), &json!(false)));
    for wrong in ["limit=0", "limit=101", "limit=x", "order=up", "after=nobody"] {
        let reply = server.get(&format!("{path}?{wrong}")).await;
        assert_eq!(reply.status, 400, "{wrong}");
        assert_eq!(reply.envelope()["param"], wrong.split('=').next().unwrap());
    }
}

#[tokio::test]
async fn the_store_is_bounded_by_count_and_by_bytes() {
    let limits = ServerLimits { kept_responses: 3, ..ServerLimits::default() };
    let server = bounded(limits);
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(whole(&server, &format!("number {n}"), json!({})).await["id"].as_str().unwrap().to_owned());
        // The first is used again and again, and outlives others.
        server.get(&format!("{PATH}/{}", ids[0])).await;
    }
    assert_eq!(there(&server, &ids).await, [true, false, false, true, true]);

    let server = bounded(ServerLimits { kept_bytes: 6000, ..ServerLimits::default() });
    let long = "long ".repeat(300);
    let mut ids = Vec::new();
    for said in ["short", "brief", &long, "last"] {
        ids.push(whole(&server, said, json!({})).await["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(there(&server, &ids).await, [false, false, true, true]);
    let huge = "x".repeat(7000);
    let more = json!({"user": huge, "background": true, "max_output_tokens": 2});
    let reply = server.post(PATH, &body("too much", more)).await;
    assert_eq!((reply.status, reply.envelope()["code"].as_str()), (429, Some("queue_full")));
    server.rests().await;
}

fn bounded(limits: ServerLimits) -> Server {
    let mut setup = Setup::default();
    setup.options.limits = limits;
    Server::with(setup)
}

async fn there(server: &Server, ids: &[String]) -> Vec<bool> {
    let mut there = Vec::new();
    for id in ids {
        there.push(server.get(&format!("{PATH}/{id}")).await.status == 200);
    }
    there
}

#[tokio::test]
async fn chains_are_bounded() {
    let server = bounded(ServerLimits { chained_responses: 2, ..ServerLimits::default() });
    let mut previous = Value::Null;
    for _ in 0..3 {
        let answer = whole(&server, "x", json!({"previous_response_id": previous})).await;
        previous = answer["id"].clone();
    }
    let reply = server.post(PATH, &body("x", json!({"previous_response_id": previous}))).await;
    let error = reply.envelope();
    assert_eq!((reply.status, error["param"].as_str()), (400, Some("previous_response_id")));
}

fn slow_server() -> Server {
    let server = Server::new();
    server.control.step_microseconds.store(2000, Ordering::SeqCst);
    server
}

fn forever(more: Value) -> Value {
    let mut fields = json!({"max_output_tokens": 1900});
    merge(&mut fields, more);
    body("forever and ever ", fields)
}

fn request(body: &Value) -> Request<Body> {
    let request = Request::builder().method("POST").uri(PATH).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

#[tokio::test]
async fn cancelling_frees_the_engine() {
    let server = slow_server();
    for ending in ["cancel", "delete"] {
        let response = server.post(PATH, &forever(json!({"background": true}))).await.json();
        let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
        server.reaches("overshot_requests_running", 1).await;
        while server.get(&path).await.json()["status"] != "in_progress" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if ending == "delete" {
            assert_eq!(server.send("DELETE", &path, None, Body::empty()).await.status, 200);
            assert_eq!(server.get(&path).await.status, 404);
        } else {
            let cancelled = server.post(&format!("{path}/cancel"), &json!({})).await.json();
            assert_eq!(
                (&cancelled["status"], &cancelled["output"][0]["status"]),
                (&json!("cancelled"), &json!("incomplete"))
            );
            server.reaches("overshot_answers_total{outcome=\"cancelled\"}", 1).await;
            let again = server.post(&format!("{path}/cancel"), &json!({})).await;
            assert_eq!((again.status, again.json()), (200, cancelled.clone()));
            assert_eq!(server.get(&path).await.json(), cancelled);
        }
        server.rests().await;
    }
    assert_eq!((server.outcome("cancelled").await, server.outcome("disconnected").await), (2, 0));
    let answer = whole(&server, "x", json!({})).await;
    let reply = server.post(&format!("{PATH}/{}/cancel", answer["id"].as_str().unwrap()), &json!({})).await;
    assert_eq!(reply.status, 400);
}

#[tokio::test]
async fn clients_that_leave_cancel_unless_in_the_background() {
    let server = slow_server();
    let response =
        router(server.app.clone()).oneshot(request(&forever(json!({"stream": true})))).await.unwrap();
    server.reaches("overshot_generated_tokens_total", 3).await;
    drop(response);
    server.rests().await;
    assert_eq!(server.outcome("disconnected").await, 1);
    let whole = tokio::spawn(router(server.app.clone()).oneshot(request(&forever(json!({})))));
    server.reaches("overshot_requests_running", 1).await;
    whole.abort();
    server.rests().await;
    assert_eq!(server.outcome("disconnected").await, 2);

    let more = json!({"stream": true, "background": true, "max_output_tokens": 30});
    let response = router(server.app.clone()).oneshot(request(&forever(more))).await.unwrap();
    server.reaches("overshot_requests_running", 1).await;
    drop(response);
    server.rests().await;
    assert_eq!(server.outcome("length").await, 1);
}

#[tokio::test]
async fn a_stream_in_the_background_can_be_joined_anywhere() {
    let server = slow_server();
    let more = json!({"stream": true, "background": true, "max_output_tokens": 40});
    let first = server.post(PATH, &forever(more)).await;
    let all = events(&first.text());
    assert_eq!(kinds(&all)[..3], ["created", "queued", "in_progress"]);
    let last = &all.last().unwrap()["response"];
    assert_eq!(Value::from(folded(&all)), last["output"]);
    let path = format!("{PATH}/{}", last["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.json(), *last);
    assert_eq!(events(&server.get(&format!("{path}?stream=true")).await.text()), all);
    let rest = server.get(&format!("{path}?stream=true&starting_after=5")).await;
    assert_eq!(events(&rest.text()), all[6..]);
    let nothing = server.get(&format!("{path}?stream=true&starting_after={}", u64::MAX)).await;
    assert_eq!((nothing.status, nothing.text().as_str()), (200, ""));
    assert_eq!(server.get(&format!("{path}?stream=true&starting_after=x")).await.status, 400);
    let other = whole(&server, "x", json!({})).await;
    let reply = server.get(&format!("{PATH}/{}?stream=true", other["id"].as_str().unwrap())).await;
    assert_eq!(reply.envelope()["param"], "stream");
}

#[tokio::test]
async fn readers_hear_how_it_ended() {
    for (ending, status) in [("cancel", "cancelled"), ("stop", "failed")] {
        let server = slow_server();
        let more = json!({"stream": true, "background": true});
        let response = router(server.app.clone()).oneshot(request(&forever(more))).await.unwrap();
        let mut body = response.into_body();
        let first = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap().into_data().unwrap();
        let mut text = String::from_utf8(first.to_vec()).unwrap();
        let id = events(&text)[0]["response"]["id"].as_str().unwrap().to_owned();
        let reading = tokio::spawn(async move { to_bytes(body, usize::MAX).await.unwrap().to_vec() });
        server.reaches("overshot_generated_tokens_total", 5).await;
        match ending {
            "cancel" => {
                let reply = server.post(&format!("{PATH}/{id}/cancel"), &json!({})).await;
                assert_eq!(reply.status, 200);
            }
            _ => server.app.engine.stop(),
        }
        text.push_str(&String::from_utf8(reading.await.unwrap()).unwrap());
        let all = events(&text);
        assert_eq!(*kinds(&all).last().unwrap(), status);
        let fetched = server.get(&format!("{PATH}/{id}")).await.json();
        assert_eq!((&fetched["status"], &fetched), (&json!(status), &all.last().unwrap()["response"]));
    }
}

#[tokio::test]
async fn a_log_that_is_full_says_what_is_gone() {
    let server = bounded(ServerLimits { background_log_bytes: 3000, ..ServerLimits::default() });
    let more = json!({"background": true, "stream": true, "max_output_tokens": 60});
    let reply = server.post(PATH, &forever(more)).await;
    let text = reply.text();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    ended(&server, &id).await;
    let reply = server.get(&format!("{PATH}/{id}?stream=true")).await;
    let gone = events(&reply.text());
    assert_eq!(
        (gone.len(), gone[0]["type"].as_str(), gone[0]["code"].as_str()),
        (1, Some("error"), Some("events_gone"))
    );
    let first: u64 = {
        let message = gone[0]["message"].as_str().unwrap();
        message.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty()).unwrap().parse().unwrap()
    };
    let path = format!("{PATH}/{id}?stream=true&starting_after={}", first - 1);
    assert_eq!(*kinds(&events(&server.get(&path).await.text())).last().unwrap(), "incomplete");
}

#[tokio::test]
async fn an_answer_that_fails_says_so_in_every_form() {
    let server = Server::new();
    let said = format!("some {POISON} here please");
    let reply = server.post(PATH, &body(&said, json!({}))).await;
    assert_eq!((reply.status, reply.envelope()["code"].as_str()), (500, Some("answer_failed")));
    let events = streamed(&server, &said, json!({})).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(
        (&last["response"]["status"], &last["response"]["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert!(last["response"]["error"]["message"].as_str().unwrap().contains("the answer failed"));
    let response = server.post(PATH, &body(&said, json!({"background": true}))).await.json();
    assert_eq!(ended(&server, response["id"].as_str().unwrap()).await["status"], "failed");
    server.rests().await;
}

#[tokio::test]
async fn what_would_be_ignored_is_refused_by_name() {
    let server = Server::new();
    for (more, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": null}), "input"),
        (json!({"input": [{"role": "assistant", "content": "x"}]}), "input"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
        (json!({"tools": [{"type": "code_interpreter"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}), "tools[1].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "required", "tools": [{"type": "web_search"}]}), "tool_choice"),
        (json!({"tool_choice": "perhaps"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "name": "f"}, "tools": tools()}), "tool_choice"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": "json"}}), "text.format"),
        (json!({"text": {"format": {"type": "json_schema", "name": "x"}}}), "text.format.schema"),
        (json!({"tools": [{"type": "function", "name": "f", "strict": 1}]}), "tools[0]"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"n": 2}), "n"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"previous_response_id": "resp_0"}), "previous_response_id"),
        (json!({"metadata": {"a": 1}}), "metadata.a"),
        (json!({"model": "other"}), "model"),
    ] {
        let reply = server.post(PATH, &body("x", more.clone())).await;
        let error = reply.envelope();
        assert_eq!(error["param"].as_str(), Some(param), "{more} {error}");
        assert!((400..500).contains(&reply.status), "{more}");
        assert!(error["message"].as_str().unwrap().len() > 10, "{error}");
    }
    let long = "a b ".repeat(3000);
    let reply = server.post(PATH, &body(&long, json!({}))).await;
    assert_eq!((reply.status, reply.envelope()["code"].as_str()), (400, Some("context_length_exceeded")));
}

/// The shape of what Codex sends: all of its fields, and items that say more than is needed.
#[tokio::test]
async fn a_coding_agents_request_is_taken_as_it_is() {
    let server = Server::new();
    let request = json!({
        "model": common::MODEL,
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "ls"}], "encrypted_content": null},
            {"type": "function_call", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.rs"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "description": "Runs.", "strict": false,
             "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}},
            {"type": "custom", "name": "apply_patch", "description": "Patches.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}},
            {"type": "namespace", "name": "mcp__docs", "description": "Docs.", "tools": [
                {"type": "function", "name": "search", "description": "", "strict": false, "parameters": {"type": "object"}}]},
            {"type": "web_search", "external_web_access": false},
            {"type": "tool_search", "execution": "client", "description": "", "parameters": {}},
        ],
        "tool_choice": "auto", "parallel_tool_calls": false, "store": false, "stream": true,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "key", "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"}, "service_tier": "priority",
    });
    let reply: Reply = server.post(PATH, &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let events = events(&reply.text());
    assert_eq!(*kinds(&events).last().unwrap(), "completed");
    let items = folded(&events);
    // No thinking ends in what the test model repeats.
    assert!(items[0]["content"][0]["text"].as_str().unwrap().ends_with("Thanks."), "{items:?}");
    assert!(items[0]["encrypted_content"].as_str().unwrap().ends_with("Thanks."), "{items:?}");
}
