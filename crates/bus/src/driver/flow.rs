//! Input and output of one peer.

use std::io::{self, IoSlice};

use crate::core::Time;

use super::outbox::{Framing, Outbox, Room, Spare};
use super::stream::Stream;

/// From which length on a message is written from where it stands, if it can be: a copy costs more than a write of its own.
const MIN_DIRECT_WRITE_BYTES: usize = 16 << 10;
/// Of how many parts such a message may be.
const MAX_DIRECT_WRITE_PARTS: usize = 7;

/// What is known about reading from somebody.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// There may be something to read.
    pub(super) readable: bool,
    /// The other side has closed: a short read is not the last.
    pub(super) hung_up: bool,
    /// It stands in the list of those to be read.
    pub(super) listed: bool,
    /// The core wants nothing from it for now.
    pub(super) paused: bool,
    /// Its end was read.
    pub(super) ended: bool,
    /// It does not read either: there is nobody any more.
    pub(super) dead: bool,
}

impl Intake {
    /// Whether it has to be put on the list.
    #[inline]
    pub(super) fn wants(&self) -> bool {
        self.readable && !self.listed && !self.paused && !self.ended
    }
}

/// What is known about writing to somebody.
#[derive(Debug, Default)]
pub(super) struct Outflow {
    pub(super) outbox: Outbox,
    /// It takes nothing until an event says so.
    pub(super) blocked: bool,
    /// It stands in the list of those to be written to.
    pub(super) dirty: bool,
    /// More waits than may, and the core knows.
    pub(super) over: bool,
    /// When it last took something, or began to take nothing.
    pub(super) progress: Time,
    /// Nothing is written before this entry about the owner of a session is.
    pub(super) held: Option<u64>,
}

impl Outflow {
    /// Puts one message behind what waits for `to`. Returns how much was written already.
    #[inline]
    pub(super) fn put(
        &mut self,
        to: Option<&Stream>,
        framing: Framing,
        parts: &[&[u8]],
        now: Time,
        spare: &mut Spare,
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

    /// Writes a long message at once and puts what is left of it into the queue.
    #[inline(never)]
    fn put_long(
        &mut self,
        to: &Stream,
        framing: Framing,
        parts: &[&[u8]],
        now: Time,
        spare: &mut Spare,
    ) -> usize {
        let mut room = Room::default();
        let (head, end) = framing.around(parts.iter().map(|part| part.len()).sum(), &mut room);
        let mut all = [b"".as_slice(); MAX_DIRECT_WRITE_PARTS + 2];
        for (slot, part) in all.iter_mut().zip([head].iter().chain(parts).chain(&[end])) {
            *slot = part;
        }
        // Whatever is wrong shows again when the rest is written, where somebody sees to it.
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

    /// Writes once. Tells whether there is room again in what was full.
    pub(super) fn flush(
        &mut self,
        to: &Stream,
        now: Time,
        queue_bytes: usize,
        spare: &mut Spare,
    ) -> io::Result<(usize, bool)> {
        let flushed = self.outbox.flush(spare, |bytes| to.write(bytes))?;
        if flushed.written > 0 || !self.blocked {
            self.progress = now;
        }
        self.blocked = flushed.blocked;
        let drained = self.over && self.outbox.waiting() < queue_bytes.div_ceil(2);
        if drained {
            self.over = false;
        }
        Ok((flushed.written, drained))
    }
}
