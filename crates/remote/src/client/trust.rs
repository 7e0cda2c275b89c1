//! Which servers are believed: those that the system's certificate authorities vouch for, and those of one more file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::DialError;

/// How TLS is spoken with a server. `protocols` are what is offered on top of it.
pub(super) fn config(ca: Option<&Path>, protocols: &[&str]) -> Result<ClientConfig, DialError> {
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
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// For a client that must have one, though it encrypts nothing.
pub(super) fn nobody() -> Result<ClientConfig, DialError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| DialError::Io(error.to_string()))?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, DialError> {
    let failed = |why: String| DialError::Ca { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let mut store = RootCertStore::empty();
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| failed(format!("it is no PEM file: {error}")))?;
        store.add(certificate.clone()).map_err(|error| failed(format!("a certificate is bad: {error}")))?;
        all.push(certificate);
    }
    if all.is_empty() {
        return Err(failed("there is no certificate in PEM form in it".to_owned()));
    }
    Ok(all)
}
