//! Sent messages that may have to be replayed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Bounds of the messages that are kept after they were written to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Keep at least this many bytes, line ends included. Must be more than can be in flight. A message is
    /// dropped for its size only when this many bytes were sent after it.
    pub bytes: usize,
    /// Keep messages at most this long after they were written to a socket that is still open.
    pub time: Duration,
}

impl Default for Keep {
    /// Returns bounds of 4 MiB and 300 seconds.
    fn default() -> Self {
        Self { bytes: 4 << 20, time: Duration::from_secs(300) }
    }
}

/// The peer lacks messages that are no longer kept, or claims to have received more messages than were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("missing messages are no longer kept")]
pub struct ReplayGap;

#[derive(Debug)]
struct Item {
    line: Bytes,
    given: Option<Instant>,
}

impl Item {
    fn size(&self) -> usize {
        self.line.len() + 1
    }
}

/// Messages of one direction in order: first those that were written to a socket and may be lost with the
/// socket, then those that wait for a socket. The first message of a connection has number 1.
#[derive(Debug)]
pub struct Ring {
    keep: Keep,
    items: VecDeque<Item>,
    /// The number of messages that were dropped from the front.
    dropped: u64,
    /// The number of messages in `items` that were written to the current socket.
    given: usize,
    given_bytes: usize,
    waiting_bytes: usize,
    /// The highest number that was ever written to a socket.
    reached: u64,
}

