//! The front: HTTP/1.1, HTTP/2 and WebSocket on one port, who may come in, and a line to the agents for each who does.
//!
//! A [`HttpServer`] is bound at once and then served on a runtime of the caller's. For each logical connection it asks its
//! [`Backend`] for one end of a socket pair that carries lines, one message each; what is behind the other end it does not know. Socket
//! and connection are two things: over HTTP a connection has many requests, and one that can be resumed has one socket after another.
//!
//! Checks come in this order, and what fails one sees nothing of the next: the number of sockets, the host that was meant (403), the
//! page that asks (403), who asks (401, 429), the path and the method (404, 405), and only then what is asked.

mod accept;
mod admission;
mod auth_rate_limit;
mod authorize;
mod backend_writer;
mod certificate;
mod codec;
mod connection;
mod detached;
mod disconnect_stats;
mod events;
mod http_connection;
mod http_session;
mod io;
mod listener;
mod open_sockets;
mod post;
mod post_dedup;
mod pump;
mod refusal_stats;
mod replay_memory;
mod response;
mod route;
mod shared;
mod socket;
mod streams;
mod token_store;
mod unfinished;
mod websocket;

pub use listener::ReloadError;

use std::future::Future;
use std::net::{SocketAddr, TcpListener, TcpStream as StdTcpStream};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use narrows_link::WebSocketHandoff;
use narrows_wire::websocket::Violation;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::identity::Identity;
use crate::resume::Keep;
use crate::tls::TlsFiles;
use admission::{AdmittedClient, Credential};
use codec::Codec;
use io::Io;
use listener::HttpListener;
use refusal_stats::Reason;
use shared::Shared;
use socket::Socket;

/// How often files are looked at.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// How many sockets may wait to be adopted.
const MAX_PENDING_ADOPTIONS: usize = 256;

/// How long connections may take to say goodbye.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Where and how clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What the backend is told of who comes in here.
    pub number: usize,
    /// The address; port 0 becomes a real one.
    pub address: SocketAddr,
    /// The one path there is, such as `/acp`.
    pub path: String,
    /// Who is let in.
    pub auth: Auth,
    /// The origins whose pages may ask, each exactly as a browser writes it.
    pub origins: Vec<String>,
    /// The hosts that may be meant besides `localhost`, `127.0.0.1`, `[::1]` and the address itself.
    pub hosts: Vec<String>,
    /// Its certificate; without, it is cleartext.
    pub tls: Option<TlsFiles>,
}

/// Who is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Everybody on this machine, as [`Identity::local`].
    None,
    /// Everybody on this machine, as the user whose socket the other end is, or if the system does not tell, as
    /// [`Identity::local`].
    User,
    /// Only the user of this number, as [`Identity::local`]. One whose number the system does not tell is refused.
    Owner(u32),
    /// Who has a token of this file.
    Token(PathBuf),
    /// Who has a certificate of the authorities in [`TlsFiles::client_ca`].
    Mtls,
}

/// How much there may be of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest message of a client.
    pub max_message: usize,
    /// How much of messages that have not come whole is held, of all clients and of one identity. Each has room for one message in any
    /// case.
    pub unfinished: usize,
    /// See [`Self::unfinished`].
    pub unfinished_per_identity: usize,
    /// How long a client may take for the head of its first request, and for each part of a body.
    pub header_timeout: Duration,
    /// Within which time it is noticed that nobody is there, or nobody reads, and how long a WebSocket may have no message at all.
    pub idle_timeout: Duration,
    /// How many sockets there may be. For one more, another is closed that nobody uses, or one of an identity that has very many; if
    /// there is none, it waits.
    pub max_sockets: usize,
    /// How many connections one identity may have, those among them that are held for it.
    pub max_connections_per_identity: usize,
    /// How many requests over HTTP, upgrades among them, one identity may make.
    pub max_requests_per_second: u32,
    /// How many wrong tokens an address may show before it is not looked at; one is forgotten every six seconds.
    pub max_failures: u32,
    /// How many bytes of each stream or resumable connection are kept to be sent again.
    pub replay_bytes: usize,
    /// For how long.
    pub replay_time: Duration,
    /// How many bytes all streams and resumable connections together keep to be sent again. Over that, the oldest messages
    /// that were sent are dropped, and agents wait until their clients have read the others.
    pub replay_memory: usize,
    /// See [`Self::replay_memory`].
    pub replay_memory_per_identity: usize,
    /// How long a connection is held while nobody is there.
    pub grace: Duration,
}

/// How many HTTP sockets an identity may have for each connection that it may have: one for requests, and some for streams of events.
const SOCKETS_PER_CONNECTION: usize = 4;
/// How many HTTP sockets an identity may have in any case: over HTTP/1.1, each session of a connection needs one for its events.
const MIN_SOCKETS_PER_IDENTITY: usize = 64;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 16 << 20,
            unfinished: 256 << 20,
            unfinished_per_identity: 64 << 20,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(45),
            max_sockets: 16_384,
            max_connections_per_identity: 1000,
            max_requests_per_second: 2000,
            max_failures: 10,
            replay_bytes: 4 << 20,
            replay_time: Duration::from_secs(300),
            replay_memory: 256 << 20,
            replay_memory_per_identity: 64 << 20,
            grace: Duration::from_secs(300),
        }
    }
}

