//! A socket on which writing fails once its peer has taken nothing for too long. A client that never reads would
//! otherwise keep its connection for ever.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pub struct WriteDeadline<S> {
    socket: S,
    patience: Duration,
    /// There while a write waits. Whatever the peer takes begins a new time.
    pending: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteDeadline<S> {
    pub fn new(socket: S, patience: Duration) -> Self {
        WriteDeadline { socket, patience, pending: None }
    }

    fn watched<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.pending = None;
            return poll;
        }
        let patience = self.patience;
        let pending = self.pending.get_or_insert_with(|| Box::pin(sleep(patience)));
        pending.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.watched(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.watched(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_peer_that_takes_nothing_fails_the_write() {
        let (ours, _theirs) = duplex(16);
        let mut ours = WriteDeadline::new(ours, Duration::from_millis(30));
        let error = ours.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_peer_that_takes_a_little_at_a_time_is_waited_for() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = WriteDeadline::new(ours, Duration::from_millis(500));
        let reading = async {
            let mut bytes = [0; 16];
            for _ in 0..12 {
                sleep(Duration::from_millis(60)).await;
                theirs.read_exact(&mut bytes).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[0; 12 * 16]), reading);
        written.unwrap();
    }
}
