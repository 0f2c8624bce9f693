//! A response that is made while nobody waits for it: a task of its own follows the answer, and whoever asks sees how
//! far it has come. If it was asked for as a stream, its events go into a bounded log that readers may join at any
//! number. Cancelling it, or forgetting it, ends the computing.

use super::events::{ErrorFields, put_event};
use super::response::Response;
use super::store::{Record, Told};
use super::teller::Teller;
use crate::answers::{Answers, Output, Progress};
use crate::app::App;
use crate::dialect::{AllCounts, KEEP_ALIVE};
use crate::error::ApiError;
use crate::job::Delivery;
use crate::stream::Silence;
use crate::sync::lock;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

/// Bytes of events that a reader gets at once, if so many are there.
const FRAME_BYTES: usize = 64 << 10;

pub struct Background {
    state: Mutex<State>,
}

struct State {
    teller: Teller,
    log: Option<Log>,
    /// Wakes the task that follows the answer.
    follower: Option<Waker>,
    /// Kept for its memory; empty between calls.
    buffer: BytesMut,
}

/// The events so far, as many as there is room for.
struct Log {
    /// The number of the first event that is still there.
    first: u64,
    events: VecDeque<Bytes>,
    bytes: usize,
    most_bytes: usize,
    readers: Vec<Waker>,
}

impl Background {
    /// `log_bytes` bounds what is kept of a stream.
    pub fn new(teller: Teller, delivery: Delivery, log_bytes: usize) -> Self {
        let log = (delivery == Delivery::Stream).then(|| Log {
            first: 0,
            events: VecDeque::new(),
            bytes: 0,
            most_bytes: log_bytes,
            readers: Vec::new(),
        });
        let mut state = State { teller, log, follower: None, buffer: BytesMut::new() };
        state.tell(|teller, out| teller.begin(out));
        Background { state: Mutex::new(state) }
    }

    pub fn with_response<T>(&self, see: impl FnOnce(&Response) -> T) -> T {
        see(&lock(&self.state).teller.response)
    }

    /// What the log holds; while it grows, what it may come to hold.
    pub fn log_bytes(&self) -> usize {
        let state = lock(&self.state);
        match &state.log {
            None => 0,
            Some(log) if state.teller.response.status.is_final() => log.bytes,
            Some(log) => log.most_bytes,
        }
    }

    pub fn has_log(&self) -> bool {
        lock(&self.state).log.is_some()
    }

    /// Ends the computing, unless it has ended.
    pub fn cancel(&self) {
        let mut state = lock(&self.state);
        if state.teller.response.status.is_final() {
            return;
        }
        state.tell(Teller::cancel);
        // The task holds the right to the answer.
        if let Some(follower) = state.follower.take() {
            follower.wake();
        }
    }

    fn poll(&self, context: &mut Context<'_>, answers: &mut Answers, prompt_tokens: usize) -> Poll<()> {
        let mut state = lock(&self.state);
        // Nobody but a client has ended it so far.
        if state.teller.response.status.is_final() {
            answers.cancel();
            return Poll::Ready(());
        }
        let mut polled = Poll::Pending;
        state.tell(|teller, out| {
            polled = answers.poll(context, &mut |_, output| match output {
                Output::Piece(piece) => teller.piece(&piece, out),
                Output::Finish(ending) => teller.finish(ending.reason, out),
            });
            match &polled {
                Poll::Ready(Ok(Progress::Over)) => {
                    teller.end(AllCounts { prompt: prompt_tokens, answers: answers.counts() }, out);
                }
                Poll::Ready(Err(error)) => teller.fail(error, out),
                Poll::Ready(Ok(Progress::Going)) | Poll::Pending => {}
            }
        });
        match polled {
            Poll::Pending => {
                state.follower = Some(context.waker().clone());
                Poll::Pending
            }
            Poll::Ready(Ok(Progress::Going)) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Ok(Progress::Over) | Err(_)) => Poll::Ready(()),
        }
    }
}