impl Limits {
    /// Returns how many sockets one identity may have at once for requests over HTTP. WebSockets do not count.
    fn max_sockets_per_identity(&self) -> usize {
        let sockets = self.max_connections_per_identity.saturating_mul(SOCKETS_PER_CONNECTION);
        sockets.max(MIN_SOCKETS_PER_IDENTITY)
    }

    fn keep(&self) -> Keep {
        Keep { bytes: self.replay_bytes, time: self.replay_time }
    }
}

/// What [`Backend::open`] returns.
pub type Opening<'a> = Pin<Box<dyn Future<Output = std::io::Result<StdUnixStream>> + Send + 'a>>;

/// Where connections lead.
pub trait Backend: Send + Sync {
    /// One end of a socket pair for a new connection of `identity`, who came in at the listener of this number. Each line is one
    /// message, both ways; either end may close it.
    ///
    /// An error of the kind [`WouldBlock`](std::io::ErrorKind::WouldBlock) says that there is no room, and
    /// [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded) that there is none for this identity. Then a connection ends that is kept
    /// without a client, if there is one, and [`Self::open_later`] is called.
    fn open(&self, identity: Identity, listener: usize) -> Opening<'_>;

    /// The same where a connection is about to end: may wait for its place.
    fn open_later(&self, identity: Identity, listener: usize) -> Opening<'_> {
        self.open(identity, listener)
    }

    /// Serves a new connection of `identity` over a WebSocket without TLS itself, to spare its messages a way. Whoever does not gives
    /// it back, and is asked for a line.
    ///
    /// # Errors
    /// When it does not.
    fn serve(
        &self,
        identity: Identity,
        listener: usize,
        socket: WebSocketHandoff,
    ) -> Result<Box<dyn Served>, WebSocketHandoff> {
        _ = (identity, listener);
        Err(socket)
    }
}

/// What [`Served::ended`] returns.
pub type Ended<'a> = Pin<Box<dyn Future<Output = Option<Violation>> + Send + 'a>>;

/// A WebSocket that the backend serves.
pub trait Served: Send {
    /// Ends when the socket is closed, with what the client did if that was why.
    fn ended(&mut self) -> Ended<'_>;

    /// Closes it with this as the last word. That it is closed is still to be waited for.
    fn hang_up(&self, code: u16, reason: &'static str);
}

/// Why nobody can come in.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be had.
    #[error("{address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// Others than this machine could come in without being asked who they are.
    #[error("{0}: without authentication only a loopback address may be used")]
    Open(SocketAddr),
    /// Others than this machine could come in, and others could listen.
    #[error("{0}: without TLS only a loopback address may be used")]
    Cleartext(SocketAddr),
    /// Certificates are asked for, and none can be verified.
    #[error("{0}: authentication by certificate needs TLS with a client_ca")]
    NoAuthority(SocketAddr),
    /// The path is none.
    #[error("{0:?} is not a path")]
    Path(String),
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] ReloadError),
}

/// A socket that somebody else let in.
#[derive(Debug)]
pub enum Adopted {
    /// Over TCP.
    Tcp(StdTcpStream),
    /// Of a unix socket.
    Unix(StdUnixStream),
}

/// A socket that was not adopted: the front is gone, or too many wait.
#[derive(Debug, thiserror::Error)]
#[error("the front takes no more connections")]
pub struct NotAdopted(pub Adopted);

/// A socket that waits to be adopted.
struct Adoption {
    stream: Adopted,
    head: Bytes,
    identity: Identity,
    listener: usize,
}

/// Listeners that are bound, and everything behind them.
pub struct HttpServer {
    shared: Arc<Shared>,
    doors: Vec<(Arc<HttpListener>, TcpListener)>,
    addresses: Vec<SocketAddr>,
    adopted: mpsc::Receiver<Adoption>,
    handle: Handle,
}

/// What can be done with a front while it is served.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    doors: Arc<[Arc<HttpListener>]>,
    adopt: mpsc::Sender<Adoption>,
}

