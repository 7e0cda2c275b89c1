//! What was sent and may have to be sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// How much is kept of what has been given to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// At least this many bytes, ends of lines included, which must be more than can be on the way. Nothing is dropped
    /// for its size before that much came after it.
    pub bytes: usize,
    /// At most this long after it was given to a socket that still stands.
    pub time: Duration,
}

impl Default for Keep {
    /// 4 MiB and 300 seconds.
    fn default() -> Self {
        Self { bytes: 4 << 20, time: Duration::from_secs(300) }
    }
}

/// What the other end has not taken is no longer there, or it says that it took what it never got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is missing is no longer kept")]
pub struct ReplayGap;

/// One message and when it was given to the socket.
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

/// Messages of one direction in order: those given to a socket that may have been lost with it, and behind them those
/// that wait for one. The first message ever has number 1.
#[derive(Debug)]
pub struct Ring {
    keep: Keep,
    items: VecDeque<Item>,
    /// How many messages are no longer here.
    dropped: u64,
    /// How many of the items were given to the socket of now.
    given: usize,
    given_bytes: usize,
    waiting_bytes: usize,
    /// The highest number ever given to a socket.
    reached: u64,
}

impl Ring {
    /// An empty one.
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

    /// Puts a message behind all others.
    pub fn push(&mut self, line: Bytes) {
        let item = Item { line, given: None };
        self.waiting_bytes += item.size();
        self.items.push_back(item);
    }

    /// The next message for the socket, and its number.
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
        // Given this very moment, it is still there.
        Some((number, &self.items.get(self.given.checked_sub(1)?)?.line))
    }

    /// Puts another message in the place of the next one for the socket.
    pub fn replace_next(&mut self, other: impl FnOnce(&Bytes) -> Bytes) {
        let Some(item) = self.items.get_mut(self.given) else { return };
        self.waiting_bytes -= item.size();
        item.line = other(&item.line);
        self.waiting_bytes += item.size();
    }

    /// Drops what was given to the socket too long ago. Only to be called while that stands: time without a socket is
    /// the grace, which has a bound of its own.
    pub fn expire(&mut self, now: Instant) {
        let old = |item: &Item| item.given.is_some_and(|given| now.duration_since(given) >= self.keep.time);
        let count = self.items.iter().take(self.given).take_while(|item| old(item)).count();
        for _ in 0..count {
            self.drop_first();
        }
    }

    /// Begins anew, for another socket, behind the first `taken` messages, which the other end has and which are not
    /// needed any more.
    ///
    /// # Errors
    /// When that cannot be done without a gap; then nothing has changed.
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

    /// Drops the oldest messages that were given to a socket until `bytes` are free or none is left. They cannot be sent
    /// again. Returns how many bytes are free.
    pub fn shed(&mut self, bytes: usize) -> usize {
        let before = self.bytes();
        while self.given > 0 && before - self.bytes() < bytes {
            self.drop_first();
        }
        before - self.bytes()
    }

    /// Drops everything that was given to a socket, for a connection that ends with its socket.
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

    /// How many messages were ever put in.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.dropped + self.items.len() as u64
    }

    /// How many messages are no longer here.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of the message given last to the socket of now, or what it has taken.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.dropped + self.given as u64
    }

    /// The highest number ever given to a socket.
    #[must_use]
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// Whether nothing waits for a socket.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.given == self.items.len()
    }

    /// Whether so much waits that whoever fills it should stop.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting_bytes >= self.keep.bytes
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.given_bytes + self.waiting_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep { bytes: 10, time: Duration::from_secs(300) };

    /// A ring to which the messages `1` to `count` were given, four bytes each with the end of the line.
    fn filled(count: usize, now: Instant) -> Ring {
        let mut ring = Ring::new(KEEP);
        for number in 1..=count {
            ring.push(format!("{number:03}").into());
            assert_eq!(ring.next(now).map(|(number, _)| number), Some(number as u64));
        }
        ring
    }

    fn rest(ring: &mut Ring, now: Instant) -> Vec<String> {
        let line = |ring: &mut Ring| Some(String::from_utf8_lossy(ring.next(now)?.1).into_owned());
        std::iter::from_fn(|| line(ring)).collect()
    }

    #[test]
    fn what_came_last_is_kept_and_sent_again() {
        let now = Instant::now();
        let mut ring = filled(9, now);
        // Twelve bytes: with one message less it would be eight.
        assert_eq!((ring.dropped(), ring.sent(), ring.bytes()), (6, 9, 12));
        assert_eq!(ring.rewind(5), Err(ReplayGap));
        assert_eq!(ring.rewind(10), Err(ReplayGap));
        assert_eq!(ring.rewind(7), Ok(()));
        assert_eq!(rest(&mut ring, now), ["008", "009"]);
        assert_eq!(ring.rewind(6), Err(ReplayGap));
        assert_eq!(ring.rewind(9), Ok(()));
        assert_eq!(rest(&mut ring, now), [""; 0]);
        assert_eq!(ring.bytes(), 0);
    }

    #[test]
    fn what_waits_next_can_be_replaced() {
        let now = Instant::now();
        let mut ring = filled(3, now);
        ring.replace_next(|_| unreachable!());
        ring.rewind(1).unwrap();
        ring.replace_next(|line| [line, &b"!"[..]].concat().into());
        assert_eq!(ring.bytes(), 9);
        assert_eq!(rest(&mut ring, now), ["002!", "003"]);
        assert_eq!((ring.sent(), ring.bytes()), (3, 9));
    }

    #[test]
    fn what_waits_is_never_dropped() {
        let now = Instant::now();
        let mut ring = Ring::new(KEEP);
        for number in 0..100 {
            assert_eq!(ring.is_full(), number >= 3);
            ring.push(format!("{number:03}").into());
        }
        ring.expire(now + KEEP.time);
        assert_eq!(ring.rewind(0), Ok(()));
        assert_eq!(rest(&mut ring, now).len(), 100);
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
        assert_eq!(rest(&mut ring, now).len(), 2);
        assert_eq!(ring.rewind(0), Ok(()));
    }

    #[test]
    fn what_is_old_is_dropped() {
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
    fn a_late_rewind_does_not_lower_what_can_have_been_taken() {
        let now = Instant::now();
        let mut ring = filled(2, now);
        assert_eq!(ring.rewind(0), Ok(()));
        assert_eq!(ring.rewind(2), Ok(()), "it was given both on the socket before");
        assert!(ring.is_drained());
    }

    #[test]
    fn only_what_was_given_to_a_socket_is_shed() {
        let now = Instant::now();
        let mut ring = filled(3, now);
        ring.push("004".into());
        assert_eq!((ring.shed(5), ring.bytes(), ring.dropped()), (8, 8, 2));
        assert_eq!((ring.shed(100), ring.bytes(), ring.dropped()), (4, 4, 3));
        assert_eq!(rest(&mut ring, now), ["004"]);
    }

    #[test]
    fn what_is_forgotten_cannot_be_sent_again() {
        let now = Instant::now();
        let mut ring = filled(2, now);
        ring.push("003".into());
        ring.forget();
        assert_eq!((ring.dropped(), ring.bytes(), ring.reached()), (2, 4, 2));
        assert_eq!(rest(&mut ring, now), ["003"]);
    }
}
