//! Listening sockets: loopback ports and private unix sockets. They are bound before any thread or worker is
//! started.

mod stdio;

use std::fs::TryLockError;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::config::ListenAddr;

pub(crate) use stdio::StdioStreams;

/// Maximum number of connections of a listener that wait to be accepted. The system has its own maximum.
const LISTEN_BACKLOG: i32 = 4096;
/// TCP keepalive as idle time, interval and count: a lost peer is detected after 15 + 3 × 10 seconds.
const TCP_KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(10), 3);
/// Timeout for a TCP peer to acknowledge data.
const UNCONFIRMED_TIMEOUT: Duration = Duration::from_secs(45);

/// Timeout for the lock on the directory of a socket. A process that opens a socket there holds the lock for
/// a moment only.
const DIRECTORY_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const DIRECTORY_LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// The reason why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{0} is not a loopback address")]
    NotLoopback(SocketAddr),
    /// The settings of the listener are unsafe or incomplete.
    #[error("{0}")]
    Unsafe(String),
    /// The host name cannot be resolved, or the address is not that of a socket.
    #[error("{0:?} is not a valid address")]
    NoAddress(String),
    #[error("{0} is in use by another process")]
    InUse(String),
    #[error("{0:?} exists and is not a socket")]
    NotASocket(PathBuf),
    /// Another process does not release the lock on the directory of a socket.
    #[error("another process holds a lock on {0:?}")]
    Locked(PathBuf),
    /// Stdin and stdout are already in use, and serve one client only.
    #[error("stdio can be used by one client only")]
    StdioTwice,
    #[error("cannot listen on {place}: {source}")]
    Io { place: String, source: io::Error },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Tcp,
    Unix,
}

#[derive(Debug)]
pub(crate) enum BoundListener {
    Socket(Listener),
    /// Stdin and stdout. `None` after a client has got them.
    Stdio(Option<StdioStreams>),
    /// Another server accepts the clients of this address, over HTTP or WebSocket.
    Elsewhere,
}

/// A listening socket. Dropping it removes the file of a unix socket, unless that was replaced.
#[derive(Debug)]
pub struct Listener {
    pub(crate) fd: OwnedFd,
    pub(crate) family: Family,
    /// The only user whose TCP connections are accepted. `None`: every user of this machine.
    pub(crate) only: Option<u32>,
    file: Option<SocketFile>,
}

#[derive(Clone, Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Removes the file of a unix socket, unless another file has replaced it.
    pub(crate) fn remove(&self) {
        if identity(&self.path) == Some(self.identity) {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

impl BoundListener {
    pub(crate) fn file(&self) -> Option<&SocketFile> {
        match self {
            Self::Socket(listener) => listener.file.as_ref(),
            Self::Stdio(_) | Self::Elsewhere => None,
        }
    }
}

impl Listener {
    /// Returns a copy of the socket, in non-blocking mode, for another accept loop.
    ///
    /// # Errors
    /// If there is no free file descriptor.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(crate) fn accept(&self) -> Result<OwnedFd, Errno> {
        rustix::net::accept_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(made) = &self.file {
            made.remove();
        }
    }
}

/// Binds the socket of a listener, for use without a bus. Also returns the bound address, with the real port
/// in place of port 0, or with an absolute path.
///
/// # Errors
/// If the socket cannot be bound, would be unsafe, or the address is not that of a socket.
pub fn bind(address: &ListenAddr) -> Result<(Listener, ListenAddr), ListenError> {
    if *address == ListenAddr::Stdio {
        return Err(ListenError::NoAddress(address.to_string()));
    }
    match open(address, Duration::ZERO)? {
        (BoundListener::Socket(listener), at) => Ok((listener, at)),
        (BoundListener::Stdio(_) | BoundListener::Elsewhere, at) => {
            Err(ListenError::NoAddress(at.to_string()))
        }
    }
}

/// Opens a listener. Also returns the bound address, with the real port in place of port 0, or with an
/// absolute path.
///
/// # Errors
/// If the listener cannot be opened, or would be unsafe.
pub(crate) fn open(
    address: &ListenAddr,
    stall_timeout: Duration,
) -> Result<(BoundListener, ListenAddr), ListenError> {
    match address {
        ListenAddr::Stdio => {
            let ends =
                stdio::take_stdio().map_err(|source| ListenError::Io { place: "stdio".into(), source })?;
            Ok((BoundListener::Stdio(Some(ends)), ListenAddr::Stdio))
        }
        ListenAddr::Tcp(host) => {
            let (listener, at) = tcp(host, stall_timeout)?;
            Ok((BoundListener::Socket(listener), ListenAddr::Tcp(at.to_string())))
        }
        ListenAddr::Unix(path) => {
            let listener = unix(path)?;
            // The returned path must be valid in other directories too. The socket is bound at the configured
            // path, which may be shorter.
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Ok((BoundListener::Socket(listener), ListenAddr::Unix(whole)))
        }
        ListenAddr::Web(web) => match web.problem() {
            Some((key, what)) => Err(ListenError::Unsafe(format!("{web}: `{key}` {what}"))),
            None => Ok((BoundListener::Elsewhere, address.clone())),
        },
    }
}

fn failed(place: &str) -> impl Fn(io::Error) -> ListenError {
    move |source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(place.to_owned()),
        _ => ListenError::Io { place: place.to_owned(), source },
    }
}

