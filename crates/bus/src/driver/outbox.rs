//! Bytes that wait to be written to one peer.

use std::io;

use narrows_wire::websocket;

/// Maximum size of an empty buffer that is kept to be used again.
const MAX_SPARE_BUFFER_BYTES: usize = 256 << 10;
const MAX_SPARE_BUFFERS: usize = 32;

/// Buffers for later use. A peer without queued output has no buffer, so few are allocated.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    buffers: Vec<Vec<u8>>,
}

impl BufferPool {
    fn get(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn put_back(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < MAX_SPARE_BUFFERS && buffer.capacity() <= MAX_SPARE_BUFFER_BYTES {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Lines,
    Frames,
}

pub(super) type HeaderBuffer = [u8; websocket::MAX_HEAD_BYTES];

impl Framing {
    /// Returns the bytes to write before and after a message of this length.
    #[inline]
    pub(super) fn delimiters(self, length: usize, room: &mut HeaderBuffer) -> (&[u8], &'static [u8]) {
        match self {
            Self::Lines => (b"", b"\n"),
            Self::Frames => (websocket::text_frame_head(length, room), b""),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// Number of bytes at the beginning of `bytes` that are written but not removed yet.
    head: usize,
    /// Number of bytes at the beginning that belong to a message whose first part is already removed.
    rest: usize,
    framing: Option<Framing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushed {
    pub(super) written: usize,
    /// `true` if the peer accepts no more bytes until an event reports room.
    pub(super) blocked: bool,
}

impl Outbox {
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// Returns the bytes of memory that the queue occupies, which may be many more than wait.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub(super) fn push(&mut self, framing: Framing, parts: &[&[u8]], spare: &mut BufferPool) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut room = HeaderBuffer::default();
        let (head, end) = framing.delimiters(length, &mut room);
        self.framing = Some(framing);
        self.make_room(head.len() + length + end.len(), spare);
        self.bytes.extend_from_slice(head);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(end);
    }

    pub(super) fn append(&mut self, parts: &[&[u8]], spare: &mut BufferPool) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if length > 0 {
            self.make_room(length, spare);
            for part in parts {
                self.bytes.extend_from_slice(part);
            }
        }
    }

    /// Appends the rest of a message to the empty queue. `begun`: a part of the message is written.
    pub(super) fn append_rest(&mut self, parts: &[&[u8]], begun: bool, spare: &mut BufferPool) {
        self.append(parts, spare);
        self.rest = if begun { self.bytes.len() } else { 0 };
    }

    /// Removes the messages between the one that is being written and the last one, and releases their memory.
    pub(super) fn keep_last(&mut self, framing: Framing) {
        let first = self.boundary(framing, self.head);
        let mut last = first;
        match framing {
            Framing::Lines => {
                let before = self.bytes.len().saturating_sub(1);
                last = memchr::memrchr(b'\n', &self.bytes[..before]).map_or(0, |at| at + 1).max(first);
            }
            Framing::Frames => {
                while let Some(next) = self.frame_end(last).filter(|next| *next < self.bytes.len()) {
                    last = next;
                }
            }
        }
        // A copy, because a vector keeps the memory of what is removed from it.
        self.bytes = [&self.bytes[self.head..first], &self.bytes[last..]].concat();
        self.rest = first - self.head;
        self.head = 0;
    }

    /// Returns the offset of the first message that begins at or after the offset `at`.
    fn boundary(&self, framing: Framing, at: usize) -> usize {
        if at <= self.rest {
            return self.rest;
        }
        match framing {
            Framing::Lines if self.bytes[at - 1] == b'\n' => at,
            Framing::Lines => {
                memchr::memchr(b'\n', &self.bytes[at..]).map_or(self.bytes.len(), |end| at + end + 1)
            }
            Framing::Frames => {
                let mut end = self.rest;
                while end < at {
                    end = self.frame_end(end).unwrap_or(self.bytes.len());
                }
                end
            }
        }
    }

    /// Returns the end of the WebSocket frame that begins at `at`. Frames of a server have no mask.
    fn frame_end(&self, at: usize) -> Option<usize> {
        let head = self.bytes.get(at..)?;
        let (length, size) = match *head.get(1)? {
            126 => (u64::from(u16::from_be_bytes(*head[2..].first_chunk()?)), 4),
            127 => (u64::from_be_bytes(*head[2..].first_chunk()?), 10),
            length => (u64::from(length), 2),
        };
        Some((at + size + usize::try_from(length).ok()?).min(self.bytes.len()))
    }

    #[cold]
    fn take_out_written(&mut self) {
        // The end of the message that is being written is computed now. Once the written bytes are removed,
        // it could not be found.
        let head = self.head;
        self.rest = match self.framing {
            Some(framing) => self.boundary(framing, head) - head,
            None => 0,
        };
        self.bytes.drain(..head);
        self.head = 0;
    }

    /// Releases the memory of written bytes if little is left of a large queue.
    fn shrink(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity > MAX_SPARE_BUFFER_BYTES && self.waiting() < capacity / 4 {
            self.take_out_written();
            self.bytes.shrink_to(2 * self.bytes.len());
        }
    }

    /// Releases all memory but that of the bytes that wait.
    pub(super) fn compact(&mut self) {
        if self.head > 0 {
            self.take_out_written();
        }
        self.bytes.shrink_to_fit();
    }

    #[inline]
    fn make_room(&mut self, length: usize, spare: &mut BufferPool) {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.get();
        }
        if self.bytes.capacity() - self.bytes.len() < length {
            // Written bytes are removed if that at least halves the bytes that move to a larger buffer.
            if self.head >= self.bytes.len() / 2 {
                self.take_out_written();
            }
            self.bytes.reserve(length);
        }
    }

    /// Writes queued bytes once.
    ///
    /// A short write has filled the peer's buffer. An event will report room, and another attempt before that
    /// would only block.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub(super) fn flush(
        &mut self,
        spare: &mut BufferPool,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<Flushed> {
        let waiting = &self.bytes[self.head..];
        if waiting.is_empty() {
            return Ok(Flushed { written: 0, blocked: false });
        }
        let written = match write(waiting) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let blocked = written < waiting.len();
        self.head += written;
        if !blocked {
            spare.put_back(std::mem::take(&mut self.bytes));
            (self.head, self.rest) = (0, 0);
        } else {
            self.shrink();
        }
        Ok(Flushed { written, blocked })
    }

    pub(super) fn into_unsent(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        bytes.drain(..self.head);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_outbox_holds_no_buffer_and_reuses_one() {
        let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
        outbox.push(Framing::Lines, &[b"a", b"", b"bc"], &mut spare);
        let mut seen = Vec::new();
        let flushed = outbox.flush(&mut spare, |bytes| {
            seen.extend_from_slice(bytes);
            Ok(bytes.len())
        });
        assert_eq!(flushed.unwrap(), Flushed { written: 4, blocked: false });
        assert_eq!(seen, b"abc\n");
        assert_eq!(outbox.bytes.capacity(), 0);
        let kept = spare.buffers[0].as_ptr();
        outbox.push(Framing::Lines, &[b"d"], &mut spare);
        assert_eq!(outbox.bytes.as_ptr(), kept);
        let large = vec![0; 2 * MAX_SPARE_BUFFER_BYTES];
        outbox.push(Framing::Lines, &[&large], &mut spare);
        outbox.flush(&mut spare, |bytes| Ok(bytes.len())).unwrap();
        assert!(spare.buffers.is_empty(), "a large buffer is not kept");
    }

    #[test]
    fn a_write_error_is_returned_and_loses_no_bytes() {
        let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
        outbox.push(Framing::Lines, &[b"abc"], &mut spare);
        let blocked = outbox.flush(&mut spare, |_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(blocked.unwrap(), Flushed { written: 0, blocked: true });
        assert!(outbox.flush(&mut spare, |_| Err(io::ErrorKind::BrokenPipe.into())).is_err());
        outbox.flush(&mut spare, |_| Ok(1)).unwrap();
        assert_eq!(outbox.into_unsent(), b"bc\n");
    }

    /// Pushes `count` numbers as messages and writes `taken` bytes. A last message then replaces all messages
    /// of which nothing is written.
    #[track_caller]
    fn check_last(framing: Framing, long: bool, count: usize, taken: usize) {
        let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
        let mut whole = Outbox::default();
        let message =
            |number: usize| if long { vec![b'0'; 300 + number] } else { format!("{number}").into_bytes() };
        for number in 0..count {
            outbox.push(framing, &[&message(number)], &mut spare);
            whole.push(framing, &[&message(number)], &mut spare);
        }
        let all = whole.into_unsent();
        let taken = taken.min(all.len() - 1);
        let mut seen = Vec::new();
        // The bytes are written in two steps, so that written bytes are removed in between.
        for part in [taken / 2, taken - taken / 2] {
            outbox
                .flush(&mut spare, |bytes| {
                    seen.extend_from_slice(&bytes[..part]);
                    Ok(part)
                })
                .unwrap();
            outbox.framing = Some(framing);
            outbox.take_out_written();
        }
        outbox.push(framing, &[b"why"], &mut spare);
        outbox.keep_last(framing);
        let mut expected = Outbox::default();
        let mut end = 0;
        for number in 0..count {
            if end >= taken && taken > 0 || taken == 0 {
                break;
            }
            expected.push(framing, &[&message(number)], &mut spare);
            end = expected.bytes.len();
        }
        expected.push(framing, &[b"why"], &mut spare);
        seen.extend(outbox.into_unsent());
        assert!(seen == expected.into_unsent(), "{framing:?} {long} {count} {taken}");
    }

    #[test]
    fn the_last_message_overtakes_those_that_have_not_begun() {
        for framing in [Framing::Lines, Framing::Frames] {
            for long in [false, true] {
                for taken in (0..40).chain([299, 300, 301, 302, 303, 304, 305, 306, 900]) {
                    check_last(framing, long, 12, taken);
                }
            }
        }
    }

    #[test]
    fn the_rest_of_a_long_message_is_finished_before_the_last() {
        for framing in [Framing::Lines, Framing::Frames] {
            let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
            outbox.append_rest(&[b"end of it\n"], true, &mut spare);
            outbox.push(framing, &[b"other"], &mut spare);
            outbox.push(framing, &[b"why"], &mut spare);
            outbox.keep_last(framing);
            let mut expected = Outbox::default();
            expected.append(&[b"end of it\n"], &mut spare);
            expected.push(framing, &[b"why"], &mut spare);
            assert_eq!(outbox.into_unsent(), expected.into_unsent());
        }
    }

    #[test]
    fn removed_and_written_messages_occupy_no_memory() {
        for framing in [Framing::Lines, Framing::Frames] {
            let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
            for _ in 0..80 {
                outbox.push(framing, &[&[b'x'; 100 << 10]], &mut spare);
            }
            outbox.flush(&mut spare, |_| Ok(1000)).unwrap();
            outbox.push(framing, &[b"why"], &mut spare);
            outbox.keep_last(framing);
            assert!(outbox.memory() < 101 << 10, "{}", outbox.memory());
            // A second reason replaces the first one.
            outbox.push(framing, &[b"why"], &mut spare);
            outbox.keep_last(framing);
            assert!(outbox.waiting() < 101 << 10, "{}", outbox.waiting());
        }
        let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
        for _ in 0..80 {
            outbox.push(Framing::Lines, &[&[b'x'; 100 << 10]], &mut spare);
        }
        while outbox.waiting() > 1000 {
            outbox.flush(&mut spare, |bytes| Ok((200 << 10).min(bytes.len() - 1))).unwrap();
            let bound = (6 * outbox.waiting()).max(2 * MAX_SPARE_BUFFER_BYTES);
            assert!(outbox.memory() <= bound, "{} of {}", outbox.memory(), outbox.waiting());
        }
    }

    proptest! {
        /// Checks that all bytes arrive in order, whatever is pushed and however little each write accepts.
        #[test]
        fn bytes_are_written_in_order(steps in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0usize..700), 1..80)) {
            let (mut outbox, mut spare) = (Outbox::default(), BufferPool::default());
            let (mut expected, mut seen) = (Vec::new(), Vec::new());
            for (line, room) in steps {
                let (first, second) = line.split_at(line.len() / 3);
                outbox.push(Framing::Lines, &[first, second], &mut spare);
                expected.extend_from_slice(&line);
                expected.push(b'\n');
                let flushed = outbox.flush(&mut spare, |bytes| {
                    let taken = room.min(bytes.len());
                    seen.extend_from_slice(&bytes[..taken]);
                    Ok(taken)
                }).unwrap();
                prop_assert_eq!(flushed.blocked, outbox.waiting() > 0);
                prop_assert_eq!(seen.len() + outbox.waiting(), expected.len());
            }
            seen.extend(outbox.into_unsent());
            prop_assert_eq!(seen, expected);
        }
    }
}
