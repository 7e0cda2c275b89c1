//! Hints for tokens, certificates and keys that cannot be used.

use std::path::Path;

use narrows_bus::config::{PEM_HINT, TOKENS_HINT};
use narrows_remote::server::ReloadError;
use narrows_remote::server_tls::{FileFault, TlsError};
use narrows_remote::tokens::TokenError;

use crate::terminal::line;

/// The hint for a name that has different tokens in two files.
pub(crate) const ONE_TOKEN_PER_NAME: &str = "rename one of the tokens, or use one file for both listeners";

pub(crate) fn token_hint(error: &TokenError) -> String {
    match error {
        TokenError::Exposed(path) => file_mode_hint(path),
        TokenError::Elsewhere { .. } => ONE_TOKEN_PER_NAME.to_owned(),
        _ => TOKENS_HINT.to_owned(),
    }
}

pub(crate) fn tls_hint(error: &TlsError) -> String {
    match error {
        TlsError::File { path, fault: FileFault::EncryptedKey } => {
            let path = path.display();
            line(&format!("remove the password: openssl pkey -in {path} -out {path}.open"))
        }
        TlsError::File { path, fault: FileFault::Exposed } => file_mode_hint(path),
        TlsError::File { fault: FileFault::NoKey, .. } => {
            "use the private key of the certificate in `cert` as `key`, in PEM format".to_owned()
        }
        TlsError::KeyMismatch { .. } => {
            "use the private key of the certificate; in a file with several certificates, of the first one"
                .to_owned()
        }
        TlsError::File { .. } | TlsError::Pair { .. } | TlsError::Unable(_) => PEM_HINT.to_owned(),
    }
}

/// Returns the hint for a listener whose credentials could not be reloaded.
pub(super) fn listener_hint(error: &ReloadError) -> String {
    match error {
        ReloadError::Tokens(error) => token_hint(error),
        ReloadError::Tls(error) => tls_hint(error),
    }
}

fn file_mode_hint(path: &Path) -> String {
    line(&format!("remove the permission: chmod go-w {}", path.display()))
}
