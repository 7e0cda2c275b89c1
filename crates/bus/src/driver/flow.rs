//! The input and output state of one peer.

use std::io::{self, IoSlice};

use crate::core::Time;

use super::outbox::{BufferPool, Framing, HeaderBuffer, Outbox};
use super::stream::Stream;

/// From this size on, a message is written at once without a copy if possible, because copying it costs more
/// than a system call.
const MIN_DIRECT_WRITE_BYTES: usize = 16 << 10;
const MAX_DIRECT_WRITE_PARTS: usize = 7;

#[derive(Debug, Default)]
pub(super) struct Intake {
    pub(super) readable: bool,
    /// `true` if the peer has closed its end. A short read then does not mean that all input was read.
    pub(super) hung_up: bool,
    pub(super) listed: bool,
    pub(super) paused: bool,
    pub(super) ended: bool,
    /// `true` if the peer has disconnected completely, so that it does not read either.
    pub(super) dead: bool,
}

impl Intake {
    #[inline]
    pub(super) fn needs_listing(&self) -> bool {
        self.readable && !self.listed && !self.paused && !self.ended
    }
}

#[derive(Debug, Default)]
pub(super) struct Outflow {
    pub(super) outbox: Outbox,
    /// `true` if the last write has blocked, until an event reports room.
    pub(super) blocked: bool,
    pub(super) dirty: bool,
    /// `true` if the core was told that the queue is full.
    pub(super) is_full: bool,
    /// The time of the last write that made progress, or the time when writes began to block.
    pub(super) progress: Time,
    /// The number of an owner entry. Nothing is written to the peer before that entry is on disk.
    pub(super) held: Option<u64>,
}

impl Outflow {
    /// Queues a message for the peer, or writes it at once if possible. Returns the number of bytes that were
    /// written.
    #[inline]
    pub(super) fn put(
        &mut self,
        to: Option<&Stream>,
        framing: Framing,
        parts: &[&[u8]],
        now: Time,
        spare: &mut BufferPool,
    ) -> usize {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        match to {
            Some(to)
                if length >= MIN_DIRECT_WRITE_BYTES
                    && !self.blocked
                    && self.held.is_none()
                    && self.outbox.waiting() == 0
                    && parts.len() <= MAX_DIRECT_WRITE_PARTS =>
            {
                self.put_long(to, framing, parts, now, spare)
            }
            _ => {
                self.outbox.push(framing, parts, spare);
                0
            }
        }
    }

    #[inline(never)]
    fn put_long(
        &mut self,
        to: &Stream,
        framing: Framing,
        parts: &[&[u8]],
        now: Time,
        spare: &mut BufferPool,
    ) -> usize {
        let mut room = HeaderBuffer::default();
        let (head, end) = framing.delimiters(parts.iter().map(|part| part.len()).sum(), &mut room);
        let mut all = [b"".as_slice(); MAX_DIRECT_WRITE_PARTS + 2];
        for (slot, part) in all.iter_mut().zip([head].iter().chain(parts).chain(&[end])) {
            *slot = part;
        }
        // If the write fails, it fails again when the rest is written, and is handled then.
        let written = to.write_parts(&all.map(IoSlice::new)[..parts.len() + 2]).unwrap_or(0);
        if written > 0 {
            self.progress = now;
        }
        let mut skip = written;
        for part in &mut all {
            let skipped = skip.min(part.len());
            *part = &part[skipped..];
            skip -= skipped;
        }
        self.outbox.append_rest(&all, written > 0, spare);
        written
    }

    /// Writes queued output once. Returns `true` if the queue was full and has room again.
    pub(super) fn flush(
        &mut self,
        to: &Stream,
        now: Time,
        queue_bytes: usize,
        spare: &mut BufferPool,
    ) -> io::Result<(usize, bool)> {
        let flushed = self.outbox.flush(spare, |bytes| to.write(bytes))?;
        if flushed.written > 0 || !self.blocked {
            self.progress = now;
        }
        self.blocked = flushed.blocked;
        let drained = self.is_full && self.outbox.waiting() < queue_bytes.div_ceil(2);
        if drained {
            self.is_full = false;
        }
        Ok((flushed.written, drained))
    }
}
