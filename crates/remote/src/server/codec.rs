//! Encodes messages on a socket: one per WebSocket frame, or one per line.

use bytes::Bytes;
use narrows_wire::websocket::{self, Decoder, Event, Violation};
use narrows_wire::{Code, Kind, LineRef, RpcError, Splitter, View, make_line, message};

#[derive(Debug)]
pub(super) enum Codec {
    Frames(Decoder),
    Lines(Splitter),
}

#[derive(Debug)]
pub(super) enum Received<'a> {
    /// A complete message, which may contain raw line ends between its tokens.
    Message(&'a [u8]),
    /// The beginning of a line that was too long. The sender of the line counts it as a message.
    TooLong(View<'a>),
    Ping(&'a [u8]),
    /// The peer sent a close frame with this code.
    Close(Option<u16>),
}

impl Codec {
    pub(super) fn frames(limit: usize) -> Self {
        Self::Frames(Decoder::new(limit))
    }

    pub(super) fn lines(limit: usize) -> Self {
        Self::Lines(Splitter::new(limit))
    }

    /// Calls `each` with every item that `read` completes.
    pub(super) fn feed(
        &mut self,
        read: &mut [u8],
        mut each: impl FnMut(Received<'_>),
    ) -> Result<(), Violation> {
        match self {
            Self::Frames(decoder) => decoder.feed(read, |event| match event {
                Event::Message(text) => each(Received::Message(text)),
                Event::Ping(payload) => each(Received::Ping(payload)),
                Event::Pong => {}
                Event::Close(code) => each(Received::Close(code)),
            }),
            Self::Lines(splitter) => {
                splitter.feed(read, |piece| match piece {
                    LineRef::Whole(line) => each(Received::Message(line)),
                    LineRef::TooLong(head) => each(Received::TooLong(View::too_long(head))),
                });
                Ok(())
            }
        }
    }

    pub(super) fn partial(&self) -> usize {
        match self {
            Self::Frames(decoder) => decoder.partial(),
            Self::Lines(splitter) => splitter.partial(),
        }
    }

    #[inline]
    pub(super) fn put(&self, out: &mut Vec<u8>, message: &[u8]) {
        match self {
            Self::Frames(_) => websocket::put_text(out, message),
            Self::Lines(_) => {
                out.extend_from_slice(message);
                out.push(b'\n');
            }
        }
    }

    /// Appends a ping. Does nothing for lines, which have none.
    pub(super) fn put_ping(&self, out: &mut Vec<u8>) {
        if let Self::Frames(_) = self {
            websocket::put_ping(out);
        }
    }

    /// Appends a close frame. Does nothing for lines, which have none.
    pub(super) fn put_close(&self, out: &mut Vec<u8>, code: u16, reason: &str) {
        if let Self::Frames(_) = self {
            websocket::put_close(out, code, reason);
        }
    }

    pub(super) fn has_pings(&self) -> bool {
        matches!(self, Self::Frames(_))
    }
}

/// Returns a splitter for the output of a backend, without a limit: a line that was dropped here would be a response
/// that never arrives. The backend limits what its agents write, and adds the client's id and names of sessions to it.
pub(super) fn backend_splitter() -> Splitter {
    Splitter::new(usize::MAX)
}

/// Appends a client's message as one line.
pub(super) fn put_line(out: &mut Vec<u8>, message: &[u8]) {
    let start = out.len();
    out.extend_from_slice(message);
    make_line(&mut out[start..]);
    out.push(b'\n');
}

/// Returns an error response that replaces a response that was too long.
pub(super) fn oversized_response_error(view: &View<'_>) -> Option<Bytes> {
    let id = view.id().filter(|_| view.kind() == Kind::Invalid(narrows_wire::Fault::LongResponse))?;
    Some(message::error(id, &RpcError::new(Code::MessageTooLarge, "response too long")))
}

/// Returns `true` if a message is blank. The backend would skip a blank line without an answer.
pub(super) fn is_blank(message: &[u8]) -> bool {
    message.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn line(message: &str) -> Vec<u8> {
        let mut out = b"before\n".to_vec();
        put_line(&mut out, message.as_bytes());
        out.split_off(7)
    }

    #[test]
    fn line_ends_within_a_message() {
        assert_eq!(line("{\n  \"a\": 1\r\n}\n"), b"{\t  \"a\": 1\t\t}\t\n");
        assert_eq!(line("{}"), b"{}\n");
        assert_eq!(line("\"a\nb\""), b"\"a\tb\"\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_message_is_as_valid_on_a_line_as_it_was_in_its_frame(text in "[{}\\[\\]\",:a1\\\\\n\r\t ]{0,24}") {
            let line = line(&text);
            prop_assert_eq!(memchr::memchr2_iter(b'\n', b'\r', &line).count(), 1);
            let before = serde_json::from_str::<Value>(&text).ok();
            let after = serde_json::from_slice::<Value>(&line).ok();
            prop_assert_eq!(before, after);
        }

        #[test]
        fn pretty_messages_mean_the_same(id: i32, text: String) {
            let value = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "x", "params": {"sessionId": text, "a": [text]}});
            let line = line(&format!("{value:#}\n"));
            let line = line.strip_suffix(b"\n").unwrap();
            let line = line.strip_suffix(b"\t").unwrap();
            prop_assert_eq!(View::parse(line).kind(), Kind::Request);
            prop_assert_eq!(serde_json::from_slice::<Value>(line).unwrap(), value);
        }
    }
}
