//! One door for operators: who is let in, how many, and how long they may do nothing.

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener as Accepting;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::pages::{self, Pages};
use crate::config::Door;
use crate::listen::{self, Entry, Family, ListenError, Listener};

/// How many connections one door has at once; more wait.
const CONNECTIONS: usize = 64;
/// How long a connection may neither send nor take anything.
const IDLE: Duration = Duration::from_secs(30);
/// How long nobody is let in after the system had no room for one.
const REST: Duration = Duration::from_millis(200);

/// A door that is open.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: Listener,
}

impl Entrance {
    /// Opens it. Also tells where it is.
    pub(super) fn open(door: &Door) -> Result<(Self, Door), ListenError> {
        let (entry, address) = listen::open(door, IDLE)?;
        match entry {
            Entry::Socket(listener) => Ok((Self { listener }, address)),
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
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        match self.listener.family {
            Family::Unix => {
                let socket = Socket::Unix(UnixListener::from_std(StdUnixListener::from(fd))?);
                axum::serve(Guarded { socket, slots }, pages::private(pages)).await
            }
            Family::Tcp => {
                let socket = Socket::Tcp(TcpListener::from_std(fd.into())?);
                axum::serve(Guarded { socket, slots }, pages::local(pages)).await
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
    slots: Arc<Semaphore>,
}

impl Accepting for Guarded {
    type Io = Visit;
    type Addr = ();

    async fn accept(&mut self) -> (Visit, ()) {
        loop {
            // Never closed.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                std::future::pending().await
            };
            let stream = match &self.socket {
                Socket::Unix(socket) => socket.accept().await.map(|(stream, _)| Stream::Unix(stream)),
                Socket::Tcp(socket) => socket.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            };
            match stream {
                Ok(stream) if stream.may_come_in() => return (Visit::new(stream, slot), ()),
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
    /// Whether it is the user of the bus, or the one who may everything. Whoever reaches a port is on this machine.
    fn may_come_in(&self) -> bool {
        let Self::Unix(stream) = self else { return true };
        let Ok(peer) = stream.peer_cred() else { return false };
        let ours = rustix::process::geteuid().as_raw();
        let may = peer.uid() == ours || peer.uid() == 0;
        if !may {
            tracing::warn!(user = peer.uid(), "refused an operator who is another user");
        }
        may
    }
}

/// A connection that ends when nothing moves on it.
struct Visit {
    stream: Stream,
    idle: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl Visit {
    fn new(stream: Stream, slot: OwnedSemaphorePermit) -> Self {
        Self { stream, idle: Box::pin(sleep(IDLE)), _slot: slot }
    }

    /// Something moved, or nothing did: then it ends once the time is over.
    fn watched<T>(&mut self, cx: &mut Context<'_>, moved: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE);
            return moved;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
        };
        self.watched(cx, moved)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let moved = match &mut self.stream {
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
        };
        self.watched(cx, moved)
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
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_does_nothing_is_hung_up_on() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::clone(&slots).acquire_owned().await.unwrap();
        let began = Instant::now();
        let mut visit = Visit::new(Stream::Unix(ours), slot);
        let error = visit.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= IDLE);
        drop(visit);
        assert_eq!(slots.available_permits(), 1, "there is room for the next");
    }
}
