//! The server side of WebSocket framing: decodes frames of a client, encodes messages to it.
//!
//! Only unfinished frames and messages are buffered, so an idle connection uses no memory here.

/// Reason why the connection to a client must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("not WebSocket")]
    Protocol,
    #[error("binary messages are not supported")]
    Binary,
    #[error("not UTF-8")]
    Utf8,
    #[error("message too long")]
    TooLong,
}

impl Violation {
    /// Returns the close code for the reason.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Protocol => 1002,
            Self::Binary => 1003,
            Self::Utf8 => 1007,
            Self::TooLong => 1009,
        }
    }
}

/// An event on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole message: valid UTF-8, any content. The callee may modify the bytes in place.
    Message(&'a mut [u8]),
    /// A ping, which must be answered with the same payload.
    Ping(&'a [u8]),
    Pong,
    /// A close frame, with its code if there was one.
    Close(Option<u16>),
}

const CONTINUED: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const MAX_CONTROL_BYTES: usize = 125;

/// Decodes the frames of a client.
#[derive(Debug)]
pub struct Decoder {
    /// Bytes of an incomplete frame, as received.
    held: Vec<u8>,
    /// Fragments of an incomplete message.
    message: Vec<u8>,
    /// `true` after the first fragment of a message.
    in_fragments: bool,
    limit: usize,
}

impl Decoder {
    /// Creates a decoder for messages of up to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { held: Vec::new(), message: Vec::new(), in_fragments: false, limit }
    }

    /// Returns the number of bytes of unfinished frames and messages.
    #[must_use]
    #[inline]
    pub fn partial(&self) -> usize {
        self.held.len() + self.message.len()
    }

    /// Decodes `read` in place and passes every completed event to `each`. Must not be called again after an
    /// error or a close frame.
    ///
    /// # Errors
    /// If the client violated the protocol, so that the connection must be closed. Earlier events were passed
    /// on.
    pub fn feed(&mut self, read: &mut [u8], mut each: impl FnMut(Event<'_>)) -> Result<(), Violation> {
        if self.held.is_empty() {
            let used = self.frames(read, &mut each)?;
            self.held.extend_from_slice(&read[used..]);
            return Ok(());
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(read);
        let used = self.frames(&mut held, &mut each)?;
        if used == held.len() {
            return Ok(());
        }
        if used > 0 {
            // The buffer is replaced and not drained, so that the memory of a long message is freed.
            held = held[used..].to_vec();
        }
        self.held = held;
        Ok(())
    }

    /// Decodes the complete frames at the front of `bytes`. Returns their length.
    fn frames(&mut self, bytes: &mut [u8], each: &mut impl FnMut(Event<'_>)) -> Result<usize, Violation> {
        let mut at = 0;
        while let Some(head) = Head::read(&bytes[at..])? {
            head.check(self.in_fragments)?;
            let before = if head.is_control() { 0 } else { self.message.len() };
            if head.length > self.limit || before + head.length > self.limit {
                return Err(Violation::TooLong);
            }
            let start = at + head.size;
            let Some(payload) = bytes.get_mut(start..start + head.length) else { break };
            unmask(payload, head.mask);
            at = start + head.length;
            self.frame(&head, payload, each)?;
        }
        Ok(at)
    }

    fn frame(
        &mut self,
        head: &Head,
        payload: &mut [u8],
        each: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        match head.opcode {
            TEXT if head.fin => message(payload, each),
            TEXT => {
                self.in_fragments = true;
                self.message.extend_from_slice(payload);
                Ok(())
            }
            CONTINUED => {
                self.message.extend_from_slice(payload);
                if !head.fin {
                    return Ok(());
                }
                self.in_fragments = false;
                message(&mut std::mem::take(&mut self.message), each)
            }
            PING => {
                each(Event::Ping(payload));
                Ok(())
            }
            PONG => {
                each(Event::Pong);
                Ok(())
            }
            _ => {
                each(Event::Close(close_code(payload)?));
                Ok(())
            }
        }
    }
}

fn message(payload: &mut [u8], each: &mut impl FnMut(Event<'_>)) -> Result<(), Violation> {
    if std::str::from_utf8(payload).is_err() {
        return Err(Violation::Utf8);
    }
    each(Event::Message(payload));
    Ok(())
}

fn close_code(payload: &[u8]) -> Result<Option<u16>, Violation> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() { Ok(None) } else { Err(Violation::Protocol) };
    };
    let code = u16::from_be_bytes(*code);
    let known = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    match std::str::from_utf8(reason) {
        Ok(_) if known => Ok(Some(code)),
        _ => Err(Violation::Protocol),
    }
}

struct Head {
    fin: bool,
    opcode: u8,
    mask: [u8; 4],
    length: usize,
    /// Length of the header itself, without the payload.
    size: usize,
}

impl Head {
    /// Reads the header at the beginning of `bytes`. Returns `None` if it is incomplete.
    fn read(bytes: &[u8]) -> Result<Option<Self>, Violation> {
        let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
        // Reserved bits must be zero because no extension was negotiated, and a client must mask.
        if first & 0x70 != 0 || second & MASKED == 0 {
            return Err(Violation::Protocol);
        }
        let (length, size) = match second & !MASKED {
            126 => match rest.first_chunk::<2>() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
                None => return Ok(None),
            },
            127 => match rest.first_chunk::<8>() {
                Some(length) => (u64::from_be_bytes(*length), 10),
                None => return Ok(None),
            },
            length => (u64::from(length), 2),
        };
        let Ok(length) = usize::try_from(length) else { return Err(Violation::TooLong) };
        let Some(mask) = bytes.get(size..).and_then(<[u8]>::first_chunk::<4>) else { return Ok(None) };
        Ok(Some(Self { fin: first & FIN != 0, opcode: first & 0x0f, mask: *mask, length, size: size + 4 }))
    }

    /// Returns `true` for control frames, which may come between the fragments of a message.
    fn is_control(&self) -> bool {
        matches!(self.opcode, CLOSE | PING | PONG)
    }

    fn check(&self, in_fragments: bool) -> Result<(), Violation> {
        match self.opcode {
            TEXT if !in_fragments => Ok(()),
            CONTINUED if in_fragments => Ok(()),
            BINARY if !in_fragments => Err(Violation::Binary),
            CLOSE | PING | PONG if self.fin && self.length <= MAX_CONTROL_BYTES => Ok(()),
            _ => Err(Violation::Protocol),
        }
    }
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        if let Ok(bytes) = <&mut [u8; 8]>::try_from(chunk) {
            *bytes = (u64::from_ne_bytes(*bytes) ^ wide).to_ne_bytes();
        }
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip([a, b, c, d, a, b, c]) {
        *byte ^= mask;
    }
}

/// Appends a text message to `out`.
pub fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, TEXT, text);
}

