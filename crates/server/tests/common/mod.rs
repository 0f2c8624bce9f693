//! A whole server over the parrot: real engine, real tokenizer and prompt texts of the mini model, no weights. Most
//! tests call the router; those about connections bind a port.

#![allow(dead_code, clippy::unwrap_used)]

pub mod anthropic;
pub mod backend;
pub mod responses;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use backend::{Control, Parrot};
use overshot_backend::{Backend, Numerics, Sampling};
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_chat::{Effort, PromptTexts, Tokenizer};
use overshot_engine::{Engine, Limits, StepLoop};
use overshot_kv::PoolCapacity;
use overshot_model::Model;
use overshot_server::{App, EngineHandle, ServedModel, ServerOptions, StepObserver, router};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tower::ServiceExt;

pub const MODEL: &str = "deepseek/parrot";
pub const CONTEXT: usize = 2000;

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_file(&folder().join("tokenizer.json")).unwrap());

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini"))
}

pub fn tokenizer() -> &'static Tokenizer {
    &TOKENIZER
}

/// What a test may want otherwise.
pub struct Setup {
    pub max_positions: usize,
    pub kv_pool_tokens: usize,
    pub engine: Limits,
    pub step_loop: StepLoop,
    pub options: ServerOptions,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            max_positions: 4096,
            kv_pool_tokens: 64 << 10,
            engine: Limits { running_requests: 16, ..Limits::default() },
            step_loop: StepLoop::Plain,
            options: ServerOptions {
                drain: Duration::from_secs(5),
                stall: Duration::from_secs(30),
                ..ServerOptions::default()
            },
        }
    }
}

#[derive(Clone)]
pub struct Server {
    pub app: Arc<App>,
    pub control: Arc<Control>,
}

impl Server {
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        Self::observed(setup, None)
    }

    pub fn observed(setup: Setup, observer: Option<Box<dyn StepObserver>>) -> Self {
        let control = Arc::new(Control::default());
        let capacity = PoolCapacity::for_sets(setup.engine.running_requests, setup.kv_pool_tokens);
        let parrot = Parrot::new(&TOKENIZER, capacity, setup.max_positions, control.clone());
        Self::over(parrot, control, setup, observer)
    }

    /// The mini model itself answers.
    pub fn over_mini() -> Self {
        let setup = Setup { step_loop: StepLoop::Overlapped, ..Setup::default() };
        let options = CpuOptions {
            numerics: Numerics::default(),
            capacity: PoolCapacity::for_sets(setup.engine.running_requests, 1024),
            tp: 1,
            threads: Some(2),
            isa: Isa::detect(),
            rehearsal: None,
        };
        let backend = CpuBackend::new(Arc::new(Model::open(folder()).unwrap()), options).unwrap();
        Self::over(Box::new(backend), Arc::new(Control::default()), setup, None)
    }

    fn over(
        backend: Box<dyn Backend>,
        control: Arc<Control>,
        setup: Setup,
        observer: Option<Box<dyn StepObserver>>,
    ) -> Self {
        let engine = Engine::new(backend, setup.engine, setup.step_loop).unwrap();
        let handle = EngineHandle::start(engine, setup.options.limits, observer).unwrap();
        let model = ServedModel {
            name: MODEL.into(),
            tokenizer: TOKENIZER.clone(),
            texts: PromptTexts::from_model_folder(folder()).unwrap(),
            bos_token: 0,
            eos_token: 1,
            vocab_size: TOKENIZER.vocabulary_size(),
            context: CONTEXT,
            sampling: Sampling::default(),
            effort: Effort::None,
        };
        Server { app: App::new(handle, model, setup.options), control }
    }

    pub async fn send(&self, method: &str, path: &str, kind: Option<&str>, body: impl Into<Body>) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        self.answered(request.body(body.into()).unwrap()).await
    }

    async fn answered(&self, request: Request<Body>) -> Reply {
        let response = router(self.app.clone()).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Reply { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, None, Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, Some("application/json"), body.to_string()).await
    }

    /// Posts with headers of its own.
    pub async fn send_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut request = Request::builder().method("POST").uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answered(request.body(body.to_string().into()).unwrap()).await
    }

    /// The reply to some message.
    pub async fn chat_reply(&self, more: Value) -> Reply {
        self.post("/v1/chat/completions", &chat_body("Go on.", more)).await
    }

    /// A whole answer to one message.
    pub async fn chat(&self, said: &str, more: Value) -> Value {
        let reply = self.post("/v1/chat/completions", &chat_body(said, more)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// The value of a metric without labels, or with exactly these.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or("0").parse::<f64>().unwrap() as u64
    }

    /// Waits until the engine holds nothing: no request, no page.
    pub async fn rests(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut held = self.metric("overshot_requests_waiting").await;
            held += self.metric("overshot_requests_running").await;
            for pool in ["window", "csa", "hca", "index_keys", "compressor_rows"] {
                held += self.metric(&format!("overshot_kv_pages_used{{pool=\"{pool}\"}}")).await;
            }
            if held == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{}", self.get("/metrics").await.text());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn outcome(&self, outcome: &str) -> u64 {
        self.metric(&format!("overshot_answers_total{{outcome=\"{outcome}\"}}")).await
    }

    /// Waits for a metric to reach a value.
    pub async fn reaches(&self, name: &str, value: u64) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.metric(name).await < value {
            assert!(Instant::now() < deadline, "{name}: {}", self.get("/metrics").await.text());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub fn chat_body(said: &str, more: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": said}]});
    merge(&mut body, more);
    body
}

/// Adds the fields of one object to another.
pub fn merge(body: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("no object") };
    body.as_object_mut().unwrap().extend(more);
}

pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The events of a stream, without `[DONE]`, and whether that came.
    pub fn events(&self) -> (Vec<Value>, bool) {
        events(&self.text())
    }

    /// The envelope of an error, which must be complete.
    pub fn envelope(&self) -> Value {
        let json = self.json();
        let error = json["error"].clone();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "no {field}: {json}");
        }
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{json}");
        error
    }
}

