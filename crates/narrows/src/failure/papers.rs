//! What to do about files that show who somebody is: tokens, certificates and keys.

use std::path::Path;

use narrows_bus::config::{MAKES_TOKENS, TAKES_PEM};
use narrows_remote::server::ReloadError;
use narrows_remote::tls::{FileFault, TlsError};
use narrows_remote::tokens::TokenError;

use crate::terminal::line;

/// What to do about a file of tokens that cannot be used.
pub(crate) fn about_tokens(error: &TokenError) -> String {
    match error {
        TokenError::Exposed(path) => unwritable(path),
        _ => MAKES_TOKENS.to_owned(),
    }
}

/// What to do about a certificate or a key that cannot be used.
pub(crate) fn about_tls(error: &TlsError) -> String {
    match error {
        TlsError::File { path, fault: FileFault::Locked } => {
            let path = path.display();
            line(&format!("take the password away: openssl pkey -in {path} -out {path}.open"))
        }
        TlsError::File { path, fault: FileFault::Exposed } => unwritable(path),
        TlsError::File { fault: FileFault::NoKey, .. } => {
            "`key` is the private key of the certificate in `cert`, in PEM form".to_owned()
        }
        TlsError::Strangers { .. } => {
            "the key must be the one that the certificate was made for, and in a file of several certificates that is the first"
                .to_owned()
        }
        TlsError::File { .. } | TlsError::Pair { .. } | TlsError::Unable(_) => {
            TAKES_PEM.to_owned()
        }
    }
}

/// The same of whatever a listener reads.
pub(super) fn about_listener(error: &ReloadError) -> String {
    match error {
        ReloadError::Tokens(error) => about_tokens(error),
        ReloadError::Tls(error) => about_tls(error),
    }
}

fn unwritable(path: &Path) -> String {
    line(&format!("take that right away: chmod go-w {}", path.display()))
}
