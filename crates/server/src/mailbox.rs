//! Where the tokens of one HTTP request wait for its task. The engine's thread posts and never waits; the task takes
//! everything that is there at once. One lock, one waker, no allocation for a token once both buffers have grown.

use crate::error::ApiError;
use crate::sync::lock;
use overshot_backend::Sampled;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

/// Something that happened to one of a request's choices.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    Token {
        choice: usize,
        sampled: Sampled,
    },
    /// The choice's last arrival.
    Ended {
        choice: usize,
        end: ChoiceEnd,
    },
    /// The whole request's last arrival.
    Failed(ApiError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceEnd {
    /// The model ended it.
    Stop,
    /// As many tokens as were asked for, or fit.
    Length,
}

#[derive(Debug, Default)]
pub struct Mailbox {
    letters: Mutex<Letters>,
}

#[derive(Debug, Default)]
struct Letters {
    arrivals: Vec<Arrival>,
    waker: Option<Waker>,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    Kept,
    /// The reader is as many tokens behind as it may be.
    Full,
}

impl Mailbox {
    /// Keeps a token, unless as many as `most` arrivals are unread.
    pub fn post_token(&self, choice: usize, sampled: Sampled, most: usize) -> Posted {
        let waker = {
            let mut letters = lock(&self.letters);
            if letters.arrivals.len() >= most {
                return Posted::Full;
            }
            letters.arrivals.push(Arrival::Token { choice, sampled });
            letters.waker.take()
        };
        wake(waker);
        Posted::Kept
    }

    pub fn post_end(&self, choice: usize, end: ChoiceEnd) {
        let waker = {
            let mut letters = lock(&self.letters);
            letters.arrivals.push(Arrival::Ended { choice, end });
            letters.waker.take()
        };
        wake(waker);
    }

    /// What was not read yet is dropped: the answer is lost anyway.
    pub fn fail(&self, error: ApiError) {
        let waker = {
            let mut letters = lock(&self.letters);
            letters.arrivals.clear();
            letters.arrivals.push(Arrival::Failed(error));
            letters.waker.take()
        };
        wake(waker);
    }

    /// Swaps what has arrived into `taken`, which must be empty; ready when there is something.
    pub fn poll_take(&self, context: &mut Context<'_>, taken: &mut Vec<Arrival>) -> Poll<()> {
        let mut letters = lock(&self.letters);
        if letters.arrivals.is_empty() {
            match &mut letters.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        std::mem::swap(&mut letters.arrivals, taken);
        Poll::Ready(())
    }
}

/// Outside the lock, which the woken task will want.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn token(token: u32) -> Sampled {
        Sampled { token, logprob: 0.0, top: Vec::new() }
    }

    #[test]
    fn a_reader_is_woken_once_and_takes_all() {
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let waker = counting.clone().into();
        let mut context = Context::from_waker(&waker);
        let (mailbox, mut taken) = (Mailbox::default(), Vec::new());
        assert!(mailbox.poll_take(&mut context, &mut taken).is_pending());
        for id in 0..3 {
            assert_eq!(mailbox.post_token(0, token(id), 3), Posted::Kept);
        }
        assert_eq!(mailbox.post_token(0, token(3), 3), Posted::Full);
        mailbox.post_end(0, ChoiceEnd::Stop);
        assert_eq!(counting.0.load(Ordering::SeqCst), 1);
        assert!(mailbox.poll_take(&mut context, &mut taken).is_ready());
        assert_eq!(taken.len(), 4);
    }

    #[test]
    fn a_failure_replaces_what_was_not_read() {
        let (mailbox, mut taken) = (Mailbox::default(), Vec::new());
        mailbox.post_token(0, token(1), 9);
        mailbox.fail(ApiError::ShuttingDown);
        let waker = Waker::noop();
        assert!(mailbox.poll_take(&mut Context::from_waker(waker), &mut taken).is_ready());
        assert_eq!(taken, [Arrival::Failed(ApiError::ShuttingDown)]);
    }
}
