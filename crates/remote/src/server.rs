//! The HTTP server: HTTP/1.1, HTTP/2 and WebSocket on one port, authentication, and one backend connection for each
//! client connection.
//!
//! [`HttpServer::bind`] opens the listeners; [`HttpServer::serve`] runs on the caller's runtime. For each client
//! connection the server asks its [`Backend`] for one end of a socket pair that carries one message per line. A
//! connection is not a socket: over HTTP it spans many requests, and a resumable one moves from one socket to the next.
//!
//! Checks run in this order, and a request that fails one never reaches the next: number of sockets, host (403), origin
//! (403), authentication (401, 429), path and method (404, 405), content.

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
mod token_names;
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
use crate::server_tls::TlsFiles;
use admission::{AdmittedClient, Credential};
use codec::Codec;
use io::Io;
use listener::HttpListener;
use refusal_stats::RefusalReason;
use shared::HttpServerState;
use socket::ClientSocket;

const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

const MAX_PENDING_ADOPTIONS: usize = 256;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// An address to listen on, and the rules for its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpListenerConfig {
    /// The number that the backend receives with each client of this listener.
    pub number: usize,
    pub address: SocketAddr,
    /// The served path, such as `/acp`. A request for any other path is answered with 404.
    pub path: String,
    pub auth: ClientAuth,
    /// Allowed values of the `Origin` header, exactly as browsers write them.
    pub origins: Vec<String>,
    /// Hosts that are allowed in addition to `localhost`, `127.0.0.1`, `[::1]` and the address of the
    /// listener.
    pub hosts: Vec<String>,
    /// The certificate files; `None` serves cleartext.
    pub tls: Option<TlsFiles>,
}

/// Authentication of the clients of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Accepts every process of this machine, as [`Identity::local`].
    None,
    /// Accepts every process of this machine, as the user that owns the peer socket, or as
    /// [`Identity::local`] if the system does not know that user.
    User,
    /// Accepts only processes of this user id, as [`Identity::local`]. Refuses a process of any other or an
    /// unknown user.
    Owner(u32),
    Token(PathBuf),
    /// Accepts clients with a certificate of the authorities in [`TlsFiles::client_ca`].
    Mtls,
}

/// Resource limits of the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    pub max_message: usize,
    /// Bytes of incomplete messages held in memory for all clients. One message of [`Self::max_message`] always fits.
    pub unfinished: usize,
    /// Bytes of incomplete messages held for one identity. One message of [`Self::max_message`] always fits.
    pub unfinished_per_identity: usize,
    /// Time for the head of a socket's first request, and for each part of a body.
    pub header_timeout: Duration,
    /// Time after which a peer that does not respond or does not read is disconnected, and within which a WebSocket
    /// must send its first message.
    pub idle_timeout: Duration,
    /// Limit of sockets. Over the limit, a new socket replaces an unused socket, or a socket of an identity
    /// with very many. If there is no such socket, the new one waits.
    pub max_sockets: usize,
    /// Limit of sockets that no client has authenticated on. Over the limit, the oldest one is closed. Each
    /// may hold about 32 KiB that count towards no other limit.
    pub max_unauthenticated_sockets: usize,
    /// Limit of connections of one identity, detached ones included.
    pub max_connections_per_identity: usize,
    /// Limit of HTTP requests per second of one identity, upgrades included.
    pub max_requests_per_second: u32,
    /// Wrong tokens from one address before the address is locked out. One failure is forgotten every six
    /// seconds.
    pub max_failures: u32,
    /// Bytes of each stream or resumable connection that are kept for replay.
    pub replay_bytes: usize,
    pub replay_time: Duration,
    /// Bytes kept for replay by all streams and resumable connections together. Over the limit, the oldest
    /// messages that were already sent are dropped, and agents wait until their clients have read the
    /// remaining messages.
    pub replay_memory: usize,
    pub replay_memory_per_identity: usize,
    pub grace: Duration,
}

/// HTTP sockets that an identity may have for each of its connections: one for requests, and some for event
/// streams.
const SOCKETS_PER_CONNECTION: usize = 4;
/// HTTP sockets that every identity may have. Over HTTP/1.1, each session needs a socket for its events.
const MIN_SOCKETS_PER_IDENTITY: usize = 64;

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_message: 16 << 20,
            unfinished: 256 << 20,
            unfinished_per_identity: 64 << 20,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(45),
            max_sockets: 16_384,
            max_unauthenticated_sockets: usize::MAX,
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

impl HttpLimits {
    /// Returns the most HTTP sockets that one identity may have at once. WebSockets do not count.
    fn max_sockets_per_identity(&self) -> usize {
        let sockets = self.max_connections_per_identity.saturating_mul(SOCKETS_PER_CONNECTION);
        sockets.max(MIN_SOCKETS_PER_IDENTITY)
    }

