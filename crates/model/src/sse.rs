//! Parses server-sent events from reads of any size.
//!
//! A data line within one read is returned as a slice of that read. Only data that is split over reads or
//! over several data lines is copied.

use bytes::{Buf, Bytes, BytesMut};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line or event exceeds {limit} bytes")]
pub(crate) struct TooLong {
    pub(crate) limit: usize,
}

/// Format of a body. Detected from its first byte, because the content type is often wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Server-sent events, or any other lines.
    Events,
    /// A JSON body: a whole answer, or an error.
    Json,
    Page,
}

impl Shape {
    /// Detects the format of a body that starts with `bytes`. Returns `None` while `bytes` are only white
    /// space.
    pub(crate) fn detect(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
        // The byte order mark may be split over two reads.
        if BOM.starts_with(bytes) {
            return None;
        }
        match bytes.iter().find(|byte| !byte.is_ascii_whitespace())? {
            b'{' | b'[' => Some(Self::Json),
            b'<' => Some(Self::Page),
            _ => Some(Self::Events),
        }
    }
}

/// Byte order mark, which some servers send.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Parser of server-sent events. Call [`Sse::feed`], then [`Sse::next`] until it returns `None`.
#[derive(Debug)]
pub(crate) struct Sse {
    read: Bytes,
    line: BytesMut,
    data: Data,
    max_line: usize,
    /// `true` until a byte that is not part of a byte order mark has arrived.
    at_start: bool,
    /// `true` if the last byte was a CR. An LF after it belongs to the same line end.
    after_cr: bool,
}

#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    One(Bytes),
    Joined(BytesMut),
}

impl Sse {
    /// Creates a parser for lines and events of up to `max_line` bytes.
    pub(crate) fn new(max_line: usize) -> Self {
        Self {
            read: Bytes::new(),
            line: BytesMut::new(),
            data: Data::None,
            max_line,
            at_start: true,
            after_cr: false,
        }
    }

    pub(crate) fn feed(&mut self, bytes: Bytes) {
        if self.read.is_empty() {
            self.read = bytes;
        } else {
            // The caller fed more bytes before it took all events.
            let mut both = BytesMut::with_capacity(self.read.len() + bytes.len());
            both.extend_from_slice(&self.read);
            both.extend_from_slice(&bytes);
            self.read = both.freeze();
        }
    }

