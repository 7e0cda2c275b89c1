//! One listener: what it asks of those who come, and the files it knows them by.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use tokio::sync::watch;

use super::token_store::TokenStore;
use super::{Auth, BindError, Listener};
use crate::tls::{ServerTls, TlsError, TlsFiles};
use crate::tokens::TokenError;

/// Why a listener goes on with what it knew.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Certificate, key or authorities cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A listener that is bound.
#[derive(Debug)]
pub(super) struct HttpListener {
    /// What the backend knows it by.
    pub(super) number: usize,
    pub(super) path: String,
    pub(super) origins: Vec<String>,
    pub(super) hosts: Vec<String>,
    pub(super) admits: Admits,
    tls: Option<(TlsFiles, watch::Sender<Arc<ServerTls>>)>,
    /// What the files looked like when they were read.
    stamps: Mutex<HashMap<PathBuf, Option<Stamp>>>,
}

/// Whom a listener lets in.
#[derive(Debug)]
pub(super) enum Admits {
    /// Everybody who reaches it.
    Everybody,
    /// Everybody who reaches it, each as the user they are.
    Users,
    /// The user of this number.
    Owner(u32),
    /// Who has a token of this file.
    Tokens(TokenStore),
    /// Who has a certificate.
    Certificates,
}

/// When a file and what is known of it were changed, how long it is, and which one it is.
type Stamp = ([i64; 4], u64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    // A file that may be read again has another ctime only.
    let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    Some((times, about.len(), about.ino()))
}

impl HttpListener {
    /// Reads all its files. `bound` is where it really is.
    pub(super) fn new(listener: Listener, bound: SocketAddr) -> Result<Self, BindError> {
        let Listener { number, path, auth, origins, hosts, tls, .. } = listener;
        let mut known: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
        if !bound.ip().is_unspecified() {
            known.push(literal(bound));
        }
        known.extend(hosts.into_iter().map(|host| host.to_ascii_lowercase()));
        let admits = match auth {
            Auth::None => Admits::Everybody,
            Auth::User => Admits::Users,
            Auth::Owner(user) => Admits::Owner(user),
            Auth::Mtls => Admits::Certificates,
            Auth::Token(file) => Admits::Tokens(TokenStore::new(file).map_err(ReloadError::from)?),
        };
        let tls = match tls {
            None => None,
            Some(files) => {
                let tls = ServerTls::read(&files).map_err(ReloadError::from)?;
                Some((files, watch::Sender::new(Arc::new(tls))))
            }
        };
        let door = Self { number, path, origins, hosts: known, admits, tls, stamps: Mutex::default() };
        for path in door.files() {
            door.has_changed(&path);
        }
        Ok(door)
    }

    /// What to begin TLS with, now and after every change, if there is any.
    pub(super) fn tls(&self) -> Option<watch::Receiver<Arc<ServerTls>>> {
        self.tls.as_ref().map(|(_, tls)| tls.subscribe())
    }

    fn files(&self) -> Vec<PathBuf> {
        let tokens = match &self.admits {
            Admits::Tokens(register) => Some(register.path().to_owned()),
            Admits::Everybody | Admits::Users | Admits::Owner(_) | Admits::Certificates => None,
        };
        let tls = self.tls.iter().flat_map(|(files, _)| files.paths()).map(Path::to_owned);
        tokens.into_iter().chain(tls).collect()
    }

    /// Whether a file is another than it was the last time this was asked.
    fn has_changed(&self, path: &Path) -> bool {
        let now = stamp(path);
        let mut stamps = lock(&self.stamps);
        stamps.insert(path.to_owned(), now) != Some(now)
    }

    /// Reads what has changed, or everything if `all`. What cannot be read stays as it was, and keeps nothing else from being read.
    pub(super) fn reload(&self, all: bool) -> Result<(), ReloadError> {
        let changed: Vec<PathBuf> =
            self.files().into_iter().filter(|path| self.has_changed(path) || all).collect();
        let tokens = match &self.admits {
            // One that could not be read is tried again, whatever it looks like.
            Admits::Tokens(register)
                if register.fails() || changed.iter().any(|path| path == register.path()) =>
            {
                register.read()
            }
            _ => Ok(()),
        };
        if let Some((files, tls)) = &self.tls
            && files.paths().any(|path| changed.iter().any(|changed| changed == path))
        {
            tls.send_replace(Arc::new(ServerTls::read(files)?));
        }
        Ok(tokens?)
    }
}

/// An address as it stands in a URL.
fn literal(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_may_be_read_again_has_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let before = stamp(file.path()).unwrap();
        // The clock of a file system stands still for some milliseconds.
        while stamp(file.path()).unwrap() == before {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        }
    }
}
