//! Which servers are believed: those that the system's certificate authorities vouch for, and those of one more file. And what they
//! are shown of us.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::{DialError, Options};
use crate::tls;

/// A certificate that shows who we are, and its private key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFiles {
    /// The certificate and what leads from it to its authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How TLS is spoken with a server. `protocols` are what is offered on top of it.
pub(super) fn config(options: &Options, protocols: &[&str]) -> Result<ClientConfig, DialError> {
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
    let mut config = match &options.own {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let (chain, key) = own(files)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&files.cert, &error))?
        }
    };
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

/// The certificate that shows who we are, and its key.
fn own(files: &OwnFiles) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), DialError> {
    let chain = tls::certificates(&files.cert).map_err(|error| match error {
        tls::TlsError::File { path, why } => DialError::Own { path, why },
        tls::TlsError::Pair(error) => unusable(&files.cert, &error),
    })?;
    let path = &files.key;
    let about = std::fs::metadata(path).map_err(|error| unusable(path, &error))?;
    // As a file of tokens: whoever can write it says who we are.
    if about.mode() & 0o002 != 0 {
        return Err(unusable(path, &"everybody can write it"));
    }
    let key = PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(path, &error))?;
    Ok((chain, key))
}

fn unusable(path: &Path, why: &impl ToString) -> DialError {
    DialError::Own { path: path.to_owned(), why: why.to_string() }
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
