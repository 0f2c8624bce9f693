//! How one API tells answers. What an answer is, and when it comes, is the same for all of them; these two traits are
//! all in which they differ. A dialect writes what it is given and decides nothing about the answer.

use crate::app::App;
use crate::choice::{Piece, TokenCounts, TokenLogprob};
use crate::error::ApiError;
use axum::body::Body;
use axum::http::Response;
use bytes::{BufMut, BytesMut};
use overshot_chat::{Deltas, Ending, ParsedMessage};

/// One request's answers in the words of one API: all at once, or as events.
pub trait Dialect: Send {
    fn whole(self: Box<Self>, answers: Vec<Answer>, counts: AllCounts, app: &App) -> Response<Body>;

    fn events(self: Box<Self>, choices: usize, app: &App) -> Box<dyn EventWriter>;
}

/// Writes server-sent events into the buffer that goes to the socket.
pub trait EventWriter: Send {
    /// Once, before anything is computed.
    fn announce(&mut self, _out: &mut BytesMut) {}

    /// Once, with the first token: the first event tells how long it took.
    fn begin(&mut self, prompt_tokens: usize, out: &mut BytesMut);

    fn piece(&mut self, choice: usize, piece: &Piece, out: &mut BytesMut);

    /// Once for each choice, after its pieces.
    fn finish(&mut self, choice: usize, ending: &Ending, out: &mut BytesMut);

    /// After all choices have finished.
    fn end(&mut self, counts: AllCounts, out: &mut BytesMut);

    /// Nothing was sent for a while, and nothing is there to send, perhaps not even a beginning. A comment is no event
    /// for any client, and keeps proxies and impatient clients from hanging up.
    fn keep_alive(&mut self, out: &mut BytesMut) {
        out.put_slice(KEEP_ALIVE);
    }

    /// Instead of everything that is missing: the answers were cut.
    fn fail(&mut self, error: &ApiError, out: &mut BytesMut);
}

/// A comment in a stream of events.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A choice of a whole response.
#[derive(Default)]
pub struct Answer {
    /// All that came, in its order.
    pub deltas: Deltas,
    pub ending: Ending,
    pub logprobs: Vec<TokenLogprob>,
}

impl Answer {
    /// For APIs that tell thinking, text and calls apart and not in their order.
    pub fn message(&self) -> ParsedMessage {
        ParsedMessage { finish_reason: self.ending.reason, ..self.deltas.message() }
    }
}

/// Tokens of all prompts, each counted once, and of all answers.
#[derive(Clone, Copy, Debug)]
pub struct AllCounts {
    pub prompt: usize,
    pub answers: TokenCounts,
}
