//! Which web pages of other origins a browser lets read answers: by default none. Requests from anything but a browser
//! are not concerned.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use std::str::FromStr;

#[derive(Clone, Debug, Default)]
pub struct CorsPolicy(Vec<CorsOrigin>);

/// One origin, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    Any,
    /// Scheme, host and port, as browsers write them.
    One(HeaderValue),
}

impl FromStr for CorsOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(CorsOrigin::Any);
        }
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
            !scheme.is_empty() && !host.is_empty() && host.bytes().all(is_host)
        });
        let value = HeaderValue::from_str(text).ok().filter(|_| is_origin);
        value
            .map(CorsOrigin::One)
            .ok_or_else(|| "use * or an origin, such as https://chat.example.com".into())
    }
}

impl CorsPolicy {
    pub fn new(origins: Vec<CorsOrigin>) -> Self {
        CorsPolicy(origins)
    }

    /// What to tell the browser of the page that asks; `None` if it may not read the answer, or nothing is to be said.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let asking = headers.get(ORIGIN)?;
        if self.0.contains(&CorsOrigin::Any) {
            return Some(HeaderValue::from_static("*"));
        }
        self.0
            .iter()
            .any(|origin| matches!(origin, CorsOrigin::One(one) if one == asking))
            .then(|| asking.clone())
    }
}

/// A browser's question before the request itself, which it sends without a key.
pub fn is_preflight(request: &Request<Body>) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Lets the browser send the request, with the headers that it named.
pub fn preflight(request: &Request<Body>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(asked) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

/// Lets the page read the response.
pub fn open(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, request-id, retry-after"),
    );
    headers.append(VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_write() {
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        for good in
            ["https://chat.example.com", "http://localhost:5173", "http://[::1]:80", "tauri://localhost"]
        {
            assert!(matches!(good.parse(), Ok(CorsOrigin::One(_))), "{good}");
        }
        for bad in ["", "example.com", "https://", "https://a/b", "https://a/", "https://a b", "https://*.a"]
        {
            assert!(bad.parse::<CorsOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        let asked_by = |origin: &str| HeaderMap::from_iter([(ORIGIN, origin.parse().unwrap())]);
        let policy = CorsPolicy::new(vec!["https://a.example".parse().unwrap()]);
        assert_eq!(policy.allowed(&asked_by("https://a.example")).unwrap(), "https://a.example");
        assert_eq!(policy.allowed(&asked_by("https://a.example.evil")), None);
        assert_eq!(policy.allowed(&HeaderMap::new()), None);
        assert_eq!(CorsPolicy::default().allowed(&asked_by("https://a.example")), None);
        let policy = CorsPolicy::new(vec![CorsOrigin::Any]);
        assert_eq!(policy.allowed(&asked_by("null")).unwrap(), "*");
    }
}