pub fn events(text: &str) -> (Vec<Value>, bool) {
    let mut is_done = false;
    let mut values = Vec::new();
    for event in text.split_terminator("\n\n") {
        assert!(!is_done, "something after [DONE]: {event}");
        match event.strip_prefix("data: ").unwrap_or_else(|| panic!("no event: {event}")) {
            "[DONE]" => is_done = true,
            data => values.push(serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))),
        }
    }
    (values, is_done)
}

/// The message that a choice's chunks add up to, in the shape of a whole one, with reason and logprobs.
pub fn folded(events: &[Value], choice: u64) -> Value {
    let mut message = json!({"role": null, "content": ""});
    let mut calls: Vec<Value> = Vec::new();
    let (mut reason, mut logprobs, mut thought) = (Value::Null, Vec::new(), Vec::new());
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    for chunk in choices.filter(|chunk| chunk["index"] == choice) {
        assert!(reason.is_null(), "a chunk after the finish: {chunk}");
        let delta = chunk["delta"].as_object().unwrap();
        for (key, value) in delta {
            match key.as_str() {
                "role" => message["role"] = value.clone(),
                "tool_calls" => value.as_array().unwrap().iter().for_each(|call| fold_call(&mut calls, call)),
                "withdrawn_tool_calls" => {
                    calls.retain(|call| !value.as_array().unwrap().contains(&call["index"]))
                }
                key => {
                    let so_far = message.get(key).and_then(Value::as_str).unwrap_or_default();
                    message[key] = format!("{so_far}{}", value.as_str().unwrap()).into();
                }
            }
        }
        logprobs.extend(chunk["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        thought.extend(chunk["logprobs"]["reasoning_content"].as_array().cloned().unwrap_or_default());
        reason = chunk["finish_reason"].clone();
    }
    if !calls.is_empty() {
        for call in &mut calls {
            call.as_object_mut().unwrap().remove("index");
        }
        if message["content"] == "" {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = calls.into();
    }
    json!({"message": message, "finish_reason": reason, "content": logprobs, "reasoning_content": thought})
}

fn fold_call(calls: &mut Vec<Value>, delta: &Value) {
    match calls.iter_mut().find(|call| call["index"] == delta["index"]) {
        None => calls.push(delta.clone()),
        Some(call) => {
            let so_far = call["function"]["arguments"].as_str().unwrap();
            let more = delta["function"]["arguments"].as_str().unwrap();
            call["function"]["arguments"] = format!("{so_far}{more}").into();
        }
    }
}

/// A server on a port of its own, which ends with the test.
pub async fn listen(server: &Server) -> (SocketAddr, tokio::sync::watch::Sender<overshot_server::Shutdown>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = tokio::sync::watch::channel(overshot_server::Shutdown::Not);
    tokio::spawn(overshot_server::serve(listener, server.app.clone(), receiver));
    (address, sender)
}
