//! One socket of a client: reading, queued output, and detection of dead peers.

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

use super::codec::{Codec, Received};
use super::io::{Io, Outbox, Scratch};
use super::unfinished::{FREE_BYTES, MessageMemory, time_for};

/// Bytes of queued output above which the socket is not read. Each ping that is read would queue a pong.
const MAX_WAITING: usize = 256 << 10;

const CLOSE_FRAME_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketEnd {
    /// The socket was lost, or the peer does not respond or read.
    Lost,
    /// The client closed the connection with this WebSocket close code.
    Left(Option<u16>),
    Fault(Violation),
    /// There is no memory for the rest of a message at present.
    Crowded,
    /// The client sends invalid messages and does not read the replies.
    Flooded,
}

#[derive(Debug)]
pub(super) struct ClientSocket {
    io: Io,
    codec: Codec,
    /// Input that was read before this socket was created.
    head: Bytes,
    /// Messages that were read, but are to be read again.
    unread: Vec<Bytes>,
    out: Outbox,
    /// `true` if written bytes may be buffered in the TLS layer.
    unflushed: bool,
    idle: Duration,
    last_input: Instant,
    pings: u32,
    /// When the last write made progress, if output is stuck.
    stuck: Option<Instant>,
    /// Why the input has ended. Set until the messages before the end are delivered.
    ended: Option<SocketEnd>,
    tick: Pin<Box<Sleep>>,
    permit: Option<SocketPermit>,
    /// The memory of an incomplete message and of `unread`.
    part: MessageMemory,
    /// For an incomplete message over the free bytes: when it exceeded them, when it last grew, and its size
    /// at that time.
    unfinished: Option<(Instant, Instant, usize)>,
}

/// The result of [`ClientSocket::hand_off`].
#[derive(Debug)]
pub(super) enum Handoff<T> {
    Taken(T, Option<SocketPermit>),
    Here(Box<ClientSocket>),
}

/// The permit of an open socket, released with the last reference to it.
pub(super) type SocketPermit = Arc<OwnedSemaphorePermit>;

impl ClientSocket {
    /// `head` was already read from the socket; `idle` is the time after which a dead peer is detected.
    pub(super) fn new(
        io: Io,
        codec: Codec,
        head: Bytes,
        idle: Duration,
        permit: Option<SocketPermit>,
        part: MessageMemory,
    ) -> Self {
        Self {
            io,
            codec,
            head,
            unread: Vec::new(),
            out: Outbox::default(),
            unflushed: false,
            idle,
            last_input: Instant::now(),
            pings: 0,
            stuck: None,
            ended: None,
            tick: Box::pin(sleep(idle / 3)),
            permit,
            part,
            unfinished: None,
        }
    }

    /// Offers a WebSocket without TLS and without queued output to `take`, along with `messages`. Fails if
    /// the socket is lost in the process.
    pub(super) fn hand_off<T>(
        self,
        messages: &[Bytes],
        take: impl FnOnce(WebSocketHandoff) -> Result<T, WebSocketHandoff>,
    ) -> io::Result<Handoff<T>> {
        match self {
            Self {
                io: Io::Tcp(stream),
                codec: Codec::Frames(decoder),
                head,
                out,
                unflushed: false,
                ended: None,
                idle,
                permit,
                part,
                ..
            } if head.is_empty() && out.is_empty() => {
                let socket = stream.into_std()?.into();
                match take(WebSocketHandoff { socket, decoder, messages: messages.to_vec(), idle }) {
                    Ok(taken) => Ok(Handoff::Taken(taken, permit)),
                    Err(WebSocketHandoff { socket, decoder, .. }) => {
                        let stream = TcpStream::from_std(socket.into())?;
                        let codec = Codec::Frames(decoder);
                        let socket = Self::new(Io::Tcp(stream), codec, Bytes::new(), idle, permit, part);
                        Ok(Handoff::Here(Box::new(socket)))
                    }
                }
            }
            socket => Ok(Handoff::Here(Box::new(socket))),
        }
    }

