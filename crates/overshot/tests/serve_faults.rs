//! A server whose backend fails on purpose: one clean error for the request that it strikes, everything given back,
//! the other answers as scripted. Runs with `--features fault-injection`.

#![cfg(all(feature = "embedded-model", feature = "fault-injection", unix))]
#![allow(clippy::unwrap_used)]

mod serving;

use serde_json::Value;
use serving::http::Streamed;
use serving::{Server, numbered_words};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const STREAMS: usize = 4;

struct Outcome {
    server: Server,
    /// All that could have been answered.
    texts: BTreeSet<String>,
    streamed: Vec<Streamed>,
}

/// Streams a few answers at once under a fault.
fn stream_under(fault: &str, flags: &[&str]) -> Outcome {
    let (texts, lines): (BTreeSet<_>, Vec<_>) =
        (0..STREAMS).map(|index| numbered_words(index, 30, 2)).unzip();
    let server = Server::start_with_fault(&lines.concat(), flags, Some(fault));
    let streamed = std::thread::scope(|scope| {
        let streams: Vec<_> =
            (0..STREAMS).map(|_| scope.spawn(|| server.stream("Hello?").events().rest())).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    server.rests();
    Outcome { server, texts, streamed }
}

/// Checks that exactly one answer failed, and gives its beginning and its error.
fn the_failed_one(outcome: &Outcome) -> (&str, &Value) {
    let (failed, whole): (Vec<_>, Vec<_>) =
        outcome.streamed.iter().partition(|streamed| streamed.error.is_some());
    assert_eq!(failed.len(), 1, "{:#?}", outcome.streamed);
    let whole: BTreeSet<String> = whole
        .into_iter()
        .map(|streamed| {
            assert!(streamed.is_done && streamed.finish_reason.as_deref() == Some("stop"));
            streamed.text.clone()
        })
        .collect();
    assert_eq!(whole.len(), STREAMS - 1);
    assert!(whole.is_subset(&outcome.texts), "{whole:#?}");
    assert_eq!(outcome.server.metric("overshot_answers_total{outcome=\"failed\"}"), 1);
    assert_eq!(outcome.server.metric("overshot_answers_total{outcome=\"stop\"}"), STREAMS as u64 - 1);
    (&failed[0].text, failed[0].error.as_ref().unwrap())
}

#[test]
fn a_nan_row_fails_its_request_alone() {
    let outcome = stream_under("nan-row:9", &[]);
    let (text, error) = the_failed_one(&outcome);
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("server_error"), Some("answer_failed"))
    );
    assert!(error["message"].as_str().unwrap().contains("the logit of token 0 is NaN"), "{error}");
    assert!(outcome.texts.iter().any(|whole| whole.starts_with(text)), "{text}");
    let again = outcome.server.chat("Hello?");
    assert!(outcome.texts.contains(&again), "the server goes on");
}

#[test]
fn a_failing_sequence_fails_its_request_alone() {
    let outcome = stream_under("fail-after-token:8", &["--overlap", "on"]);
    let (text, error) = the_failed_one(&outcome);
    assert_eq!(error["code"], "answer_failed");
    assert!(!text.is_empty(), "what came before the failure was delivered");
    assert!(outcome.texts.iter().any(|whole| whole.starts_with(text) && whole != text), "{text}");
}

#[test]
fn without_a_stream_the_failure_is_the_response() {
    let (_, script) = numbered_words(0, 30, 0);
    let server = Server::start_with_fault(&script, &[], Some("fail-after-token:1"));
    let answer = server.post("/v1/chat/completions", &serving::chat("Hello?"));
    assert_eq!((answer.status, answer.error_code().as_str()), (500, "answer_failed"));
    server.rests();
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_stalled_step_shows_in_health_and_passes() {
    let (text, script) = numbered_words(0, 30, 0);
    let server = Server::start_with_fault(&script, &["--stall-seconds", "1"], Some("stall-step:4s"));
    assert_eq!(server.get("/health").status, 200);
    let started = Instant::now();
    let stream = server.stream("Hello?");
    server.wait_until("health tells of the stall", || server.get("/health").status == 503);
    let stalled = server.get("/health");
    assert_eq!(stalled.error_code(), "stalled");
    assert!(stalled.header("retry-after").is_some());
    assert!(started.elapsed() < Duration::from_secs(4), "the stall was noticed after it had passed");
    let streamed = stream.events().rest();
    assert_eq!((streamed.text, streamed.error), (text, None));
    assert!(started.elapsed() >= Duration::from_secs(4));
    assert_eq!(server.get("/health").status, 200);
    server.rests();
}

#[test]
fn a_busy_server_is_healthy() {
    let (text, script) = numbered_words(0, 30, 0);
    let server = Server::start_with_fault(&script, &["--stall-seconds", "1"], Some("slow-step:40ms"));
    let stream = server.stream("Hello?");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(800) {
        assert_eq!(server.get("/health").status, 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stream.events().rest().text, text);
    server.rests();
}
