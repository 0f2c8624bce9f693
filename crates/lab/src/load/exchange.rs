//! One streamed request from its sending to its end, with the time at which every delivery came. Takes no view of the
//! numbers: that is for `reading.rs`.

use super::connection::{Client, Connection, drain, next_bytes, read_whole};
use super::delivery::{Delivery, Usage, error_of_body};
use super::failure::{Failure, quoted};
use super::sse::EventSplitter;
use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::json;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
}

impl Api {
    fn endpoint(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }
}

/// How a server wants to be asked. What is beyond the OpenAI API is left out for servers that refuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    pub api: Api,
    pub model: String,
    /// Answers go on past their natural end, to the number of tokens asked for.
    pub ignores_eos: bool,
    /// The last chunk counts the tokens.
    pub counts_tokens: bool,
}

#[derive(Clone, Debug)]
pub struct Question {
    pub prompt: String,
    pub answer_tokens: usize,
}

impl Dialect {
    fn body(&self, question: &Question) -> Bytes {
        let mut body = json!({
            "model": self.model,
            "max_tokens": question.answer_tokens,
            "temperature": 0,
            "stream": true,
        });
        match self.api {
            Api::Chat => body["messages"] = json!([{ "role": "user", "content": question.prompt }]),
            Api::Completions => body["prompt"] = json!(question.prompt),
        }
        if self.ignores_eos {
            body["ignore_eos"] = json!(true);
        }
        if self.counts_tokens {
            body["stream_options"] = json!({ "include_usage": true });
        }
        body.to_string().into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Whole,
    /// By us, because the time of the measurement was over.
    Cut,
    Failed(Failure),
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When the request was handed to a connection that stood already.
    pub sent: Instant,
    /// Of every delivery with text, ascending. Deliveries that came in one piece have one time.
    pub arrivals: Vec<Instant>,
    pub ended: Instant,
    pub usage: Option<Usage>,
    pub end: End,
}

/// Asks on the connection of the slot, or on a new one, and leaves it there for the next request when it can carry one.
/// At `until` the answer is cut.
pub async fn ask(
    client: &Client,
    slot: &mut Option<Connection>,
    dialect: &Dialect,
    question: &Question,
    until: Option<Instant>,
) -> Answer {
    let started = Instant::now();
    let mut answer =
        Answer { sent: started, arrivals: Vec::new(), ended: started, usage: None, end: End::Whole };
    let work = exchange(client, slot, dialect, question, &mut answer);
    let outcome = match until {
        None => work.await,
        Some(until) => match tokio::time::timeout_at(until.into(), work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                answer.ended = Instant::now();
                answer.end = End::Cut;
                return answer;
            }
        },
    };
    answer.ended = Instant::now();
    if let Err(failure) = outcome {
        answer.end = End::Failed(failure);
    }
    answer
}

async fn exchange(
    client: &Client,
    slot: &mut Option<Connection>,
    dialect: &Dialect,
    question: &Question,
    answer: &mut Answer,
) -> Result<(), Failure> {
    let body = dialect.body(question);
    let (mut connection, response) = send(client, slot, dialect.api, body, answer).await?;
    let mut incoming = expect_stream(client, response).await?;
    let mut reader = Reader { answer, last: None, is_done: false, events_left: events_max(question) };
    let mut splitter = EventSplitter::default();
    while !reader.is_done {
        let Some(bytes) = next_bytes(&mut incoming, reader.patience(client)).await? else {
            splitter.finish(|data| reader.take(data, Instant::now()));
            break;
        };
        // One time for all that came: taken before any of it is read.
        let now = Instant::now();
        let fed = splitter.feed(&bytes, |data| reader.take(data, now));
        fed.map_err(|_| Failure::Nonsense("an event without an end".into()))?;
        if let Some(Err(failure)) = reader.last.take_if(|last| last.is_err()) {
            return Err(failure);
        }
    }
    let is_done = reader.is_done;
    match reader.last {
        Some(Ok(())) => {}
        Some(Err(failure)) => return Err(failure),
        None if is_done => {}
        None => return Err(Failure::Closed("the answer has no end".into())),
    }
    if is_done && drain(incoming).await && connection.is_usable().await {
        *slot = Some(connection);
    }
    Ok(())
}