    pub(super) fn limit_kernel_buffers(&self) {
        if let Err(error) = self.io.limit_kernel_buffers() {
            tracing::debug!(%error, "socket buffer size not set");
        }
    }

    /// Puts messages back, so that they are read before anything else. They count towards the limits until then.
    pub(super) fn unread(&mut self, messages: Vec<Bytes>) {
        let bytes = messages.iter().map(Bytes::len).sum::<usize>();
        self.part.set(self.codec.partial() + bytes);
        self.unread = messages;
    }

    pub(super) fn queued(&self) -> usize {
        self.out.len()
    }

    #[inline]
    pub(super) fn put(&mut self, message: &[u8], scratch: &Scratch) {
        self.codec.put(self.out.open(scratch), message);
    }

    /// Reads once and passes the messages to `each`. Ready with the number of bytes.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
        mut each: impl FnMut(Received<'_>),
    ) -> Poll<Result<usize, SocketEnd>> {
        if !self.unread.is_empty() {
            let messages = std::mem::take(&mut self.unread);
            let count = messages.iter().map(Bytes::len).sum();
            messages.iter().for_each(|message| each(Received::Message(message)));
            self.part.set(self.codec.partial());
            return Poll::Ready(Ok(count));
        }
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
                // Input after the end is ignored.
                _ if end.is_some() => {}
                Received::Ping(payload) => put_pong(out.open(scratch), payload),
                Received::Close(code) => end = Some(SocketEnd::Left(code)),
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
        self.last_input = Instant::now();
        self.pings = 0;
        let partial = self.codec.partial();
        if !self.part.resize(partial) {
            end = end.or(Some(SocketEnd::Crowded));
        }
        self.unfinished = match self.unfinished {
            _ if partial <= FREE_BYTES => None,
            Some((since, grew, before)) if partial == before => Some((since, grew, before)),
            Some((since, ..)) => Some((since, self.last_input, partial)),
            None => Some((self.last_input, self.last_input, partial)),
        };
        self.ended = if count == 0 { Some(SocketEnd::Lost) } else { end };
        Poll::Ready(match self.ended {
            Some(end) if !seen => Err(end),
            _ => Ok(count),
        })
    }

    /// Writes queued output. Ready when the queue is empty; `true` if anything moved.
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
        // Output was stuck and makes progress again, so the peer is alive. Pings may wait behind the output.
        let taken = polled.is_ready() || self.out.len() != before;
        if self.stuck.is_some() && taken && !matches!(polled, Poll::Ready(Err(_))) {
            self.last_input = Instant::now();
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

    /// Checks whether the peer is alive. Ready when the peer is considered dead.
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
            let mut next = self.last_input + third * (self.pings + 1);
            if !self.codec.has_pings() {
                next = now + third;
            } else if next <= now {
                if self.pings == 2 {
                    return Poll::Ready(SocketEnd::Lost);
                }
                self.pings += 1;
                // The next tick is counted from now and not from the previous one. After a suspended machine
                // wakes up, the peer gets its full time again.
                next = now + third;
                self.codec.put_ping(self.out.open(scratch));
                // The ping is written at once. Otherwise a write error would show only at the next write.
                if let Poll::Ready(Err(end)) = self.poll_write(cx, scratch) {
                    return Poll::Ready(end);
                }
            }
            self.tick.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
        Poll::Pending
    }

    /// Writes queued output and the close frame, and closes the socket.
    pub(super) async fn close(mut self, code: u16, reason: &'static str, scratch: &Scratch) {
        self.codec.put_close(self.out.open(scratch), code, reason);
        let last = async {
            std::future::poll_fn(|cx| self.poll_write(cx, scratch))
                .await
                .map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.io.shutdown().await?;
            // Closing a socket with unread input would reset it, and the close frame would be lost.
            let mut rest = [0; 512];
            while self.io.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // The close frame is sent on a best-effort basis.
        _ = timeout(CLOSE_FRAME_TIMEOUT, last).await;
        self.out.clear(scratch);
    }
}
