//! Errors in Anthropic's envelope, `{"type": "error", "error": {"type", "message", "details"}, "request_id"}`, and the
//! request's id, on every path below `/v1/messages`, whoever refuses the request.

use crate::error::ApiError;
use crate::gate::RequestId;
use axum::body::Body;
use axum::http::{HeaderName, Request, Response, StatusCode};
use axum::middleware::Next;
use serde::Serialize;

const PATH: &str = "/v1/messages";
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// A layer around all routes. What it changes is only how an error is told.
pub async fn tell(request: Request<Body>, next: Next) -> Response<Body> {
    let rest = request.uri().path().strip_prefix(PATH);
    if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().map(|id| id.0.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(envelope(&error, id.as_ref().and_then(|id| id.to_str().ok())));
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The envelope, as JSON. An event in a stream needs no id: the response has it.
pub fn envelope(error: &ApiError, request_id: Option<&str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a> {
        r#type: &'a str,
        error: Inner<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Inner<'a> {
        r#type: &'a str,
        message: &'a str,
        details: Details<'a>,
    }
    #[derive(Serialize)]
    struct Details<'a> {
        error_code: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        param: Option<&'a str>,
    }
    let message = message(error);
    let details = Details { error_code: error.code(), param: error.param() };
    let inner = Inner { r#type: kind(error.status()), message: &message, details };
    serde_json::to_vec(&Envelope { r#type: "error", error: inner, request_id })
        .expect("strings always serialise")
}

/// Agents make room in their history when they read this beginning.
fn message(error: &ApiError) -> String {
    match error {
        ApiError::ContextExceeded(_) => format!("prompt is too long: {}", error.message()),
        error => error.message(),
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}
