//! The server under clients of every kind at once, for as long as patience allows: each answer is the one that the
//! request gets alone, whatever leaves or breaks beside it; afterwards nothing is held, and memory has not grown.
//! `OVERSHOT_SOAK_SECONDS` is how long; `cargo xtask soak --server-seconds N` sets it.

#![cfg(all(feature = "embedded-model", unix))]
#![allow(clippy::unwrap_used)]

mod serving;

use serde_json::{Value, json};
use serving::Server;
use serving::http::{Answer, Exchange};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Percent of requests whose client leaves, and whose body is broken.
const LEAVING: u32 = 20;
const MALFORMED: u32 = 5;

/// Longest time that `/health` may take on a machine that everybody else keeps busy.
const HEALTH_PATIENCE: Duration = Duration::from_secs(10);

/// Longest time without a piece of an answer: half of the clients wait while the others are answered.
const ANSWER_PATIENCE: Duration = Duration::from_secs(300);

/// Memory is judged only where there was time for it to settle: pages of the cache become resident when first used, and
/// 64 clients of the small model take minutes to use them all. Shorter runs only tell it.
const SECONDS_FOR_MEMORY: u64 = 600;

const BROKEN: [(&str, &str); 12] = [
    ("/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"cut"),
    ("/v1/chat/completions", "{\"messages\": \"hello\"}"),
    ("/v1/chat/completions", "{\"messages\": [{\"role\": \"nobody\"}]}"),
    ("/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"n\": 0}"),
    ("/v1/chat/completions", "\u{0}"),
    ("/v1/completions", "{\"prompt\": [99999999]}"),
    ("/v1/completions", "[]"),
    ("/v1/messages", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}"),
    ("/v1/messages", "{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": 5}]}"),
    ("/v1/responses", "{\"input\": [{\"type\": \"nothing\"}]}"),
    ("/v1/responses", "{\"input\": \"x\", \"previous_response_id\": \"resp_nothing\"}"),
    ("/v1/nothing", "{}"),
];

/// A request, and what it is answered alone.
struct Task {
    path: &'static str,
    body: Value,
    answer: Value,
}

/// Bodies in the words of each API, thinking and not, with tools, stop strings and seeds.
fn requests() -> Vec<(&'static str, Value)> {
    let asks = |path: &'static str, mut body: Value, more: Value| {
        body["temperature"] = 0.into();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (path, body)
    };
    let messages = |text: &str| json!({"messages": [{"role": "user", "content": text}], "max_tokens": 60});
    let said = |text: &str, more: Value| asks("/v1/chat/completions", messages(text), more);
    let message = |text: &str, more: Value| asks("/v1/messages", messages(text), more);
    // What is kept for later makes memory grow up to its bound, by right.
    let input = |text: &str| json!({"input": text, "max_output_tokens": 60, "store": false});
    let response = |text: &str, more: Value| asks("/v1/responses", input(text), more);
    let parameters = json!({"type": "object", "properties": {"id": {"type": "string"}}});
    let tools = json!([{"type": "function", "function":
        {"name": "read_meter", "description": "Reads a meter.", "parameters": parameters}}]);
    let flat_tool = json!({"type": "function", "name": "read_meter", "parameters": parameters});
    vec![
        said("What is the capital of France?", json!({})),
        said("What is 6 times 4?", json!({"reasoning_effort": "high"})),
        said("Hello", json!({"temperature": 1, "seed": 7})),
        said("Hello", json!({"temperature": 1, "seed": 8, "n": 2, "max_tokens": 20})),
        said("Read meter A7.", json!({"tools": tools})),
        said("Read meter A7.", json!({"tools": tools, "tool_choice": "none"})),
        said("What is the capital of France?", json!({"stop": " is"})),
        said(&"Tell me more. ".repeat(40), json!({"max_tokens": 5})),
        message("What is the capital of France?", json!({})),
        message("What is 6 times 4?", json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        message("Read meter A7.", json!({"tools": [{"name": "read_meter", "input_schema": parameters}]})),
        message("What is the capital of France?", json!({"stop_sequences": [" is"]})),
        response("What is the capital of France?", json!({})),
        response("What is 6 times 4?", json!({"reasoning": {"effort": "high"}})),
        response("Read meter A7.", json!({"tools": [flat_tool]})),
        ("/v1/completions", json!({"prompt": "The capital of", "temperature": 0, "max_tokens": 12})),
        (
            "/v1/completions",
            json!({"prompt": ["One two", "a b c"], "temperature": 1, "seed": 3, "max_tokens": 9}),
        ),
        // Outgrows two pages of the cache: one more is kept for each when it starts, the next may not be there.
        (
            "/v1/completions",
            json!({"prompt": vec![300; 240], "temperature": 0, "max_tokens": 300, "ignore_eos": true}),
        ),
    ]
}

