//! Parses server-sent events.

use bytes::{Bytes, BytesMut};
use narrows_wire::{Line, Splitter};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: Option<String>,
    pub(super) data: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server-sent event is too long")]
pub(super) struct TooLong;

/// Parses a stream into server-sent events. Reuses the line splitter, which skips empty lines: see
/// [`Parser::feed`].
#[derive(Debug)]
pub(super) struct Parser {
    splitter: Splitter,
    limit: usize,
    id: Option<String>,
    data: Data,
}

/// The data lines of the current event, joined as they arrive. A buffer for each line would cost more memory
/// than its bytes, and the size limit would not count empty lines.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    One(Bytes),
    Joined(BytesMut),
}

const MAX_ID_BYTES: usize = 256;

impl Parser {
    pub(super) fn new(limit: usize) -> Self {
        Self { splitter: Splitter::new(limit), limit, id: None, data: Data::None }
    }

    pub(super) fn feed(&mut self, read: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        // The splitter skips empty lines, so a character is appended to each line.
        for piece in read.split_inclusive(|&byte| byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(line) => {
                    let buffer = self.splitter.buffer();
                    buffer.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
                    buffer.extend_from_slice(b".\n");
                }
                None => self.splitter.buffer().extend_from_slice(piece),
            }
            while let Some(line) = self.splitter.next_line() {
                let Line::Whole(line) = line else { return Err(TooLong) };
                let line = line.slice(..line.len() - 1);
                // The carriage return of a line end may have arrived in an earlier read than the line feed.
                let end = line.len() - usize::from(line.ends_with(b"\r"));
                events.extend(self.line(&line.slice(..end))?);
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &Bytes) -> Result<Option<Event>, TooLong> {
        if line.is_empty() {
            let id = self.id.take();
            // Fields without data are no event. Their id can be ignored, because the next event has a later
            // one.
            return Ok(std::mem::take(&mut self.data).whole().map(|data| Event { id, data }));
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let value = line.slice((colon + 1).min(line.len())..);
        let value = if value.starts_with(b" ") { value.slice(1..) } else { value };
        match &line[..colon] {
            b"data" => {
                self.data = std::mem::take(&mut self.data).with_line(value);
                if self.data.len() > self.limit {
                    return Err(TooLong);
                }
            }
            b"id" => {
                let text = std::str::from_utf8(&value).ok().filter(|text| text.len() <= MAX_ID_BYTES);
                self.id = text.filter(|text| !text.contains('\0')).map(str::to_owned);
            }
            // Comments, event types and retry times are not used.
            _ => {}
        }
        Ok(None)
    }
}

impl Data {
    /// Appends a line. A line end in JSON is white space, so the data stays one line.
    fn with_line(self, line: Bytes) -> Self {
        let mut joined = match self {
            Self::None => return Self::One(line),
            Self::One(first) => BytesMut::from(&first[..]),
            Self::Joined(joined) => joined,
        };
        joined.extend_from_slice(b" ");
        joined.extend_from_slice(&line);
        Self::Joined(joined)
    }

    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(line) => line.len(),
            Self::Joined(joined) => joined.len(),
        }
    }

    fn whole(self) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::One(line) => Some(line),
            Self::Joined(joined) => Some(joined.freeze()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let mut parser = Parser::new(1000);
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events).unwrap();
        }
        events.into_iter().map(|event| (event.id, String::from_utf8(event.data.to_vec()).unwrap())).collect()
    }

    const STREAM: &str = ": hello\n\nid: 1\ndata: {\"a\":1}\n\ndata:{\"b\":\ndata: 2}\nevent: x\r\nid: 2\r\n\r\nid: 3\n\ndata\n\ndata: {\n";

    #[test]
    fn events_are_cut_from_a_stream() {
        let event = |id: Option<&str>, data: &str| (id.map(str::to_owned), data.to_owned());
        let expected = [event(Some("1"), "{\"a\":1}"), event(Some("2"), "{\"b\": 2}"), event(None, "")];
        assert_eq!(parse(&[STREAM.as_bytes()]), expected);
    }

    #[test]
    fn a_long_event_is_refused() {
        let mut parser = Parser::new(21);
        let mut events = Vec::new();
        let piece = b"data: 0123456789\n";
        assert_eq!(parser.feed(piece, &mut events), Ok(()));
        assert_eq!(parser.feed(piece, &mut events), Ok(()));
        assert_eq!(parser.feed(piece, &mut events), Err(TooLong));
        assert_eq!(Parser::new(20).feed(&[b'x'; 30], &mut events), Err(TooLong));
    }

    #[test]
    fn lines_without_data_count_too() {
        let mut parser = Parser::new(100);
        let mut events = Vec::new();
        assert_eq!(parser.feed(&b"data:\n".repeat(101), &mut events), Ok(()));
        assert_eq!(parser.feed(b"data:\n", &mut events), Err(TooLong));
        assert_eq!(events, []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn events_do_not_depend_on_how_the_input_is_split(cuts in prop::collection::vec(1..20_usize, 0..40)) {
            let mut rest = STREAM.as_bytes();
            let mut pieces = Vec::new();
            for cut in cuts {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = behind;
            }
            pieces.push(rest);
            prop_assert_eq!(parse(&pieces), parse(&[STREAM.as_bytes()]));
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            _ = Parser::new(50).feed(&bytes, &mut Vec::new());
        }
    }
}
