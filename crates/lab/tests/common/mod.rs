//! A server for the load generator to suffer from: answers every request as its script says, on a thread of its own.

#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Request {
    /// `POST /v1/completions`.
    pub line: String,
    pub body: serde_json::Value,
}

impl Request {
    pub fn tokens(&self) -> usize {
        self.body["max_tokens"].as_u64().unwrap_or(0) as usize
    }

    pub fn words(&self) -> usize {
        let chat = self.body["messages"][0]["content"].as_str();
        chat.or(self.body["prompt"].as_str()).map_or(0, |prompt| prompt.split(' ').count())
    }
}

/// What to do with the `count`th request (from 0).
pub type Script = Arc<dyn Fn(&Request, usize) -> Vec<Act> + Send + Sync>;

#[derive(Clone, Debug)]
pub enum Act {
    Bytes(Vec<u8>),
    /// A chunk of a chunked body.
    Chunk(Vec<u8>),
    Wait(Duration),
    /// Waits, and closes without a word.
    Hang,
    Close,
}

pub fn text(text: impl Into<String>) -> Act {
    Act::Bytes(text.into().into_bytes())
}

pub fn chunk(text: impl Into<String>) -> Act {
    Act::Chunk(text.into().into_bytes())
}

pub fn wait_ms(ms: u64) -> Act {
    Act::Wait(Duration::from_millis(ms))
}

pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

pub fn whole(status: &str, headers: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    vec![text(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"))]
}

pub fn json(status: &str, body: &str) -> Vec<Act> {
    whole(status, "Content-Type: application/json\r\n", body)
}

pub fn delta(content: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

pub const LAST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";

pub fn usage(prompt: usize, completion: usize) -> String {
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}}}}\n\n"
    )
}

/// An answer as a good server gives it: a first token after `first_ms`, then one every `step_ms`, usage at the end. A word is
/// two tokens, and the format adds five.
pub fn good_answer(request: &Request, first_ms: u64, step_ms: u64) -> Vec<Act> {
    let mut acts = vec![text(STREAM_HEAD), wait_ms(first_ms)];
    for index in 0..request.tokens() {
        if index > 0 {
            acts.push(wait_ms(step_ms));
        }
        acts.push(chunk(delta("x")));
    }
    acts.push(chunk(LAST.to_owned() + &usage(request.words() * 2 + 5, request.tokens()) + DONE));
    acts.push(chunk(""));
    acts
}

/// A list of one model, no counters.
pub fn other_endpoints(request: &Request) -> Option<Vec<Act>> {
    let path = request.line.split(' ').nth(1).unwrap_or_default();
    match path {
        "/v1/models" => Some(json("200 OK", r#"{"object":"list","data":[{"id":"tiny"}]}"#)),
        "/metrics" => Some(json("404 Not Found", "{}")),
        _ => None,
    }
}

/// The address of a server that follows `script`, and ends with the test process.
pub fn serve(script: impl Fn(&Request, usize) -> Vec<Act> + Send + Sync + 'static) -> String {
    let script: Script = Arc::new(script);
    let (send, receive) = std::sync::mpsc::channel::<SocketAddr>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let _ = stream.set_nodelay(true);
                tokio::spawn(converse(stream, Arc::clone(&script), Arc::clone(&count)));
            }
        });
    });
    format!("http://{}", receive.recv().unwrap())
}

async fn converse(mut stream: TcpStream, script: Script, count: Arc<AtomicUsize>) -> io::Result<()> {
    while let Some(request) = read_request(&mut stream).await? {
        let number = if request.line.starts_with("POST") { count.fetch_add(1, Ordering::SeqCst) } else { 0 };
        let acts = other_endpoints(&request).unwrap_or_else(|| script(&request, number));
        let mut due = tokio::time::Instant::now();
        for act in acts {
            match act {
                Act::Bytes(bytes) => stream.write_all(&bytes).await?,
                Act::Chunk(bytes) => {
                    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
                    framed.extend_from_slice(&bytes);
                    framed.extend_from_slice(b"\r\n");
                    stream.write_all(&framed).await?;
                }
                // Against the plan and not from now, so that waits do not add up to more than they say.
                Act::Wait(time) => {
                    due += time;
                    tokio::time::sleep_until(due).await;
                }
                Act::Hang => tokio::time::sleep(Duration::from_secs(60)).await,
                Act::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    let line = String::from_utf8_lossy(&bytes[..head]).lines().next().unwrap_or_default().to_owned();
    let body = serde_json::from_slice(&bytes[head..head + length]).unwrap_or_default();
    Ok(Some(Request { line, body }))
}
