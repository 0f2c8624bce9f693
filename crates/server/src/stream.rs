//! A response body that streams answers as server-sent events. Whatever has arrived when the socket is ready goes
//! into one write, an event for each piece. Where nothing comes for a while, signs of life do.

use crate::answers::{Answers, Output, Progress};
use crate::dialect::{AllCounts, EventWriter};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Room for the next write, so that a token does not mean an allocation of its own.
const BUFFER_BYTES: usize = 4096;

pub struct EventStream {
    answers: Answers,
    writer: Box<dyn EventWriter>,
    prompt_tokens: usize,
    buffer: BytesMut,
    state: State,
    silence: Silence,
}

enum State {
    /// Nothing sent yet.
    New,
    /// Nothing computed yet.
    Opened,
    Going,
    Over,
}

impl EventStream {
    pub fn new(
        answers: Answers,
        writer: Box<dyn EventWriter>,
        prompt_tokens: usize,
        keep_alive: Duration,
    ) -> Self {
        let buffer = BytesMut::with_capacity(BUFFER_BYTES);
        let silence = Silence::new(keep_alive);
        EventStream { answers, writer, prompt_tokens, buffer, state: State::New, silence }
    }

    fn begin(&mut self) {
        if matches!(self.state, State::Opened) {
            self.writer.begin(self.prompt_tokens, &mut self.buffer);
            self.state = State::Going;
        }
    }

    /// Fills the buffer with what has arrived.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (writer, buffer) = (&mut self.writer, &mut self.buffer);
        let mut deliver = |choice: usize, output: Output| match output {
            Output::Piece(piece) => writer.piece(choice, &piece, buffer),
            Output::Finish(ending) => writer.finish(choice, &ending, buffer),
        };
        match self.answers.poll(context, &mut deliver) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Progress::Going)) => {}
            Poll::Ready(Ok(Progress::Over)) => {
                let counts = AllCounts { prompt: self.prompt_tokens, answers: self.answers.counts() };
                self.writer.end(counts, &mut self.buffer);
                self.state = State::Over;
            }
            Poll::Ready(Err(error)) => {
                self.writer.fail(&error, &mut self.buffer);
                self.state = State::Over;
            }
        }
        Poll::Ready(())
    }
}

/// A response that streams events.
pub fn event_response(
    events: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> Response<axum::body::Body> {
    let mut response = Response::new(axum::body::Body::new(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The time since something was sent.
pub struct Silence {
    longest: Duration,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    pub fn new(longest: Duration) -> Self {
        Silence { longest, since: Instant::now(), timer: Box::pin(sleep(longest)) }
    }

    /// The timer is left alone: setting it anew for each token would cost more than to look at it once it is over.
    pub fn break_off(&mut self) {
        self.since = Instant::now();
    }

    /// Ready when it has lasted too long, which begins the next one.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let is_over = self.since + self.longest <= Instant::now();
            if is_over {
                self.break_off();
            }
            self.timer.as_mut().reset(self.since + self.longest);
            if is_over {
                return Poll::Ready(());
            }
        }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if matches!(this.state, State::Over) {
            return Poll::Ready(None);
        }
        if matches!(this.state, State::New) {
            this.state = State::Opened;
            this.writer.announce(&mut this.buffer);
            if !this.buffer.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(this.buffer.split().freeze()))));
            }
        }
        // The role goes with the first token, so that the first chunk tells how long it took.
        let begun = this.buffer.len();
        this.begin();
        loop {
            let is_filled = this.poll_fill(context).is_ready();
            if !is_filled {
                ready!(this.silence.poll(context));
                // The beginning, which is in the buffer, waits for the first token.
                let mut sign = BytesMut::new();
                this.writer.keep_alive(&mut sign);
                return Poll::Ready(Some(Ok(Frame::data(sign.freeze()))));
            }
            if this.buffer.len() > begun {
                this.silence.break_off();
                let data = this.buffer.split().freeze();
                this.buffer.reserve(BUFFER_BYTES);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Over)
    }
}
