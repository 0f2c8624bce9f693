//! As much of HTTP/1.1 as the tests need, on a plain socket: one request a connection, bodies read as slowly as a
//! test wants.

use super::PATIENCE;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A whole response.
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The error's code, out of an envelope that must be complete.
    pub fn error_code(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error: {json}"));
        for field in ["message", "type", "param", "code"] {
            assert!(error.contains_key(field), "no {field}: {json}");
        }
        error["code"].as_str().unwrap().to_owned()
    }
}

/// A request that was sent, and its response as far as it was read.
pub struct Exchange {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Exchange {
    pub fn begin(address: SocketAddr, method: &str, path: &str, body: Option<&str>) -> Exchange {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        if let Some(body) = body {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        request += body.unwrap_or_default();
        // A server that refuses early does not read the rest.
        let _ = (&socket).write_all(request.as_bytes());
        Exchange { reader: BufReader::new(socket.try_clone().unwrap()), socket }
    }

    /// Waits as long as that for each piece of the response.
    pub fn within(self, patience: Duration) -> Exchange {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        self
    }

    pub fn whole(self) -> Answer {
        let (status, headers, mut body) = self.read_head();
        let mut bytes = Vec::new();
        body.read_to_end(&mut bytes).unwrap();
        Answer { status, headers, body: bytes }
    }

    /// The events of a response that must be a stream of them.
    pub fn events(self) -> Events {
        let socket = self.socket.try_clone().unwrap();
        let (status, headers, body) = self.read_head();
        let kind = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.as_str());
        assert_eq!((status, kind), (200, Some("text/event-stream")));
        Events { socket, lines: BufReader::new(body) }
    }

    /// Goes away without a word: unread bytes make it a reset.
    pub fn abandon(self) {
        drop(self);
    }

    fn read_head(mut self) -> (u16, Vec<(String, String)>, Body) {
        let mut line = || {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let status = line().split(' ').nth(1).expect("a status line").parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let header = line();
            let Some((name, value)) = header.split_once(':') else { break };
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let header = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value);
        let framing = match (header("content-length"), header("transfer-encoding")) {
            (Some(length), _) => Framing::Length(length.parse().unwrap()),
            (None, Some(_)) => Framing::Chunked { left: 0 },
            (None, None) => Framing::UntilClosed,
        };
        (status, headers, Body { reader: self.reader, framing })
    }
}

enum Framing {
    Length(usize),
    /// Bytes of the current chunk that were not read yet.
    Chunked {
        left: usize,
    },
    UntilClosed,
    Ended,
}

struct Body {
    reader: BufReader<TcpStream>,
    framing: Framing,
}

impl Body {
    fn number_line(&mut self) -> usize {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("the stream was cut: {line:?}"))
    }
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if let Framing::Chunked { left: 0 } = self.framing {
            match self.number_line() {
                0 => self.framing = Framing::Ended,
                size => self.framing = Framing::Chunked { left: size },
            }
        }
        let most = match self.framing {
            Framing::Length(left) | Framing::Chunked { left } => left.min(out.len()),
            Framing::UntilClosed => out.len(),
            Framing::Ended => 0,
        };
        let count = self.reader.read(&mut out[..most])?;
        match &mut self.framing {
            Framing::Length(left) => *left -= count,
            Framing::Chunked { left } => {
                *left -= count;
                if *left == 0 {
                    self.reader.read_line(&mut String::new())?;
                }
            }
            Framing::UntilClosed | Framing::Ended => {}
        }
        Ok(count)
    }
}

/// Server-sent events, one after the other.
pub struct Events {
    socket: TcpStream,
    lines: BufReader<Body>,
}

impl Events {
    /// The next event's data; `None` at the end of the stream.
    pub fn next_data(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// The text of the next event that has some.
    pub fn next_text(&mut self) -> String {
        loop {
            let data = self.next_data().expect("the stream has ended");
            let chunk: Value = serde_json::from_str(&data).unwrap_or_else(|_| panic!("no text came: {data}"));
            if let Some(text) =
                chunk["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty())
            {
                return text.to_owned();
            }
        }
    }

    /// Reads on to the end: the text, and the error that ended it.
    pub fn rest(mut self) -> Streamed {
        let mut streamed = Streamed::default();
        while let Some(data) = self.next_data() {
            if data == "[DONE]" {
                streamed.is_done = true;
                continue;
            }
            assert!(!streamed.is_done && streamed.error.is_none(), "data after the end: {data}");
            let chunk: Value = serde_json::from_str(&data).unwrap();
            let choice = &chunk["choices"][0];
            streamed.text += choice["delta"]["content"].as_str().unwrap_or_default();
            if let Some(reason) = choice["finish_reason"].as_str() {
                streamed.finish_reason = Some(reason.to_owned());
            }
            if !chunk["error"].is_null() {
                streamed.error = Some(chunk["error"].clone());
            }
        }
        streamed
    }

    /// Goes away without a word.
    pub fn abandon(self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

#[derive(Debug, Default)]
pub struct Streamed {
    pub text: String,
    pub finish_reason: Option<String>,
    pub error: Option<Value>,
    /// Whether `[DONE]` came.
    pub is_done: bool,
}
