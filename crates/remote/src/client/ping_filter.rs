//! Removes the pings of a server from the input before the WebSocket library reads it.
//!
//! The library queues a pong for every ping, without a bound: a server that pings and does not read would fill the
//! client's memory. Only the latest ping is kept here, as RFC 6455 allows in section 5.5.3, and the writer answers it
//! when it can write. No ping reaches the library. If one does, the two disagree on frame boundaries, and the
//! connection ends.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use narrows_base::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::socket::Io;

/// The first byte of a ping: an unfragmented frame without extensions.
const PING: u8 = 0x89;

/// Bits of the second byte of a frame header that hold the payload length or the size of an extended length.
const LENGTH_BITS: u8 = 0x7f;
const MASK_BIT: u8 = 0x80;
const MASK_BYTES: u64 = 4;

const MAX_PING_BYTES: u8 = 125;

#[derive(Debug, Default)]
pub(super) struct Pings {
    state: Mutex<PingState>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct PingState {
    unanswered: Option<Bytes>,
    has_arrived: bool,
}

impl Pings {
    fn record(&self, payload: &[u8]) {
        let mut state = lock(&self.state);
        *state = PingState { unanswered: Some(Bytes::copy_from_slice(payload)), has_arrived: true };
        self.arrived.notify_one();
    }

    pub(super) fn take(&self) -> Option<Bytes> {
        lock(&self.state).unanswered.take()
    }

    /// Returns `true` if a ping has arrived since the last call.
    pub(super) fn take_arrived(&self) -> bool {
        std::mem::take(&mut lock(&self.state).has_arrived)
    }

    /// Waits for a ping. Cancel-safe.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePart {
    /// The response to the upgrade, up to its final empty line. `is_blank` is `true` while the current line
    /// is empty.
    Response {
        has_begun: bool,
        is_blank: bool,
    },
    First,
    Length,
    LongLength {
        left: u8,
        length: u64,
        is_masked: bool,
    },
    /// The rest of a frame that is not a ping.
    Payload {
        left: u64,
    },
    PingLength,
    Ping {
        left: u8,
    },
}

/// Parses frames only as far as needed to find pings.
#[derive(Debug)]
struct Filter {
    place: FramePart,
    payload: Vec<u8>,
}

impl Filter {
    fn new() -> Self {
        Self { place: FramePart::Response { has_begun: false, is_blank: true }, payload: Vec::new() }
    }

    /// Moves everything but pings to the front of `bytes`, and returns the length of the rest. Fails if a
    /// ping is malformed.
    fn remove_pings(&mut self, bytes: &mut [u8], mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        let (mut at, mut kept) = (0, 0);
        while let Some(&byte) = bytes.get(at) {
            let mut length = 1;
            let is_kept = !matches!(self.place, FramePart::PingLength | FramePart::Ping { .. });
            self.place = match self.place {
                FramePart::Response { has_begun, is_blank } => match byte {
                    b'\n' if has_begun && is_blank => FramePart::First,
                    b'\n' => FramePart::Response { has_begun, is_blank: true },
                    b'\r' => FramePart::Response { has_begun, is_blank },
                    _ => FramePart::Response { has_begun: true, is_blank: false },
                },
                FramePart::First if byte == PING => {
                    at += 1;
                    self.place = FramePart::PingLength;
                    continue;
                }
                FramePart::First => FramePart::Length,
                FramePart::Length => {
                    let is_masked = byte & MASK_BIT != 0;
                    match byte & LENGTH_BITS {
                        126 => FramePart::LongLength { left: 2, length: 0, is_masked },
                        127 => FramePart::LongLength { left: 8, length: 0, is_masked },
                        length => payload(u64::from(length), is_masked),
                    }
                }
                FramePart::LongLength { left, length, is_masked } => {
                    let length = length << 8 | u64::from(byte);
                    match left {
                        1 => payload(length, is_masked),
                        _ => FramePart::LongLength { left: left - 1, length, is_masked },
                    }
                }
                FramePart::Payload { left } => {
                    let here = bytes.len() - at;
                    length = usize::try_from(left).map_or(here, |left| left.min(here));
                    // `length` is at most `left`, so the subtraction cannot underflow.
                    payload(left - length as u64, false)
                }
                FramePart::PingLength if byte > MAX_PING_BYTES => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the server sent a malformed ping",
                    ));
                }
                FramePart::PingLength => {
                    self.payload.clear();
                    FramePart::Ping { left: byte }
                }
                FramePart::Ping { left } => {
                    self.payload.push(byte);
                    FramePart::Ping { left: left - 1 }
                }
            };
            if self.place == (FramePart::Ping { left: 0 }) {
                each(&self.payload);
                self.place = FramePart::First;
            }
            if is_kept {
                if kept < at {
                    bytes.copy_within(at..at + length, kept);
                }
                kept += length;
            }
            at += length;
        }
        Ok(kept)
    }
}

