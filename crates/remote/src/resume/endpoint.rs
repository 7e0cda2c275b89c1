//! One end of a connection that outlives its sockets.

use std::time::Instant;

use bytes::Bytes;

use super::ring::{Keep, ReplayGap, Ring};

/// How many messages went each way on a connection, whatever the number of its sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent, or waiting for a socket.
    pub sent: u64,
    /// Taken from the other end.
    pub taken: u64,
}

/// One end of a connection that outlives its sockets: what it sends, and how much it has taken.
#[derive(Debug)]
pub struct ResumableEnd {
    out: Ring,
    taken: u64,
}

impl ResumableEnd {
    /// At the very beginning.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self { out: Ring::new(keep), taken: 0 }
    }

    /// Puts a message behind all that were sent before.
    pub fn send(&mut self, line: Bytes) {
        self.out.push(line);
    }

    /// The next message to write to the socket.
    pub fn next(&mut self, now: Instant) -> Option<&Bytes> {
        self.out.next(now).map(|(_, line)| line)
    }

    /// As [`Ring::replace_next`].
    pub fn replace_next(&mut self, other: impl FnOnce(&Bytes) -> Bytes) {
        self.out.replace_next(other);
    }

    /// Counts a message that came, whatever it was.
    pub fn took(&mut self) {
        self.taken += 1;
    }

    /// Goes on with a new socket, on which nothing of before may come any more. The other end has taken `received`
    /// messages; the answer is how many this end has, which the other must be told if it asked.
    ///
    /// # Errors
    /// When something is lost for good; then nothing has changed.
    pub fn resume(&mut self, received: u64) -> Result<u64, ReplayGap> {
        self.out.rewind(received)?;
        Ok(self.taken)
    }

    /// How many messages went each way.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { sent: self.out.sent(), taken: self.taken }
    }

    /// What was sent.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.out
    }

    /// As [`Ring::shed`].
    pub fn shed(&mut self, bytes: usize) -> usize {
        self.out.shed(bytes)
    }

    /// As [`Ring::forget`].
    pub fn forget(&mut self) {
        self.out.forget();
    }

    /// As [`Ring::expire`].
    pub fn expire(&mut self, now: Instant) {
        self.out.expire(now);
    }
}
