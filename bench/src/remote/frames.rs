//! WebSocket as the load uses it: sends masked text frames, receives plain ones.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Time for a server to accept the upgrade.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the answer to an upgrade request.
const MAX_HEAD_BYTES: usize = 4096;

/// The key of the example in RFC 6455, with the expected answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A mask that changes every byte.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const TEXT: u8 = 0x1;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;

pub(crate) fn shake_hands(stream: &mut TcpStream, path: &str) -> io::Result<()> {
    let host = stream.peer_addr()?;
    stream.write_all(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        )
        .as_bytes(),
    )?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let (mut head, mut scratch) = (Vec::new(), [0; MAX_HEAD_BYTES]);
    // The server sends nothing more before the first message.
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut scratch)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&scratch[..count]),
        }
        if head.len() > MAX_HEAD_BYTES {
            return Err(io::Error::other("the answer to the upgrade is too long"));
        }
    }
    stream.set_read_timeout(None)?;
    let head = String::from_utf8_lossy(&head);
    if head.starts_with("HTTP/1.1 101") && head.contains(ACCEPT) {
        return Ok(());
    }
    Err(io::Error::other(format!("no WebSocket: {}", head.lines().next().unwrap_or_default())))
}

/// Appends a frame for each line.
pub(crate) fn put_lines(out: &mut Vec<u8>, lines: &[u8]) {
    let mut rest = lines;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        put(out, TEXT, &rest[..end]);
        rest = &rest[end + 1..];
    }
}

fn put(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(FIN | opcode);
    match payload.len() {
        length @ 0..=125 => out.push(MASKED | length as u8),
        length @ 126..=0xffff => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    let start = out.len();
    out.extend_from_slice(payload);
    mask(&mut out[start..]);
}

fn mask(payload: &mut [u8]) {
    let [a, b, c, d] = MASK;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = payload.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip([a, b, c, d, a, b, c]) {
        *byte ^= mask;
    }
}

/// The beginning of an incomplete frame.
#[derive(Default)]
pub(crate) struct Frames {
    held: Vec<u8>,
    said: Vec<u8>,
}

impl Frames {
    /// Passes every complete message to `talk`, and appends frames for its lines. Returns `true` while the
    /// connection is open.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], &mut Vec<u8>),
    ) -> bool {
        if self.held.is_empty() {
            let used = consume(bytes, &mut self.said, out, &mut each);
            self.held.extend_from_slice(&bytes[used.unwrap_or(bytes.len())..]);
            return used.is_some();
        }
        self.held.extend_from_slice(bytes);
        let used = consume(&self.held, &mut self.said, out, &mut each);
        self.held.drain(..used.unwrap_or(self.held.len()));
        used.is_some()
    }
}

/// Consumes complete frames. Returns their length, or `None` after the end.
fn consume(
    bytes: &[u8],
    said: &mut Vec<u8>,
    out: &mut Vec<u8>,
    each: &mut impl FnMut(&[u8], &mut Vec<u8>),
) -> Option<usize> {
    let mut at = 0;
    while let Some((opcode, start, end)) = frame(&bytes[at..]) {
        let Some(payload) = bytes.get(at + start..at + end) else { break };
        match opcode {
            FIN_TEXT => {
                each(payload, said);
                put_lines(out, said);
                said.clear();
            }
            FIN_PING => put(out, PONG, payload),
            FIN_PONG => {}
            _ => return None,
        }
        at += end;
    }
    Some(at)
}

const FIN_TEXT: u8 = FIN | TEXT;
const FIN_PING: u8 = FIN | PING;
const FIN_PONG: u8 = FIN | PONG;

/// Returns the first byte of a frame, and the start and end of its payload.
fn frame(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let &[first, second, ref rest @ ..] = bytes else { return None };
    let (length, start) = match second {
        126 => (usize::from(u16::from_be_bytes(*rest.first_chunk()?)), 4),
        127 => (usize::try_from(u64::from_be_bytes(*rest.first_chunk()?)).ok()?, 10),
        length => (usize::from(length), 2),
    };
    Some((first, start, start + length))
}

/// A client on one WebSocket that waits for messages.
pub(crate) struct Socket {
    stream: TcpStream,
    frames: Frames,
    scratch: Vec<u8>,
}

impl Socket {
    pub(crate) fn open(address: std::net::SocketAddr, path: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, READ_TIMEOUT)?;
        stream.set_nodelay(true)?;
        shake_hands(&mut stream, path)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream, frames: Frames::default(), scratch: vec![0; 64 << 10] })
    }
}

impl super::first::Speech for Socket {
    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(line.len() + 14);
        put(&mut out, TEXT, line);
        self.stream.write_all(&out)
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let count = self.stream.read(&mut self.scratch)?;
        let mut out = Vec::new();
        let goes_on = self.frames.read(&self.scratch[..count], &mut out, |line, _| each(line));
        self.stream.write_all(&out)?;
        if goes_on && count > 0 { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE: u8 = 0x8;

    /// Returns a frame as a server would send it.
    fn plain(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, opcode, payload);
        let head = out.len() - payload.len() - MASK.len();
        out[1] &= !MASKED;
        out.truncate(head);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn messages_do_not_depend_on_read_boundaries() {
        let long = vec![b'x'; 70_000];
        let messages = [&b"one"[..], &[b'y'; 300], &long, b""];
        let stream: Vec<u8> = messages.iter().flat_map(|message| plain(TEXT, message)).collect();
        for size in [1, 2, 3, 7, 1000, stream.len()] {
            let (mut frames, mut heard) = (Frames::default(), Vec::new());
            for read in stream.chunks(size) {
                assert!(frames.read(read, &mut Vec::new(), |message, _| heard.push(message.to_vec())));
            }
            assert_eq!(heard, messages, "{size}");
        }
    }

    #[test]
    fn pings_are_answered_lines_are_framed_and_an_end_is_one() {
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        assert!(frames.read(&plain(PING, b"p"), &mut out, |_, _| {}));
        assert_eq!(out[..2], [FIN_PONG, MASKED | 1]);
        out.clear();
        let read = plain(TEXT, b"q");
        assert!(frames.read(&read, &mut out, |_, said| said.extend_from_slice(b"ab\ncdefghijk\n")));
        let mut masked = *b"cdefghijk";
        mask(&mut masked);
        assert_eq!(out.len(), 6 + 2 + 6 + 9);
        assert_eq!(out[out.len() - 9..], masked);
        assert_ne!(masked, *b"cdefghijk");
        assert!(!frames.read(&plain(CLOSE, b""), &mut out, |_, _| {}));
    }
}
