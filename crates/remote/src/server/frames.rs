//! WebSocket frames as a server sees them: bytes of a client to messages, and messages to bytes.
//!
//! No I/O and no buffers of its own but for what is unfinished, so a connection on which nothing moves costs nothing here.

/// Why a client is not listened to any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameFault {
    /// It broke the rules of the protocol.
    #[error("not WebSocket")]
    Protocol,
    /// It sent bytes; messages are text.
    #[error("binary messages are not taken")]
    Binary,
    /// It sent text that is none.
    #[error("not UTF-8")]
    Utf8,
    /// It sent more than a message may have.
    #[error("the message is too long")]
    TooLong,
}

impl FrameFault {
    /// The code to close with.
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Protocol => 1002,
            Self::Binary => 1003,
            Self::Utf8 => 1007,
            Self::TooLong => 1009,
        }
    }
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameEvent<'a> {
    /// A whole message: UTF-8, of any content.
    Message(&'a [u8]),
    /// To be answered with the same bytes.
    Ping(&'a [u8]),
    /// An answer to a ping.
    Pong,
    /// The end, and its code if it had one.
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
/// The longest payload of a control frame.
const MAX_CONTROL: usize = 125;

/// Reads what a client sends.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The beginning of a frame, as it came.
    held: Vec<u8>,
    /// The beginning of a message in several frames.
    message: Vec<u8>,
    /// Whether such a message has begun.
    begun: bool,
    limit: usize,
}

impl Decoder {
    /// For messages of up to `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { held: Vec::new(), message: Vec::new(), begun: false, limit }
    }

    /// Shows what `read` completes, where it stands. After a fault or a close nothing more may be fed.
    pub(super) fn feed(
        &mut self,
        read: &mut [u8],
        mut each: impl FnMut(FrameEvent<'_>),
    ) -> Result<(), FrameFault> {
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
            // Not drained: the room of a long message goes with it.
            held = held[used..].to_vec();
        }
        self.held = held;
        Ok(())
    }

    /// Takes whole frames off the front of `bytes` and tells how many bytes they were.
    fn frames(
        &mut self,
        bytes: &mut [u8],
        each: &mut impl FnMut(FrameEvent<'_>),
    ) -> Result<usize, FrameFault> {
        let mut at = 0;
        while let Some(head) = Head::read(&bytes[at..])? {
            head.check(self.begun)?;
            if head.length > self.limit || self.message.len() + head.length > self.limit {
                return Err(FrameFault::TooLong);
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
        payload: &[u8],
        each: &mut impl FnMut(FrameEvent<'_>),
    ) -> Result<(), FrameFault> {
        match head.opcode {
            TEXT if head.fin => message(payload, each),
            TEXT => {
                self.begun = true;
                self.message.extend_from_slice(payload);
                Ok(())
            }
            CONTINUED => {
                self.message.extend_from_slice(payload);
                if !head.fin {
                    return Ok(());
                }
                self.begun = false;
                message(&std::mem::take(&mut self.message), each)
            }
            PING => {
                each(FrameEvent::Ping(payload));
                Ok(())
            }
            PONG => {
                each(FrameEvent::Pong);
                Ok(())
            }
            _ => {
                each(FrameEvent::Close(close_code(payload)?));
                Ok(())
            }
        }
    }
}

fn message(payload: &[u8], each: &mut impl FnMut(FrameEvent<'_>)) -> Result<(), FrameFault> {
    if std::str::from_utf8(payload).is_err() {
        return Err(FrameFault::Utf8);
    }
    each(FrameEvent::Message(payload));
    Ok(())
}

fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameFault> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() { Ok(None) } else { Err(FrameFault::Protocol) };
    };
    let code = u16::from_be_bytes(*code);
    let known = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    match std::str::from_utf8(reason) {
        Ok(_) if known => Ok(Some(code)),
        _ => Err(FrameFault::Protocol),
    }
}

/// What stands before a payload.
struct Head {
    fin: bool,
    opcode: u8,
    mask: [u8; 4],
    length: usize,
    /// How long the head itself is.
    size: usize,
}

impl Head {
    /// The head at the beginning of `bytes`, if all of it is there.
    fn read(bytes: &[u8]) -> Result<Option<Self>, FrameFault> {
        let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
        // No extension was agreed on, and a client masks.
        if first & 0x70 != 0 || second & MASKED == 0 {
            return Err(FrameFault::Protocol);
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
        let Ok(length) = usize::try_from(length) else { return Err(FrameFault::TooLong) };
        let Some(mask) = bytes.get(size..).and_then(<[u8]>::first_chunk::<4>) else { return Ok(None) };
        Ok(Some(Self { fin: first & FIN != 0, opcode: first & 0x0f, mask: *mask, length, size: size + 4 }))
    }

    /// Whether it may come now.
    fn check(&self, begun: bool) -> Result<(), FrameFault> {
        match self.opcode {
            TEXT if !begun => Ok(()),
            CONTINUED if begun => Ok(()),
            BINARY if !begun => Err(FrameFault::Binary),
            CLOSE | PING | PONG if self.fin && self.length <= MAX_CONTROL => Ok(()),
            _ => Err(FrameFault::Protocol),
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

/// Appends a message.
pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, TEXT, text);
}

/// Appends a ping.
pub(super) fn put_ping(out: &mut Vec<u8>) {
    put(out, PING, b"");
}

/// Appends the answer to a ping.
pub(super) fn put_pong(out: &mut Vec<u8>, payload: &[u8]) {
    put(out, PONG, payload);
}

/// Appends the end.
pub(super) fn put_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    // Reasons are ours, and ASCII.
    payload.truncate(MAX_CONTROL);
    put(out, CLOSE, &payload);
}

#[inline]
fn put(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(FIN | opcode);
    #[expect(clippy::cast_possible_truncation, reason = "each arm holds what it casts")]
    match payload.len() {
        length @ 0..=125 => out.push(length as u8),
        length @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests;