fn tcp(host: &str, stall_timeout: Duration) -> Result<(Listener, SocketAddr), ListenError> {
    let place = format!("tcp://{host}");
    let failed = failed(&place);
    let mut addresses = host.to_socket_addrs().map_err(&failed)?;
    let address = addresses.next().ok_or_else(|| ListenError::NoAddress(host.to_owned()))?;
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let bind = || -> io::Result<(OwnedFd, SocketAddr)> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        // Accepted sockets inherit all of these options. Lines are collected before they are written, so
        // Nagle's algorithm would only add delay.
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, TCP_KEEPALIVE.0)?;
        sockopt::set_tcp_keepintvl(&fd, TCP_KEEPALIVE.1)?;
        sockopt::set_tcp_keepcnt(&fd, TCP_KEEPALIVE.2)?;
        let unconfirmed = UNCONFIRMED_TIMEOUT.max(stall_timeout).as_millis();
        sockopt::set_tcp_user_timeout(&fd, u32::try_from(unconfirmed).unwrap_or(u32::MAX))?;
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, LISTEN_BACKLOG)?;
        let local = std::net::TcpListener::from(fd);
        let at = local.local_addr()?;
        Ok((local.into(), at))
    };
    let (fd, at) = bind().map_err(failed)?;
    Ok((Listener { fd, family: Family::Tcp, only: None, file: None }, at))
}

fn unix(path: &Path) -> Result<Listener, ListenError> {
    let place = format!("unix:{}", path.display());
    let failed = failed(&place);
    let parent = parent_of(path).map_err(&failed)?;
    // Without the lock, the second of two processes that start at once would remove the socket of the first.
    let alone = std::fs::File::open(&parent).map_err(&failed)?;
    lock_directory(&alone, &parent, DIRECTORY_LOCK_TIMEOUT)?;
    remove_stale(path, &place)?;
    let fd = bind_private(path, &parent).map_err(failed)?;
    let file = identity(path).map(|identity| SocketFile { path: path.to_owned(), identity });
    Ok(Listener { fd, family: Family::Unix, only: None, file })
}

/// Locks the directory of a socket. Every user who may read the directory may hold the lock, so the wait has
/// a timeout.
fn lock_directory(file: &std::fs::File, directory: &Path, timeout: Duration) -> Result<(), ListenError> {
    let deadline = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(DIRECTORY_LOCK_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => return Err(ListenError::Locked(directory.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(&directory.display().to_string())(error)),
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Removes a socket that a dead process left behind. Fails if a process still listens on it.
fn remove_stale(path: &Path, place: &str) -> Result<(), ListenError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed(place))
        }
        _ => Err(ListenError::InUse(place.to_owned())),
    }
}

/// Returns the directory of `path`. If the directory is missing, it is created for this user only.
fn parent_of(path: &Path) -> io::Result<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    Ok(parent.to_owned())
}

