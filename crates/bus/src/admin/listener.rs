//! One listener of the admin API. Limits who may connect, how many connections there are, and how long a
//! connection may be idle.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener as Accepting;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::handlers::{self, AdminState};
use super::slots::{Request, Slot, Slots};
use crate::config::ListenAddr;
use crate::listen::{self, BoundListener, Family, ListenError, Listener};
use crate::log_limit::LogLimit;

const MAX_CONNECTIONS: usize = 64;
/// An admin connection on which no byte moves for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the rest of an HTTP request once its first byte has arrived.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of refused connections that get an answer at once. Others are closed without one.
const MAX_REFUSALS: usize = 16;
const MAX_REFUSED_BYTES: usize = 16 << 10;
const REFUSAL: &[u8] =
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 38\r\n\
    connection: close\r\n\r\nonly the user of this bus may connect\n";

#[derive(Debug)]
pub(super) struct AdminListener {
    listener: Listener,
}

impl AdminListener {
    /// Binds an admin listener, and also returns the bound address. A TCP port accepts only the user `only`,
    /// or every user if `only` is `None`.
    pub(super) fn open(address: &ListenAddr, only: Option<u32>) -> Result<(Self, ListenAddr), ListenError> {
        let (entry, address) = listen::open(address, IDLE_TIMEOUT)?;
        match entry {
            BoundListener::Socket(mut listener) => {
                listener.only = only;
                Ok((Self { listener }, address))
            }
            // Stdio carries the messages of a client, so the admin API cannot use it.
            BoundListener::Stdio(_) | BoundListener::Elsewhere => Err(ListenError::StdioTwice),
        }
    }

    pub(super) async fn serve(self, state: Arc<AdminState>) {
        if let Err(error) = self.try_serve(state).await {
            tracing::error!(%error, "admin listener failed");
        }
    }

    async fn try_serve(self, state: Arc<AdminState>) -> io::Result<()> {
        let fd = self.listener.fd.try_clone()?;
        let slots = Slots::new(MAX_CONNECTIONS);
        let only = self.listener.only;
        let refused_users = Arc::clone(&state.refused_users);
        let guarded = |socket| GuardedListener {
            socket,
            slots,
            only,
            refused_users,
            refused_log: LogLimit::default(),
            refusals: JoinSet::new(),
        };
        match self.listener.family {
            Family::Unix => {
                let socket = Socket::Unix(UnixListener::from_std(StdUnixListener::from(fd))?);
                axum::serve(guarded(socket), handlers::private(state)).await
            }
            Family::Tcp => {
                let socket = Socket::Tcp(TcpListener::from_std(fd.into())?);
                axum::serve(guarded(socket), handlers::local(state)).await
            }
        }
    }
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

struct GuardedListener {
    socket: Socket,
    slots: Slots,
    /// The only user whose TCP connections are accepted. `None`: all users.
    only: Option<u32>,
    refused_users: Arc<AtomicU64>,
    refused_log: LogLimit,
    /// Tasks that answer refused connections. Dropping the `JoinSet` ends the tasks.
    refusals: JoinSet<()>,
}

impl GuardedListener {
    /// Answers a user that may not connect. The limit of such answers takes no slot from permitted users.
    fn refuse(&mut self, stream: Stream) {
        self.refused_users.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.refused_log.count(std::time::Instant::now()) {
            let user = stream.user();
            tracing::warn!(user, count, "admin connections refused: not the user of the bus");
        }
        while self.refusals.try_join_next().is_some() {}
        if self.refusals.len() < MAX_REFUSALS {
            self.refusals.spawn(async move {
                match stream {
                    Stream::Unix(stream) => refuse(stream).await,
                    Stream::Tcp(stream) => refuse(stream).await,
                }
            });
        }
    }
}

/// Answers a refused request with 403. Closing a socket with unread input resets it and loses the answer, so
/// the request is read first and the peer's close is awaited.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let answer = async {
        let mut request = Vec::new();
        while request.len() < MAX_REFUSED_BYTES {
            let seen = request.len().saturating_sub(3);
            let is_end = stream.read_buf(&mut request).await? == 0;
            if is_end || request[seen..].windows(4).any(|end| end == b"\r\n\r\n") {
                break;
            }
        }
        stream.write_all(REFUSAL).await?;
        stream.shutdown().await?;
        let mut rest = stream.take(MAX_REFUSED_BYTES as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // A refused client that disconnects or stays silent is not an error.
    _ = timeout(REQUEST_TIMEOUT, answer).await;
}

impl Accepting for GuardedListener {
    type Io = AdminConnection;
    type Addr = ();

