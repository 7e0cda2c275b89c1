//! Links over TCP and unix sockets, for both sides.
//!
//! Safe by default: only loopback addresses can be listened on, a unix socket is accessible to its owner
//! alone, and a TCP peer whose first line is not JSON is disconnected. (A web page can reach a loopback
//! port, but cannot send JSON first.)

use std::fmt;
use std::future::{pending, ready};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::close::CloseReason;
use crate::hangup;
use crate::link::{Link, Options};
use crate::stream::{PeerSignals, stream, stream_until};

/// An address as users write it: `tcp://127.0.0.1:9000` or `unix:/run/narrows.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

/// Reason why an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is neither tcp://HOST:PORT nor unix:/PATH")]
    Scheme(String),
    #[error("{0:?} has no port")]
    Port(String),
    #[error("unix: needs the path of a socket")]
    Path,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(host) = text.strip_prefix("tcp://") {
            let host = host.strip_suffix('/').unwrap_or(host);
            return match host.rsplit_once(':') {
                Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Self::Tcp(host.to_owned()))
                }
                _ => Err(AddressError::Port(text.to_owned())),
            };
        }
        match text.strip_prefix("unix:") {
            Some("" | "//") => Err(AddressError::Path),
            Some(path) => Ok(Self::Unix(path.strip_prefix("//").unwrap_or(path).into())),
            None => Err(AddressError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            // The prefix `unix://` keeps a path that begins with two slashes. After `unix:`, they would be
            // read as part of the prefix.
            Self::Unix(path) if path.as_os_str().as_encoded_bytes().starts_with(b"//") => {
                write!(f, "unix://{}", path.display())
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Reason why listening failed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is reachable from the network.
    #[error("{0} is not a loopback address")]
    NotLoopback(SocketAddr),
    #[error("{0} is in use by another process")]
    InUse(Address),
    #[error("{0:?} exists and is not a socket")]
    NotASocket(PathBuf),
    #[error("cannot listen on {address}: {source}")]
    Io { address: Address, source: io::Error },
}

/// Connects to the listener at `address`.
///
/// # Errors
/// If there is no listener, or it refuses.
pub async fn connect(address: &Address, options: &Options) -> io::Result<Link> {
    match address {
        Address::Tcp(host) => tcp_link(TcpStream::connect(host.as_str()).await?, options),
        Address::Unix(path) => Ok(unix(UnixStream::connect(path).await?, options)),
    }
}

/// A bound address that accepts peers.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    options: Options,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf },
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If the address is unsafe, in use, or refused by the system.
    pub async fn bind(address: &Address, options: &Options) -> Result<Self, ListenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
            _ => ListenError::Io { address: address.clone(), source },
        };
        let kind = match address {
            Address::Tcp(host) => {
                let listener = TcpListener::bind(host.as_str()).await.map_err(failed)?;
                let local = listener.local_addr().map_err(failed)?;
                if !local.ip().is_loopback() {
                    return Err(ListenError::NotLoopback(local));
                }
                Kind::Tcp(listener)
            }
            Address::Unix(path) => {
                remove_stale(path, address).await?;
                let listener = bind_private(path).map_err(failed)?;
                Kind::Unix { listener, path: path.clone() }
            }
        };
        Ok(Self { kind, options: *options })
    }

    /// Returns the bound address. Port 0 is replaced by the actual port.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn address(&self) -> io::Result<Address> {
        match &self.kind {
            Kind::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Kind::Unix { path, .. } => Ok(Address::Unix(path.clone())),
        }
    }

    /// Accepts the next peer. Cancel-safe.
    ///
    /// # Errors
    /// If the system refuses, for instance because no descriptor is free. The caller should retry later.
    pub async fn accept(&self) -> io::Result<Link> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (peer, _) = listener.accept().await?;
                tcp_link(peer, &Options { guard_first_line: true, ..self.options })
            }
            Kind::Unix { listener, .. } => loop {
                let (peer, _) = listener.accept().await?;
                // The mode of the socket restricts access too, but not on every file system.
                let user = peer.peer_cred()?.uid();
                if user == rustix::process::geteuid().as_raw() || user == 0 {
                    return Ok(unix(peer, &self.options));
                }
                tracing::warn!(user, "connection of another user refused");
            },
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix { path, .. } = &self.kind {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket file of a process that has exited. Fails if another process listens on the socket.
async fn remove_stale(path: &Path, address: &Address) -> Result<(), ListenError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ListenError::Io { address: address.clone(), source })
        }
        _ => Err(ListenError::InUse(address.clone())),
    }
}

/// Binds a socket at `path`. From its first moment only the owner can connect.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // The socket is bound in a private directory and then moved, so it never exists at `path` with another
    // mode.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let private = parent.join(format!(".narrows-{}-{next}", std::process::id()));
    std::fs::create_dir(&private)?;
    let result = (|| {
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700))?;
        let inner = private.join("s");
        let listener = UnixListener::bind(&inner)?;
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&inner, path)?;
        Ok(listener)
    })();
    let _ = std::fs::remove_dir_all(&private);
    result
}

fn tcp_link(peer: TcpStream, options: &Options) -> io::Result<Link> {
    // Lines are already gathered into one write, so Nagle's algorithm would only add delay.
    peer.set_nodelay(true)?;
    let (reader, writer) = peer.into_split();
    Ok(stream(reader, writer, options))
}

/// Creates a link over a unix socket. Must be called inside a runtime. Unlike TCP, a unix socket
/// distinguishes a peer that has closed the socket from one that only stopped sending.
pub fn unix(peer: UnixStream, options: &Options) -> Link {
    let reader_gone = hangup::reader_gone(peer.as_fd().try_clone_to_owned());
    let (reader, writer) = peer.into_split();
    stream_until(
        reader,
        writer,
        options,
        PeerSignals { why: ready(CloseReason::Eof), reader_gone, peer_closed: pending() },
    )
}
