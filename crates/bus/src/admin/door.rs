//! One door for operators: who is let in, how many, and how long they may do nothing.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener as Accepting;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep};

use super::pages::{self, Pages};
use super::seats::{Request, Seat, Seats};
use crate::config::Door;
use crate::listen::{self, Entry, Family, ListenError, Listener};

/// How many connections one door has at once.
const CONNECTIONS: usize = 64;
/// How long a connection may neither send nor take anything.
const IDLE: Duration = Duration::from_secs(30);
/// How long a request may take to come, once it has begun.
const HALF: Duration = Duration::from_secs(2);
/// How long nobody is let in after the system had no room for one.
const REST: Duration = Duration::from_millis(200);

/// A door that is open.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: Listener,
}

impl Entrance {
    /// Opens it. A port is for the user `only`, or if absent for every user. Also tells where it is.
    pub(super) fn open(door: &Door, only: Option<u32>) -> Result<(Self, Door), ListenError> {
        let (entry, address) = listen::open(door, IDLE)?;
        match entry {
            Entry::Socket(mut listener) => {
                listener.only = only;
                Ok((Self { listener }, address))
            }
            // Operators and clients cannot share it.
            Entry::Stdio(_) | Entry::Elsewhere => Err(ListenError::StdioTwice),
        }
    }

    /// Serves it until this is dropped.
    pub(super) async fn serve(self, pages: Arc<Pages>) {
        if let Err(error) = self.try_serve(pages).await {
            tracing::error!(%error, "operators cannot be served");
        }
    }

    async fn try_serve(self, pages: Arc<Pages>) -> io::Result<()> {
        let fd = self.listener.fd.try_clone()?;
        let seats = Seats::new(CONNECTIONS);
        let only = self.listener.only;
        match self.listener.family {
            Family::Unix => {
                let socket = Socket::Unix(UnixListener::from_std(StdUnixListener::from(fd))?);
                axum::serve(Guarded { socket, seats, only }, pages::private(pages)).await
            }
            Family::Tcp => {
                let socket = Socket::Tcp(TcpListener::from_std(fd.into())?);
                axum::serve(Guarded { socket, seats, only }, pages::local(pages)).await
            }
        }
    }
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Lets in who may come in, as far as there is room.
struct Guarded {
    socket: Socket,
    seats: Seats,
    /// The only user that a port is for.
    only: Option<u32>,
}

impl Accepting for Guarded {
    type Io = Visit;
    type Addr = ();

    async fn accept(&mut self) -> (Visit, ()) {
        loop {
            let stream = match &self.socket {
                Socket::Unix(socket) => socket.accept().await.map(|(stream, _)| Stream::Unix(stream)),
                Socket::Tcp(socket) => socket.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            };
            match stream {
                Ok(stream) if stream.may_come_in(self.only) => {
                    return (Visit::new(stream, self.seats.take().await), ());
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "an operator could not be let in");
                    sleep(REST).await;
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
    /// Returns `true` if the peer may connect: on a unix socket the user of the bus and root, on a port the user `only`, or
    /// every user of this machine if that is absent.
    fn may_come_in(&self, only: Option<u32>) -> bool {
        let (user, may) = match (self, only) {
            (Self::Unix(stream), _) => {
                let user = stream.peer_cred().ok().map(|peer| peer.uid());
                (user, user.is_some_and(|user| user == rustix::process::geteuid().as_raw() || user == 0))
            }
            (Self::Tcp(_), None) => return true,
            (Self::Tcp(stream), Some(only)) => {
                let user = narrows_link::peer::user_of(stream.as_fd());
                (user, user == Some(only))
            }
        };
        if !may {
            tracing::warn!(user, "admin connection refused: not the user of the bus");
        }
        may
    }
}

/// A connection that ends when nothing moves on it, when a request does not come to its end, and when it has to make room.
struct Visit {
    stream: Stream,
    idle: Pin<Box<Sleep>>,
    seat: Seat,
}

impl Visit {
    fn new(stream: Stream, seat: Seat) -> Self {
        Self { stream, idle: Box::pin(sleep(IDLE)), seat }
    }

    /// Something moved, so that there is this much time for the next to move; or nothing did: then it ends once the time is over.
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

    /// How much time there is for the next to come after this was read; `None`: what is left of the time.
    fn heard(&mut self, read: &[u8]) -> Option<Duration> {
        match self.seat.hear(read) {
            (Request::Part(_), Request::Part(_)) => None,
            (_, Request::Part(_)) => Some(HALF),
            (_, Request::Nothing | Request::Whole) => Some(IDLE),
        }
    }
}

impl AsyncRead for Visit {
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
        if moved.is_pending() && self.seat.poll_leave(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let time = self.heard(&into.filled()[before..]);
        self.watched(cx, moved, time)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let moved = match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
        };
        self.watched(cx, moved, Some(IDLE))
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Long enough for a loaded machine; nothing waits for it unless something is wrong.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn who_does_nothing_is_hung_up_on() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut seats = Seats::new(1);
        let began = Instant::now();
        let mut visit = Visit::new(Stream::Unix(ours), seats.take().await);
        let error = visit.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= IDLE);
        drop(visit);
        assert!(
            tokio::time::timeout(Duration::ZERO, seats.take()).await.is_ok(),
            "there is room for the next"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_has_begun_must_end_however_it_comes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let began = Instant::now();
        let mut visit = Visit::new(Stream::Unix(ours), Seats::new(1).take().await);
        let error = loop {
            theirs.write_all(b"x").await.unwrap();
            visit.read_u8().await.unwrap();
            if let Ok(ended) = tokio::time::timeout(HALF / 4, visit.read_u8()).await {
                break ended.unwrap_err();
            }
        };
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, HALF));
        // Whoever has asked has more time to take the answer.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut visit = Visit::new(Stream::Unix(ours), Seats::new(1).take().await);
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        visit.read_exact(&mut [0; 18]).await.unwrap();
        let began = Instant::now();
        visit.read_u8().await.unwrap_err();
        assert!(began.elapsed() >= IDLE);
    }

    #[tokio::test]
    async fn whoever_has_asked_nothing_yet_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = Socket::Unix(UnixListener::bind(&path).unwrap());
        let mut door = Guarded { socket, seats: Seats::new(2), only: None };
        let mut visitors = Vec::new();
        let mut reads = Vec::new();
        for said in ["GET / HTTP/1.1\r\n\r\n", "GET / HT", "GET /", "", "GET / HTTP/1.1\r\n\r\n"] {
            let mut visitor = UnixStream::connect(&path).await.unwrap();
            visitor.write_all(said.as_bytes()).await.unwrap();
            visitors.push(visitor);
            let (mut visit, ()) = tokio::time::timeout(PATIENCE, door.accept()).await.unwrap();
            let mut heard = vec![0; said.len()];
            visit.read_exact(&mut heard).await.unwrap();
            reads.push(tokio::spawn(async move { visit.read_u8().await.map_err(|error| error.kind()) }));
        }
        for (number, read) in reads.into_iter().enumerate() {
            // The first and the last have asked for something, and stay.
            if matches!(number, 0 | 4) {
                assert!(!read.is_finished(), "{number}");
            } else {
                assert_eq!(read.await.unwrap(), Err(io::ErrorKind::TimedOut), "{number}");
            }
        }
    }
}