/// Returns the state for the payload of a frame, or for the next frame if it is empty.
fn payload(length: u64, is_masked: bool) -> FramePart {
    // A server must not mask its frames. If a frame is masked, the library reports the error.
    match length.saturating_add(if is_masked { MASK_BYTES } else { 0 }) {
        0 => FramePart::First,
        left => FramePart::Payload { left },
    }
}

/// A stream without the pings of the server. Its input begins with the response to the upgrade.
pub(super) struct PingFilter {
    stream: Io,
    filter: Filter,
    pings: Arc<Pings>,
}

impl PingFilter {
    pub(super) fn new(stream: Io) -> Self {
        Self { stream, filter: Filter::new(), pings: Arc::default() }
    }

    pub(super) fn pings(&self) -> Arc<Pings> {
        Arc::clone(&self.pings)
    }
}

impl AsyncRead for PingFilter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let Self { stream, filter, pings } = &mut *self;
        std::task::ready!(Pin::new(stream).poll_read(cx, buf))?;
        let read = &mut buf.filled_mut()[before..];
        if read.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let kept = filter.remove_pings(read, |payload| pings.record(payload))?;
        buf.set_filled(before + kept);
        if kept == 0 {
            // Returning no bytes would mean the end of input. So the reader is woken to poll again, and sees
            // the ping.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PingFilter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";

    /// Filters bytes in pieces of this length. Returns the kept bytes and the payloads of the pings.
    fn filter(bytes: &[u8], piece: usize) -> io::Result<(Vec<u8>, Vec<Vec<u8>>)> {
        let mut filter = Filter::new();
        let (mut kept, mut pings) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            let mut piece = piece.to_vec();
            let length = filter.remove_pings(&mut piece, |payload| pings.push(payload.to_vec()))?;
            kept.extend_from_slice(&piece[..length]);
        }
        Ok((kept, pings))
    }

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = payload.len();
        let mut frame = vec![first];
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(length @ ..=125), _) => frame.push(length),
            (_, Ok(length)) => {
                frame.push(126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn pings_are_removed_however_the_input_is_split() {
        let (long, longer) = (vec![PING; 300], vec![PING; 70_000]);
        let frames = [
            frame(0x81, b""),
            frame(PING, b""),
            frame(0x81, &[PING; 125]),
            frame(PING, &[PING; 125]),
            frame(PING, b"two"),
            frame(0x01, &long),
            frame(PING, b"between"),
            frame(0x80, &longer),
            frame(0x8a, b"a pong"),
            frame(0x88, &[3, 232]),
            frame(PING, b"last"),
        ];
        let is_ping = |frame: &&Vec<u8>| frame[0] == PING;
        for response in [RESPONSE, b"\r\n\r\nHTTP/1.1 101 x\n\n"] {
            let bytes = [response, &frames.concat()].concat();
            let expected: Vec<Vec<u8>> = frames.iter().filter(|frame| !is_ping(frame)).cloned().collect();
            let kept = [response, &expected.concat()].concat();
            let pings: Vec<Vec<u8>> =
                frames.iter().filter(is_ping).map(|frame| frame[2..].to_vec()).collect();
            for piece in [1, 2, 3, 7, 64, 1000, bytes.len()] {
                assert_eq!(filter(&bytes, piece).unwrap(), (kept.clone(), pings.clone()), "{piece}");
            }
        }
    }

    #[test]
    fn a_malformed_ping_is_an_error() {
        for second in [126, 127, MASK_BIT, MASK_BIT | 3, 255] {
            let error = filter(&[RESPONSE, &[PING, second, 0, 0]].concat(), 64).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{second}");
        }
        // The filter passes other malformed pings on to the library, which refuses them.
        let odd = [RESPONSE, &[0x09, 0, 0xc9, 0]].concat();
        assert_eq!(filter(&odd, 64).unwrap(), (odd.clone(), Vec::new()));
    }

    #[test]
    fn only_the_latest_ping_is_kept() {
        let pings = Pings::default();
        assert!(!pings.take_arrived());
        pings.record(b"one");
        pings.record(b"two");
        assert!(pings.take_arrived() && !pings.take_arrived());
        assert_eq!(pings.take().as_deref(), Some(b"two".as_slice()));
        assert_eq!(pings.take(), None);
    }
}
