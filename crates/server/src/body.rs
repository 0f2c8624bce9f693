//! A request's body: read within bounds and turned into fields whose errors name the field.

use crate::error::ApiError;
use crate::limits::ServerLimits;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A body with its right to be in memory.
#[derive(Debug)]
pub struct ReceivedBody {
    pub bytes: Bytes,
    /// Held by large ones until they are understood.
    #[expect(dead_code, reason = "held for its drop")]
    permit: Option<OwnedSemaphorePermit>,
}

/// Reads a JSON body. `large_bodies` has a permit for each large one that may be in memory on its way in.
///
/// # Errors
/// Another content type, too many bytes, or a client that stops sending.
pub async fn read(
    request: Request<Body>,
    limits: &ServerLimits,
    large_bodies: &Arc<Semaphore>,
) -> Result<ReceivedBody, ApiError> {
    check_content_type(request.headers())?;
    let announced = announced_bytes(request.headers());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes as u64) {
        return Err(ApiError::BodyTooLarge { most: limits.body_bytes });
    }
    // A body that does not say its size may be large.
    let is_small = announced.is_some_and(|bytes| bytes <= limits.small_body_bytes as u64);
    let permit = match is_small {
        true => None,
        false => Arc::clone(large_bodies).acquire_owned().await.ok(),
    };
    let whole = Limited::new(request.into_body(), limits.body_bytes).collect();
    match timeout(limits.arrival, whole).await {
        Ok(Ok(collected)) => Ok(ReceivedBody { bytes: collected.to_bytes(), permit }),
        Ok(Err(error)) if error.is::<LengthLimitError>() || is_length_limit(error.as_ref()) => {
            Err(ApiError::BodyTooLarge { most: limits.body_bytes })
        }
        Ok(Err(error)) => Err(ApiError::BodyCut { what: error.to_string() }),
        Err(_) => {
            let what = format!("it took longer than {} s", limits.arrival.as_secs());
            Err(ApiError::BodyCut { what })
        }
    }
}

/// Reads the fields that `T` knows; others are ignored.
///
/// # Errors
/// What is no JSON, and the first field of the wrong type, by its path.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let fields = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        // A number beyond every type is well written, and wrong.
        let is_value = error.is_data() || error.to_string().starts_with("number out of range");
        match is_value {
            true if path == "." => ApiError::NotJson { what: format!("an object was expected: {error}") },
            true => {
                let message = format!("`{path}`: {error}");
                ApiError::field(path, message)
            }
            false => ApiError::NotJson { what: error.to_string() },
        }
    })?;
    deserializer.end().map_err(|error| ApiError::NotJson { what: error.to_string() })?;
    Ok(fields)
}

/// No content type at all is taken for JSON: there is nothing else to send.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let found = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let media = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json =
        media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"));
    if is_json { Ok(()) } else { Err(ApiError::ContentType { found }) }
}

fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_length_limit(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if current.is::<LengthLimitError>() {
            return true;
        }
        cause = current.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_chat::Message;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    struct Fields {
        messages: Vec<Message>,
        tools: Option<Vec<overshot_chat::Tool>>,
    }

    #[test]
    fn errors_name_the_path_and_exact_json_text_survives() {
        let ok: Fields = parse(
            br#"{"messages":[{"role":"user","content":null}],"tools":[{"type":"function","function":{"name":"f","x":1.0}}]}"#,
        )
        .unwrap();
        assert_eq!(ok.messages.len(), 1);
        assert_eq!(ok.tools.unwrap()[0].function.get(), r#"{"name":"f","x":1.0}"#);
        let wrong = parse::<Fields>(br#"{"messages":[{"role":"user"},{"role":"userr"}]}"#).unwrap_err();
        let ApiError::BadField { param, message } = wrong else { panic!("{wrong:?}") };
        assert_eq!(param, "messages[1].role");
        assert!(message.contains("userr"), "{message}");
        assert!(matches!(parse::<Fields>(b"{"), Err(ApiError::NotJson { .. })));
        assert!(matches!(
            parse::<Fields>(b"[1]"),
            Err(ApiError::NotJson { .. }) | Err(ApiError::BadField { .. })
        ));
        assert!(matches!(parse::<Fields>(br#"{"messages":[]} x"#), Err(ApiError::NotJson { .. })));
    }
}