    async fn accept(&mut self) -> (AdminConnection, ()) {
        loop {
            let stream = match &self.socket {
                Socket::Unix(socket) => socket.accept().await.map(|(stream, _)| Stream::Unix(stream)),
                Socket::Tcp(socket) => socket.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            };
            match stream {
                Ok(stream) if stream.may_connect(self.only) => {
                    return (AdminConnection::new(stream, self.slots.acquire().await), ());
                }
                Ok(stream) => self.refuse(stream),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept admin connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Returns `true` if the peer may connect. On a unix socket, only the user of the bus and root may. On a
    /// TCP port, only the user `only` may, or every user of this machine if `only` is `None`.
    fn may_connect(&self, only: Option<u32>) -> bool {
        match (self, only) {
            (Self::Unix(_), _) => {
                self.user().is_some_and(|user| user == rustix::process::geteuid().as_raw() || user == 0)
            }
            (Self::Tcp(_), None) => true,
            (Self::Tcp(_), Some(only)) => self.user() == Some(only),
        }
    }

    fn user(&self) -> Option<u32> {
        match self {
            Self::Unix(stream) => stream.peer_cred().ok().map(|peer| peer.uid()),
            Self::Tcp(stream) => narrows_link::peer::user_of(stream.as_fd()),
        }
    }
}

/// An admin connection. It is closed when it is idle, when its request stays incomplete for too long, or when
/// another connection needs its slot.
struct AdminConnection {
    stream: Stream,
    idle: Pin<Box<Sleep>>,
    slot: Slot,
}

impl AdminConnection {
    fn new(stream: Stream, slot: Slot) -> Self {
        Self { stream, idle: Box::pin(sleep(IDLE_TIMEOUT)), slot }
    }

    /// Passes on the result of a read or write. Restarts the idle timer with `time` if bytes moved; otherwise
    /// fails once the timer has expired.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
        time: Option<Duration>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            if let Some(time) = time {
                self.idle.as_mut().reset(Instant::now() + time);
            }
            return moved;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Records the bytes `read` of a request. Returns the timeout for the next byte; `None` lets the current
    /// timer run on.
    fn record_read(&mut self, read: &[u8]) -> Option<Duration> {
        match self.slot.record_read(read) {
            (Request::Part(_), Request::Part(_)) => None,
            (_, Request::Part(_)) => Some(REQUEST_TIMEOUT),
            (_, Request::Nothing | Request::Whole) => Some(IDLE_TIMEOUT),
        }
    }
}

impl AsyncRead for AdminConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let moved = match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
        };
        if moved.is_pending() && self.slot.poll_leave(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let time = self.record_read(&into.filled()[before..]);
        self.watched(cx, moved, time)
    }
}

impl AsyncWrite for AdminConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let moved = match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
        };
        self.watched(cx, moved, Some(IDLE_TIMEOUT))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timeout of a test. It is long enough for a loaded machine: only a failing test waits this long.
    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut slots = Slots::new(1);
        let began = Instant::now();
        let mut connection = AdminConnection::new(Stream::Unix(ours), slots.acquire().await);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= IDLE_TIMEOUT);
        drop(connection);
        assert!(timeout(Duration::ZERO, slots.acquire()).await.is_ok(), "a slot is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_request_is_closed_after_a_timeout() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let began = Instant::now();
        let mut connection = AdminConnection::new(Stream::Unix(ours), Slots::new(1).acquire().await);
        let error = loop {
            theirs.write_all(b"x").await.unwrap();
            connection.read_u8().await.unwrap();
            if let Ok(ended) = timeout(REQUEST_TIMEOUT / 4, connection.read_u8()).await {
                break ended.unwrap_err();
            }
        };
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, REQUEST_TIMEOUT));
        // After a complete request, the longer idle timeout applies while the client reads the answer.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = AdminConnection::new(Stream::Unix(ours), Slots::new(1).acquire().await);
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        connection.read_exact(&mut [0; 18]).await.unwrap();
        let began = Instant::now();
        connection.read_u8().await.unwrap_err();
        assert!(began.elapsed() >= IDLE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_user_gets_an_answer_to_a_request_in_parts() {
        for parts in [&["GET / HTTP/1.1\r\n\r\n"][..], &["GET / HTTP/1.1\r\nHost: x\r\n\r", "\nmore"], &[""]]
        {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let refused = tokio::spawn(refuse(ours));
            for part in parts {
                theirs.write_all(part.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            if parts == [""] {
                theirs.shutdown().await.unwrap();
            }
            let mut answer = String::new();
            theirs.read_to_string(&mut answer).await.unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            assert_eq!(body, "only the user of this bus may connect\n");
            drop(theirs);
            refused.await.unwrap();
        }
        // A peer that sends no request at all is closed after the idle timeout.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let began = Instant::now();
        refuse(ours).await;
        assert_eq!(began.elapsed(), REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn refused_users_are_counted_and_few_are_answered_at_once() {
        let (path, mut peers) = (tempfile::tempdir().unwrap(), Vec::new());
        let socket = Socket::Unix(UnixListener::bind(path.path().join("s")).unwrap());
        let refused_users = Arc::new(AtomicU64::new(0));
        let mut listener = GuardedListener {
            socket,
            slots: Slots::new(1),
            only: None,
            refused_users: Arc::clone(&refused_users),
            refused_log: LogLimit::default(),
            refusals: JoinSet::new(),
        };
        for _ in 0..=MAX_REFUSALS {
            let (ours, theirs) = UnixStream::pair().unwrap();
            listener.refuse(Stream::Unix(ours));
            peers.push(theirs);
        }
        assert_eq!(
            (refused_users.load(Ordering::Relaxed), listener.refusals.len()),
            (MAX_REFUSALS as u64 + 1, MAX_REFUSALS)
        );
        assert_eq!(
            peers[MAX_REFUSALS].read(&mut [0]).await.unwrap(),
            0,
            "the connection is closed without an answer"
        );
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_evicted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = Socket::Unix(UnixListener::bind(&path).unwrap());
        let mut listener = GuardedListener {
            socket,
            slots: Slots::new(2),
            only: None,
            refused_users: Default::default(),
            refused_log: LogLimit::default(),
            refusals: JoinSet::new(),
        };
        let mut peers = Vec::new();
        let mut reads = Vec::new();
        for said in ["GET / HTTP/1.1\r\n\r\n", "GET / HT", "GET /", "", "GET / HTTP/1.1\r\n\r\n"] {
            let mut peer = UnixStream::connect(&path).await.unwrap();
            peer.write_all(said.as_bytes()).await.unwrap();
            peers.push(peer);
            let (mut connection, ()) = timeout(TEST_TIMEOUT, listener.accept()).await.unwrap();
            let mut heard = vec![0; said.len()];
            connection.read_exact(&mut heard).await.unwrap();
            reads.push(tokio::spawn(async move { connection.read_u8().await.map_err(|error| error.kind()) }));
        }
        for (number, read) in reads.into_iter().enumerate() {
            // Connections 0 and 4 send a complete request and are therefore not evicted.
            if matches!(number, 0 | 4) {
                assert!(!read.is_finished(), "{number}");
            } else {
                assert_eq!(read.await.unwrap(), Err(io::ErrorKind::TimedOut), "{number}");
            }
        }
    }
}
