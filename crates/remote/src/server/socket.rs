//! One socket of a client while it stands: what is read, what waits to be written, and whether anybody is there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use narrows_link::WebSocketHandoff;
use narrows_wire::websocket::{Violation, put_pong};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::codec::{Codec, Heard};
use super::io::{Io, Outbox, Scratch};
use super::unfinished::{FREE_BYTES, Part, time_for};

/// How much may wait for a client before nothing more is read from it: its pings want answers.
const MAX_WAITING: usize = 256 << 10;

/// How long a client may take to read the last word.
const CLOSE_FRAME_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a socket is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketEnd {
    /// It is gone, or nobody is there, or nobody reads.
    Lost,
    /// The client said goodbye, with this code.
    Left(Option<u16>),
    /// The client sent what it may not.
    Fault(Violation),
    /// There is no room for the rest of its message now.
    Crowded,
    /// The client sends messages without a meaning and does not read the replies.
    Flooded,
}

/// A socket and how messages stand on it.
#[derive(Debug)]
pub(super) struct Socket {
    io: Io,
    codec: Codec,
    /// Read before this got it.
    head: Bytes,
    out: Outbox,
    /// Something was written that the socket may hold back.
    unflushed: bool,
    idle: Duration,
    heard: Instant,
    /// How often it was asked since then whether it is there.
    pings: u32,
    /// Since when nothing could be written although something waits.
    stuck: Option<Instant>,
    /// Came with messages that are to be seen before it.
    ended: Option<SocketEnd>,
    tick: Pin<Box<Sleep>>,
    /// Its place among all sockets.
    place: Option<Place>,
    /// What is held of a message that has not come whole.
    part: Part,
    /// When that began to be counted, when there last was more of it, and how much it was then.
    unfinished: Option<(Instant, Instant, usize)>,
}

/// What became of a socket that was to be [left](Socket::leave) to another.
#[derive(Debug)]
pub(super) enum Left<T> {
    /// It was taken; its place is to be kept until it is closed.
    Taken(T, Option<Place>),
    /// It is still here.
    Here(Box<Socket>),
}

/// A place among the sockets of a front, given back with the last that has it.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

impl Socket {
    /// `head` has been read from it already; within `idle` it is noticed that nobody is there.
    pub(super) fn new(
        io: Io,
        codec: Codec,
        head: Bytes,
        idle: Duration,
        place: Option<Place>,
        part: Part,
    ) -> Self {
        Self {
            io,
            codec,
            head,
            out: Outbox::default(),
            unflushed: false,
            idle,
            heard: Instant::now(),
            pings: 0,
            stuck: None,
            ended: None,
            tick: Box::pin(sleep(idle / 3)),
            place,
            part,
            unfinished: None,
        }
    }

    /// Leaves a WebSocket without TLS on which nothing waits to whoever takes it, behind `messages`.
    ///
    /// # Errors
    /// When the socket has been lost over it.
    pub(super) fn leave<T>(
        self,
        messages: &[Bytes],
        take: impl FnOnce(WebSocketHandoff) -> Result<T, WebSocketHandoff>,
    ) -> io::Result<Left<T>> {
        match self {
            Self {
                io: Io::Tcp(stream),
                codec: Codec::Frames(decoder),
                head,
                out,
                unflushed: false,
                ended: None,
                idle,
                place,
                part,
                ..
            } if head.is_empty() && out.is_empty() => {
                let socket = stream.into_std()?.into();
                match take(WebSocketHandoff { socket, decoder, messages: messages.to_vec(), idle }) {
                    Ok(taken) => Ok(Left::Taken(taken, place)),
                    Err(WebSocketHandoff { socket, decoder, .. }) => {
                        let stream = TcpStream::from_std(socket.into())?;
                        let codec = Codec::Frames(decoder);
                        let socket = Self::new(Io::Tcp(stream), codec, Bytes::new(), idle, place, part);
                        Ok(Left::Here(Box::new(socket)))
                    }
                }
            }
            socket => Ok(Left::Here(Box::new(socket))),
        }
    }

    /// Bounds what the system holds of it.
    pub(super) fn bound(&self) {
        if let Err(error) = self.io.bound() {
            tracing::debug!(%error, "the buffers of a socket stay as they are");
        }
    }

    /// How much waits to be written.
    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Puts a message behind what waits.
    #[inline]
    pub(super) fn put(&mut self, message: &[u8], scratch: &Scratch) {
        self.codec.put(self.out.open(scratch), message);
    }

