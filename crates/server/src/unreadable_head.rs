//! A request whose head is no HTTP never reaches a handler: hyper refuses it with a status and nothing else. On this
//! socket such a refusal becomes one like all others, with an envelope and a name.

use crate::app::fresh_id;
use crate::error::ApiError;
use axum::http::StatusCode;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub struct TellUnreadableHeads<S> {
    socket: S,
    /// What is left to write in place of a refusal that hyper wrote.
    instead: Option<Vec<u8>>,
}

impl<S: AsyncWrite + Unpin> TellUnreadableHeads<S> {
    pub fn new(socket: S) -> Self {
        TellUnreadableHeads { socket, instead: None }
    }

    /// Ready once all that stands in for a refusal is written.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(left) = self.instead.as_mut().filter(|left| !left.is_empty()) {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, left))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            left.drain(..written);
        }
        self.instead = None;
        Poll::Ready(Ok(()))
    }
}

/// The whole response that stands in for a refusal of hyper's own; `None` for anything else. Responses of handlers have a
/// name, and no body holds a bare line end, so that nothing that a client or a model says can look like one.
fn told(written: &[u8]) -> Option<Vec<u8>> {
    if !written.starts_with(b"HTTP/1.1 4") || !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?;
    if head.contains("x-request-id:") {
        return None;
    }
    let (before, after) = head.split_once("content-length: 0\r\n")?;
    let status = StatusCode::from_bytes(head.get(9..12)?.as_bytes()).ok()?;
    let body = ApiError::UnreadableHead { status }.envelope();
    let own = format!("content-type: application/json\r\nx-request-id: {}\r\n", fresh_id("req_"));
    let mut told = format!("{before}{own}content-length: {}\r\n{after}", body.len()).into_bytes();
    told.extend(body);
    Some(told)
}

impl<S: AsyncRead + Unpin> AsyncRead for TellUnreadableHeads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TellUnreadableHeads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_none() {
            self.instead = told(bytes);
        }
        if self.instead.is_none() {
            return Pin::new(&mut self.socket).poll_write(context, bytes);
        }
        // Written as one: until then, the same bytes are offered again.
        ready!(self.poll_instead(context))?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices.iter().find(|slice| !slice.is_empty()) {
            Some(first) if first.starts_with(b"HTTP/1.1 4") => self.poll_write(context, first),
            _ => Pin::new(&mut self.socket).poll_write_vectored(context, slices),
        }
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

    #[test]
    fn only_refusals_of_hypers_own_are_told_anew() {
        let bare = b"HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let told_anew = String::from_utf8(told(bare).unwrap()).unwrap();
        assert!(
            told_anew.starts_with("HTTP/1.1 431 Too Large\r\nconnection: close\r\ncontent-type"),
            "{told_anew}"
        );
        assert!(told_anew.contains("\"code\":\"invalid_http\""), "{told_anew}");
        for other in [
            b"HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 said the model",
            b"HTTP/1.1 4",
        ] {
            assert_eq!(told(other), None);
        }
    }
}