    /// Returns the data of the next complete event; never empty.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        if let Some(data) = self.only_event() {
            return Ok(Some(data));
        }
        while let Some(line) = self.next_line()? {
            if !line.is_empty() {
                self.field(line)?;
            } else if let Some(data) = self.dispatch() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Returns the data of the event if the whole read is one event, which is common.
    fn only_event(&mut self) -> Option<Bytes> {
        let is_between = self.line.is_empty() && matches!(self.data, Data::None);
        let data = self.read.strip_prefix(b"data: ")?.strip_suffix(b"\n\n")?;
        let is_one = !data.is_empty() && data.len() + 6 <= self.max_line;
        if !is_between || !is_one || memchr::memchr2(b'\n', b'\r', data).is_some() {
            return None;
        }
        (self.at_start, self.after_cr) = (false, false);
        let mut data = std::mem::take(&mut self.read);
        data.advance(6);
        data.truncate(data.len() - 2);
        Some(data)
    }

    /// Returns the data of the last event if the stream ended without the blank line after it.
    pub(crate) fn finish(&mut self) -> Option<Bytes> {
        let line = self.line.split().freeze();
        let line = self.without_mark(line);
        // The size limit applies to the last line too.
        self.field(line).ok()?;
        self.dispatch()
    }

    /// Returns the next line without its line end.
    fn next_line(&mut self) -> Result<Option<Bytes>, TooLong> {
        if self.after_cr && !self.read.is_empty() {
            self.after_cr = false;
            if self.read[0] == b'\n' {
                self.read.advance(1);
            }
        }
        let end = memchr::memchr2(b'\n', b'\r', &self.read);
        let length = self.line.len() + end.unwrap_or(self.read.len());
        if length > self.max_line {
            return Err(TooLong { limit: self.max_line });
        }
        let Some(end) = end else {
            self.line.extend_from_slice(&self.read);
            self.read = Bytes::new();
            return Ok(None);
        };
        self.after_cr = self.read[end] == b'\r';
        let line = if self.line.is_empty() {
            self.read.split_to(end)
        } else {
            self.line.extend_from_slice(&self.read[..end]);
            self.read.advance(end);
            self.line.split().freeze()
        };
        self.read.advance(1);
        Ok(Some(self.without_mark(line)))
    }

    fn without_mark(&mut self, mut line: Bytes) -> Bytes {
        if std::mem::take(&mut self.at_start) && line.starts_with(BOM) {
            line.advance(BOM.len());
        }
        line
    }

    /// Handles a line that is not blank. Ignores fields other than `data`, which are for clients that
    /// reconnect.
    fn field(&mut self, mut line: Bytes) -> Result<(), TooLong> {
        let Some(rest) = line.strip_prefix(b"data") else { return Ok(()) };
        let start = match rest {
            [] => 4,
            [b':', b' ', ..] => 6,
            [b':', ..] => 5,
            _ => return Ok(()),
        };
        line.advance(start);
        self.data = match std::mem::take(&mut self.data) {
            Data::None => Data::One(line),
            Data::One(first) => {
                let mut joined = BytesMut::with_capacity(first.len() + 1 + line.len());
                joined.extend_from_slice(&first);
                self.joined(joined, &line)?
            }
            Data::Joined(joined) => self.joined(joined, &line)?,
        };
        Ok(())
    }

    fn joined(&self, mut joined: BytesMut, line: &[u8]) -> Result<Data, TooLong> {
        if joined.len() + 1 + line.len() > self.max_line {
            return Err(TooLong { limit: self.max_line });
        }
        joined.extend_from_slice(b"\n");
        joined.extend_from_slice(line);
        Ok(Data::Joined(joined))
    }

    /// Ends the event. Returns `None` for an event without data.
    fn dispatch(&mut self) -> Option<Bytes> {
        let data = match std::mem::take(&mut self.data) {
            Data::None => return None,
            Data::One(line) => line,
            Data::Joined(joined) => joined.freeze(),
        };
        (!data.is_empty()).then_some(data)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all events in `reads`, including an unfinished last one.
    fn events(reads: &[&[u8]]) -> Vec<String> {
        let mut sse = Sse::new(1 << 20);
        let mut events = Vec::new();
        for read in reads {
            sse.feed(Bytes::copy_from_slice(read));
            while let Some(data) = sse.next().expect("short lines") {
                events.push(data);
            }
        }
        events.extend(sse.finish());
        events.into_iter().map(|data| String::from_utf8_lossy(&data).into_owned()).collect()
    }

    #[track_caller]
    fn check(stream: &[u8], expected: &[&str]) {
        assert_eq!(events(&[stream]), expected, "in one read");
        for at in 0..=stream.len() {
            let (first, second) = stream.split_at(at);
            assert_eq!(events(&[first, second]), expected, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&bytes), expected, "byte by byte");
    }

    #[test]
    fn every_class_of_line() {
        check(b"data: a\n\n", &["a"]);
        check(b"data:a\n\ndata:  b\n\n", &["a", " b"]);
        check(b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check(b"data: a\r\rdata: b\r\r", &["a", "b"]);
        check(b"data: a\r\n\ndata: b\n\r\n", &["a", "b"]);
        check(b"data: a\ndata: b\ndata\ndata:\n\n", &["a\nb\n\n"]);
        check(b": OPENROUTER PROCESSING\n\n:\n\ndata: a\n: keep-alive\n\n", &["a"]);
        check(b"event: x\nid: 1\nretry: 5\ndata: a\nid\n\n", &["a"]);
        check(b"event: ping\n\nretry: 3\n\ndata: a\n\n", &["a"]);
        check(b"data\n\ndata:\n\ndata: \n\n\n\n", &[]);
        check(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", &["a"]);
        check(b"\xef\xbb\xbf\n\ndata: a\n\n", &["a"]);
        check(b"database: a\ndat: b\n data: c\nDATA: d\nnonsense\n\n", &[]);
        check("data: \u{e9}\u{1f600}\n\n".as_bytes(), &["é😀"]);
        check(b"data: {\"a\":\"b: c\"}\n\n", &["{\"a\":\"b: c\"}"]);
        check(b"data: a\ndata: b\n\n", &["a\nb"]);
        check(b"data: a\r\ndata: b\n\n\ndata: c\n\n", &["a\nb", "c"]);
        check(b"id: 1data: a\n\ndata: b\n\n", &["b"]);
        check(b"", &[]);
    }

    #[test]
    fn the_end_of_the_stream_ends_an_unfinished_event() {
        check(b"data: a\n\ndata: b", &["a", "b"]);
        check(b"data: b\n", &["b"]);
        check(b"data: b\r", &["b"]);
        check(b"data: a\ndata: b", &["a\nb"]);
        check(b"\xef\xbb\xbfdata: a", &["a"]);
        check(b"da", &[]);
    }

    #[test]
    fn a_line_in_one_read_is_not_copied() {
        let read = Bytes::from_static(b"data: first\n\ndata: second\n\n");
        let mut sse = Sse::new(100);
        sse.feed(read.clone());
        for offset in [6, 19] {
            let data = sse.next().expect("short").expect("an event");
            assert_eq!(data.as_ptr(), read[offset..].as_ptr());
        }
        let read = Bytes::from_static(b"data: alone\n\n");
        sse.feed(read.clone());
        assert_eq!(sse.next().expect("short").expect("an event").as_ptr(), read[6..].as_ptr());
    }

    #[test]
    fn reading_on_early_loses_nothing() {
        let mut sse = Sse::new(100);
        sse.feed(Bytes::from_static(b"data: a\n\nda"));
        sse.feed(Bytes::from_static(b"ta: b\n\n"));
        assert_eq!(sse.next(), Ok(Some(Bytes::from_static(b"a"))));
        assert_eq!(sse.next(), Ok(Some(Bytes::from_static(b"b"))));
        assert_eq!(sse.next(), Ok(None));
    }

    #[test]
    fn the_limit_holds_for_lines_and_events() {
        #[track_caller]
        fn check(reads: &[&str], expected: Result<(), TooLong>) {
            let mut sse = Sse::new(10);
            let mut result = Ok(());
            for read in reads {
                sse.feed(Bytes::copy_from_slice(read.as_bytes()));
                while result.is_ok() {
                    match sse.next() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(error) => result = Err(error),
                    }
                }
            }
            assert_eq!(result, expected, "{reads:?}");
        }
        let too_long = Err(TooLong { limit: 10 });
        check(&["data: 1234\n\n"], Ok(()));
        check(&["data: 12345\n\n"], too_long);
        check(&["data: ", "12345"], too_long);
        check(&["data: 1", "2", "3", "4", "\n"], Ok(()));
        check(&[":", "234567890", "1"], too_long);
        check(&["data: 1234\ndata: 5678\n\n"], Ok(()));
        check(&["data: 1234\ndata: 5678\ndata:\n"], Ok(()));
        check(&["data: 1234\ndata: 5678\ndata:\ndata:\n"], too_long);
    }

    #[test]
    fn a_body_is_judged_by_its_first_byte() {
        #[track_caller]
        fn check(body: &[u8], expected: Option<Shape>) {
            assert_eq!(Shape::detect(body), expected, "{body:?}");
        }
        check(b"data: {}", Some(Shape::Events));
        check(b": comment", Some(Shape::Events));
        check(b"Internal Server Error", Some(Shape::Events));
        check(b"\r\n {\"a\"", Some(Shape::Json));
        check(b"[{\"error\"", Some(Shape::Json));
        check(b"\xef\xbb\xbf\n<!doctype html>", Some(Shape::Page));
        check(b"", None);
        check(b" \r\n\t", None);
        check(b"\xef\xbb", None);
        check(b"\xef\xbb\xbf", None);
    }

    /// Generates a text that can be in a data line: not empty, and without line ends.
    fn payload() -> impl Strategy<Value = String> {
        proptest::collection::vec("[^\r\n]{0,20}", 1..4)
            .prop_map(|lines| lines.join("\n"))
            .prop_filter("an empty event is none", |text| !text.is_empty())
    }

    proptest! {
        #[test]
        fn content_survives_any_fragmentation(
            payloads in proptest::collection::vec((payload(), 0..3usize, 0..5usize), 0..8),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..24),
            mark in any::<bool>(),
        ) {
            let mut stream = if mark { BOM.to_vec() } else { Vec::new() };
            for (payload, end, noise) in &payloads {
                let end = ["\n", "\r\n", "\r"][*end];
                let noise = ["", ": note", "event: x", "id: 7", "retry: 1"][*noise];
                let noise = if noise.is_empty() { String::new() } else { format!("{noise}{end}") };
                let lines: String =
                    payload.split('\n').map(|line| format!("data: {line}{end}{noise}")).collect();
                stream.extend_from_slice(format!("{noise}{lines}{end}").as_bytes());
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.push(0);
            cuts.push(stream.len());
            cuts.sort_unstable();
            let reads: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let expected: Vec<String> = payloads.into_iter().map(|(payload, ..)| payload).collect();
            prop_assert_eq!(events(&reads), expected);
        }

        #[test]
        fn any_bytes_give_the_same_events_however_they_are_cut(
            stream in proptest::collection::vec(
                prop_oneof![
                    Just(b"data:".to_vec()), Just(b"data: ".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()),
                    Just(b"\r\n".to_vec()), Just(BOM.to_vec()), proptest::collection::vec(any::<u8>(), 0..6),
                ],
                0..24,
            ),
            size in 1..9usize,
        ) {
            let stream = stream.concat();
            let reads: Vec<&[u8]> = stream.chunks(size).collect();
            prop_assert_eq!(events(&reads), events(&[&stream]));
        }
    }
}
