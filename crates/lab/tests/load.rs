//! The load generator against servers of all kinds: good ones whose speed is known, lax ones, and broken ones, each of which
//! must end in a sentence and never in waiting.

#![allow(clippy::unwrap_used)]

mod common;

use common::{
    Act, DONE, LAST, Request, STREAM_HEAD, chunk, delta, good_answer, json, serve, text, usage, wait_ms,
    whole,
};
use overshot_lab::load::{Api, ServerOptions, ServerTarget, Sharing};
use overshot_lab::{LabError, Measurement, Metric, Point, Target};
use std::time::{Duration, Instant};

fn options(url: &str) -> ServerOptions {
    ServerOptions {
        url: url.to_owned(),
        api: Api::Chat,
        model: None,
        key: None,
        prompt_tokens: 50,
        answer_tokens: 24,
        mixed_time: Duration::from_millis(400),
        sharing: Sharing::Nothing,
        idle: Duration::from_millis(400),
    }
}

fn target(url: &str) -> ServerTarget {
    ServerTarget::connect(options(url)).unwrap_or_else(|error| panic!("{error}"))
}

fn within(measurement: &Measurement, metric: Metric, low: f64, high: f64) {
    let found = measurement.get(metric).unwrap_or_else(|| panic!("no {metric:?} in {measurement:?}"));
    assert!((low..=high).contains(&found), "{metric:?}: {found} is not within {low} and {high}");
}

/// The machine that runs the tests may be busy: times are bounded below sharply, above loosely.
#[test]
fn a_server_of_known_speed_is_measured_right() {
    let url = serve(|request, _| good_answer(request, 30, 5));
    let mut target = target(&url);
    assert_eq!(target.name(), format!("tiny at {url}"));
    let decode = target.measure(Point::Decode { streams: 8 }).unwrap();
    within(&decode, Metric::StepMs, 4.0, 12.0);
    within(&decode, Metric::FirstTokenMs, 29.0, 90.0);
    within(&decode, Metric::TokensPerS, 8.0 * 60.0, 8.0 * 230.0);
    within(&decode, Metric::TokensPerDelivery, 1.0, 1.0);
    assert!(decode.errors.is_empty() && decode.notes.is_empty(), "{decode:?}");

    // A word is two tokens and the format adds five: 205 tokens are 100 words.
    let prefill = target.measure(Point::Prefill { tokens: 205 }).unwrap();
    within(&prefill, Metric::PromptTokens, 205.0, 205.0);
    within(&prefill, Metric::FirstTokenMs, 29.0, 90.0);

    let mixed = target.measure(Point::Mixed { streams: 4 }).unwrap();
    within(&mixed, Metric::TokenGapMs, 4.0, 15.0);
    within(&mixed, Metric::RequestsPerS, 1.0, 200.0);
    assert!(mixed.errors.is_empty(), "{mixed:?}");
}

#[test]
fn completions_and_named_models_are_asked_for() {
    let url = serve(|request, _| {
        assert!(request.line.starts_with("POST /v1/completions "), "{}", request.line);
        assert_eq!(request.body["model"], "other");
        let token = "data: {\"choices\":[{\"text\":\" a\",\"finish_reason\":null}]}\n\n";
        let mut acts = vec![text(STREAM_HEAD)];
        acts.extend((0..request.tokens()).flat_map(|_| [chunk(token), wait_ms(2)]));
        acts.push(chunk(LAST.to_owned() + &usage(9, request.tokens()) + DONE));
        acts.push(chunk(""));
        acts
    });
    let options = ServerOptions { api: Api::Completions, model: Some("other".into()), ..options(&url) };
    let mut target = ServerTarget::connect(options).unwrap();
    within(&target.measure(Point::Decode { streams: 2 }).unwrap(), Metric::StepMs, 1.0, 10.0);
}