/// Binds a socket at `path` to which only its owner can connect, from the first moment. Fails if the file
/// exists.
fn bind_private(path: &Path, parent: &Path) -> io::Result<OwnedFd> {
    // The socket is bound in a private directory and then linked to `path`, so that it never exists there
    // with another mode.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let private = parent.join(format!(".narrows-bus-{}-{next}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let bind = || {
        let inner = private.join("s");
        // The path in the private directory could be too long for a socket address.
        let directory = std::fs::File::open(&private)?;
        let name = format!("/proc/self/fd/{}/s", directory.as_raw_fd());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(name)?)?;
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&fd, LISTEN_BACKLOG)?;
        std::fs::hard_link(&inner, path)?;
        Ok(fd)
    };
    let result = bind();
    _ = std::fs::remove_dir_all(&private);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_listener_does_not_remove_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        // One thread replaces the stale socket. The others find that its new socket is in use.
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| unix(&path))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1);
        assert!(UnixStream::connect(&path).is_ok());
        std::fs::write(directory.path().join("file"), "mine").unwrap();
        assert!(unix(&directory.path().join("file")).is_err());
        assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), b"mine");
    }

    #[test]
    fn a_lock_of_another_process_on_the_directory_is_an_error_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let [other, own] = [(); 2].map(|()| std::fs::File::open(directory.path()).unwrap());
        other.lock().unwrap();
        let locked = lock_directory(&own, directory.path(), DIRECTORY_LOCK_INTERVAL * 3).unwrap_err();
        assert_eq!(locked.to_string(), format!("another process holds a lock on {:?}", directory.path()));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_directory(&own, directory.path(), DIRECTORY_LOCK_TIMEOUT));
            other.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_path_may_be_as_long_as_a_socket_can_have() {
        let directory = tempfile::tempdir().unwrap();
        let start = directory.path().as_os_str().len();
        let path = directory.path().join("x".repeat(107 - start - 1));
        let listener = unix(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        drop(listener);
    }

    #[test]
    fn a_port_is_on_loopback_and_accepted_sockets_inherit_its_options() {
        let (entry, address) = open(&ListenAddr::Tcp("127.0.0.1:0".into()), Duration::from_secs(30)).unwrap();
        let (BoundListener::Socket(listener), ListenAddr::Tcp(at)) = (entry, address) else {
            panic!("a socket")
        };
        assert!(!at.ends_with(":0"), "{at}");
        let _peer = std::net::TcpStream::connect(&at).unwrap();
        let accepted = loop {
            match listener.accept() {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        assert!(sockopt::tcp_nodelay(&accepted).unwrap());
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        let kept = (
            sockopt::tcp_keepidle(&accepted).unwrap(),
            sockopt::tcp_keepintvl(&accepted).unwrap(),
            sockopt::tcp_keepcnt(&accepted).unwrap(),
        );
        assert_eq!(kept, TCP_KEEPALIVE);
        assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), 45_000);
        let taken = open(&ListenAddr::Tcp(at), Duration::ZERO).unwrap_err();
        assert!(matches!(taken, ListenError::InUse(_)), "{taken:?}");
        for far in ["0.0.0.0:0", "[::]:0"] {
            let error = open(&ListenAddr::Tcp(far.into()), Duration::ZERO).unwrap_err();
            assert!(matches!(error, ListenError::NotLoopback(_)), "{error:?}");
        }
    }

    #[test]
    fn a_unix_socket_is_private_and_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made").join("s");
        let _listener = unix(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(matches!(unix(&path), Err(ListenError::InUse(_))), "another listener uses the socket");
        let entries = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(entries, 1, "no temporary file is left");

        std::fs::write(dir.path().join("plain"), "").unwrap();
        assert!(matches!(unix(&dir.path().join("plain")), Err(ListenError::NotASocket(_))));
    }

    #[test]
    fn the_address_of_a_socket_is_its_absolute_path() {
        let dir = tempfile::tempdir().unwrap();
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let path = up.join(dir.path().strip_prefix("/").unwrap()).join("s");
        let (entry, address) = open(&ListenAddr::Unix(path.clone()), Duration::ZERO).unwrap();
        assert_eq!(address, ListenAddr::Unix(here.join(&path)));
        // A caller that does not wait until the listener is dropped removes the file itself.
        let file = entry.file().cloned().unwrap();
        file.remove();
        assert!(!path.exists());
        std::fs::write(&path, "another's").unwrap();
        file.remove();
        drop(entry);
        assert!(path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_one_of_another_listener_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale");
        let first = unix(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = unix(&path).unwrap();
        drop(first);
        assert!(path.exists(), "the file of the other listener stays");
        drop(second);
        assert!(!path.exists());
    }
}
