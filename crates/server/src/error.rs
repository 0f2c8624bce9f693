//! Everything that a request can be answered with instead of an answer, and the one place where it becomes the
//! error envelope of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use overshot_backend::SamplingError;
use overshot_engine::Refused;
use serde::Serialize;

/// Longest message, in characters: longer ones quote what the client sent.
const MESSAGE_CHARS_MAX: usize = 600;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApiError {
    #[error("this server needs an API key: send `Authorization: Bearer KEY`, or `x-api-key: KEY`")]
    NoKey,
    #[error("the API key is not one of this server's")]
    WrongKey,
    /// Not even a request: hyper's word for what is wrong with it.
    #[error(
        "the head of the request cannot be read ({status}): send HTTP/1.1, with a head of less than 400 kB"
    )]
    UnreadableHead { status: StatusCode },
    #[error("there is no {method} {path}")]
    NoSuchRoute { method: String, path: String },
    #[error("{path} takes {allowed}, not {method}")]
    MethodNotAllowed { method: String, path: String, allowed: &'static str },
    #[error("the content type is {found}: send JSON with `Content-Type: application/json`")]
    ContentType { found: String },
    #[error("the body is larger than {most} bytes, which is the limit")]
    BodyTooLarge { most: usize },
    #[error("the body did not arrive whole: {what}")]
    BodyCut { what: String },
    #[error("the body is no JSON: {what}")]
    NotJson { what: String },
    /// A field of the wrong type, out of its range, or not supported.
    #[error("{message}")]
    BadField { param: String, message: String },
    #[error("there is no model `{name}` here: this server has `{served}`")]
    NoSuchModel { name: String, served: String },
    #[error("there is no response `{id}` here: it was never kept, was deleted, or had to make room")]
    NoSuchResponse { id: String },
    #[error("previous_response_id: there is no response `{id}` here: send the earlier items as input")]
    NoPreviousResponse { id: String },
    #[error("{0}")]
    ContextExceeded(String),
    #[error("{0}")]
    QueueFull(String),
    #[error("the server is shutting down and takes no new requests")]
    ShuttingDown,
    /// The answer was cut: it took longer than a server that shuts down could wait.
    #[error("the server shut down before the answer was whole")]
    CutByShutdown,
    #[error("the engine has stopped and answers nothing until the server is started again: {0}")]
    EngineStopped(String),
    #[error("requests are waiting, and no step has ended for {seconds} s")]
    Stalled { seconds: u64 },
    #[error("the answer was {unread_tokens} tokens ahead of its reader, which is the limit, and was ended")]
    ReaderTooSlow { unread_tokens: usize },
    #[error("the answer was not whole after {seconds} s, which is all that a request may take here")]
    TookTooLong { seconds: u64 },
    /// The trouble of this request alone.
    #[error("the answer failed: {0}")]
    Failed(String),
}

/// How an error is told: status, type and code.
struct Told {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
}

