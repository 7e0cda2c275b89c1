//! TLS configuration of clients: trusts the certificate authorities of the system and of one more file, and shows a
//! client certificate.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::{ClientOptions, DialError};
use crate::server_tls::{self, FileFault, TlsError};

/// A client certificate and its private key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificateFiles {
    /// The certificate chain, leaf first.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Returns the TLS configuration. `protocols` are offered by ALPN.
pub(super) fn config(options: &ClientOptions, protocols: &[&str]) -> Result<ClientConfig, DialError> {
    let ca = options.ca.as_deref();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: rustls::Error| DialError::Io(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let verifier =
        Verifier::new_with_extra_roots(ca.map(authorities).transpose()?.unwrap_or_default(), provider)
            .map_err(|error| {
                DialError::Certificate(format!("there are no certificate authorities to trust: {error}"))
            })?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &options.client_certificate {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let (chain, key) = client_certificate(files)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| TlsError::from_key_pair(error, &files.cert, &files.key))?
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Returns a configuration that trusts no server, for an HTTP client that uses no TLS.
pub(super) fn config_without_roots() -> Result<ClientConfig, DialError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| DialError::Io(error.to_string()))?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn client_certificate(
    files: &ClientCertificateFiles,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = server_tls::certificates(&files.cert)?;
    let path = &files.key;
    // A user who can write the key file can impersonate the client. Token files are checked in the same way.
    if std::fs::metadata(path).is_ok_and(|about| about.mode() & 0o002 != 0) {
        return Err(server_tls::file_error(path, FileFault::Exposed));
    }
    Ok((chain, server_tls::private_key(path)?))
}

fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, DialError> {
    let all = server_tls::certificates(path).map_err(DialError::Ca)?;
    let mut store = RootCertStore::empty();
    for certificate in &all {
        store.add(certificate.clone()).map_err(|error| {
            let fault = FileFault::Unknown(format!("a certificate is bad: {error}"));
            DialError::Ca(server_tls::file_error(path, fault))
        })?;
    }
    Ok(all)
}
