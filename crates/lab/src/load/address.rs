//! Where a server is: scheme, host, port, and what stands before `/v1`.

use crate::LabError;
use hyper::Uri;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

/// The address of an OpenAI-compatible server, with or without its `/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub scheme: Scheme,
    pub host: String,
    pub port: u16,
    /// Empty, or a path that begins and does not end with a slash.
    prefix: String,
}

impl Address {
    /// # Errors
    /// No `http://` or `https://`, no host, or more than a path behind it.
    pub fn parse(url: &str) -> Result<Self, LabError> {
        let bad = |what| LabError::BadUrl { url: url.to_owned(), what };
        let scheme = match url.split_once("://") {
            Some(("http", _)) => Scheme::Http,
            Some(("https", _)) => Scheme::Https,
            _ => return Err(bad("it must begin with http:// or https://")),
        };
        let uri: Uri = url.parse().map_err(|_| bad("it is not of the form http://HOST:PORT"))?;
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("names and passwords do not belong into it: use a key in the environment"));
        }
        if uri.query().is_some() {
            return Err(bad("it must end with the path"));
        }
        if authority.host().is_empty() {
            return Err(bad("it names no host"));
        }
        let names_port = authority.as_str().len() > authority.host().len();
        let port = match (authority.port_u16(), scheme) {
            (Some(port), _) => port,
            (None, _) if names_port => return Err(bad("its port is none")),
            (None, Scheme::Http) => 80,
            (None, Scheme::Https) => 443,
        };
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        Ok(Address { scheme, host: authority.host().to_owned(), port, prefix })
    }

    /// The host as the resolver wants it: an IPv6 address without its brackets.
    pub fn host_to_resolve(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// For the `Host` header.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The path of an endpoint such as `/v1/models` on this server.
    pub fn path(&self, endpoint: &str) -> String {
        format!("{}{endpoint}", self.prefix)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_v1_are_the_same() {
        for (url, shown, models) in [
            ("http://localhost:8000", "http://localhost:8000", "/v1/models"),
            ("http://localhost:8000/v1/", "http://localhost:8000", "/v1/models"),
            ("https://example.org/api/v1", "https://example.org:443/api", "/api/v1/models"),
            ("http://[::1]:30000", "http://[::1]:30000", "/v1/models"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.to_string().as_str(), address.path("/v1/models").as_str()), (shown, models));
        }
        assert_eq!(Address::parse("http://[::1]:1").unwrap().host_to_resolve(), "::1");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (url, part) in [
            ("localhost:8000", "begin with http://"),
            ("ftp://x", "begin with http://"),
            ("http://", "HOST:PORT"),
            ("http://a b", "HOST:PORT"),
            ("http://key@host", "names and passwords"),
            ("http://host/v1?x=1", "end with the path"),
            ("http://host:99999", "its port is none"),
            ("http://host:", "its port is none"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
