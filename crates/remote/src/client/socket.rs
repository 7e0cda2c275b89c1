//! One socket that carries messages: WebSocket frames or lines.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use narrows_wire::{Line, Splitter};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};

use super::DialError;
use super::ping_filter::{PingFilter, Pings};

const WRITE_BATCH_BYTES: usize = 64 << 10;

/// Number of first bytes by which a server that speaks another protocol is recognized.
const PROBED_BYTES: usize = 5;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) type Io = Box<dyn Stream>;

pub(super) struct ServerSocket {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
}

impl ServerSocket {
    /// Wraps a WebSocket. `pings` records the pings that were removed from the stream.
    pub(super) fn websocket(stream: WebSocketStream<PingFilter>, pings: Arc<Pings>) -> Self {
        let (sink, stream) = stream.split();
        let reader = Reader::Web { stream, pings: Arc::clone(&pings) };
        Self { reader, writer: Writer::Web { sink, pings } }
    }

    pub(super) fn lines(stream: Io, max_line: usize) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let reader = Reader::Lines { half: reader, splitter: Splitter::new(max_line), is_known: false };
        Self { reader, writer: Writer::Lines { half: writer, gathered: BytesMut::new() } }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error("the server closed the connection")]
    Closed,
    /// The connection was cut before the socket was used.
    #[error("{0}")]
    Cut(String),
    #[error("the server closed the connection: {0}")]
    Because(String),
    #[error("{0}")]
    TooLong(String),
    #[error("the message is too long for the server")]
    Oversized,
    #[error("{0}")]
    Failed(String),
    #[error("the server stopped responding")]
    Silent,
    #[error("a newer connection has taken over")]
    Fenced,
    #[error("{0}")]
    Other(DialError),
    #[error("the server violated the protocol")]
    ProtocolViolation,
}

pub(super) enum Read {
    Message(Bytes),
    /// The first bytes of a message that is too long.
    TooLong(Bytes),
    /// Input that contains no message, such as a pong. Shows that the peer is alive.
    Sign,
}

pub(super) enum Reader {
    Web {
        stream: SplitStream<WebSocketStream<PingFilter>>,
        pings: Arc<Pings>,
    },
    /// `is_known` is `true` once the first bytes were checked for other protocols.
    Lines {
        half: ReadHalf<Io>,
        splitter: Splitter,
        is_known: bool,
    },
}

impl Reader {
    /// Waits for the next item. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Read, SocketError> {
        match self {
            Self::Web { stream, pings } => match next_or_ping(stream, pings).await {
                Incoming::Ping => Ok(Read::Sign),
                Incoming::Message(message) => match message {
                    None => Err(SocketError::Closed),
                    Some(Err(error)) => Err(broken(&error)),
                    Some(Ok(Message::Text(text))) if !text.trim().is_empty() => {
                        Ok(Read::Message(one_line(text.into())))
                    }
                    Some(Ok(Message::Close(Some(frame)))) => Err(closed(&frame)),
                    Some(Ok(Message::Close(None))) => Err(SocketError::Closed),
                    // The filter removes every ping. A ping here means that the filter and the library
                    // disagree on frame boundaries.
                    Some(Ok(Message::Ping(_))) => Err(SocketError::ProtocolViolation),
                    // Messages are text frames. Any other frame only shows that the peer is alive.
                    Some(Ok(_)) => Ok(Read::Sign),
                },
            },
            Self::Lines { half, splitter, is_known } => loop {
                match splitter.next_line() {
                    Some(Line::Whole(line)) => return Ok(Read::Message(line)),
                    Some(Line::TooLong(head)) => return Ok(Read::TooLong(head)),
                    None => {}
                }
                match half.read_buf(splitter.buffer()).await {
                    Ok(0) => return Err(SocketError::Closed),
                    Ok(_) if !*is_known => {
                        // Another protocol cannot be recognized before this many bytes have arrived.
                        *is_known = splitter.buffer().len() >= PROBED_BYTES;
                        if let Some(other) = DialError::from_first_bytes(splitter.buffer()) {
                            return Err(SocketError::Other(other));
                        }
                    }
                    Ok(_) => {}
                    Err(error) => return Err(SocketError::Failed(error.to_string())),
                }
            },
        }
    }
}

enum Incoming {
    Message(Option<Result<Message, WsError>>),
    Ping,
}

