//! What happens beside good answers: clients that leave, requests that fail, an engine that hangs or stops, queues
//! that are full, the end of the server. Each time everything is given back and nobody else is touched.

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use common::backend::POISON;
use common::{Server, Setup, chat_body, events, listen};
use overshot_engine::{Limits, StepLoop, StepRecord};
use overshot_server::{ServerLimits, Shutdown, StepObserver, router};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

const CHAT: &str = "/v1/chat/completions";

fn forever() -> Value {
    chat_body("forever and ever ", json!({"max_tokens": 1900}))
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

fn request(body: &Value) -> Request<Body> {
    let request = Request::builder().method("POST").uri(CHAT).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

/// A server whose steps take a while, so that answers do not end by themselves.
fn slow_server(setup: Setup) -> Server {
    let server = Server::with(setup);
    server.control.step_microseconds.store(2000, Ordering::SeqCst);
    server
}

#[tokio::test]
async fn dropped_responses_are_cancelled_streamed_or_not() {
    for step_loop in [StepLoop::Plain, StepLoop::Overlapped] {
        let server = slow_server(Setup { step_loop, ..Setup::default() });
        let response = router(server.app.clone()).oneshot(request(&streamed(forever()))).await.unwrap();
        server.reaches("overshot_generated_tokens_total", 3).await;
        drop(response);
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, 1);

        let whole = tokio::spawn(router(server.app.clone()).oneshot(request(&forever())));
        server.reaches("overshot_requests_running", 1).await;
        whole.abort();
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, 2);
    }
}

#[tokio::test]
async fn all_choices_of_a_dropped_response_go_with_it() {
    let server = slow_server(Setup::default());
    let body = streamed(chat_body("forever and ever ", json!({"max_tokens": 1900, "n": 5})));
    let response = router(server.app.clone()).oneshot(request(&body)).await.unwrap();
    server.reaches("overshot_requests_running", 5).await;
    drop(response);
    server.rests().await;
    assert_eq!(server.outcome("disconnected").await, 5);
}

#[tokio::test]
async fn a_stop_string_ends_the_computing_and_is_no_abort() {
    let server = slow_server(Setup::default());
    let body = chat_body("forever one two three ", json!({"max_tokens": 1900, "stop": "three one"}));
    let answer = server.post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "one two ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    server.rests().await;
    assert_eq!((server.outcome("stop").await, server.outcome("disconnected").await), (1, 0));
    assert!(server.metric("overshot_generated_tokens_total").await < 50);
}

#[tokio::test]
async fn a_closed_connection_is_a_client_that_left() {
    let server = slow_server(Setup::default());
    let (address, _shutdown) = listen(&server).await;
    for body in [forever(), streamed(forever())] {
        let before = server.outcome("disconnected").await;
        let mut socket = TcpStream::connect(address).await.unwrap();
        let body = body.to_string();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        server.reaches("overshot_requests_running", 1).await;
        drop(socket);
        server.rests().await;
        assert_eq!(server.outcome("disconnected").await, before + 1);
    }
}

