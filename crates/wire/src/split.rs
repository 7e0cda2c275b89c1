//! Cuts a byte stream into lines, independent of the sizes of its reads.

use bytes::{Buf, Bytes, BytesMut};

/// Default limit of a line: 64 MiB.
pub const DEFAULT_MAX_LINE_BYTES: usize = 64 << 20;

/// Length of the head of an overlong line, in which an id is searched.
pub const OVERLONG_HEAD_BYTES: usize = 64 << 10;

const READ_BYTES: usize = 64 << 10;

/// Lines up to this size are copied, so that a short line in a queue does not keep a whole chunk in memory.
const MAX_COPIED_BYTES: usize = READ_BYTES / 4;

/// A result of [`Splitter::next_line`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A complete line without its line end. Never blank.
    Whole(Bytes),
    /// The first bytes of a line over the limit. The rest is skipped.
    TooLong(Bytes),
}

/// A result of [`Splitter::feed`], borrowed from the splitter or its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineRef<'a> {
    Whole(&'a [u8]),
    TooLong(&'a [u8]),
}

/// Makes a message a single line for every reader. Some readers treat a carriage return as a line end.
///
/// Line ends become tabs. Between tokens both are white space, and within a string both are invalid. So
/// valid JSON stays valid, and invalid JSON stays invalid.
pub fn make_line(message: &mut [u8]) {
    for byte in message {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b'\t';
        }
    }
}

/// Returns `true` if every reader takes `line` for a single line.
#[must_use]
#[inline]
pub fn is_one_line(line: &[u8]) -> bool {
    memchr::memchr(b'\r', line).is_none()
}

/// Cuts a byte stream into lines of bounded length.
///
/// Append input to [`Splitter::buffer`] and get lines from [`Splitter::next_line`] until it returns `None`.
/// Or pass input to [`Splitter::feed`], which passes on borrowed lines.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Length of the searched prefix of the buffer: it has no line end.
    searched: usize,
    limit: usize,
    /// `true` if the current line was reported as too long and its rest is skipped.
    skipping: bool,
}

