//! A bound listener: how clients authenticate, and the files that are needed for it.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use tokio::sync::watch;

use super::token_names::TokenNames;
use super::token_store::TokenStore;
use super::{BindError, ClientAuth, HttpListenerConfig};
use crate::identity::Identity;
use crate::server_tls::{ServerTls, TlsError, TlsFiles};
use crate::tokens::TokenError;

/// A file that could not be reloaded, so that its previous content stays in use.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[derive(Debug)]
pub(super) struct HttpListener {
    pub(super) number: usize,
    pub(super) path: String,
    pub(super) origins: Vec<String>,
    pub(super) hosts: Vec<String>,
    pub(super) admits: Admits,
    tls: Option<(TlsFiles, watch::Sender<Arc<ServerTls>>)>,
    stamps: Mutex<HashMap<PathBuf, Option<Stamp>>>,
}

#[derive(Debug)]
pub(super) enum Admits {
    /// All clients are admitted, as one identity.
    Everybody,
    /// All clients are admitted, each as the user that owns its socket.
    Users,
    Owner(u32),
    Tokens(TokenStore),
    Certificates,
}

/// Times, length and inode of a file.
type Stamp = ([i64; 4], u64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    // A change of permissions changes only the ctime.
    let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    Some((times, about.len(), about.ino()))
}

impl HttpListener {
    /// Reads all files of the listener. `bound` is the real address of the listener. `names` holds the names
    /// in all token files of the server.
    pub(super) fn new(
        listener: HttpListenerConfig,
        bound: SocketAddr,
        names: &Arc<TokenNames>,
    ) -> Result<Self, BindError> {
        let HttpListenerConfig { number, path, auth, origins, hosts, tls, .. } = listener;
        let mut known: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
        if !bound.ip().is_unspecified() {
            known.push(literal(bound));
        }
        known.extend(hosts.into_iter().map(|host| host.to_ascii_lowercase()));
        let admits = match auth {
            ClientAuth::None => Admits::Everybody,
            ClientAuth::User => Admits::Users,
            ClientAuth::Owner(user) => Admits::Owner(user),
            ClientAuth::Mtls => Admits::Certificates,
            ClientAuth::Token(file) => {
                Admits::Tokens(TokenStore::new(file, Arc::clone(names)).map_err(ReloadError::from)?)
            }
        };
        let tls = match tls {
            None => None,
            Some(files) => {
                let tls = ServerTls::read(&files).map_err(ReloadError::from)?;
                Some((files, watch::Sender::new(Arc::new(tls))))
            }
        };
        let http_listener =
            Self { number, path, origins, hosts: known, admits, tls, stamps: Mutex::default() };
        for path in http_listener.files() {
            http_listener.has_changed(&path);
        }
        Ok(http_listener)
    }

    /// Returns the TLS configuration and its changes, if the listener uses TLS.
    pub(super) fn tls(&self) -> Option<watch::Receiver<Arc<ServerTls>>> {
        self.tls.as_ref().map(|(_, tls)| tls.subscribe())
    }

    /// Returns `true` if a client needs no other proof than the identity of its socket.
    pub(super) fn is_proven_by(&self, socket_identity: Option<&Identity>) -> bool {
        match &self.admits {
            Admits::Everybody | Admits::Users => true,
            Admits::Owner(user) => socket_identity.is_some_and(|identity| identity.is_user(*user)),
            Admits::Tokens(_) => false,
            Admits::Certificates => socket_identity.is_some(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let tokens = match &self.admits {
            Admits::Tokens(store) => Some(store.path().to_owned()),
            Admits::Everybody | Admits::Users | Admits::Owner(_) | Admits::Certificates => None,
        };
        let tls = self.tls.iter().flat_map(|(files, _)| files.paths()).map(Path::to_owned);
        tokens.into_iter().chain(tls).collect()
    }

    /// Returns `true` if the file has changed since the last call for the same path.
    fn has_changed(&self, path: &Path) -> bool {
        let now = stamp(path);
        let mut stamps = lock(&self.stamps);
        stamps.insert(path.to_owned(), now) != Some(now)
    }

    /// Reads changed files again, or all files. A file that is invalid keeps its previous content, and the
    /// others are read anyway.
    pub(super) fn reload(&self, all: bool) -> Result<(), ReloadError> {
        let changed: Vec<PathBuf> =
            self.files().into_iter().filter(|path| self.has_changed(path) || all).collect();
        let tokens = match &self.admits {
            // If the last read has failed, the token file is read again even if it is unchanged.
            Admits::Tokens(store) if store.fails() || changed.iter().any(|path| path == store.path()) => {
                store.read()
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
        // The clock of a file system may have a resolution of milliseconds.
        while stamp(file.path()).unwrap() == before {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        }
    }
}