/// What an answer says, without what is new in every answer.
fn gist(path: &str, whole: &Value) -> Value {
    match path {
        "/v1/messages" => gist_of_message(whole),
        "/v1/responses" => gist_of_response(whole),
        _ => gist_of_choices(whole),
    }
}

/// The same of a stream.
fn gist_of_events(path: &str, mut data: Vec<String>) -> Value {
    if path.ends_with("completions") {
        assert_eq!(data.pop().as_deref(), Some("[DONE]"), "{data:?}");
    }
    let events: Vec<Value> = data.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    match path {
        "/v1/messages" => gist_of_message(&folded_message(&events)),
        "/v1/responses" => {
            let last = events.last().expect("a stream has events");
            gist_of_response(&last["response"])
        }
        _ => gist_of_choices(&folded_choices(&events)),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn gist_of_message(whole: &Value) -> Value {
    assert_eq!(whole["type"], "message", "no answer: {whole}");
    let block = |block: &Value| {
        json!([block["type"], block["text"], block["thinking"], block["name"], block["input"]])
    };
    let blocks: Vec<Value> = list(&whole["content"]).iter().map(block).collect();
    let usage = &whole["usage"];
    json!([
        blocks,
        whole["stop_reason"],
        whole["stop_sequence"],
        usage["input_tokens"],
        usage["output_tokens"]
    ])
}

/// The message that the events of a stream add up to.
fn folded_message(events: &[Value]) -> Value {
    assert_eq!(events.last().map(|event| &event["type"]), Some(&json!("message_stop")), "{events:?}");
    let mut whole = events[0]["message"].clone();
    let mut blocks: Vec<Value> = Vec::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len(), "{event}");
                blocks.push(event["content_block"].clone());
                blocks.last_mut().unwrap()["json"] = "".into();
            }
            "content_block_delta" => add_to_block(blocks.last_mut().unwrap(), &event["delta"]),
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    whole[field] = event["delta"][field].clone();
                }
                whole["usage"]["output_tokens"] = event["usage"]["output_tokens"].clone();
            }
            _ => {}
        }
    }
    for block in blocks.iter_mut().filter(|block| block["type"] == "tool_use") {
        block["input"] = serde_json::from_str(block["json"].as_str().unwrap()).unwrap();
    }
    whole["content"] = blocks.into();
    whole
}

fn add_to_block(block: &mut Value, delta: &Value) {
    for (from, to) in [("text", "text"), ("thinking", "thinking"), ("partial_json", "json")] {
        if let Some(more) = delta[from].as_str() {
            let before = block[to].as_str().unwrap_or_default();
            block[to] = format!("{before}{more}").into();
        }
    }
}

fn gist_of_response(whole: &Value) -> Value {
    assert_eq!(whole["object"], "response", "no answer: {whole}");
    let item = |item: &Value| {
        let texts: Vec<Value> = list(&item["content"]).iter().map(|part| part["text"].clone()).collect();
        json!([item["type"], item["status"], texts, item["name"], item["arguments"]])
    };
    let items: Vec<Value> = list(&whole["output"]).iter().map(item).collect();
    json!([items, whole["status"], whole["incomplete_details"], whole["usage"]])
}

fn gist_of_choices(whole: &Value) -> Value {
    let choices = whole["choices"].as_array().unwrap_or_else(|| panic!("no answer: {whole}"));
    let choices = choices.iter().map(|choice| {
        let message = &choice["message"];
        let calls =
            message["tool_calls"].as_array().into_iter().flatten().map(|call| call["function"].clone());
        json!([
            choice["text"].as_str().or(message["content"].as_str()).unwrap_or_default(),
            message["reasoning_content"].as_str().unwrap_or_default(),
            message["unparsed_tool_text"].as_str().unwrap_or_default(),
            calls.collect::<Vec<Value>>(),
            choice["finish_reason"],
        ])
    });
    json!([choices.collect::<Vec<Value>>(), whole["usage"]])
}

