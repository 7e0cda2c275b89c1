//! TLS of a listener: its certificate and the authorities of its clients. The files of both are read again
//! when they change.

mod der;
mod subject;
mod validity;

pub use subject::{NoIdentityError, identity};
pub(crate) use validity::expiry;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustls::InconsistentKeys;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

/// The TLS files of a listener, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The authorities of client certificates. If set, clients without a certificate are refused.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }
}

/// An error in the TLS files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {fault}", path.display())]
    File { path: PathBuf, fault: FileFault },
    #[error("key {} does not match certificate {}", key.display(), cert.display())]
    KeyMismatch { cert: PathBuf, key: PathBuf },
    /// The certificate cannot be used with its key, for another reason than a mismatch.
    #[error("cannot use certificate {} with its key: {error}", cert.display())]
    Pair { cert: PathBuf, error: rustls::Error },
    #[error("{0}")]
    Unable(rustls::Error),
}

impl TlsError {
    /// Converts an error of loading this certificate with this key.
    pub(crate) fn from_key_pair(error: rustls::Error, cert: &Path, key: &Path) -> Self {
        let cert = cert.to_owned();
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                Self::KeyMismatch { cert, key: key.to_owned() }
            }
            error => Self::Pair { cert, error },
        }
    }
}

/// An error in one TLS file.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The key is encrypted, and there is no way to ask for a password.
    #[error("encrypted private keys are not supported")]
    EncryptedKey,
    #[error("contains no private key")]
    NoKey,
    #[error("contains no certificate")]
    NoCertificate,
    /// Any user can write the file, and could impersonate its owner.
    #[error("writable by every user")]
    Exposed,
    #[error("{0}")]
    Unknown(String),
}

/// Returns the configuration of a TLS server with these files, which offers HTTP/2 and HTTP/1.1.
///
/// # Errors
/// If a file cannot be used.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    ServerTls::read(files).map(|tls| tls.config)
}

/// The TLS configuration of a listener, and the authorities that verify the certificates of its clients.
#[derive(Debug)]
pub(crate) struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// `None` if clients are not asked for a certificate.
    clients: Option<ClientAuthorities>,
}

#[derive(Debug)]
struct ClientAuthorities {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ServerTls {
    pub(crate) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            files.client_ca.as_deref().map(|path| ClientAuthorities::read(path, &provider)).transpose()?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unable)?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(&clients.verifier)),
        };
        let mut config = builder
            .with_single_cert(certificates(&files.cert)?, private_key(&files.key)?)
            .map_err(|error| TlsError::from_key_pair(error, &files.cert, &files.key))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if clients.is_some() {
            // Session resumption is disabled. A resumed session does not verify the certificate again and
            // issues the next ticket, so an expired certificate would be accepted forever.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), clients })
    }

    /// Returns `true` if a client with this certificate chain would be accepted. The first certificate is the
    /// client's own.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some(clients) = &self.clients else { return true };
        let Some((own, others)) = chain.split_first() else { return false };
        clients.verifier.verify_client_cert(own, others, self.now()).is_ok()
    }

    /// Returns the wall clock that handshakes use as well.
    pub(crate) fn now(&self) -> UnixTime {
        self.config.time_provider.current_time().unwrap_or_else(UnixTime::now)
    }

    /// Returns `true` if this configuration and the other accept certificates of the same authorities.
    pub(crate) fn has_authorities_of(&self, other: &Self) -> bool {
        self.authorities() == other.authorities()
    }

    fn authorities(&self) -> Option<&[CertificateDer<'static>]> {
        self.clients.as_ref().map(|clients| &*clients.certificates)
    }
}

impl ClientAuthorities {
    fn read(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let certificates = certificates(path)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| unknown_fault(path, &error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let verifier = verifier.build().map_err(|error| unknown_fault(path, &error))?;
        Ok(Self { certificates, verifier })
    }
}

/// Reads the certificates of a file; there is at least one.
///
/// # Errors
/// If there is no certificate, or the file cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(certificates) if certificates.is_empty() => Err(file_error(path, FileFault::NoCertificate)),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unknown_fault(path, &error)),
    }
}

pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read(path)?;
    let text = String::from_utf8_lossy(&pem);
    if ENCRYPTED_KEY_MARKERS.iter().any(|mark| text.contains(mark)) {
        return Err(file_error(path, FileFault::EncryptedKey));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
        pem::Error::NoItemsFound => file_error(path, FileFault::NoKey),
        error => unknown_fault(path, &error),
    })
}

/// Markers of an encrypted private key: PKCS #8 and the older form.
const ENCRYPTED_KEY_MARKERS: [&str; 2] = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| file_error(path, FileFault::Unreadable(error)))
}

fn unknown_fault(path: &Path, why: &impl ToString) -> TlsError {
    file_error(path, FileFault::Unknown(why.to_string()))
}

pub(crate) fn file_error(path: &Path, fault: FileFault) -> TlsError {
    TlsError::File { path: path.to_owned(), fault }
}
