//! What waits to be written to one peer.

use std::io;

use narrows_wire::websocket;

/// The largest buffer that is kept for the next who needs one.
const KEPT: usize = 256 << 10;
/// How many are kept.
const SPARE: usize = 32;

/// Buffers that nobody uses at the moment: whoever has nothing to say holds none, and few are made.
#[derive(Debug, Default)]
pub(super) struct Spare {
    buffers: Vec<Vec<u8>>,
}

impl Spare {
    fn take(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < SPARE && buffer.capacity() <= KEPT {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

/// How messages stand on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// One on each line.
    Lines,
    /// One in each frame of a WebSocket.
    Frames,
}

/// Where the head of a frame is put together.
pub(super) type Room = [u8; websocket::MAX_HEAD];

impl Framing {
    /// What stands before and behind a message of so many bytes.
    #[inline]
    pub(super) fn around(self, length: usize, room: &mut Room) -> (&[u8], &'static [u8]) {
        match self {
            Self::Lines => (b"", b"\n"),
            Self::Frames => (websocket::text_head(length, room), b""),
        }
    }
}

/// Messages in the order in which they are to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// How many of them have been written.
    head: usize,
}

/// What became of a [`Outbox::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushed {
    /// How many bytes were taken.
    pub(super) written: usize,
    /// Whether the peer takes no more for now.
    pub(super) blocked: bool,
}

impl Outbox {
    /// How many bytes wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// Puts one message at the end: the parts in a row, and what stands around it.
    #[inline]
    pub(super) fn push(&mut self, framing: Framing, parts: &[&[u8]], spare: &mut Spare) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut room = Room::default();
        let (head, end) = framing.around(length, &mut room);
        self.make_room(head.len() + length + end.len(), spare);
        self.bytes.extend_from_slice(head);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(end);
    }

    /// Puts bytes at the end as they are.
    pub(super) fn append(&mut self, parts: &[&[u8]], spare: &mut Spare) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if length > 0 {
            self.make_room(length, spare);
            for part in parts {
                self.bytes.extend_from_slice(part);
            }
        }
    }

    #[inline]
    fn make_room(&mut self, length: usize, spare: &mut Spare) {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        if self.bytes.capacity() - self.bytes.len() < length {
            // What was written is taken out when that at least halves what would be moved into a larger buffer.
            if self.head >= self.bytes.len() / 2 {
                self.bytes.drain(..self.head);
                self.head = 0;
            }
            self.bytes.reserve(length);
        }
    }

    /// Writes once what waits, if anything does.
    ///
    /// A write that takes less than it was offered has filled the peer's buffer: the edge that says that there is room
    /// again is still to come, so a second attempt would only be told so.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(super) fn flush(
        &mut self,
        spare: &mut Spare,
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
            spare.give(std::mem::take(&mut self.bytes));
            self.head = 0;
        }
        Ok(Flushed { written, blocked })
    }

    /// Everything that was not written.
    pub(super) fn rest(self) -> Vec<u8> {
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
    fn an_empty_one_holds_nothing_and_gets_its_buffer_back() {
        let (mut outbox, mut spare) = (Outbox::default(), Spare::default());
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
        let large = vec![0; 2 * KEPT];
        outbox.push(Framing::Lines, &[&large], &mut spare);
        outbox.flush(&mut spare, |bytes| Ok(bytes.len())).unwrap();
        assert!(spare.buffers.is_empty(), "a large buffer is not kept");
    }

    #[test]
    fn an_error_is_told_and_loses_nothing() {
        let (mut outbox, mut spare) = (Outbox::default(), Spare::default());
        outbox.push(Framing::Lines, &[b"abc"], &mut spare);
        let blocked = outbox.flush(&mut spare, |_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(blocked.unwrap(), Flushed { written: 0, blocked: true });
        assert!(outbox.flush(&mut spare, |_| Err(io::ErrorKind::BrokenPipe.into())).is_err());
        outbox.flush(&mut spare, |_| Ok(1)).unwrap();
        assert_eq!(outbox.rest(), b"bc\n");
    }

    proptest! {
        /// Whatever is pushed and however little is taken at a time, all of it comes out in order.
        #[test]
        fn order_is_kept(steps in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0usize..700), 1..80)) {
            let (mut outbox, mut spare) = (Outbox::default(), Spare::default());
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
            seen.extend(outbox.rest());
            prop_assert_eq!(seen, expected);
        }
    }
}