#[test]
fn lax_servers_are_measured_all_the_same() {
    // A byte order mark, comments, no blank after the colon, CRLF, reasoning, bytes cut anywhere, no usage, no [DONE], and the
    // body ends with the connection.
    let url = serve(|request, _| {
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n";
        let mut body = "\u{feff}: hello\r\n\r\nevent: message\r\ndata:{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
            .as_bytes()
            .to_vec();
        for _ in 0..request.tokens() {
            body.extend_from_slice(
                "data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"\u{fffd}\u{e9}\"}}],\"usage\":null}\r\n\r\n:\r\n".as_bytes(),
            );
        }
        body.extend_from_slice(LAST.as_bytes());
        let mut acts = vec![text(head)];
        acts.extend(body.chunks(67).flat_map(|part| [Act::Bytes(part.to_vec()), wait_ms(1)]));
        acts.push(Act::Close);
        acts
    });
    let mut target = target(&url);
    assert!(target.findings().iter().any(|finding| finding.contains("does not count tokens")));
    let decode = target.measure(Point::Decode { streams: 2 }).unwrap();
    within(&decode, Metric::TokensPerDelivery, 1.0, 1.0);
    within(&decode, Metric::TokensPerS, 10.0, 4000.0);
    assert!(decode.notes.iter().any(|note| note.contains("does not count tokens")), "{decode:?}");
}

#[test]
fn servers_that_refuse_extensions_are_asked_plainly() {
    let url = serve(|request, _| {
        if request.body.get("ignore_eos").is_some() {
            return json(
                "400 Bad Request",
                r#"{"error":{"message":"Unrecognized request argument: ignore_eos"}}"#,
            );
        }
        good_answer(request, 1, 2)
    });
    let mut target = target(&url);
    assert!(target.findings()[0].contains("ignore_eos"), "{:?}", target.findings());
    assert_eq!(target.settings()["ignore_eos"], "false");
    target.measure(Point::Decode { streams: 2 }).unwrap();
}

/// The first requests are the probes of a start: they go well.
fn after_probes(broken: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static) -> String {
    serve(move |request, count| if count < 2 { good_answer(request, 0, 0) } else { broken(request) })
}

fn failure(broken: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static) -> String {
    let mut target = target(&after_probes(broken));
    let started = Instant::now();
    let error = target.measure(Point::Decode { streams: 3 }).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(8), "it waited {:?}", started.elapsed());
    assert!(matches!(error, LabError::NothingAnswered { requests: 3, .. }), "{error}");
    error.to_string()
}