/// A connection that stood idle may have been closed by the server: then, and only then, a second one is tried.
async fn send(
    client: &Client,
    slot: &mut Option<Connection>,
    api: Api,
    body: Bytes,
    answer: &mut Answer,
) -> Result<(Connection, Response<Incoming>), Failure> {
    if let Some(mut connection) = slot.take() {
        let request = client.post(api.endpoint(), body.clone());
        answer.sent = Instant::now();
        match connection.send(request, client.idle()).await {
            Ok(response) => return Ok((connection, response)),
            Err(Failure::Closed(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut connection = client.connect().await?;
    let request = client.post(api.endpoint(), body);
    answer.sent = Instant::now();
    let response = connection.send(request, client.idle()).await?;
    Ok((connection, response))
}

async fn expect_stream(client: &Client, response: Response<Incoming>) -> Result<Incoming, Failure> {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let retry_after = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let is_json = header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    if status.is_success() && !is_json {
        return Ok(response.into_body());
    }
    let body = read_whole(response.into_body(), client.idle()).await?;
    let sentence = quoted(&error_of_body(&body));
    if status.is_success() {
        return Err(Failure::Nonsense(format!("one piece of JSON ({sentence})")));
    }
    Err(Failure::Status { status: status.as_u16(), sentence, retry_after })
}

/// Events that an answer may have: servers send some beside those with text, but not without end.
fn events_max(question: &Question) -> usize {
    question.answer_tokens.saturating_mul(4).saturating_add(1024)
}

struct Reader<'a> {
    answer: &'a mut Answer,
    /// That the answer has ended, and how.
    last: Option<Result<(), Failure>>,
    is_done: bool,
    events_left: usize,
}

impl Reader<'_> {
    fn take(&mut self, data: &[u8], now: Instant) {
        if self.is_done || matches!(self.last, Some(Err(_))) {
            return;
        }
        if data.trim_ascii() == b"[DONE]" {
            self.is_done = true;
            return;
        }
        match Delivery::parse(data) {
            Err(error) => {
                let data = quoted(&String::from_utf8_lossy(data));
                self.last = Some(Err(Failure::Nonsense(format!("{data} ({error})"))));
            }
            Ok(Delivery { error: Some(sentence), .. }) => {
                self.last = Some(Err(Failure::GaveUp(quoted(&sentence))));
            }
            Ok(delivery) => self.keep(&delivery, now),
        }
        self.events_left = self.events_left.saturating_sub(1);
        if self.events_left == 0 {
            self.last = Some(Err(Failure::Nonsense("many more events than tokens were asked for".into())));
        }
    }

    fn keep(&mut self, delivery: &Delivery, now: Instant) {
        // An answer whose only token has no text still has a first token: its end.
        let is_first = delivery.is_last && self.answer.arrivals.is_empty();
        if delivery.has_text || is_first {
            self.answer.arrivals.push(now);
        }
        if delivery.is_last {
            self.last = Some(Ok(()));
        }
        self.answer.usage = delivery.usage.or(self.answer.usage);
    }

    /// After the last chunk only usage and the end are missing, and some servers send neither.
    fn patience(&self, client: &Client) -> Duration {
        const AFTER_THE_LAST: Duration = Duration::from_secs(2);
        if self.last.is_some() { client.idle().min(AFTER_THE_LAST) } else { client.idle() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_say_what_the_dialect_allows() {
        let question = Question { prompt: "a \"b\"".into(), answer_tokens: 7 };
        let mut dialect =
            Dialect { api: Api::Chat, model: "m".into(), ignores_eos: true, counts_tokens: true };
        let body: serde_json::Value = serde_json::from_slice(&dialect.body(&question)).unwrap();
        assert_eq!(body["messages"][0]["content"], "a \"b\"");
        assert_eq!((&body["ignore_eos"], &body["max_tokens"]), (&json!(true), &json!(7)));
        assert_eq!(body["stream_options"]["include_usage"], true);
        dialect = Dialect { api: Api::Completions, ignores_eos: false, counts_tokens: false, ..dialect };
        let body: serde_json::Value = serde_json::from_slice(&dialect.body(&question)).unwrap();
        assert_eq!(body["prompt"], "a \"b\"");
        assert!(body.get("ignore_eos").is_none() && body.get("stream_options").is_none());
    }
}
