//! Input and output of one peer.

use std::io::{self, IoSlice};

use crate::core::Time;

use super::outbox::{BufferPool, Framing, HeaderBuffer, Outbox};
use super::stream::Stream;

/// Messages from this size on are written without a copy if possible, because a copy costs more than a system
/// call.
const MIN_DIRECT_WRITE_BYTES: usize = 16 << 10;
/// Maximum number of parts of a message that is written without a copy.
const MAX_DIRECT_WRITE_PARTS: usize = 7;

#[derive(Debug, Default)]
pub(super) struct Intake {
    pub(super) readable: bool,
    /// `true` if the peer has closed, so that a short read does not mean that all data was read.
    pub(super) hung_up: bool,
    pub(super) listed: bool,
    pub(super) paused: bool,
    pub(super) ended: bool,
    /// `true` if the peer has disconnected, so that it does not read either.
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
    /// `true` if writes block until an event reports room.
    pub(super) blocked: bool,
    pub(super) dirty: bool,
    /// `true` if the queue is full, and the core was told.
    pub(super) is_full: bool,
    /// The time of the last progress, or when writes began to block.
    pub(super) progress: Time,
    /// The number of an owner entry. Nothing is written before that entry is on disk.
    pub(super) held: Option<u64>,
}

impl Outflow {
    /// Queues a message for `to`. Returns the number of bytes that were written at once.
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
        // An error occurs again when the rest is written, and is handled there.
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

    /// Writes once. Returns `true` if a full queue has room again.
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
