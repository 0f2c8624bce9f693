//! TLS to servers whose certificates the machine trusts.

use super::address::Address;
use super::failure::Failure;
use crate::LabError;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// # Errors
/// The machine has no certificates to trust.
pub fn connector() -> Result<TlsConnector, LabError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let what = found.errors.first().map_or("none was found".to_owned(), ToString::to_string);
        return Err(LabError::Certificates { what });
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| LabError::Certificates { what: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub async fn shake_hands(
    connector: &TlsConnector,
    address: &Address,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Failure> {
    let no_connection = |what: String| Failure::Connect(what);
    let name = ServerName::try_from(address.host_to_resolve().to_owned())
        .map_err(|error| no_connection(error.to_string()))?;
    connector.connect(name, stream).await.map_err(|error| no_connection(error.to_string()))
}