impl Ring {
    /// Creates an empty ring.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            items: VecDeque::new(),
            dropped: 0,
            given: 0,
            given_bytes: 0,
            waiting_bytes: 0,
            reached: 0,
        }
    }

    /// Queues a message.
    pub fn push(&mut self, line: Bytes) {
        let item = Item { line, given: None };
        self.waiting_bytes += item.size();
        self.items.push_back(item);
    }

    /// Returns the next message to write to the socket, and the number of the message.
    pub fn next(&mut self, now: Instant) -> Option<(u64, &Bytes)> {
        let item = self.items.get_mut(self.given)?;
        item.given = Some(now);
        let size = item.size();
        self.given += 1;
        self.given_bytes += size;
        self.waiting_bytes -= size;
        let number = self.position();
        self.reached = self.reached.max(number);
        while let Some(front) = self.items.front().map(Item::size)
            && self.given > 1
            && self.given_bytes - front >= self.keep.bytes
        {
            self.drop_first();
        }
        self.expire(now);
        // The message was written just now, so it has not been dropped.
        Some((number, &self.items.get(self.given.checked_sub(1)?)?.line))
    }

    /// Replaces the next message to be written to the socket.
    pub fn replace_next(&mut self, other: impl FnOnce(&Bytes) -> Bytes) {
        let Some(item) = self.items.get_mut(self.given) else { return };
        self.waiting_bytes -= item.size();
        item.line = other(&item.line);
        self.waiting_bytes += item.size();
    }

    /// Drops messages that were written too long ago. Must be called only while the socket is open: time without a
    /// socket is bounded by the grace period.
    pub fn expire(&mut self, now: Instant) {
        let old = |item: &Item| item.given.is_some_and(|given| now.duration_since(given) >= self.keep.time);
        let count = self.items.iter().take(self.given).take_while(|item| old(item)).count();
        for _ in 0..count {
            self.drop_first();
        }
    }

    /// Goes back to the message after the first `taken` ones, which the peer has received, to write to
    /// another socket.
    ///
    /// # Errors
    /// If a message to replay was dropped, or fewer than `taken` were sent. In this case nothing has changed.
    pub fn rewind(&mut self, taken: u64) -> Result<(), ReplayGap> {
        if taken < self.dropped || taken > self.reached {
            return Err(ReplayGap);
        }
        while self.dropped < taken && !self.items.is_empty() {
            self.drop_first();
        }
        for item in self.items.iter_mut().take(self.given) {
            item.given = None;
        }
        self.waiting_bytes += std::mem::take(&mut self.given_bytes);
        self.given = 0;
        Ok(())
    }

    /// Drops the oldest written messages until `bytes` are free or none is left. Dropped messages cannot be
    /// replayed. Returns the number of bytes freed.
    pub fn shed(&mut self, bytes: usize) -> usize {
        let before = self.bytes();
        while self.given > 0 && before - self.bytes() < bytes {
            self.drop_first();
        }
        before - self.bytes()
    }

    /// Drops all written messages. For a connection that cannot be resumed, so that nothing is replayed.
    pub fn forget(&mut self) {
        for _ in 0..self.given {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        self.dropped += 1;
        if self.given > 0 {
            self.given -= 1;
            self.given_bytes -= item.size();
        } else {
            self.waiting_bytes -= item.size();
        }
    }

    /// Returns the number of messages ever queued.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.dropped + self.items.len() as u64
    }

    /// Returns the number of messages that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of the message last written to the current socket, or received by the peer.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.dropped + self.given as u64
    }

    /// Returns the highest number that was ever written to a socket.
    #[must_use]
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// Returns `true` if no message waits for a socket.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.given == self.items.len()
    }

    /// Returns `true` if so many messages wait for a socket that their source should pause.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting_bytes >= self.keep.bytes
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.given_bytes + self.waiting_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep { bytes: 10, time: Duration::from_secs(300) };

    /// Returns a ring to which the messages `1` to `count` were written, four bytes each with the line end.
    fn filled(count: usize, now: Instant) -> Ring {
        let mut ring = Ring::new(KEEP);
        for number in 1..=count {
            ring.push(format!("{number:03}").into());
            assert_eq!(ring.next(now).map(|(number, _)| number), Some(number as u64));
        }
        ring
    }

    fn remaining_messages(ring: &mut Ring, now: Instant) -> Vec<String> {
        let line = |ring: &mut Ring| Some(String::from_utf8_lossy(ring.next(now)?.1).into_owned());
        std::iter::from_fn(|| line(ring)).collect()
    }

    #[test]
    fn recent_messages_are_kept_and_replayed() {
        let now = Instant::now();
        let mut ring = filled(9, now);
        // The kept messages have twelve bytes. Without the oldest one there would be eight, less than the
        // bound.
        assert_eq!((ring.dropped(), ring.sent(), ring.bytes()), (6, 9, 12));
        assert_eq!(ring.rewind(5), Err(ReplayGap));
        assert_eq!(ring.rewind(10), Err(ReplayGap));
        assert_eq!(ring.rewind(7), Ok(()));
        assert_eq!(remaining_messages(&mut ring, now), ["008", "009"]);
        assert_eq!(ring.rewind(6), Err(ReplayGap));
        assert_eq!(ring.rewind(9), Ok(()));
        assert_eq!(remaining_messages(&mut ring, now), [""; 0]);
        assert_eq!(ring.bytes(), 0);
    }

    #[test]
    fn the_next_message_can_be_replaced() {
        let now = Instant::now();
        let mut ring = filled(3, now);
        ring.replace_next(|_| unreachable!());
        ring.rewind(1).unwrap();
        ring.replace_next(|line| [line, &b"!"[..]].concat().into());
        assert_eq!(ring.bytes(), 9);
        assert_eq!(remaining_messages(&mut ring, now), ["002!", "003"]);
        assert_eq!((ring.sent(), ring.bytes()), (3, 9));
    }

    #[test]
    fn waiting_messages_are_never_dropped() {
        let now = Instant::now();
        let mut ring = Ring::new(KEEP);
        for number in 0..100 {
            assert_eq!(ring.is_full(), number >= 3);
            ring.push(format!("{number:03}").into());
        }
        ring.expire(now + KEEP.time);
        assert_eq!(ring.rewind(0), Ok(()));
        assert_eq!(remaining_messages(&mut ring, now).len(), 100);
        assert!(ring.is_drained() && !ring.is_full());
    }

    #[test]
    fn a_message_longer_than_the_ring_is_kept_while_it_is_the_last() {
        let now = Instant::now();
        let mut ring = Ring::new(KEEP);
        ring.push(vec![b'x'; 1000].into());
        assert!(ring.next(now).is_some());
        assert_eq!(ring.rewind(0), Ok(()));
        ring.push("1".into());
        assert_eq!(remaining_messages(&mut ring, now).len(), 2);
        assert_eq!(ring.rewind(0), Ok(()));
    }

    #[test]
    fn old_messages_are_dropped() {
        let now = Instant::now();
        let mut ring = filled(2, now);
        ring.expire(now + KEEP.time / 2);
        assert_eq!(ring.dropped(), 0);
        ring.push("003".into());
        assert!(ring.next(now + KEEP.time).is_some());
        assert_eq!((ring.dropped(), ring.sent()), (2, 3));
        assert_eq!(ring.rewind(1), Err(ReplayGap));
        assert_eq!(ring.rewind(2), Ok(()));
    }

    #[test]
    fn a_late_rewind_does_not_lower_the_highest_written_number() {
        let now = Instant::now();
        let mut ring = filled(2, now);
        assert_eq!(ring.rewind(0), Ok(()));
        assert_eq!(ring.rewind(2), Ok(()), "both were written to the previous socket");
        assert!(ring.is_drained());
    }

    #[test]
    fn only_written_messages_are_shed() {
        let now = Instant::now();
        let mut ring = filled(3, now);
        ring.push("004".into());
        assert_eq!((ring.shed(5), ring.bytes(), ring.dropped()), (8, 8, 2));
        assert_eq!((ring.shed(100), ring.bytes(), ring.dropped()), (4, 4, 3));
        assert_eq!(remaining_messages(&mut ring, now), ["004"]);
    }

    #[test]
    fn forgotten_messages_cannot_be_replayed() {
        let now = Instant::now();
        let mut ring = filled(2, now);
        ring.push("003".into());
        ring.forget();
        assert_eq!((ring.dropped(), ring.bytes(), ring.reached()), (2, 4, 2));
        assert_eq!(remaining_messages(&mut ring, now), ["003"]);
    }
}
