//! What every request passes on its way to a handler, and its response on the way back: it gets a name, browsers are
//! told what they may do, and the key is looked at. Nothing here reads a body.

use crate::app::{App, fresh_id};
use crate::cors;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, Response};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::sync::Arc;

const REQUEST_ID: &str = "x-request-id";

/// Longest name that is taken over from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What a request is called in its response, and in the log of whoever sent it. Handlers find it among the request's
/// extensions.
#[derive(Clone, Debug)]
pub struct RequestId(pub HeaderValue);

impl RequestId {
    /// The client's own name for it where that is harmless, else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let is_harmless = |value: &&HeaderValue| {
            let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
            (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()) && value.as_bytes().iter().all(allowed)
        };
        let fresh = || HeaderValue::from_str(&fresh_id("req_")).expect("letters and digits make a header");
        RequestId(headers.get(REQUEST_ID).filter(is_harmless).cloned().unwrap_or_else(fresh))
    }
}

/// Around everything, unknown paths included.
pub async fn pass(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response<Body> {
    let id = RequestId::of(request.headers());
    let origin = app.options.cors.allowed(request.headers());
    request.extensions_mut().insert(id.clone());
    let mut response = match origin.is_some() && cors::is_preflight(&request) {
        true => cors::preflight(&request),
        false => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id.0);
    if let Some(origin) = origin {
        cors::open(headers, origin);
    }
    response
}

/// Around a route that is not open to everybody.
pub async fn check_key(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response<Body> {
    match app.options.api_keys.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Whether a route, by its template, answers without a key: what load balancers ask, and the page, which asks its
/// reader for a key itself.
pub fn is_open(route: &str) -> bool {
    matches!(route, "/" | "/health" | "/ready" | "unknown") || route.starts_with("/page/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_names_are_kept() {
        let named = |name: &[u8]| {
            let value = HeaderValue::from_bytes(name).unwrap();
            RequestId::of(&HeaderMap::from_iter([(axum::http::HeaderName::from_static(REQUEST_ID), value)]))
        };
        for name in ["a", "7f2c-4.x_y:z/1+2=@", &"n".repeat(128)] {
            assert_eq!(named(name.as_bytes()).0, name);
        }
        for name in [b"".as_slice(), b"a b", b"<x>", b"\xff", &[b'n'; 129]] {
            assert!(named(name).0.to_str().unwrap().starts_with("req_"), "{name:?}");
        }
    }
}