#[tokio::test]
async fn a_poisoned_request_fails_alone() {
    let server = Server::new();
    let poisoned = chat_body(&format!("some {POISON} here please"), json!({}));
    let good = chat_body("a good one", json!({}));
    for round in 0..5 {
        let (bad, good, cut) = tokio::join!(server.post(CHAT, &poisoned), server.post(CHAT, &good), async {
            server.post(CHAT, &streamed(poisoned.clone())).await
        });
        assert_eq!((bad.status, bad.envelope()["code"].as_str()), (500, Some("answer_failed")), "{round}");
        assert_eq!(good.json()["choices"][0]["message"]["content"], "a good one");
        let (events, is_done) = cut.events();
        let last = events.last().unwrap();
        assert_eq!((last["error"]["code"].as_str(), is_done), (Some("answer_failed"), false));
        assert!(events.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    }
    server.rests().await;
    assert_eq!(server.outcome("failed").await, 10);
}

#[tokio::test]
async fn a_broken_engine_says_so_once_to_everybody_and_ever_after() {
    let server = slow_server(Setup::default());
    let response = router(server.app.clone()).oneshot(request(&streamed(forever()))).await.unwrap();
    let whole = tokio::spawn({
        let server = server.clone();
        async move { server.post(CHAT, &forever()).await }
    });
    server.reaches("overshot_requests_running", 2).await;
    server.control.breaks.store(true, Ordering::SeqCst);
    let text = String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap();
    let (events, is_done) = events(&text);
    assert_eq!((events.last().unwrap()["error"]["code"].as_str(), is_done), (Some("engine_stopped"), false));
    assert_eq!(whole.await.unwrap().status, 503);
    for path in ["/health", "/ready"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.envelope()["code"].as_str()), (503, Some("engine_stopped")));
    }
    let refused = server.post(CHAT, &forever()).await;
    assert_eq!((refused.status, refused.envelope()["code"].as_str()), (503, Some("engine_stopped")));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn health_is_about_movement_not_about_load() {
    let mut setup = Setup::default();
    setup.options.stall = Duration::from_millis(300);
    let server = slow_server(setup);
    // At rest for longer than a stall, then busy for longer.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let response = router(server.app.clone()).oneshot(request(&streamed(forever()))).await.unwrap();
    for _ in 0..40 {
        assert_eq!(server.get("/health").await.status, 200);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.control.hold();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let reply = server.get("/health").await;
    assert_eq!((reply.status, reply.envelope()["code"].as_str()), (503, Some("stalled")));
    server.control.release();
    drop(response);
    server.rests().await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn full_queues_refuse_at_once_and_all_choices_or_none() {
    let engine = Limits { running_requests: 1, waiting_requests: 2, ..Limits::default() };
    let server = slow_server(Setup { engine, ..Setup::default() });
    let running = router(server.app.clone()).oneshot(request(&streamed(forever()))).await.unwrap();
    server.reaches("overshot_requests_running", 1).await;
    let waiting = tokio::spawn(router(server.app.clone()).oneshot(request(&forever())));
    server.reaches("overshot_requests_waiting", 1).await;
    let refused = server.post(CHAT, &chat_body("x", json!({"n": 2}))).await;
    assert_eq!((refused.status, refused.envelope()["code"].as_str()), (429, Some("queue_full")));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(server.metric("overshot_requests_waiting").await, 1, "none of the two is left behind");
    waiting.abort();
    drop(running);
    server.rests().await;
}

#[tokio::test]
async fn readers_that_fall_too_far_behind_lose_their_answer_alone() {
    let mut setup = Setup::default();
    setup.options.limits = ServerLimits { unread_tokens: 100, ..ServerLimits::default() };
    let server = Server::with(setup);
    let unread = router(server.app.clone()).oneshot(request(&streamed(forever()))).await.unwrap();
    server.reaches("overshot_answers_total{outcome=\"slow_reader\"}", 1).await;
    server.rests().await;
    let text = String::from_utf8(to_bytes(unread.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap();
    let (events, is_done) = events(&text);
    assert_eq!((events.last().unwrap()["error"]["code"].as_str(), is_done), (Some("slow_reader"), false));
}

#[tokio::test]
async fn a_drained_server_finishes_what_runs_and_refuses_the_rest() {
    let server = slow_server(Setup::default());
    let (address, shutdown) = listen(&server).await;
    let body = streamed(chat_body("a few words that take their time", json!({})));
    let mut socket = send(address, &body).await;
    server.reaches("overshot_requests_running", 1).await;
    shutdown.send(Shutdown::Drain).unwrap();
    while server.get("/ready").await.status == 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refused = server.post(CHAT, &forever()).await;
    assert_eq!((refused.status, refused.envelope()["code"].as_str()), (503, Some("shutting_down")));
    assert!(refused.headers.contains_key("retry-after"));
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("\"finish_reason\":\"stop\"") && text.contains("[DONE]"), "{text}");
}

#[tokio::test]
async fn a_second_signal_cuts_with_an_error_even_when_the_engine_hangs() {
    let server = slow_server(Setup::default());
    let (address, shutdown) = listen(&server).await;
    let mut socket = send(address, &streamed(forever())).await;
    server.reaches("overshot_generated_tokens_total", 2).await;
    server.control.hold();
    shutdown.send(Shutdown::Drain).unwrap();
    shutdown.send(Shutdown::Now).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("\"code\":\"shutting_down\"") && !text.contains("[DONE]"), "{text}");
    server.control.release();
}

#[tokio::test]
async fn whoever_asks_after_a_cut_is_refused_not_cut() {
    let server = Server::new();
    server.app.engine.stop();
    for reply in [server.post(CHAT, &forever()).await, server.get("/ready").await] {
        let error = reply.envelope();
        assert_eq!((reply.status, error["code"].as_str()), (503, Some("shutting_down")));
        assert!(error["message"].as_str().unwrap().contains("takes no new requests"), "{error}");
    }
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_place() {
    let mut setup = Setup::default();
    setup.options.limits.write_stall = Duration::from_millis(200);
    let server = Server::with(setup);
    let (address, _shutdown) = listen(&server).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let asking = async {
        while socket
            .write_all("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100).as_bytes())
            .await
            .is_ok()
        {}
    };
    tokio::time::timeout(Duration::from_secs(20), asking).await.expect("the server cuts it off");
    while server.metric("overshot_connections").await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn slow_readers_have_the_time_for_draining() {
    let mut setup = Setup::default();
    setup.options.drain = Duration::from_secs(20);
    setup.options.limits.goodbye = Duration::from_millis(50);
    let server = Server::with(setup);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (shutdown, receiver) = tokio::sync::watch::channel(Shutdown::Not);
    let serving = tokio::spawn(overshot_server::serve(listener, server.app.clone(), receiver));
    // More than the system's buffers hold.
    let more = json!({"max_tokens": 1800, "n": 8, "logprobs": true, "top_logprobs": 20});
    let mut socket = send(address, &chat_body("forever and ever ", more)).await;
    server.reaches("overshot_answers_total{outcome=\"length\"}", 8).await;
    shutdown.send(Shutdown::Drain).unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!serving.is_finished(), "the answer was not read yet");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let body = &text[text.find("\r\n\r\n").unwrap()..];
    let answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 8);
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
}

/// Whether a step came, and whether the observer is gone.
struct Watching(Arc<(AtomicBool, AtomicBool)>);

impl StepObserver for Watching {
    fn saw(&mut self, _record: &StepRecord) {
        self.0.0.store(true, Ordering::SeqCst);
    }

    fn rests(&mut self) {}
}

impl Drop for Watching {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(100));
        self.0.1.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_observer_is_gone_before_the_server_is() {
    for stage in [Shutdown::Drain, Shutdown::Now] {
        let seen = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let server = Server::observed(Setup::default(), Some(Box::new(Watching(Arc::clone(&seen)))));
        server.chat("a few words", json!({})).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (shutdown, receiver) = tokio::sync::watch::channel(Shutdown::Not);
        shutdown.send(stage).unwrap();
        overshot_server::serve(listener, server.app.clone(), receiver).await;
        assert!(seen.0.load(Ordering::SeqCst) && seen.1.load(Ordering::SeqCst), "{stage:?}");
    }
}

async fn send(address: std::net::SocketAddr, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket
}