/// The response that chunks add up to, the last of which tells the usage.
fn folded_choices(events: &[Value]) -> Value {
    let indexes =
        events.iter().flat_map(|event| list(&event["choices"])).map(|choice| choice["index"].as_u64());
    let choices = indexes.flatten().max().map_or(0, |index| index + 1);
    let mut whole = json!({"choices": [], "usage": null});
    for index in 0..choices {
        let mut choice = json!({"text": "", "message": {}, "finish_reason": null});
        let mut calls: Vec<Value> = Vec::new();
        for chunk in events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten()) {
            if chunk["index"] != index {
                continue;
            }
            if let Some(text) = chunk["text"].as_str() {
                choice["text"] = format!("{}{text}", choice["text"].as_str().unwrap()).into();
            }
            for field in ["content", "reasoning_content", "unparsed_tool_text"] {
                if let Some(text) = chunk["delta"][field].as_str() {
                    let before = choice["message"][field].as_str().unwrap_or_default();
                    choice["message"][field] = format!("{before}{text}").into();
                }
            }
            for call in chunk["delta"]["tool_calls"].as_array().into_iter().flatten() {
                add_call(&mut calls, call);
            }
            for withdrawn in chunk["delta"]["withdrawn_tool_calls"].as_array().into_iter().flatten() {
                calls.retain(|call| &call["index"] != withdrawn);
            }
            if !chunk["finish_reason"].is_null() {
                assert!(choice["finish_reason"].is_null(), "two finishes: {chunk}");
                choice["finish_reason"] = chunk["finish_reason"].clone();
            }
        }
        choice["message"]["tool_calls"] = calls.into();
        if choice["message"]["content"].is_string() {
            choice["text"] = Value::Null;
        }
        whole["choices"].as_array_mut().unwrap().push(choice);
    }
    whole["usage"] = events.last().unwrap()["usage"].clone();
    whole
}

fn add_call(calls: &mut Vec<Value>, delta: &Value) {
    match calls.iter_mut().find(|call| call["index"] == delta["index"]) {
        None => calls.push(delta.clone()),
        Some(call) => {
            let arguments = &mut call["function"]["arguments"];
            let more = delta["function"]["arguments"].as_str().unwrap();
            *arguments = format!("{}{more}", arguments.as_str().unwrap()).into();
        }
    }
}

fn begin(server: &Server, path: &str, body: &Value) -> Exchange {
    Exchange::begin(server.address, "POST", path, Some(&body.to_string())).within(ANSWER_PATIENCE)
}

fn streamed(path: &str, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    if path.ends_with("completions") {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

#[derive(Default)]
struct Tally {
    answered: AtomicU64,
    left: AtomicU64,
    refused: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

struct Soak<'a> {
    server: &'a Server,
    tasks: &'a [Task],
    ends: Instant,
    is_over: AtomicBool,
    tally: Tally,
}

impl Soak<'_> {
    fn client(&self, mut random: fastrand::Rng) {
        while Instant::now() < self.ends {
            let task = random.choice(self.tasks).unwrap();
            let kind = random.u32(..100);
            if kind < MALFORMED {
                self.break_a_body(&mut random);
            } else if kind < MALFORMED + LEAVING {
                self.leave(task, &mut random);
            } else {
                self.ask(task, &mut random);
            }
        }
    }

    fn ask(&self, task: &Task, random: &mut fastrand::Rng) {
        let told = if random.bool() {
            let mut events = begin(self.server, task.path, &streamed(task.path, &task.body)).events();
            gist_of_events(task.path, std::iter::from_fn(|| events.next_data()).collect())
        } else {
            gist(task.path, &answered(begin(self.server, task.path, &task.body).whole()))
        };
        if told != task.answer {
            let wrong = format!("{}\n  alone: {}\n  now:   {told}", task.body, task.answer);
            self.tally.wrong.lock().unwrap().push(wrong);
        }
        self.tally.answered.fetch_add(1, Relaxed);
    }

    fn leave(&self, task: &Task, random: &mut fastrand::Rng) {
        if random.bool() {
            let mut events = begin(self.server, task.path, &streamed(task.path, &task.body)).events();
            for _ in 0..random.usize(..6) {
                events.next_data();
            }
            events.abandon();
        } else {
            let exchange = begin(self.server, task.path, &task.body);
            std::thread::sleep(Duration::from_millis(random.u64(..40)));
            exchange.abandon();
        }
        self.tally.left.fetch_add(1, Relaxed);
    }

    fn break_a_body(&self, random: &mut fastrand::Rng) {
        let (path, body) = random.choice(BROKEN).unwrap();
        let answer = Exchange::begin(self.server.address, "POST", path, Some(body)).whole();
        let told = answer.json();
        // Anthropic's envelope says what kind of error it is; OpenAI's has that and a code.
        let kind = told["error"]["type"].as_str().unwrap_or_default();
        assert!((400..500).contains(&answer.status) && !kind.is_empty(), "{body}: {told}");
        self.tally.refused.fetch_add(1, Relaxed);
    }

    /// The longest that `/health` took.
    fn watch_health(&self) -> Duration {
        let mut longest = Duration::ZERO;
        while !self.is_over.load(Relaxed) {
            let asked = Instant::now();
            assert_eq!(self.server.get("/health").status, 200);
            longest = longest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(100));
        }
        longest
    }

    fn watch_memory(&self) -> Vec<u64> {
        let mut seen = Vec::new();
        while !self.is_over.load(Relaxed) {
            seen.extend(self.server.resident_kib());
            std::thread::sleep(Duration::from_millis(250));
        }
        seen
    }
}