    fn keep(&self) -> Keep {
        Keep { bytes: self.replay_bytes, time: self.replay_time }
    }
}

/// The future that [`Backend::open`] returns.
pub type Opening<'a> = Pin<Box<dyn Future<Output = std::io::Result<StdUnixStream>> + Send + 'a>>;

/// Serves the messages of accepted connections.
pub trait Backend: Send + Sync {
    /// Opens a new connection of `identity` on the listener of this number. The returned socket carries one message per
    /// line, both ways; either end may close it. Lines to the client have no limit but the backend's own.
    ///
    /// The error kind [`WouldBlock`](std::io::ErrorKind::WouldBlock) means that no connection is free, and
    /// [`QuotaExceeded`](std::io::ErrorKind::QuotaExceeded) that this identity has too many. After either,
    /// the server ends one detached connection, if there is one, and calls [`Self::open_later`].
    fn open(&self, identity: Identity, listener: usize) -> Opening<'_>;

    /// Opens a connection like [`Self::open`], but may wait: the server has just ended another connection to
    /// make room.
    fn open_later(&self, identity: Identity, listener: usize) -> Opening<'_> {
        self.open(identity, listener)
    }

    /// Returns `true` if a connection that began on the listener `from` may continue on the listener `to`.
    /// The connection keeps the rights of `from`.
    fn may_continue(&self, from: usize, to: usize) -> bool {
        from == to
    }

    /// Serves a new connection of `identity` over a WebSocket without TLS directly, which saves a copy of each message.
    /// A backend that does not support that returns the socket, and [`Self::open`] is called.
    ///
    /// # Errors
    /// If the backend does not serve WebSockets.
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

/// The future that [`Served::ended`] returns.
pub type ServedEnd<'a> = Pin<Box<dyn Future<Output = Option<Violation>> + Send + 'a>>;

/// A WebSocket that the backend serves.
pub trait Served: Send {
    /// Waits until the socket is closed. If the client caused that by a protocol violation, returns the
    /// violation.
    fn ended(&mut self) -> ServedEnd<'_>;

    /// Starts the closing handshake with this code and reason. [`Self::ended`] completes after the handshake.
    fn hang_up(&self, code: u16, reason: &'static str);
}

/// An error that prevents the HTTP server from listening.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("{address}: {error}")]
    Address { address: SocketAddr, error: std::io::Error },
    #[error("{0}: without authentication only a loopback address may be used")]
    Open(SocketAddr),
    #[error("{0}: without TLS only a loopback address may be used")]
    Cleartext(SocketAddr),
    #[error("{0}: authentication by certificate needs TLS with a client_ca")]
    NoAuthority(SocketAddr),
    #[error("invalid path {0:?}")]
    Path(String),
    #[error(transparent)]
    File(#[from] ReloadError),
}

/// A socket that was accepted elsewhere.
#[derive(Debug)]
pub enum Adopted {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

/// The socket was not adopted, because the server has stopped or its queue is full.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP server accepts no more connections")]
pub struct NotAdopted(pub Adopted);

struct Adoption {
    stream: Adopted,
    head: Bytes,
    identity: Identity,
    listener: usize,
}

/// The HTTP server with its bound listeners.
pub struct HttpServer {
    shared: Arc<HttpServerState>,
    http_listeners: Vec<(Arc<HttpListener>, TcpListener)>,
    addresses: Vec<SocketAddr>,
    adopted: mpsc::Receiver<Adoption>,
    handle: HttpServerHandle,
}

/// Controls an [`HttpServer`] while it runs.
#[derive(Clone)]
pub struct HttpServerHandle {
    shared: Arc<HttpServerState>,
    http_listeners: Arc<[Arc<HttpListener>]>,
    adopt: mpsc::Sender<Adoption>,
}

impl HttpServer {
    /// Binds all listeners and reads all their files. No client is accepted before [`Self::serve`].
    ///
    /// # Errors
    /// If one of them cannot be bound or would be open to unauthenticated machines; then none is bound.
    pub fn bind(
        listeners: Vec<HttpListenerConfig>,
        limits: HttpLimits,
        backend: Arc<dyn Backend>,
    ) -> Result<Self, BindError> {
        let mut http_listeners = Vec::new();
        let names = Arc::default();
        let mut addresses = Vec::new();
        for listener in listeners {
            validate(&listener)?;
            let address = listener.address;
            let failed = |error| BindError::Address { address, error };
            let socket = TcpListener::bind(address).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let bound = socket.local_addr().map_err(failed)?;
            http_listeners.push((Arc::new(HttpListener::new(listener, bound, &names)?), socket));
            addresses.push(bound);
        }
        let shared = HttpServerState::new(limits, backend);
        let (adopt, adopted) = mpsc::channel(MAX_PENDING_ADOPTIONS);
        let known = http_listeners.iter().map(|(http_listener, _)| Arc::clone(http_listener)).collect();
        let handle = HttpServerHandle { shared: Arc::clone(&shared), http_listeners: known, adopt };
        Ok(Self { shared, http_listeners, addresses, adopted, handle })
    }

