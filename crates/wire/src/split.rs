//! Cutting a byte stream into lines, whatever the boundaries of its reads.

use bytes::{Buf, Bytes, BytesMut};

/// The longest line a peer may send unless it is configured otherwise: 64 MiB.
pub const MAX_LINE: usize = 64 << 20;

/// How much of an overlong line is kept, to find its id in.
pub const HEAD: usize = 64 << 10;

/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// Lines up to this length are copied out, so that one short line in a queue does not keep a whole chunk alive.
const COPIED: usize = CHUNK / 4;

/// What a [`Splitter`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end, never blank.
    Whole(Bytes),
    /// The first bytes of a line over the limit. The rest is skipped as it comes.
    TooLong(Bytes),
}

/// Cuts a byte stream into lines of bounded length.
///
/// Feed it through [`Splitter::buffer`], then take lines with [`Splitter::next_line`] until there are none.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    limit: usize,
    /// Inside a line that was reported as too long.
    skipping: bool,
}

impl Splitter {
    /// For a peer whose lines may have up to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, skipping: false }
    }

    /// Where to append what was read, with room for a good read.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < CHUNK / 4 {
            // A long line doubles the buffer, up to the limit and a read more: never twice the limit.
            let want =
                self.buffer.len().clamp(CHUNK, self.limit.saturating_sub(self.buffer.len()).max(CHUNK));
            self.buffer.reserve(want);
        }
        &mut self.buffer
    }

    /// The next line, if one is complete or over the limit.
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
                // A carriage return before the line end that may come next does not count.
                let length = self.buffer.len() - usize::from(self.buffer.ends_with(b"\r"));
                return (length > self.limit).then(|| self.start_skipping());
            };
            let length = end - usize::from(self.buffer[..end].ends_with(b"\r"));
            if length > self.limit {
                let line = self.start_skipping();
                return Some(line);
            }
            let blank = self.buffer[..length].iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
            let line = (!blank).then(|| self.cut(length));
            self.buffer.advance(if blank || length <= COPIED { end + 1 } else { end + 1 - length });
            self.searched = 0;
            if let Some(line) = line {
                self.shrink();
                return Some(Line::Whole(line));
            }
        }
    }

    /// How many bytes of an unfinished line are held. At the end of the stream this is what was cut off.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the line being read has been reported as too long.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// The first `length` bytes: copied when few, split off when many.
    fn cut(&mut self, length: usize) -> Bytes {
        if length <= COPIED {
            Bytes::copy_from_slice(&self.buffer[..length])
        } else {
            self.buffer.split_to(length).freeze()
        }
    }

    fn start_skipping(&mut self) -> Line {
        let head = Bytes::copy_from_slice(&self.buffer[..HEAD.min(self.buffer.len()).min(self.limit)]);
        self.skipping = true;
        self.searched = 0;
        Line::TooLong(head)
    }

    /// Gives the room of a long line back once it has gone.
    fn shrink(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * CHUNK {
            self.buffer = BytesMut::new();
        }
    }
}
