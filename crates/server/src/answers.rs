//! All choices of one HTTP request, from the engine's tokens to pieces of text, as they come.

use crate::choice::{Choice, Piece, TokenCounts};
use crate::engine_handle::Ticket;
use crate::error::ApiError;
use crate::mailbox::{Arrival, ChoiceEnd};
use crate::metrics::Outcome;
use overshot_chat::Ending;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Something to deliver for one choice.
#[derive(Debug)]
pub enum Output {
    Piece(Piece),
    /// The last of its choice.
    Finish(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Going,
    /// Every choice has finished.
    Over,
}

pub struct Answers {
    ticket: Ticket,
    choices: Vec<Choice>,
    /// By choice.
    has_finished: Vec<bool>,
    /// Kept for its memory; empty between calls.
    taken: Vec<Arrival>,
    deadline: Option<Deadline>,
}

struct Deadline {
    timer: Pin<Box<Sleep>>,
    after: Duration,
}

impl Answers {
    /// `choices` in the order in which their requests were submitted.
    pub fn new(ticket: Ticket, choices: Vec<Choice>) -> Self {
        let has_finished = vec![false; choices.len()];
        Answers { ticket, choices, has_finished, taken: Vec::new(), deadline: None }
    }

    /// Answers that are not whole `after` this time are given up.
    pub fn within(self, after: Option<Duration>) -> Self {
        Answers { deadline: after.map(|after| Deadline { timer: Box::pin(sleep(after)), after }), ..self }
    }

    /// Waits for tokens and delivers what they complete, which may be nothing.
    ///
    /// # Errors
    /// What ended the request as a whole; nothing comes after it.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        deliver: &mut impl FnMut(usize, Output),
    ) -> Poll<Result<Progress, ApiError>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.timer.as_mut().poll(context).is_ready()
        {
            self.ticket.give_up(Outcome::TookTooLong);
            return Poll::Ready(Err(ApiError::TookTooLong { seconds: deadline.after.as_secs() }));
        }
        ready!(self.ticket.poll_take(context, &mut self.taken));
        let mut taken = std::mem::take(&mut self.taken);
        for arrival in taken.drain(..) {
            match arrival {
                Arrival::Failed(error) => return Poll::Ready(Err(error)),
                Arrival::Token { choice, .. } | Arrival::Ended { choice, .. }
                    if self.has_finished[choice] => {}
                Arrival::Token { choice: index, sampled } => {
                    let choice = &mut self.choices[index];
                    choice.push(sampled, &mut |piece| deliver(index, Output::Piece(piece)));
                    if choice.has_stopped() {
                        self.ticket.stop(index);
                        self.finish(index, ChoiceEnd::Stop, deliver);
                    }
                }
                Arrival::Ended { choice, end } => self.finish(choice, end, deliver),
            }
        }
        self.taken = taken;
        let is_over = self.has_finished.iter().all(|has_finished| *has_finished);
        Poll::Ready(Ok(if is_over { Progress::Over } else { Progress::Going }))
    }

    /// Ends what is left of the answers, as their client wishes.
    pub fn cancel(&mut self) {
        self.ticket.give_up(Outcome::Cancelled);
    }

    /// Of all choices together, so far.
    pub fn counts(&self) -> TokenCounts {
        self.choices.iter().map(Choice::counts).fold(TokenCounts::default(), |sum, counts| TokenCounts {
            completion: sum.completion + counts.completion,
            reasoning: sum.reasoning + counts.reasoning,
        })
    }

    fn finish(&mut self, index: usize, end: ChoiceEnd, deliver: &mut impl FnMut(usize, Output)) {
        let ending = self.choices[index].finish(end, &mut |piece| deliver(index, Output::Piece(piece)));
        self.has_finished[index] = true;
        deliver(index, Output::Finish(ending));
    }
}
