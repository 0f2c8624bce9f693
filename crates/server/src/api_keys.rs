//! Who may ask. Keys are words that the operator gave out; any of them opens everything, and without any the server is
//! open. It knows no users, no scopes and no rates: what needs these stands in front of the server.

use crate::error::ApiError;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use std::fmt;
use subtle::{Choice, ConstantTimeEq};

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 512;

#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "API key number {number} cannot be sent: use 1 to {KEY_BYTES_MAX} letters, digits and signs, without spaces"
)]
pub struct BadKey {
    /// From 1.
    number: usize,
}

impl ApiKeys {
    /// # Errors
    /// The first key that no client could send.
    pub fn new(keys: Vec<String>) -> Result<Self, BadKey> {
        let is_bad = |key: &String| {
            !(1..=KEY_BYTES_MAX).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match keys.iter().position(is_bad) {
            Some(index) => Err(BadKey { number: index + 1 }),
            None => Ok(ApiKeys(keys)),
        }
    }

    /// Takes a key from `Authorization: Bearer`, or from the header that Anthropic's clients send.
    ///
    /// # Errors
    /// No key, or a wrong one.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut given =
            bearer(headers).into_iter().chain(headers.get("x-api-key").map(|value| value.as_bytes()));
        match given.any(|key| self.contains(key)) {
            true => Ok(()),
            false if bearer(headers).is_none() && !headers.contains_key("x-api-key") => Err(ApiError::NoKey),
            false => Err(ApiError::WrongKey),
        }
    }

    /// How long it takes tells the lengths of keys at most: all of them are compared to their ends.
    fn contains(&self, given: &[u8]) -> bool {
        let any = self.0.iter().fold(Choice::from(0), |any, key| any | key.as_bytes().ct_eq(given));
        any.into()
    }
}

/// Keys have no business in a log.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ApiKeys({})", self.0.len())
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn check(headers: &[(&'static str, &str)]) -> Result<(), ApiError> {
        let keys = ApiKeys::new(vec!["first-key".into(), "second".into()]).unwrap();
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        keys.check(&headers.collect())
    }

    #[test]
    fn any_of_the_keys_opens_in_either_header() {
        for headers in [
            [("authorization", "Bearer first-key")].as_slice(),
            &[("authorization", "bearer  second ")],
            &[("x-api-key", "second")],
            &[("authorization", "Bearer wrong"), ("x-api-key", "first-key")],
        ] {
            assert_eq!(check(headers), Ok(()), "{headers:?}");
        }
        assert_eq!(ApiKeys::default().check(&HeaderMap::new()), Ok(()));
    }

    #[test]
    fn nothing_else_does() {
        for headers in [
            [("authorization", "Bearer first-ke")].as_slice(),
            &[("authorization", "Bearer first-keyy")],
            &[("authorization", "Bearer ")],
            &[("x-api-key", "")],
        ] {
            assert_eq!(check(headers), Err(ApiError::WrongKey), "{headers:?}");
        }
        for headers in [[].as_slice(), &[("authorization", "Basic first-key")], &[("authorization", "é")]] {
            assert_eq!(check(headers), Err(ApiError::NoKey), "{headers:?}");
        }
    }

    #[test]
    fn keys_that_cannot_be_sent_are_refused_and_none_is_ever_shown() {
        for bad in ["", "two words", "schlüssel", &"k".repeat(513)] {
            assert_eq!(ApiKeys::new(vec!["good".into(), bad.into()]).unwrap_err(), BadKey { number: 2 });
        }
        let keys = ApiKeys::new(vec!["secret".into()]).unwrap();
        assert_eq!(format!("{keys:?}"), "ApiKeys(1)");
    }
}