impl Splitter {
    /// Creates a splitter with a limit of `limit` bytes per line.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, skipping: false }
    }

    /// Changes the limit. If the unfinished line exceeds the new limit, it is reported when more of it
    /// arrives. A line that was already reported as too long is skipped to its end.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the buffer to append input to, with room for a read.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let length = self.buffer.len();
        if self.buffer.capacity() - length < READ_BYTES / 4 {
            if length < READ_BYTES {
                self.buffer.reserve(READ_BYTES);
            } else {
                // A long line: the buffer doubles until a quarter of the limit, then grows at once to the
                // limit plus one read. So the old and the new buffer together need less than twice the
                // limit.
                let room = if length > self.limit / 4 { self.limit.saturating_sub(length) } else { length };
                let mut larger = BytesMut::with_capacity(length + room.max(READ_BYTES) + READ_BYTES);
                larger.extend_from_slice(&self.buffer);
                self.buffer = larger;
            }
        }
        &mut self.buffer
    }

    /// Returns the next line that is complete or over the limit.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let found = memchr::memchr(b'\n', &self.buffer[self.searched..]);
            if self.skipping {
                match found {
                    Some(end) => {
                        self.buffer.advance(self.searched + end + 1);
                        self.skipping = false;
                    }
                    None => self.buffer.clear(),
                }
                self.searched = 0;
                if self.skipping {
                    self.shrink();
                    return None;
                }
                continue;
            }
            let Some(end) = found.map(|end| self.searched + end) else {
                self.searched = self.buffer.len();
                // A final carriage return may belong to the line end, so it does not count.
                let length = self.buffer.len() - usize::from(self.buffer.ends_with(b"\r"));
                return (length > self.limit).then(|| self.start_skipping());
            };
            let length = end - usize::from(self.buffer[..end].ends_with(b"\r"));
            if length > self.limit {
                return Some(self.start_skipping());
            }
            self.searched = 0;
            if is_blank(&self.buffer[..length]) {
                self.buffer.advance(end + 1);
                continue;
            }
            let line = self.take_line(length, end + 1);
            self.shrink();
            return Some(Line::Whole(line));
        }
    }

    /// Passes every line that `read` completes to `each`. Copies only an unfinished line, so a peer that
    /// sends whole lines needs no buffer.
    pub fn feed(&mut self, mut read: &[u8], mut each: impl FnMut(LineRef<'_>)) {
        // If the beginning of a line is stored, the rest of the line is appended to it.
        while self.skipping || !self.buffer.is_empty() {
            let Some(end) = memchr::memchr(b'\n', read) else {
                self.store_partial(read, &mut each);
                return;
            };
            let (line, rest) = read.split_at(end + 1);
            read = rest;
            self.store_partial(line, &mut each);
        }
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', read) {
            let line = &read[start..end];
            start = end + 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() > self.limit {
                each(LineRef::TooLong(&line[..OVERLONG_HEAD_BYTES.min(self.limit)]));
            } else if !is_blank(line) {
                each(LineRef::Whole(line));
            }
        }
        if start < read.len() {
            self.store_partial(&read[start..], &mut each);
        }
    }

    /// Stores a copy of `piece`, which has at most one line end, at its end.
    fn store_partial(&mut self, piece: &[u8], each: &mut impl FnMut(LineRef<'_>)) {
        if self.buffer.capacity() - self.buffer.len() < piece.len() && !self.buffer.is_empty() {
            self.buffer();
        }
        self.buffer.extend_from_slice(piece);
        while let Some(line) = self.next_line() {
            match &line {
                Line::Whole(line) => each(LineRef::Whole(line)),
                Line::TooLong(head) => each(LineRef::TooLong(head)),
            }
        }
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Abandons the unfinished line: returns its first bytes and skips the rest.
    pub fn abandon_line(&mut self) -> Option<Bytes> {
        if self.skipping || self.buffer.is_empty() {
            return None;
        }
        match self.start_skipping() {
            Line::Whole(head) | Line::TooLong(head) => {
                self.buffer = BytesMut::new();
                self.searched = 0;
                Some(head)
            }
        }
    }

    /// Returns the number of bytes of the unfinished line. At the end of the stream they are lost.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.buffer.len()
    }

    /// Returns `true` if the unfinished line was reported as too long.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    fn take_line(&mut self, length: usize, next: usize) -> Bytes {
        if length <= MAX_COPIED_BYTES {
            let line = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(next);
            return line;
        }
        let mut line = self.buffer.split_to(next);
        if self.buffer.len() <= length {
            // The line keeps the memory of the old buffer. The few bytes after the line are copied to a new
            // buffer.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        line.truncate(length);
        line.freeze()
    }

    fn start_skipping(&mut self) -> Line {
        let head = Bytes::copy_from_slice(
            &self.buffer[..OVERLONG_HEAD_BYTES.min(self.buffer.len()).min(self.limit)],
        );
        self.skipping = true;
        self.searched = 0;
        Line::TooLong(head)
    }

    fn shrink(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * READ_BYTES {
            self.buffer = BytesMut::new();
        }
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does the same as [`feed`] with [`Splitter::feed`].
    fn feed_in_place<'a>(splitter: &mut Splitter, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in pieces {
            splitter.feed(piece, |line| {
                lines.push(match line {
                    LineRef::Whole(line) => line.escape_ascii().to_string(),
                    LineRef::TooLong(head) => format!("!{}", head.escape_ascii()),
                });
            });
        }
        lines
    }

    #[test]
    fn an_abandoned_line_is_skipped_to_its_end() {
        let mut splitter = Splitter::new(100);
        assert_eq!(splitter.abandon_line(), None);
        assert_eq!(feed_in_place(&mut splitter, [&b"one\ntw"[..]]), ["one"]);
        assert_eq!(splitter.partial(), 2);
        assert_eq!(splitter.abandon_line().as_deref(), Some(&b"tw"[..]));
        assert_eq!((splitter.partial(), splitter.abandon_line()), (0, None));
        assert_eq!(feed_in_place(&mut splitter, [&b"o"[..], b"\nthree\n"]), ["three"]);
    }

    /// Feeds `pieces` and returns the text of every line; `!` marks the head of an overlong line.
    fn feed<'a>(splitter: &mut Splitter, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in pieces {
            splitter.buffer().extend_from_slice(piece);
            while let Some(line) = splitter.next_line() {
                lines.push(match line {
                    Line::Whole(line) => line.escape_ascii().to_string(),
                    Line::TooLong(head) => format!("!{}", head.escape_ascii()),
                });
            }
        }
        lines
    }

    /// Splits `stream` with a limit of eight bytes, cut in three in every possible way. Checks the lines
    /// and the number of remaining bytes.
    #[track_caller]
    fn check(stream: &str, expected: &[&str], partial: usize) {
        let stream = stream.as_bytes();
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut splitter = Splitter::new(8);
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(feed(&mut splitter, pieces), expected, "cut at {first} and {second}");
                assert_eq!(splitter.partial(), partial, "cut at {first} and {second}");
                let mut splitter = Splitter::new(8);
                assert_eq!(
                    feed_in_place(&mut splitter, pieces),
                    expected,
                    "in place, cut at {first} and {second}"
                );
                assert_eq!(splitter.partial(), partial, "in place, cut at {first} and {second}");
            }
        }
        let mut splitter = Splitter::new(8);
        assert_eq!(feed(&mut splitter, stream.chunks(1)), expected, "byte by byte");
        assert_eq!(splitter.partial(), partial, "byte by byte");
    }

    #[test]
    fn lines_do_not_depend_on_read_boundaries() {
        check("", &[], 0);
        check("a\nbc\n", &["a", "bc"], 0);
        check("a\r\nb\n\r\n\n \t \n  c \r\n", &["a", "b", "  c "], 0);
        check("a\r\r\nb\rc\n", &["a\\r", "b\\rc"], 0);
        check("\r\n\r\n\r", &[], 1);
        check("a\npart", &["a"], 4);
        check("\u{feff}a\n\0\n", &["\\xef\\xbb\\xbfa", "\\x00"], 0);
    }

    #[test]
    fn the_limit_is_exact_and_the_line_end_does_not_count() {
        check("12345678\n12345678\r\nx\n", &["12345678", "12345678", "x"], 0);
        check("123456789\nx\n", &["!12345678", "x"], 0);
        check("123456789\r\nx\r\n", &["!12345678", "x"], 0);
        check("12345678\rx\ny\n", &["!12345678", "y"], 0);
        check("        \n         \nx\n", &["!        ", "x"], 0);
        check("1234567890abcdef1234567890\n\n1\n1234567890\n2", &["!12345678", "1", "!12345678"], 1);
        check("1234567890", &["!12345678"], 0);
    }

    #[test]
    fn a_changed_limit_applies_to_later_lines() {
        /// Checks the lines before and after a change of the limit from `limits.0` to `limits.1`.
        #[track_caller]
        fn check(limits: (usize, usize), stream: (&str, &str), expected: (&[&str], &[&str])) {
            for feed in [feed, feed_in_place] {
                let mut splitter = Splitter::new(limits.0);
                assert_eq!(feed(&mut splitter, [stream.0.as_bytes()]), expected.0, "{stream:?}");
                splitter.set_limit(limits.1);
                assert_eq!(feed(&mut splitter, [stream.1.as_bytes()]), expected.1, "{stream:?}");
            }
        }
        check((4, 8), ("12345\n", "12345678\n123456789\n"), (&["!1234"], &["12345678", "!12345678"]));
        check((4, 8), ("123", "45678\n"), (&[], &["12345678"]));
        // After a line was reported as too long, its rest is no new line.
        check((4, 8), ("12345", "678\n9\n"), (&["!1234"], &["9"]));
        check((8, 4), ("12345\n", "1234\n12345\n1\n"), (&["12345"], &["1234", "!1234", "1"]));
        check((8, 4), ("123456", "7\n8\n"), (&[], &["!1234", "8"]));
        check((8, 4), ("123456", "\n8\n"), (&[], &["!1234", "8"]));
        check((8, 4), ("1234", "\r\n8\n"), (&[], &["1234", "8"]));
    }

    #[test]
    fn an_unfinished_overlong_line_is_reported_at_once() {
        let mut splitter = Splitter::new(8);
        assert_eq!(feed(&mut splitter, [&b"1234567890"[..]]).len(), 1);
        assert!(splitter.is_skipping());
        assert_eq!(feed(&mut splitter, [&b"\nx\n"[..]]), ["x"]);
        assert!(!splitter.is_skipping());
    }

    #[test]
    fn an_endless_line_is_never_held_twice() {
        const LIMIT: usize = 4 << 20;
        let chunk = vec![b'x'; 64 << 10];
        let mut splitter = Splitter::new(LIMIT);
        let mut heads = 0;
        let mut most = 0;
        for _ in 0..16 * LIMIT / chunk.len() {
            let before = splitter.buffer.capacity();
            let buffer = splitter.buffer();
            // While the buffer grew, the old one existed beside the new one.
            let grown = if buffer.capacity() == before { 0 } else { before };
            buffer.extend_from_slice(&chunk);
            most = most.max(grown + buffer.capacity());
            while let Some(line) = splitter.next_line() {
                let Line::TooLong(head) = line else { panic!("a whole line") };
                assert_eq!(head.len(), OVERLONG_HEAD_BYTES);
                heads += 1;
            }
        }
        assert_eq!(heads, 1);
        assert!(most < 2 * LIMIT, "{most}");
        assert_eq!(splitter.partial(), 0);
        assert!(splitter.buffer.capacity() <= 4 * READ_BYTES);
        assert_eq!(feed(&mut splitter, [&b"\nnext\n"[..]]), ["next"]);
    }

    #[test]
    fn a_long_line_keeps_the_memory_it_was_read_into() {
        let long = vec![b'x'; 5 << 20];
        let mut splitter = Splitter::new(DEFAULT_MAX_LINE_BYTES);
        for chunk in long.chunks(READ_BYTES) {
            splitter.buffer().extend_from_slice(chunk);
            assert_eq!(splitter.next_line(), None);
        }
        splitter.buffer().extend_from_slice(b"\nrest");
        assert_eq!(splitter.next_line(), Some(Line::Whole(long.into())));
        assert_eq!(splitter.partial(), 4);
        assert!(splitter.buffer.capacity() < READ_BYTES, "{}", splitter.buffer.capacity());
        assert_eq!(feed(&mut splitter, [&b"\n"[..]]), ["rest"]);
    }

    #[test]
    fn lines_of_every_size_come_out_whole() {
        let lines: Vec<Vec<u8>> = [
            1,
            100,
            MAX_COPIED_BYTES - 1,
            MAX_COPIED_BYTES,
            MAX_COPIED_BYTES + 1,
            READ_BYTES,
            READ_BYTES + 1,
            3 * READ_BYTES,
            50,
            10 * READ_BYTES,
            2,
            2 * MAX_COPIED_BYTES,
        ]
        .into_iter()
        .enumerate()
        .map(|(index, length)| vec![b'a' + index as u8; length])
        .collect();
        let stream = lines.join(&b'\n');
        for chunk in [1000, MAX_COPIED_BYTES, READ_BYTES, 3 * READ_BYTES, stream.len()] {
            let mut splitter = Splitter::new(DEFAULT_MAX_LINE_BYTES);
            let mut found = Vec::new();
            for piece in stream.chunks(chunk).chain([&b"\n"[..]]) {
                splitter.buffer().extend_from_slice(piece);
                while let Some(Line::Whole(line)) = splitter.next_line() {
                    found.push(line);
                }
            }
            assert!(found == lines, "in chunks of {chunk}");
        }
    }

    #[test]
    fn the_default_limit_is_64_mib_and_the_head_64_kib() {
        assert_eq!((DEFAULT_MAX_LINE_BYTES, OVERLONG_HEAD_BYTES), (64 * 1024 * 1024, 64 * 1024));
        let mut splitter = Splitter::new(200_000);
        splitter.buffer().extend_from_slice(&[b'x'; 200_001]);
        assert_eq!(splitter.next_line(), Some(Line::TooLong(Bytes::from(vec![b'x'; 65_536]))));
        // An id that ends with the head is found; an id that is cut off is not.
        for (padding, id) in [(65_536 - 25, Some(&b"77"[..])), (65_536 - 24, None)] {
            let line = format!(r#"{{"jsonrpc":"2.0",{}"id":77,"method":"x","params":""#, " ".repeat(padding));
            let head = Bytes::from(line.into_bytes()).slice(..OVERLONG_HEAD_BYTES);
            assert_eq!(crate::Frame::too_long(head).id(), id);
        }
    }

    #[test]
    fn a_short_line_does_not_keep_the_read_buffer() {
        let mut splitter = Splitter::new(DEFAULT_MAX_LINE_BYTES);
        splitter.buffer().extend_from_slice(b"short\nand more");
        let Some(Line::Whole(line)) = splitter.next_line() else { panic!("a line is there") };
        assert!(line.is_unique());
    }
}
