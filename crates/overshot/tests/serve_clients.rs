//! What clients do to a server: leave, stall, ask for too much, die. Each time the others get their answers whole,
//! and what the request held is given back.

#![cfg(all(feature = "embedded-model", unix))]
#![allow(clippy::unwrap_used)]

mod serving;

use serde_json::{Value, json};
use serving::http::Exchange;
use serving::{PATIENCE, Server, chat, line, numbered_words};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Scripts of `count` answers that differ, a word a step of `delay_ms`.
fn scripts(count: usize, words: usize, delay_ms: u64) -> (BTreeSet<String>, String) {
    let (texts, lines): (BTreeSet<_>, Vec<_>) =
        (0..count).map(|index| numbered_words(index, words, delay_ms)).unzip();
    (texts, lines.concat())
}

/// Of each answer its text, when all have come whole.
fn whole_answers(server: &Server, count: usize) -> BTreeSet<String> {
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..count).map(|_| scope.spawn(|| server.chat("Hello?"))).collect();
        answers.into_iter().map(|answer| answer.join().unwrap()).collect()
    })
}

#[test]
fn answers_are_those_of_the_script_streamed_or_not() {
    let script =
        [line(json!(["One, ", "two ", { "hex": "e4 b8" }, { "hex": "ad" }, "."])), line(json!(["Next."]))];
    let server = Server::start(&script.concat(), &[]);
    assert_eq!(server.chat("Hello?"), "One, two 中.");
    let streamed = server.stream("Hello?").events().rest();
    assert_eq!((streamed.text.as_str(), streamed.finish_reason.as_deref()), ("Next.", Some("stop")));
    assert!(streamed.is_done && streamed.error.is_none());
    assert_eq!(server.chat("Hello?"), "One, two 中.", "after the last line the first comes again");
    server.rests();
}

#[test]
fn a_reader_that_leaves_a_stream_frees_everything_and_disturbs_nobody() {
    let (texts, script) = scripts(4, 100, 5);
    let server = Server::start(&script, &[]);
    let mut leaving = server.stream("Hello?").events();
    leaving.next_text();
    std::thread::scope(|scope| {
        let others = scope.spawn(|| whole_answers(&server, 3));
        leaving.next_text();
        leaving.abandon();
        let others = others.join().unwrap();
        assert_eq!(others.len(), 3);
        assert!(others.is_subset(&texts));
    });
    server.rests();
    assert_eq!(server.metric("overshot_answers_total{outcome=\"disconnected\"}"), 1);
    assert_eq!(server.metric("overshot_answers_total{outcome=\"stop\"}"), 3);
}

#[test]
fn a_client_that_does_not_wait_for_its_answer_frees_everything() {
    let (_, long) = numbered_words(0, 5000, 20);
    let server = Server::start(&long, &[]);
    let exchange =
        Exchange::begin(server.address, "POST", "/v1/chat/completions", Some(&chat("Hello?").to_string()));
    server.wait_until("the answer has begun", || server.metric("overshot_generated_tokens_total") > 2);
    exchange.abandon();
    server.rests();
    assert_eq!(server.metric("overshot_answers_total{outcome=\"disconnected\"}"), 1);
}

#[test]
fn a_request_that_waits_in_the_queue_may_leave_too() {
    let (_, long) = numbered_words(0, 5000, 20);
    let server = Server::start(&long, &["--max-batch", "1"]);
    let mut running = server.stream("Hello?").events();
    running.next_text();
    let waiting = server.stream("Hello?");
    server.wait_until("one waits", || server.metric("overshot_requests_waiting") == 1);
    waiting.abandon();
    server.wait_until("none waits", || server.metric("overshot_requests_waiting") == 0);
    running.next_text();
    running.abandon();
    server.rests();
}

