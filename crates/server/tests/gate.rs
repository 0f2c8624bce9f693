//! What stands around every answer: keys, browsers' rules, names of requests, limits of size and time, signs of life,
//! and connections that stop half-way.

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use common::{Server, Setup, chat_body, events, listen};
use overshot_server::{ApiKeys, CorsPolicy, Shutdown, router};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

const CHAT: &str = "/v1/chat/completions";

const KEEP_ALIVE: &str = ": keep-alive\n\n";

async fn ask(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router(server.app.clone()).oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

fn with_keys() -> Server {
    let mut setup = Setup::default();
    setup.options.api_keys = ApiKeys::new(vec!["one".into(), "two".into()]).unwrap();
    Server::with(setup)
}

#[tokio::test]
async fn a_key_opens_everything_and_little_is_open_without() {
    let server = with_keys();
    let body = chat_body("hi", json!({})).to_string();
    for headers in [[("authorization", "Bearer two")], [("x-api-key", "one")]] {
        assert_eq!(ask(&server, "POST", CHAT, &headers, &body).await.status(), 200);
        assert_eq!(ask(&server, "GET", "/metrics", &headers, "").await.status(), 200);
    }
    for path in ["/health", "/ready"] {
        assert_eq!(ask(&server, "GET", path, &[], "").await.status(), 200);
    }
    for (method, path) in
        [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("DELETE", "/v1/models/a")]
    {
        for headers in [[].as_slice(), &[("authorization", "Bearer three")]] {
            let response = ask(&server, method, path, headers, &body).await;
            assert_eq!(
                (response.status().as_u16(), &response.headers()["www-authenticate"]),
                (401, &"Bearer".parse().unwrap())
            );
            let envelope: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
            assert_eq!(envelope["error"]["code"], "invalid_api_key", "{method} {path}");
        }
    }
    let told = text(ask(&server, "POST", "/v1/messages", &[("x-request-id", "mine")], "{}").await).await;
    assert!(told.contains("authentication_error") && told.contains("\"request_id\":\"mine\""), "{told}");
    let headers = [("authorization", "Bearer one")];
    let metrics = text(ask(&server, "GET", "/metrics", &headers, "").await).await;
    assert!(
        metrics.contains("overshot_http_responses_total{route=\"/v1/models\",status=\"401\"} 2"),
        "{metrics}"
    );
}

#[tokio::test]
async fn every_response_has_a_name_the_clients_own_if_it_gave_one() {
    let server = Server::new();
    for (method, path) in [("GET", "/health"), ("GET", "/nowhere"), ("PUT", CHAT), ("POST", CHAT)] {
        let response = ask(&server, method, path, &[], "").await;
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"), "{path}");
        let named = ask(&server, method, path, &[("x-request-id", "mine-7")], "").await;
        assert_eq!(named.headers()["x-request-id"], "mine-7");
    }
    assert_eq!(text(ask(&server, "GET", "/version", &[], "").await).await, r#"{"version":"0.1.0"}"#);
}

#[tokio::test]
async fn browsers_learn_what_they_may_do() {
    let mut setup = Setup::default();
    setup.options.api_keys = ApiKeys::new(vec!["one".into()]).unwrap();
    setup.options.cors = CorsPolicy::new(vec!["https://a.example".parse().unwrap()]);
    let server = Server::with(setup);
    let question = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let preflight = ask(&server, "OPTIONS", CHAT, &question, "").await;
    assert_eq!(preflight.status(), 204);
    assert_eq!(preflight.headers()["access-control-allow-origin"], "https://a.example");
    assert_eq!(preflight.headers()["access-control-allow-headers"], "authorization,content-type");
    assert_eq!(preflight.headers()["vary"], "origin");
    let headers = [("origin", "https://a.example"), ("authorization", "Bearer one")];
    let refused = ask(&server, "POST", CHAT, &headers, "{").await;
    assert_eq!(refused.status(), 400);
    assert_eq!(
        refused.headers()["access-control-allow-origin"],
        "https://a.example",
        "pages may read errors"
    );
    let other = ask(&server, "OPTIONS", CHAT, &[("origin", "https://b.example"), question[1]], "").await;
    assert!(!other.headers().contains_key("access-control-allow-origin"));
    let silent = ask(&Server::new(), "OPTIONS", CHAT, &question, "").await;
    assert!(!silent.headers().contains_key("access-control-allow-origin"), "by default no page may");
}

/// A server whose steps take longer than its silence may last.
fn silent_server() -> Server {
    let mut setup = Setup::default();
    setup.options.keep_alive = Duration::from_millis(40);
    let server = Server::with(setup);
    server.control.step_microseconds.store(150_000, Ordering::SeqCst);
    server
}

#[tokio::test]
async fn silence_is_broken_by_comments_that_no_client_sees() {
    let server = silent_server();
    let body = chat_body("one two", json!({"stream": true})).to_string();
    let stream = text(ask(&server, "POST", CHAT, &[], &body).await).await;
    assert!(stream.starts_with(KEEP_ALIVE), "the first token has a step to wait for: {stream}");
    assert!(stream.matches(KEEP_ALIVE).count() > 3, "{stream}");
    let (events, is_done) = events(&stream.replace(KEEP_ALIVE, ""));
    assert_eq!(common::folded(&events, 0)["message"]["content"], "one two");
    assert!(is_done);
    server.control.step_microseconds.store(500, Ordering::SeqCst);
    let stream = text(ask(&server, "POST", CHAT, &[], &body).await).await;
    assert!(!stream.contains("keep-alive"), "nothing is said where tokens come: {stream}");
}

#[tokio::test]
async fn silent_messages_have_pings_in_anthropics_words() {
    let server = silent_server();
    let body = json!({"model": common::MODEL, "max_tokens": 50, "stream": true,
        "messages": [{"role": "user", "content": "one two"}]});
    let stream = text(ask(&server, "POST", "/v1/messages", &[], &body.to_string()).await).await;
    let events = common::anthropic::events(&stream);
    assert_eq!(events[0]["type"], "message_start", "{stream}");
    assert_eq!(events[1], json!({"type": "ping"}), "the first token has a step to wait for: {stream}");
    assert!(events.iter().filter(|event| event["type"] == "ping").count() > 3, "{stream}");
    assert_eq!(common::anthropic::folded(&events)["content"][0]["text"], "one two");
}

#[tokio::test]
async fn silence_of_a_joined_stream_is_broken_too() {
    const RESPONSES: &str = "/v1/responses";
    let server = silent_server();
    let body = json!({"model": common::MODEL, "input": "one two", "background": true, "stream": true});
    let mut first = ask(&server, "POST", RESPONSES, &[], &body.to_string()).await.into_body();
    let begun = http_body_util::BodyExt::frame(&mut first).await.unwrap().unwrap().into_data().unwrap();
    let begun = common::responses::events(std::str::from_utf8(&begun).unwrap());
    let path = format!("{RESPONSES}/{}?stream=true", begun[0]["response"]["id"].as_str().unwrap());
    let joined = text(ask(&server, "GET", &path, &[], "").await).await;
    assert!(joined.matches(KEEP_ALIVE).count() > 3, "{joined}");
    let events = common::responses::events(&joined.replace(KEEP_ALIVE, ""));
    assert_eq!(events.last().unwrap()["response"]["output"][0]["content"][0]["text"], "one two");
    // Nothing is said where everything is there.
    assert!(!text(ask(&server, "GET", &path, &[], "").await).await.contains(KEEP_ALIVE));
}

#[tokio::test]
async fn answers_that_take_too_long_are_ended_with_an_error_streamed_or_not() {
    let mut setup = Setup::default();
    setup.options.request_timeout = Some(Duration::from_millis(150));
    let server = Server::with(setup);
    server.control.step_microseconds.store(2000, Ordering::SeqCst);
    let forever = chat_body("forever and ever ", json!({"max_tokens": 1900, "n": 2}));
    let whole = ask(&server, "POST", CHAT, &[], &forever.to_string()).await;
    assert_eq!(
        (whole.status().as_u16(), &whole.headers()["x-should-retry"]),
        (504, &"false".parse().unwrap())
    );
    assert!(text(whole).await.contains("\"code\":\"request_timeout\""));
    let mut streamed = forever.clone();
    streamed["stream"] = json!(true);
    let stream = text(ask(&server, "POST", CHAT, &[], &streamed.to_string()).await).await;
    let (events, is_done) = events(&stream);
    assert_eq!((events.last().unwrap()["error"]["code"].as_str(), is_done), (Some("request_timeout"), false));
    assert!(events.len() > 5, "what was there was sent");
    server.rests().await;
    assert_eq!((server.outcome("timeout").await, server.outcome("disconnected").await), (4, 0));
    assert_eq!(server.chat("quick", json!({})).await["choices"][0]["message"]["content"], "quick");
}

#[tokio::test]
async fn half_a_request_does_not_hold_up_the_end() {
    for half in [
        "POST /v1/chat/completions HTTP/1.1\r\nhost",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"messages",
        "GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /hea",
    ] {
        let mut setup = Setup::default();
        setup.options.drain = Duration::from_secs(60);
        setup.options.limits.goodbye = Duration::from_millis(100);
        let server = Server::with(setup);
        let (address, shutdown) = listen(&server).await;
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(half.as_bytes()).await.unwrap();
        server.reaches("overshot_connections", 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let started = Instant::now();
        shutdown.send(Shutdown::Drain).unwrap();
        let mut rest = String::new();
        let _ = socket.read_to_string(&mut rest).await;
        assert!(started.elapsed() < Duration::from_secs(20), "{half:?}");
        shutdown.closed().await;
        assert!(started.elapsed() < Duration::from_secs(20), "{half:?}");
    }
}

#[tokio::test]
async fn a_head_that_is_no_http_gets_an_envelope_too() {
    let server = Server::new();
    let (address, _shutdown) = listen(&server).await;
    let long = format!("GET /health HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n", "x".repeat(600_000));
    for (head, status) in
        [("hello\r\n\r\n", "400"), ("GET / HTTP/1.1\r\nb d\u{1}: x\r\n\r\n", "400"), (&long, "431")]
    {
        let mut socket = TcpStream::connect(address).await.unwrap();
        // The server may refuse, and close, before all of it is sent.
        let _ = socket.write_all(head.as_bytes()).await;
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).unwrap();
        if text.is_empty() && head.len() > 1000 {
            continue;
        }
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text:?}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains("x-request-id: req_") && head.contains(&format!("content-length: {}", body.len()))
        );
        let envelope: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(envelope["error"]["code"], "invalid_http");
    }
}

#[tokio::test]
async fn a_body_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() {
    let body = chat_body("hi", json!({})).to_string();
    for (most, status) in [(body.len(), 200), (body.len() - 1, 413)] {
        let mut setup = Setup::default();
        setup.options.limits.body_bytes = most;
        let server = Server::with(setup);
        assert_eq!(ask(&server, "POST", CHAT, &[], &body).await.status(), status);
    }
}