/// Waits for a message or a ping. Cancel-safe.
async fn next_or_ping(stream: &mut SplitStream<WebSocketStream<PingFilter>>, pings: &Pings) -> Incoming {
    poll_fn(|cx| match stream.poll_next_unpin(cx) {
        Poll::Ready(message) => Poll::Ready(Incoming::Message(message)),
        Poll::Pending if pings.take_arrived() => Poll::Ready(Incoming::Ping),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Makes a message one line. A raw line end in a message is white space, because line ends in strings are
/// escaped.
pub(super) fn one_line(text: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &text).is_none() {
        return text;
    }
    text.iter()
        .map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte })
        .collect::<Vec<u8>>()
        .into()
}

fn broken(error: &WsError) -> SocketError {
    match error {
        WsError::Capacity(error) => SocketError::TooLong(error.to_string()),
        WsError::ConnectionClosed | WsError::AlreadyClosed => SocketError::Closed,
        error => SocketError::Failed(error.to_string()),
    }
}

fn closed(frame: &CloseFrame) -> SocketError {
    let words = narrows_base::text::one_line(&frame.reason, 200);
    match frame.code {
        CloseCode::Size => SocketError::Oversized,
        CloseCode::Normal | CloseCode::Away | CloseCode::Restart if words.is_empty() => SocketError::Closed,
        code => SocketError::Because(format!("{words} ({})", u16::from(code))),
    }
}

pub(super) enum Writer {
    Web { sink: SplitSink<WebSocketStream<PingFilter>, Message>, pings: Arc<Pings> },
    Lines { half: WriteHalf<Io>, gathered: BytesMut },
}

impl Writer {
    /// Writes a message. The message may be buffered until [`Writer::flush`].
    pub(super) async fn put(&mut self, line: Bytes) -> Result<(), SocketError> {
        match self {
            Self::Web { sink, pings } => {
                put_pong(sink, pings).await?;
                let text =
                    Utf8Bytes::try_from(line).map_err(|error| SocketError::Failed(error.to_string()))?;
                sink.feed(Message::Text(text)).await.map_err(|error| broken(&error))
            }
            Self::Lines { gathered, .. } => {
                gathered.extend_from_slice(&line);
                gathered.put_u8(b'\n');
                if gathered.len() >= WRITE_BATCH_BYTES { self.flush().await } else { Ok(()) }
            }
        }
    }

    pub(super) async fn flush(&mut self) -> Result<(), SocketError> {
        match self {
            Self::Web { sink, pings } => {
                put_pong(sink, pings).await?;
                sink.flush().await.map_err(|error| broken(&error))
            }
            Self::Lines { half, gathered } => {
                let written = async {
                    half.write_all_buf(gathered).await?;
                    half.flush().await
                };
                written.await.map_err(|error| SocketError::Failed(error.to_string()))
            }
        }
    }

    /// Sends a ping on a WebSocket. Does nothing on a line-based socket, where TCP keepalive detects a dead
    /// host.
    pub(super) async fn ping(&mut self) -> Result<(), SocketError> {
        match self {
            Self::Web { sink, .. } => {
                sink.send(Message::Ping(Bytes::new())).await.map_err(|error| broken(&error))
            }
            Self::Lines { .. } => Ok(()),
        }
    }

    pub(super) fn has_pings(&self) -> bool {
        matches!(self, Self::Web { .. })
    }

    /// Waits for a ping of the server, which [`Writer::flush`] answers. Cancel-safe.
    pub(super) async fn ping_received(&mut self) {
        match self {
            Self::Web { pings, .. } => pings.arrived().await,
            Self::Lines { .. } => pending().await,
        }
    }

    /// Sends a close frame, or closes the writing direction of a line-based socket.
    pub(super) async fn close(&mut self) {
        match self {
            Self::Web { sink, .. } => {
                let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
                let _ = sink.send(Message::Close(Some(frame))).await;
            }
            Self::Lines { half, .. } => drop(half.shutdown().await),
        }
    }
}

async fn put_pong(
    sink: &mut SplitSink<WebSocketStream<PingFilter>, Message>,
    pings: &Pings,
) -> Result<(), SocketError> {
    match pings.take() {
        Some(payload) => sink.feed(Message::Pong(payload)).await.map_err(|error| broken(&error)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_over_several_lines_becomes_one() {
        assert_eq!(one_line("{\r\n\"a\": 1\n}".into()), "{  \"a\": 1 }");
        assert_eq!(one_line("{}".into()), "{}");
    }
}