fn answered(answer: Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn many_clients_for_a_while() {
    let asked = std::env::var("OVERSHOT_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let seconds: u64 = asked.unwrap_or(3);
    let clients = if asked.is_some() { 64 } else { 8 };
    let seed = overshot_testing::seed();
    // A cache that is too small for all of them: most wait, and some may have to give way.
    let server =
        Server::with_model(&["--max-batch", "32", "--kv-pool-tokens", "2048", "--chunk-tokens", "64"]);
    let alone = |(path, body): (&'static str, Value)| {
        let answer = gist(path, &answered(begin(&server, path, &body).whole()));
        Task { path, body, answer }
    };
    let tasks: Vec<Task> = requests().into_iter().map(alone).collect();
    let ends = Instant::now() + Duration::from_secs(seconds);
    let soak = Soak {
        server: &server,
        tasks: &tasks,
        ends,
        is_over: AtomicBool::new(false),
        tally: Tally::default(),
    };
    let (health, memory) = std::thread::scope(|scope| {
        let health = scope.spawn(|| soak.watch_health());
        let memory = scope.spawn(|| soak.watch_memory());
        let run = |client| soak.client(fastrand::Rng::with_seed(seed ^ client));
        let running: Vec<_> = (0..clients).map(|client| scope.spawn(move || run(client))).collect();
        let outcomes: Vec<_> = running.into_iter().map(|client| client.join()).collect();
        soak.is_over.store(true, Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a client saw something that is not so");
        (health.join().unwrap(), memory.join().unwrap())
    });
    server.rests();
    let Tally { answered, left, refused, wrong } = &soak.tally;
    println!(
        "{answered:?} answers, {left:?} clients left, {refused:?} bodies refused, {} preemptions, /health within {health:?}",
        server.metric("overshot_preemptions_total")
    );
    let wrong = wrong.lock().unwrap();
    assert!(wrong.is_empty(), "{} answers differ from those alone, such as {}", wrong.len(), wrong[0]);
    assert!(answered.load(Relaxed) > 0);
    assert!(health < HEALTH_PATIENCE, "/health took {health:?}");
    assert_eq!(server.metric("overshot_answers_total{outcome=\"failed\"}"), 0);
    assert_eq!(server.metric("overshot_kv_faults"), 0, "the accounts of the cache do not add up");
    check_memory(&memory, seconds);
}

/// What is resident at the end is within 5 % of what it was once everything had been seen: a third of the time.
fn check_memory(seen_kib: &[u64], seconds: u64) {
    if seen_kib.is_empty() {
        return println!("this system does not tell how much memory is resident");
    }
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let tenth = seen_kib.len().div_ceil(10);
    let warm = median(&seen_kib[seen_kib.len() / 3..][..tenth]);
    let last = median(&seen_kib[seen_kib.len() - tenth..]);
    println!("resident: {warm} KiB after the warm-up, {last} KiB at the end");
    let is_flat = last * 100 <= warm * 105;
    assert!(
        is_flat || seconds < SECONDS_FOR_MEMORY,
        "memory grew from {warm} KiB to {last} KiB: {seen_kib:?}"
    );
}