/// Appends a ping to `out`.
pub fn put_ping(out: &mut Vec<u8>) {
    put(out, PING, b"");
}

/// Appends a pong to `out`.
pub fn put_pong(out: &mut Vec<u8>, payload: &[u8]) {
    put(out, PONG, payload);
}

/// Appends a close frame to `out`.
pub fn put_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    // Reasons are ASCII constants of this program, so truncation splits no character.
    payload.truncate(MAX_CONTROL_BYTES);
    put(out, CLOSE, &payload);
}

fn put(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    let mut room = [0; MAX_HEAD_BYTES];
    out.extend_from_slice(head(opcode, payload.len(), &mut room));
    out.extend_from_slice(payload);
}

/// Limit of the header of an unmasked frame.
pub const MAX_HEAD_BYTES: usize = 10;

/// Writes the header of a text message with a payload of `length` bytes to `room`.
#[inline]
pub fn text_frame_head(length: usize, room: &mut [u8; MAX_HEAD_BYTES]) -> &[u8] {
    head(TEXT, length, room)
}

#[inline]
fn head(opcode: u8, length: usize, room: &mut [u8; MAX_HEAD_BYTES]) -> &[u8] {
    room[0] = FIN | opcode;
    #[expect(clippy::cast_possible_truncation, reason = "each arm checks the range of its cast")]
    let size = match length {
        0..=125 => {
            room[1] = length as u8;
            2
        }
        126..=0xffff => {
            room[1] = 126;
            room[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            4
        }
        _ => {
            room[1] = 127;
            room[2..].copy_from_slice(&(length as u64).to_be_bytes());
            MAX_HEAD_BYTES
        }
    };
    &room[..size]
}

#[cfg(test)]
mod tests;