#[test]
fn broken_servers_end_in_a_sentence() {
    let start = || vec![text(STREAM_HEAD), chunk(delta("x"))];
    let then = move |act: Act| [start(), vec![act]].concat();
    for (part, acts) in [
        ("closed the connection", vec![Act::Close]),
        ("closed the connection", then(Act::Close)),
        ("closed the connection", [then(text("5\r\nda")), vec![Act::Close]].concat()),
        ("silent for 0.4 s", vec![Act::Hang]),
        ("silent for 0.4 s", then(Act::Hang)),
        ("gave up within an answer: no room", then(chunk("data: {\"error\":{\"message\":\"no room\"}}\n\n"))),
        ("no stream of chat", then(chunk("data: {broken\n\n"))),
        ("no stream of chat", whole("200 OK", "Content-Type: text/html\r\n", "<html>data: \n\ndata: x\n\n")),
        ("the answer has no end", whole("200 OK", "Content-Type: text/html\r\n", "<html>hello")),
        ("one piece of JSON (oops)", json("200 OK", r#"{"error":{"message":"oops"}}"#)),
        ("status 500: oops", json("500 Oops", r#"{"error":{"message":"oops","type":"x"}}"#)),
        ("status 429: slow down", json("429 Slow", r#"{"error":{"message":"slow down"}}"#)),
        ("status 301: (no text)", whole("301 Moved", "Location: /x\r\n", "")),
        ("status 502", whole("502 Bad Gateway", "", &"<h1>bad</h1>".repeat(1000))),
        ("closed the connection", vec![text("HTTP/9.9 what\r\n\r\n")]),
        ("closed the connection", vec![text("SSH-2.0-OpenSSH_9.6\r\n"), Act::Close]),
    ] {
        let shown = format!("{acts:?}");
        let told = failure(move |_| acts.clone());
        assert!(told.contains(part), "{}\n -> {told}", &shown[..shown.len().min(300)]);
        assert!(told.len() < 700, "{told}");
    }
}

#[test]
fn endless_answers_end() {
    let told = failure(|_| {
        let many = delta("x").repeat(200);
        [vec![text(STREAM_HEAD)], vec![chunk(many); 20]].concat()
    });
    assert!(told.contains("many more events"), "{told}");
    // One event without an end.
    let told =
        failure(|_| [vec![text(STREAM_HEAD), chunk("data: ")], vec![chunk("x".repeat(1 << 20)); 8]].concat());
    assert!(told.contains("an event without an end"), "{told}");
}

#[test]
fn some_failures_are_counted_beside_the_rest() {
    let url = serve(|request, count| match count {
        4 => json("503 Busy", r#"{"error":{"message":"busy"}}"#),
        5 => vec![text(STREAM_HEAD), Act::Close],
        _ => good_answer(request, 5, 4),
    });
    let decode = target(&url).measure(Point::Decode { streams: 6 }).unwrap();
    assert_eq!(decode.errors["status 503"], 1, "{decode:?}");
    assert_eq!(decode.errors["closed early"], 1);
    within(&decode, Metric::Requests, 4.0, 4.0);
    assert!(decode.notes.iter().any(|note| note.contains("of 6 streams 4 were answered")));
}

#[test]
fn retry_after_is_heeded() {
    let url = serve(|request, count| match count {
        0..2 => good_answer(request, 0, 0),
        _ => whole("429 Slow", "Retry-After: 30\r\nContent-Type: application/json\r\n", "{}"),
    });
    let started = Instant::now();
    let error = target(&url).measure(Point::Mixed { streams: 2 }).unwrap_err().to_string();
    // Each client asks once and then waits, but no longer than the measurement lasts.
    assert!(error.contains("none of 2 requests"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ServerTarget::connect(options(&format!("http://{closed}"))).err().unwrap().to_string();
    assert!(error.starts_with(&format!("http://{closed}: it cannot be reached")), "{error}");
    let url = serve(|_, _| json("401 No", r#"{"error":{"message":"Incorrect API key provided"}}"#));
    let error = ServerTarget::connect(options(&url)).err().unwrap().to_string();
    assert!(error.ends_with("it answered with status 401: Incorrect API key provided"), "{error}");
    let bad_key = ServerOptions { key: Some("a\nb".into()), ..options(&url) };
    assert!(matches!(ServerTarget::connect(bad_key), Err(LabError::BadHeader { what: "the key" })));
}

#[test]
fn connections_that_the_server_closed_are_opened_again() {
    // Says nothing of closing, and closes after every answer: clients find out at their next request.
    let url = serve(|request, _| {
        let mut acts = good_answer(request, 0, 0);
        acts.push(Act::Close);
        acts
    });
    let prefill = target(&url).measure(Point::Prefill { tokens: 20 }).unwrap();
    assert!(prefill.errors.is_empty(), "{prefill:?}");
    within(&prefill, Metric::Requests, 3.0, 3.0);
}

/// 256 streams, each with a delivery every 8 ms: 32,000 a second. Not a bound on a machine that may be busy; prints what was
/// reached.
#[test]
fn many_streams_are_no_trouble() {
    let url = serve(|request, _| good_answer(request, 20, 8));
    let options = ServerOptions { answer_tokens: 100, idle: Duration::from_secs(20), ..options(&url) };
    let mut target = ServerTarget::connect(options).unwrap();
    let decode = target.measure(Point::Decode { streams: 256 }).unwrap();
    println!(
        "256 streams: {:.0} tok/s, step {:.2} ms, generator busy {:.0} %",
        decode.get(Metric::TokensPerS).unwrap(),
        decode.get(Metric::StepMs).unwrap(),
        decode.get(Metric::GeneratorBusyShare).unwrap() * 100.0
    );
    assert!(decode.errors.is_empty(), "{decode:?}");
    within(&decode, Metric::Requests, 256.0, 256.0);
}
