//! One HTTP/1.1 connection, plain or over TLS, that carries one request at a time. Every wait has an end: connecting,
//! and every silence of the server.

use super::address::{Address, Scheme};
use super::failure::Failure;
use crate::LabError;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server may take to end a body whose answer is complete, before the connection is given up.
const LINGER: Duration = Duration::from_millis(500);

/// Of an answer that is read as a whole: a list of models, an error, a page of counters.
const BODY_BYTES_MAX: usize = 8 << 20;

/// What all connections to one server have in common.
#[derive(Clone)]
pub struct Client {
    address: Address,
    authority: HeaderValue,
    authorization: Option<HeaderValue>,
    /// The longest silence.
    idle: Duration,
    #[cfg(feature = "https")]
    tls: Option<tokio_rustls::TlsConnector>,
}

/// Never shows the key.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.address)
    }
}

impl Client {
    /// `key` is sent as a bearer token.
    ///
    /// # Errors
    /// A key that no header can carry; `https` without certificates to trust, or in a build without it.
    pub fn new(address: Address, key: Option<&str>, idle: Duration) -> Result<Self, LabError> {
        let authority = HeaderValue::from_str(&address.authority())
            .map_err(|_| LabError::BadHeader { what: "the host's name" })?;
        let authorization = match key {
            None => None,
            Some(key) => {
                let value = HeaderValue::from_str(&format!("Bearer {key}"));
                let mut value = value.map_err(|_| LabError::BadHeader { what: "the key" })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        #[cfg(feature = "https")]
        let tls = match address.scheme {
            Scheme::Http => None,
            Scheme::Https => Some(super::tls::connector()?),
        };
        #[cfg(not(feature = "https"))]
        if address.scheme == Scheme::Https {
            let what = "this program was built without https";
            return Err(LabError::BadUrl { url: address.to_string(), what });
        }
        Ok(Client {
            address,
            authority,
            authorization,
            idle,
            #[cfg(feature = "https")]
            tls,
        })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn idle(&self) -> Duration {
        self.idle
    }

    pub async fn connect(&self) -> Result<Connection, Failure> {
        match timeout(CONNECT_TIMEOUT, self.connect_unbounded()).await {
            Ok(connected) => connected,
            Err(_) => {
                let seconds = CONNECT_TIMEOUT.as_secs();
                Err(Failure::Connect(format!("no connection within {seconds} s")))
            }
        }
    }

    async fn connect_unbounded(&self) -> Result<Connection, Failure> {
        let no_connection = |error: std::io::Error| Failure::Connect(error.to_string());
        let place = (self.address.host_to_resolve(), self.address.port);
        let stream = TcpStream::connect(place).await.map_err(no_connection)?;
        stream.set_nodelay(true).map_err(no_connection)?;
        #[cfg(feature = "https")]
        if let Some(tls) = &self.tls {
            let stream = super::tls::shake_hands(tls, &self.address, stream).await?;
            return start(TokioIo::new(stream)).await;
        }
        start(TokioIo::new(stream)).await
    }

    /// Sends a request and reads the whole answer: its status and its body.
    pub async fn fetch(&self, endpoint: &str) -> Result<(u16, Bytes), Failure> {
        let mut connection = self.connect().await?;
        let request = self.request(Method::GET, endpoint, Bytes::new());
        let answer = connection.send(request, self.idle).await?;
        let status = answer.status().as_u16();
        Ok((status, read_whole(answer.into_body(), self.idle).await?))
    }

    pub fn post(&self, endpoint: &str, body: Bytes) -> Request<Full<Bytes>> {
        self.request(Method::POST, endpoint, body)
    }

    fn request(&self, method: Method, endpoint: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        // The prefix came out of a parsed address and endpoints are ours; a path that is none would be `/`.
        *request.uri_mut() = self.address.path(endpoint).parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(value) = &self.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        request
    }
}

#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

async fn start<I>(io: I) -> Result<Connection, Failure>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, driver) = handshake(io).await.map_err(|error| Failure::Connect(told(&error)))?;
    // Its end shows at the sender and at the body, with the reason.
    tokio::spawn(driver);
    Ok(Connection { sender })
}

impl Connection {
    /// Whether the server still holds it open for one more request.
    pub async fn is_usable(&mut self) -> bool {
        matches!(timeout(LINGER, self.sender.ready()).await, Ok(Ok(())))
    }

    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        idle: Duration,
    ) -> Result<Response<Incoming>, Failure> {
        match timeout(idle, self.sender.send_request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failure::Closed(told(&error))),
            Err(_) => Err(Failure::silent(idle)),
        }
    }
}

/// The next bytes of a body; `None` at its end.
pub async fn next_bytes(body: &mut Incoming, idle: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        match timeout(idle, body.frame()).await {
            Err(_) => return Err(Failure::silent(idle)),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(Failure::Closed(told(&error))),
            // Trailers carry nothing that is measured.
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(_) => continue,
            },
        }
    }
}

/// Reads what is left of a body whose answer is complete. Whether the connection can be used again.
pub async fn drain(mut body: Incoming) -> bool {
    let mut left = BODY_BYTES_MAX;
    loop {
        match next_bytes(&mut body, LINGER).await {
            Ok(None) => return true,
            Ok(Some(bytes)) if bytes.len() <= left => left -= bytes.len(),
            _ => return false,
        }
    }
}

/// # Errors
/// More than a few MiB, besides what can happen to any body.
pub async fn read_whole(mut body: Incoming, idle: Duration) -> Result<Bytes, Failure> {
    let mut whole = Vec::new();
    while let Some(bytes) = next_bytes(&mut body, idle).await? {
        if whole.len() + bytes.len() > BODY_BYTES_MAX {
            return Err(Failure::Nonsense(format!("an answer of more than {} MiB", BODY_BYTES_MAX >> 20)));
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.into())
}

/// An error with its causes, which is where HTTP errors say what happened.
fn told(error: &dyn std::error::Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !sentence.contains(&text) {
            sentence = format!("{sentence}: {text}");
        }
        cause = error.source();
    }
    sentence
}
