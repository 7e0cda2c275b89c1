//! One end of a resumable connection.

use std::time::Instant;

use bytes::Bytes;

use super::ring::{Keep, ReplayGap, Ring};

/// Messages sent and received on a connection, over all its sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages sent, or waiting for a socket.
    pub sent: u64,
    pub received: u64,
}

/// One end of a resumable connection: the messages it sends, and the number of messages it has received.
#[derive(Debug)]
pub struct ResumableEnd {
    out: Ring,
    received: u64,
}

impl ResumableEnd {
    /// Creates the end of a new connection.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self { out: Ring::new(keep), received: 0 }
    }

    /// Queues a message.
    pub fn send(&mut self, line: Bytes) {
        self.out.push(line);
    }

    /// Returns the next message to write to the socket.
    pub fn next(&mut self, now: Instant) -> Option<&Bytes> {
        self.out.next(now).map(|(_, line)| line)
    }

    /// See [`Ring::replace_next`].
    pub fn replace_next(&mut self, other: impl FnOnce(&Bytes) -> Bytes) {
        self.out.replace_next(other);
    }

    /// Counts a received message of any kind.
    pub fn count_received(&mut self) {
        self.received += 1;
    }

    /// Continues on a new socket. The caller must no longer count messages that arrive on the previous
    /// socket. `received` is the number of messages that the peer has received. Returns the number that this
    /// end has received.
    ///
    /// # Errors
    /// If messages that the peer lacks are no longer kept. In this case nothing has changed.
    pub fn resume(&mut self, received: u64) -> Result<u64, ReplayGap> {
        self.out.rewind(received)?;
        Ok(self.received)
    }

    /// Returns the number of messages sent and received.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { sent: self.out.sent(), received: self.received }
    }

    /// Returns the sent messages.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.out
    }

    /// See [`Ring::shed`].
    pub fn shed(&mut self, bytes: usize) -> usize {
        self.out.shed(bytes)
    }

    /// See [`Ring::forget`].
    pub fn forget(&mut self) {
        self.out.forget();
    }

    /// See [`Ring::expire`].
    pub fn expire(&mut self, now: Instant) {
        self.out.expire(now);
    }
}