/// Follows the answer to its end.
pub fn follow(record: &Arc<Record>, mut answers: Answers, prompt_tokens: usize, app: &Arc<App>) {
    let (followed, app) = (Arc::clone(record), Arc::clone(app));
    tokio::spawn(async move {
        if let Told::Background(background) = &followed.told {
            poll_fn(|context| background.poll(context, &mut answers, prompt_tokens)).await;
        }
        app.responses.recount(&followed.id);
    });
}

impl State {
    /// Has the teller tell something, and hands the events to the readers.
    fn tell(&mut self, tell: impl FnOnce(&mut Teller, &mut BytesMut)) {
        tell(&mut self.teller, &mut self.buffer);
        match &mut self.log {
            Some(log) => log.append(self.buffer.split().freeze()),
            None => self.buffer.clear(),
        }
    }
}

impl Log {
    fn append(&mut self, mut events: Bytes) {
        if events.is_empty() {
            return;
        }
        // A blank line ends an event, and JSON has none.
        while let Some(end) = events.windows(2).position(|pair| pair == b"\n\n") {
            let event = events.split_to(end + 2);
            self.bytes += event.len();
            self.events.push_back(event);
        }
        while self.bytes > self.most_bytes
            && let Some(event) = self.events.pop_front()
        {
            self.bytes -= event.len();
            self.first += 1;
        }
        self.readers.drain(..).for_each(Waker::wake);
    }

    /// Moves events from number `next` on into `out`.
    ///
    /// # Errors
    /// They are gone.
    fn read(&self, next: &mut u64, out: &mut BytesMut) -> Result<(), LogGone> {
        let at = next.checked_sub(self.first).ok_or(LogGone { first: self.first })?;
        for event in self.events.iter().skip(usize::try_from(at).unwrap_or(usize::MAX)) {
            if out.len() >= FRAME_BYTES {
                break;
            }
            out.extend_from_slice(event);
            *next += 1;
        }
        Ok(())
    }
}

/// The events that a reader wants are not there any more.
struct LogGone {
    first: u64,
}

/// Reads a log from one of its events on, to its end.
pub struct LogReader {
    record: Arc<Record>,
    next: u64,
    is_over: bool,
    silence: Silence,
}

impl LogReader {
    /// # Errors
    /// A response without a log.
    pub fn new(
        record: Arc<Record>,
        starting_after: Option<u64>,
        keep_alive: Duration,
    ) -> Result<Self, ApiError> {
        let has_log = matches!(&record.told, Told::Background(background) if background.has_log());
        if !has_log {
            let message =
                "this response cannot be streamed again: it was not made with `background` and `stream`";
            return Err(ApiError::field("stream", message));
        }
        let next = starting_after.map_or(0, |number| number.saturating_add(1));
        Ok(LogReader { record, next, is_over: false, silence: Silence::new(keep_alive) })
    }
}

impl Body for LogReader {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let Told::Background(background) = &this.record.told else { return Poll::Ready(None) };
        let mut state = lock(&background.state);
        let is_final = state.teller.response.status.is_final();
        let Some(log) = state.log.as_mut().filter(|_| !this.is_over) else { return Poll::Ready(None) };
        let mut out = BytesMut::new();
        if let Err(LogGone { first }) = log.read(&mut this.next, &mut out) {
            this.is_over = true;
            let message = format!("the events before number {first} are not kept any more");
            let fields = ErrorFields { code: Some("events_gone"), message: &message, param: None };
            put_event("error", this.next, &fields, &mut out);
        }
        if !out.is_empty() {
            this.silence.break_off();
            return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
        }
        if is_final {
            return Poll::Ready(None);
        }
        if !log.readers.iter().any(|reader| reader.will_wake(context.waker())) {
            log.readers.push(context.waker().clone());
        }
        ready!(this.silence.poll(context));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(KEEP_ALIVE)))))
    }
}
