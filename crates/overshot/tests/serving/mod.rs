//! A server as a process of its own, on a port of its own, playing a script or running the built-in model; and what
//! the tests ask of it.

#![allow(dead_code, clippy::unwrap_used)]

pub mod http;
#[path = "../program/mod.rs"]
mod program;

use http::{Answer, Exchange};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    pub address: SocketAddr,
    child: Child,
    log: Arc<Mutex<String>>,
    at_rest: BTreeMap<String, String>,
    _script: Option<tempfile::NamedTempFile>,
}

impl Server {
    /// A server that plays `script`, with further flags.
    pub fn start(script: &str, flags: &[&str]) -> Server {
        Server::start_with_fault(script, flags, None)
    }

    pub fn start_with_fault(script: &str, flags: &[&str], fault: Option<&str>) -> Server {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        let backend = format!("scripted:{}", file.path().display());
        let mut server = Server::spawn(&[&["--backend", &backend], flags].concat(), fault);
        server._script = Some(file);
        server
    }

    /// The built-in model.
    pub fn with_model(flags: &[&str]) -> Server {
        Server::spawn(flags, None)
    }

    fn spawn(flags: &[&str], fault: Option<&str>) -> Server {
        let mut command = program::overshot(&[&["serve", "--port", "0"], flags].concat());
        command.env_remove("OVERSHOT_FAULT");
        fault.map(|fault| command.env("OVERSHOT_FAULT", fault));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (said, errors) = (log.clone(), BufReader::new(child.stderr.take().unwrap()));
        let reader = std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                said.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let Some(address) = first.trim().strip_prefix("listening on http://") else {
            reader.join().unwrap();
            panic!("no server: {first:?} {}", log.lock().unwrap());
        };
        let address = address.parse().unwrap();
        let mut server = Server { address, child, log, at_rest: BTreeMap::new(), _script: None };
        server.at_rest = server.held();
        server
    }

    pub fn get(&self, path: &str) -> Answer {
        Exchange::begin(self.address, "GET", path, None).whole()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        Exchange::begin(self.address, "POST", path, Some(&body.to_string())).whole()
    }

    /// The text of an answer that must come whole.
    pub fn chat(&self, question: &str) -> String {
        let answer = self.post("/v1/chat/completions", &chat(question));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// A streamed answer, its head not yet read.
    pub fn stream(&self, question: &str) -> Exchange {
        let mut body = chat(question);
        body["stream"] = json!(true);
        Exchange::begin(self.address, "POST", "/v1/chat/completions", Some(&body.to_string()))
    }

    /// The samples of `/metrics` by their names with labels.
    pub fn metrics(&self) -> BTreeMap<String, String> {
        let text = self.get("/metrics").text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.filter_map(|line| line.rsplit_once(' ')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    /// A counter or gauge.
    pub fn metric(&self, name: &str) -> u64 {
        self.metrics().get(name).unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
    }

    /// What requests hold: pages, places in the queue and in the batch, connections.
    fn held(&self) -> BTreeMap<String, String> {
        let mut held = self.metrics();
        held.retain(|name, _| {
            ["overshot_kv_pages_used", "overshot_requests_", "overshot_connections"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        });
        assert!(held.len() >= 8, "five pools, two queues, connections: {held:?}");
        held
    }

    /// Waits until nothing is held that was not held at the start.
    pub fn rests(&self) {
        self.wait_until("everything is given back", || self.held() == self.at_rest);
    }

    pub fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}; {:#?}", self.metrics());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Resident memory of the process, where the system tells it.
    pub fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        assert!(
            Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success()
        );
    }

    /// Waits for the process and gives its exit code and what it wrote to the error stream.
    pub fn ends(&mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code(), self.log.lock().unwrap().clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.log.lock().unwrap());
        }
    }
}

pub fn chat(question: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": question }] })
}

/// A script line of these chunks.
pub fn line(chunks: Value) -> String {
    json!({ "chunks": chunks }).to_string() + "\n"
}

/// A text of `words` words that no other `index` has, and its script line: a word a step, each taking `delay_ms`.
pub fn numbered_words(index: usize, words: usize, delay_ms: u64) -> (String, String) {
    let words: Vec<String> = (0..words).map(|word| format!(" {index}.{word}")).collect();
    let chunks: Vec<Value> =
        words.iter().flat_map(|word| [json!({ "delay_ms": delay_ms }), json!(word)]).collect();
    (words.concat(), line(json!(chunks)))
}