impl ApiError {
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::BadField { param: param.into(), message: message.into() }
    }

    fn told(&self) -> Told {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        let (status, kind, code) = match self {
            ApiError::NoKey | ApiError::WrongKey => {
                (StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key"))
            }
            ApiError::UnreadableHead { status } => (*status, INVALID, Some("invalid_http")),
            ApiError::NoSuchRoute { .. } => (StatusCode::NOT_FOUND, INVALID, Some("unknown_url")),
            ApiError::MethodNotAllowed { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"))
            }
            ApiError::ContentType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, Some("unsupported_content_type"))
            }
            ApiError::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("body_too_large")),
            ApiError::BodyCut { .. } => (StatusCode::BAD_REQUEST, INVALID, Some("body_incomplete")),
            ApiError::NotJson { .. } => (StatusCode::BAD_REQUEST, INVALID, Some("invalid_json")),
            ApiError::BadField { .. } => (StatusCode::BAD_REQUEST, INVALID, Some("invalid_value")),
            ApiError::NoSuchModel { .. } => (StatusCode::NOT_FOUND, INVALID, Some("model_not_found")),
            ApiError::NoSuchResponse { .. } => (StatusCode::NOT_FOUND, INVALID, Some("response_not_found")),
            ApiError::NoPreviousResponse { .. } => {
                (StatusCode::BAD_REQUEST, INVALID, Some("previous_response_not_found"))
            }
            ApiError::ContextExceeded(_) => {
                (StatusCode::BAD_REQUEST, INVALID, Some("context_length_exceeded"))
            }
            ApiError::QueueFull(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full")),
            ApiError::ShuttingDown | ApiError::CutByShutdown => {
                (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("shutting_down"))
            }
            ApiError::EngineStopped(_) => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("engine_stopped")),
            ApiError::Stalled { .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("stalled")),
            ApiError::ReaderTooSlow { .. } => (StatusCode::SERVICE_UNAVAILABLE, SERVER, Some("slow_reader")),
            ApiError::TookTooLong { .. } => (StatusCode::GATEWAY_TIMEOUT, SERVER, Some("request_timeout")),
            ApiError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, Some("answer_failed")),
        };
        Told { status, kind, code }
    }

    pub fn status(&self) -> StatusCode {
        self.told().status
    }

    pub fn code(&self) -> Option<&'static str> {
        self.told().code
    }

    /// What clients are told, with what it quotes of them cut where it gets long.
    pub fn message(&self) -> String {
        shortened(&self.to_string())
    }

    pub fn param(&self) -> Option<&str> {
        match self {
            ApiError::BadField { param, .. } => Some(param),
            ApiError::NoSuchModel { .. } => Some("model"),
            ApiError::NoPreviousResponse { .. } => Some("previous_response_id"),
            _ => None,
        }
    }

    fn retry_after_seconds(&self) -> Option<u16> {
        match self {
            ApiError::QueueFull(_) => Some(1),
            ApiError::ShuttingDown | ApiError::CutByShutdown | ApiError::ReaderTooSlow { .. } => Some(5),
            ApiError::EngineStopped(_) | ApiError::Stalled { .. } => Some(30),
            _ => None,
        }
    }

    /// The envelope, as JSON.
    pub fn envelope(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Envelope<'a> {
            error: Inner<'a>,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: Option<&'a str>,
        }
        let told = self.told();
        let message = self.message();
        let inner = Inner { message: &message, r#type: told.kind, param: self.param(), code: told.code };
        serde_json::to_vec(&Envelope { error: inner }).expect("strings always serialise")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.envelope()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        match &self {
            ApiError::MethodNotAllowed { allowed, .. } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            ApiError::NoKey | ApiError::WrongKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Clients of OpenAI's and Anthropic's obey it; trying again would only take as long again.
            ApiError::TookTooLong { .. } => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            _ => {}
        }
        // For those APIs that tell errors in another form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::QueueFull { .. } => ApiError::QueueFull(message),
            Refused::BeyondContext { .. } | Refused::BeyondCache { .. } => ApiError::ContextExceeded(message),
            Refused::EmptyPrompt | Refused::NoSuchToken { .. } => ApiError::field("prompt", message),
            Refused::NothingToGenerate => ApiError::field("max_tokens", message),
            Refused::TooManyStopTokens { .. } => ApiError::field("stop_token_ids", message),
            Refused::Sampling(error) => error.into(),
        }
    }
}

impl From<SamplingError> for ApiError {
    fn from(error: SamplingError) -> Self {
        let message = error.to_string();
        match error {
            SamplingError::OutOfRange { parameter, .. }
            | SamplingError::TooMany { parameter, .. }
            | SamplingError::NoSuchToken { parameter, .. } => {
                // "logit_bias (number of entries)" names the field in its first word.
                ApiError::field(parameter.split(' ').next().unwrap_or(parameter), message)
            }
            _ => ApiError::Failed(message),
        }
    }
}

/// Text that quotes a client, cut where it gets long.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_has_all_four_fields_and_a_bounded_message() {
        let error = ApiError::field("temperature", "x".repeat(5000));
        let value: serde_json::Value = serde_json::from_slice(&error.envelope()).unwrap();
        let inner = value["error"].as_object().unwrap();
        assert_eq!(inner.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        assert_eq!(inner["param"], "temperature");
        assert_eq!(inner["message"].as_str().unwrap().len(), MESSAGE_CHARS_MAX + 3);
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let response = ApiError::from(Refused::QueueFull { waiting: 3 }).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn sampling_errors_name_the_field_of_the_request() {
        let error = SamplingError::TooMany { parameter: "logit_bias (number of entries)", value: 9, most: 3 };
        assert_eq!(ApiError::from(error).param(), Some("logit_bias"));
    }
}