    /// Reads once and shows the messages. Ready with how many bytes there were.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
        mut each: impl FnMut(Heard<'_>),
    ) -> Poll<Result<usize, SocketEnd>> {
        if let Some(end) = self.ended {
            return Poll::Ready(Err(end));
        }
        if self.out.len() > MAX_WAITING {
            return Poll::Pending;
        }
        let Self { io, codec, head, out, .. } = self;
        let mut end = None;
        let mut seen = false;
        let mut see = |read: &mut [u8]| {
            let fed = codec.feed(read, |heard| match heard {
                // What comes after the end is nobody's business.
                _ if end.is_some() => {}
                Heard::Ping(payload) => put_pong(out.open(scratch), payload),
                Heard::Close(code) => end = Some(SocketEnd::Left(code)),
                heard => {
                    seen = true;
                    each(heard);
                }
            });
            if let Err(fault) = fed {
                end = end.or(Some(SocketEnd::Fault(fault)));
            }
        };
        let polled = if head.is_empty() {
            scratch.poll_read(cx, io, see)
        } else {
            let mut first = std::mem::take(head).to_vec();
            see(&mut first);
            Poll::Ready(Ok(first.len()))
        };
        let count = match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => 0,
        };
        self.heard = Instant::now();
        self.pings = 0;
        let partial = self.codec.partial();
        if !self.part.resize(partial) {
            end = end.or(Some(SocketEnd::Crowded));
        }
        self.unfinished = match self.unfinished {
            _ if partial <= FREE_BYTES => None,
            Some((since, grew, before)) if partial == before => Some((since, grew, before)),
            Some((since, ..)) => Some((since, self.heard, partial)),
            None => Some((self.heard, self.heard, partial)),
        };
        self.ended = if count == 0 { Some(SocketEnd::Lost) } else { end };
        Poll::Ready(match self.ended {
            Some(end) if !seen => Err(end),
            _ => Ok(count),
        })
    }

    /// Writes what waits. Ready when nothing does, with whether anything moved.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
    ) -> Poll<Result<bool, SocketEnd>> {
        let before = self.out.len();
        if before == 0 && !self.unflushed {
            return Poll::Ready(Ok(false));
        }
        self.unflushed = true;
        let polled = match self.out.poll_write(cx, &mut self.io, scratch) {
            Poll::Ready(Ok(moved)) => Pin::new(&mut self.io).poll_flush(cx).map_ok(|()| moved),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        // There is room again where there was none: somebody reads, however slowly, and what asks for a sign waits its turn.
        let taken = polled.is_ready() || self.out.len() != before;
        if self.stuck.is_some() && taken && !matches!(polled, Poll::Ready(Err(_))) {
            self.heard = Instant::now();
            self.pings = 0;
        }
        match polled {
            Poll::Ready(done) => {
                self.stuck = None;
                self.unflushed = false;
                Poll::Ready(done.map_err(|_| SocketEnd::Lost))
            }
            Poll::Pending => {
                if self.stuck.is_none() || taken {
                    self.stuck = Some(Instant::now());
                }
                Poll::Pending
            }
        }
    }

    /// Looks whether anybody is there. Ready when nobody is.
    pub(super) fn poll_tick(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> Poll<SocketEnd> {
        while self.tick.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let third = self.idle / 3;
            if self.stuck.is_some_and(|since| now.duration_since(since) >= self.idle) {
                return Poll::Ready(SocketEnd::Lost);
            }
            if let Some((since, grew, bytes)) = self.unfinished
                && (now.duration_since(grew) >= self.idle
                    || now.duration_since(since) >= self.idle + time_for(bytes))
            {
                return Poll::Ready(SocketEnd::Crowded);
            }
            let mut next = self.heard + third * (self.pings + 1);
            if !self.codec.has_pings() {
                next = now + third;
            } else if next <= now {
                if self.pings == 2 {
                    return Poll::Ready(SocketEnd::Lost);
                }
                self.pings += 1;
                // From now on: whoever slept for long must not find that all its time is over.
                next = now + third;
                self.codec.put_ping(self.out.open(scratch));
                // What keeps it from being written is found by whoever writes next; the timer must not wait for that.
                if let Poll::Ready(Err(end)) = self.poll_write(cx, scratch) {
                    return Poll::Ready(end);
                }
            }
            self.tick.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
        Poll::Pending
    }

    /// Writes what waits and the end, and hangs up.
    pub(super) async fn close(mut self, code: u16, reason: &'static str, scratch: &Scratch) {
        self.codec.put_close(self.out.open(scratch), code, reason);
        let last = async {
            std::future::poll_fn(|cx| self.poll_write(cx, scratch))
                .await
                .map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.io.shutdown().await?;
            // A socket with something unread would be reset, and the last word with it.
            let mut rest = [0; 512];
            while self.io.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // Whoever does not read it has gone without it.
        _ = timeout(CLOSE_FRAME_TIMEOUT, last).await;
        self.out.clear(scratch);
    }
}