    /// Returns the addresses of the listeners, in their order, with real ports.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle that works while the server runs.
    #[must_use]
    pub fn handle(&self) -> HttpServerHandle {
        self.handle.clone()
    }

    /// Accepts and serves clients until [`HttpServerHandle::shutdown`]. Must be polled inside a runtime.
    ///
    /// # Errors
    /// If a listener cannot be used on this runtime.
    pub async fn serve(self) -> std::io::Result<()> {
        let Self { shared, http_listeners, mut adopted, handle, .. } = self;
        // Dropping this task set ends all tasks in it.
        let mut accepting = JoinSet::new();
        for (http_listener, socket) in http_listeners {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            accepting.spawn(accept::accept(Arc::clone(&shared), http_listener, socket));
        }
        let mut file_checks = interval(FILE_CHECK_INTERVAL);
        file_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shared.stopping() => break,
                Some(adoption) = adopted.recv() => adopt(&shared, adoption),
                _ = file_checks.tick() => handle.check_files(),
            }
        }
        // Clients are notified; connections that are still open after the timeout are dropped.
        _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, shared.sockets.closed()).await;
        Ok(())
    }
}

impl HttpServerHandle {
    /// Stops the server: no client is accepted, WebSockets are closed with 1001, event streams end.
    pub fn shutdown(&self) {
        self.shared.stop();
    }

    /// Reads all files of all listeners now. Connections stay open unless their token or the authority of their
    /// certificate was removed.
    ///
    /// # Errors
    /// If a file cannot be used. Its previous content stays in effect, for a token file only for a short time. The
    /// other files are read anyway.
    pub fn reload(&self) -> Result<(), ReloadError> {
        let reloaded: Vec<_> =
            self.http_listeners.iter().map(|http_listener| http_listener.reload(true)).collect();
        reloaded.into_iter().collect()
    }

    fn check_files(&self) {
        for http_listener in &*self.http_listeners {
            // The token store logs the errors of its file, so only TLS errors are logged here.
            if let Err(error @ ReloadError::Tls(_)) = http_listener.reload(false) {
                tracing::warn!(
                    %error,
                    "TLS files invalid, keeping the previous ones"
                );
            }
        }
    }

    /// Returns how many clients were refused since the server was bound, by reason. The set of reasons is fixed.
    #[must_use]
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        self.shared.refusals.all()
    }

    /// Returns how many connections lost a socket since the server was bound, by outcome. The set of outcomes is fixed.
    #[must_use]
    pub fn disconnects(&self) -> Vec<(&'static str, u64)> {
        self.shared.disconnects.all()
    }

    /// Takes over a line-based socket that was accepted and authenticated elsewhere as `identity`. `head` is what was
    /// already read from it.
    ///
    /// # Errors
    /// If the queue is full or the server has stopped; the socket is returned.
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

fn validate(listener: &HttpListenerConfig) -> Result<(), BindError> {
    let address = listener.address;
    if !listener.path.starts_with('/') || listener.path.contains(['?', '#', ' ']) {
        return Err(BindError::Path(listener.path.clone()));
    }
    if listener.auth == ClientAuth::Mtls && listener.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
        return Err(BindError::NoAuthority(address));
    }
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    match (&listener.auth, &listener.tls) {
        (ClientAuth::None | ClientAuth::User | ClientAuth::Owner(_), _) => Err(BindError::Open(address)),
        (_, None) => Err(BindError::Cleartext(address)),
        _ => Ok(()),
    }
}

fn adopt(shared: &Arc<HttpServerState>, adoption: Adoption) {
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
        Err(error) => return tracing::warn!(%error, "adopted socket unusable"),
    };
    let (codec, part) = (Codec::lines(limits.max_message), shared.unfinished.part(&identity));
    let mut socket = ClientSocket::new(io, codec, head, limits.idle_timeout, None, part);
    let shared = Arc::clone(shared);
    match shared.quota.enter(identity) {
        Some(slot) => {
            tokio::spawn(connection::serve(
                shared,
                socket,
                AdmittedClient::new(slot, Credential::default(), listener),
            ));
        }
        None => {
            shared.refusals.add(RefusalReason::Limit);
            socket.put(&connection::too_many(b"null"), &shared.scratch);
            tokio::spawn(
                async move { socket.close(connection::REFUSED_CODE, "refused", &shared.scratch).await },
            );
        }
    }
}

#[cfg(test)]
mod tests;