impl HttpServer {
    /// Binds all listeners and reads all their files. Nobody is let in before it is served.
    ///
    /// # Errors
    /// When one of them cannot be had, or would let in those who should not come in; then none is.
    pub fn bind(
        listeners: Vec<Listener>,
        limits: Limits,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, BindError> {
        let mut doors = Vec::new();
        let mut addresses = Vec::new();
        for listener in listeners {
            check(&listener)?;
            let address = listener.address;
            let failed = |error| BindError::Address { address, error };
            let socket = TcpListener::bind(address).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let bound = socket.local_addr().map_err(failed)?;
            doors.push((Arc::new(HttpListener::new(listener, bound)?), socket));
            addresses.push(bound);
        }
        let shared = Shared::new(limits, backend);
        let (adopt, adopted) = mpsc::channel(MAX_PENDING_ADOPTIONS);
        let known = doors.iter().map(|(door, _)| Arc::clone(door)).collect();
        let handle = Handle { shared: Arc::clone(&shared), doors: known, adopt };
        Ok(Self { shared, doors, addresses, adopted, handle })
    }

    /// Where the listeners are, in their order; a port 0 has become a real one.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// For whoever is not the one who serves.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until [`Handle::shutdown`]. Must be polled inside a runtime.
    ///
    /// # Errors
    /// When a listener cannot be used on this runtime.
    pub async fn serve(self) -> std::io::Result<()> {
        let Self { shared, doors, mut adopted, handle, .. } = self;
        // Dropping the set ends the tasks.
        let mut accepting = JoinSet::new();
        for (door, socket) in doors {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            accepting.spawn(accept::accept(Arc::clone(&shared), door, socket));
        }
        let mut looking = interval(FILE_CHECK_INTERVAL);
        looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shared.stopping() => break,
                Some(adoption) = adopted.recv() => adopt(&shared, adoption),
                _ = looking.tick() => handle.look(),
            }
        }
        // Whoever has a connection is told; what is left after that is not waited for.
        _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, shared.sockets.closed()).await;
        Ok(())
    }
}

impl Handle {
    /// Lets everything end: nobody is let in, WebSockets are closed with 1001, streams of events end.
    pub fn shutdown(&self) {
        self.shared.stop();
    }

    /// Reads all files of all listeners now. Connections stay, but for those whose token, or the authority of whose certificate, is gone.
    ///
    /// # Errors
    /// When one cannot be used; what it is for stays as it was, though nobody is let in with a token if that lasts. All others are
    /// read all the same.
    pub fn reload(&self) -> Result<(), ReloadError> {
        let reloaded: Vec<_> = self.doors.iter().map(|door| door.reload(true)).collect();
        reloaded.into_iter().collect()
    }

    fn look(&self) {
        for door in &*self.doors {
            // A file of tokens speaks for itself.
            if let Err(error @ ReloadError::Tls(_)) = door.reload(false) {
                tracing::warn!(
                    %error,
                    "certificate, key or client_ca have changed and cannot be used: those that were read before are used on"
                );
            }
        }
    }

    /// How often somebody was refused, by the reason, since the front was bound. The reasons are always the same.
    #[must_use]
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        self.shared.refusals.all()
    }

    /// How often connections were broken, and what became of them, since the front was bound. The names are always the same.
    #[must_use]
    pub fn disconnects(&self) -> Vec<(&'static str, u64)> {
        self.shared.disconnects.all()
    }

    /// Takes a socket over that carries lines and was let in elsewhere, at the listener of this number, as `identity`. `head` is
    /// what was read from it already.
    ///
    /// # Errors
    /// When there is no room now; the socket comes back.
    pub fn adopt(
        &self,
        stream: Adopted,
        head: Bytes,
        identity: Identity,
        listener: usize,
    ) -> Result<(), NotAdopted> {
        let sent = self.adopt.try_send(Adoption { stream, head, identity, listener });
        sent.map_err(|error| NotAdopted(error.into_inner().stream))
    }
}

fn check(listener: &Listener) -> Result<(), BindError> {
    let address = listener.address;
    if !listener.path.starts_with('/') || listener.path.contains(['?', '#', ' ']) {
        return Err(BindError::Path(listener.path.clone()));
    }
    if listener.auth == Auth::Mtls && listener.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
        return Err(BindError::NoAuthority(address));
    }
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    match (&listener.auth, &listener.tls) {
        (Auth::None | Auth::User | Auth::Owner(_), _) => Err(BindError::Open(address)),
        (_, None) => Err(BindError::Cleartext(address)),
        _ => Ok(()),
    }
}

fn adopt(shared: &Arc<Shared>, adoption: Adoption) {
    let Adoption { stream, head, identity, listener } = adoption;
    let io = match stream {
        Adopted::Tcp(stream) => {
            stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).map(Io::Tcp)
        }
        Adopted::Unix(stream) => {
            stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream)).map(Io::Unix)
        }
    };
    let limits = &shared.limits;
    let io = match io.and_then(|io| io.tune(limits.idle_timeout).map(|()| io)) {
        Ok(io) => io,
        Err(error) => return tracing::warn!(%error, "a socket that was handed over cannot be used"),
    };
    let (codec, part) = (Codec::lines(limits.max_message), shared.unfinished.part(&identity));
    let mut socket = Socket::new(io, codec, head, limits.idle_timeout, None, part);
    let shared = Arc::clone(shared);
    match shared.seats.enter(identity) {
        Some(seat) => {
            tokio::spawn(connection::serve(
                shared,
                socket,
                AdmittedClient::new(seat, Credential::default(), listener),
            ));
        }
        None => {
            shared.refusals.add(Reason::Limit);
            socket.put(&connection::too_many(b"null"), &shared.scratch);
            tokio::spawn(
                async move { socket.close(connection::REFUSED_CODE, "refused", &shared.scratch).await },
            );
        }
    }
}

#[cfg(test)]
mod tests;
