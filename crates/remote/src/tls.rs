//! TLS of a listener: its certificate, whom it trusts, and both read anew when they change.

mod der;
mod subject;
mod validity;

pub use subject::{Nameless, identity};
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

/// The files of a listener with TLS, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and what leads from it to its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose clients are let in; with it, nobody comes in without a certificate.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Every file there is.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, or not what it should be.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },
    /// The key is that of another certificate.
    #[error("the key {} is not that of the certificate {}", key.display(), cert.display())]
    Strangers {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Certificate and key cannot be used for another reason.
    #[error("the certificate {} and its key cannot be used: {error}", cert.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// Why not.
        error: rustls::Error,
    },
    /// There is nothing to encrypt with.
    #[error("{0}")]
    Unable(rustls::Error),
}

impl TlsError {
    /// What became of the pair in these files.
    pub(crate) fn of_pair(error: rustls::Error, cert: &Path, key: &Path) -> Self {
        let cert = cert.to_owned();
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                Self::Strangers { cert, key: key.to_owned() }
            }
            error => Self::Pair { cert, error },
        }
    }
}

/// What is wrong with a file of TLS.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// It is not there, or not for us.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// Nobody is there to type the password.
    #[error("a private key with a password cannot be used")]
    Locked,
    /// It is something else.
    #[error("there is no private key in it")]
    NoKey,
    /// It is something else.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// Whoever can write it says who we are.
    #[error("everybody can write it")]
    Exposed,
    /// It is damaged, or of a kind that is not known.
    #[error("{0}")]
    Unknown(String),
}

/// What to serve with. HTTP/2 where the client knows it.
///
/// # Errors
/// When a file cannot be used.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    ServerTls::read(files).map(|tls| tls.config)
}

/// What a listener begins TLS with, and what it verifies the certificates of clients by.
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
    /// Reads all files.
    ///
    /// # Errors
    /// When one of them cannot be used.
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
            .map_err(|error| TlsError::of_pair(error, &files.cert, &files.key))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if clients.is_some() {
            // A resumed session does not verify the certificate again, and gives the ticket for the next one: an expired
            // certificate would be accepted for ever.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), clients })
    }

    /// Returns `true` if a client with these certificates, its own first, would be accepted.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some(clients) = &self.clients else { return true };
        let Some((own, others)) = chain.split_first() else { return false };
        clients.verifier.verify_client_cert(own, others, self.now()).is_ok()
    }

    /// Returns the wall clock that handshakes use as well.
    pub(crate) fn now(&self) -> UnixTime {
        self.config.time_provider.current_time().unwrap_or_else(UnixTime::now)
    }

    /// Returns `true` if both accept certificates of the same authorities.
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
            roots.add(certificate.clone()).map_err(|error| unknown(path, &error))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let verifier = verifier.build().map_err(|error| unknown(path, &error))?;
        Ok(Self { certificates, verifier })
    }
}

/// The certificates of a file, at least one.
///
/// # Errors
/// When there is none, or the file cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(certificates) if certificates.is_empty() => Err(wrong(path, FileFault::NoCertificate)),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unknown(path, &error)),
    }
}

/// The private key of a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read(path)?;
    let text = String::from_utf8_lossy(&pem);
    if ENCRYPTED_KEY_MARKERS.iter().any(|mark| text.contains(mark)) {
        return Err(wrong(path, FileFault::Locked));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
        pem::Error::NoItemsFound => wrong(path, FileFault::NoKey),
        error => unknown(path, &error),
    })
}

/// What stands in a private key with a password, in its new form and its old one.
const ENCRYPTED_KEY_MARKERS: [&str; 2] = ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"];

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| wrong(path, FileFault::Unreadable(error)))
}

fn unknown(path: &Path, why: &impl ToString) -> TlsError {
    wrong(path, FileFault::Unknown(why.to_string()))
}

pub(crate) fn wrong(path: &Path, fault: FileFault) -> TlsError {
    TlsError::File { path: path.to_owned(), fault }
}