#[test]
fn a_killed_client_frees_everything() {
    let (_, long) = numbered_words(0, 5000, 20);
    let server = Server::start(&long, &[]);
    // This very test program, as another process.
    let mut client = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_process", "--ignored"])
        .env("OVERSHOT_TEST_SERVER", server.address.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.wait_until("the answer has begun", || server.metric("overshot_generated_tokens_total") > 2);
    client.kill().unwrap();
    client.wait().unwrap();
    server.rests();
    assert_eq!(server.metric("overshot_answers_total{outcome=\"disconnected\"}"), 1);
}

#[test]
#[ignore = "a part of another test, which starts it as a process"]
fn client_process() {
    let Ok(address) = std::env::var("OVERSHOT_TEST_SERVER") else { return };
    let mut body = chat("Hello?");
    body["stream"] = json!(true);
    let path = "/v1/chat/completions";
    Exchange::begin(address.parse().unwrap(), "POST", path, Some(&body.to_string())).events().rest();
}

#[test]
fn a_slow_reader_delays_nobody() {
    // Tens of megabytes of events: far more than the buffers between server and client take.
    let (slow_text, slow) = numbered_words(0, 20_000, 0);
    let (texts, quick) = scripts(3, 20, 1);
    let server = Server::start(&(slow + &quick), &["--max-context", "200000", "--kv-pool-tokens", "200000"]);
    let slow = server.stream("Hello?");
    server.wait_until("the answer has begun", || server.metric("overshot_generated_tokens_total") > 2);
    let started = Instant::now();
    assert!(whole_answers(&server, 3).is_subset(&texts));
    assert!(started.elapsed() < PATIENCE / 2);
    server.wait_until("the slow reader loses the answer", || {
        server.metric("overshot_answers_total{outcome=\"slow_reader\"}") == 1
    });
    assert_eq!(
        server.metric("overshot_requests_running"),
        0,
        "it holds nothing, though its connection is open"
    );
    let streamed = slow.events().rest();
    assert_eq!(streamed.error.unwrap()["code"], "slow_reader");
    assert!(slow_text.starts_with(&streamed.text) && !streamed.is_done);
    server.rests();
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_at_once_and_alone() {
    let (texts, script) = scripts(3, 30, 5);
    let server =
        Server::start(&script, &["--max-context", "4000", "--kv-pool-tokens", "1024", "--max-batch", "3"]);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| whole_answers(&server, 3));
        let refuse = |words: usize, expected: &str| {
            let answer = server.post("/v1/chat/completions", &chat(&"word ".repeat(words)));
            assert_eq!((answer.status, answer.error_code().as_str()), (400, "context_length_exceeded"));
            assert!(answer.text().contains(expected), "{}", answer.text());
        };
        refuse(1900, "the cache holds");
        refuse(4500, "context holds 4000");
        assert!(others.join().unwrap().is_subset(&texts));
    });
    let answer = server.post("/v1/chat/completions", &json!({ "messages": "x".repeat(70 << 20) }));
    assert_eq!((answer.status, answer.error_code().as_str()), (413, "body_too_large"));
    server.rests();
}

#[test]
fn a_full_queue_refuses_with_the_time_to_wait() {
    let (_, long) = numbered_words(0, 5000, 20);
    let server = Server::start(&long, &["--max-batch", "1", "--max-queue", "2"]);
    let mut running = server.stream("Hello?").events();
    running.next_text();
    let waiting: Vec<_> = (0..2).map(|_| server.stream("Hello?")).collect();
    server.wait_until("two wait", || server.metric("overshot_requests_waiting") == 2);
    let answer = server.post("/v1/chat/completions", &chat("Hello?"));
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "queue_full"));
    assert!(answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()));
    waiting.into_iter().for_each(Exchange::abandon);
    running.abandon();
    server.rests();
}

#[test]
fn preempted_answers_come_whole() {
    // Twelve answers of three pages each, and 20 pages.
    let (texts, script) = scripts(12, 160, 5);
    let server = Server::start(&script, &["--kv-pool-tokens", "5120", "--max-batch", "12"]);
    assert!(whole_answers(&server, 12) == texts);
    assert!(server.metric("overshot_preemptions_total") > 0, "nothing was preempted: the test shows nothing");
    server.rests();
}

#[test]
fn a_terminated_server_ends_its_answers_and_takes_no_more() {
    let (text, script) = numbered_words(0, 60, 10);
    let mut server = Server::start(&script, &[]);
    let mut streamed = server.stream("Hello?").events();
    let first = streamed.next_text();
    server.terminate();
    let rest = streamed.rest();
    assert_eq!((first + &rest.text, rest.is_done, rest.error), (text, true, None));
    let (code, log) = server.ends();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_terminated_server_does_not_wait_for_ever() {
    let (_, long) = numbered_words(0, 50_000, 20);
    let mut server = Server::start(&long, &["--drain-seconds", "1"]);
    let mut streamed = server.stream("Hello?").events();
    streamed.next_text();
    let started = Instant::now();
    server.terminate();
    let rest = streamed.rest();
    assert_eq!(rest.error.unwrap()["code"], "shutting_down");
    let (code, log) = server.ends();
    assert_eq!(code, Some(0), "{log}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_trace_has_a_line_for_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.jsonl");
    let (texts, script) = scripts(3, 20, 2);
    let mut server = Server::start(&script, &["--trace", path.to_str().unwrap()]);
    assert!(whole_answers(&server, 3) == texts);
    server.terminate();
    let (code, log) = server.ends();
    assert_eq!(code, Some(0), "{log}");
    let trace = std::fs::read_to_string(&path).unwrap();
    let steps: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(steps.iter().enumerate().all(|(number, step)| step["step"] == number), "{trace}");
    let sum = |field: &str| steps.iter().map(|step| step[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("prefill_rows"), 3);
    assert!(sum("delivered_tokens") > 3 * 20 && steps.iter().all(|step| step["period_us"].is_f64()));
}
