//! The hot path: messages of a socket to the lines of a backend, and back, in one task and without buffers of its own.
//!
//! Everything that one read brings goes on in one write. What cannot be written now waits, and while it waits nothing more is read
//! from where it came from.

use std::task::{Context, Poll};

use bytes::Bytes;
use narrows_wire::{Kind, LineRef, Splitter, View};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::codec::{self, Heard};
use super::io::{Outbox, Scratch};
use super::replay_memory::ReplayShare;
use super::socket::{Socket, SocketEnd};
use crate::resume::{self, Granted, ResumableEnd};

/// How much is put before a socket at a time.
const WRITE_BATCH_BYTES: usize = 64 << 10;

/// How often a task goes round before it lets others have their turn.
const MAX_ROUNDS: usize = 16;

/// Why nothing is carried any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PumpEnd {
    /// The socket is at its end.
    Socket(SocketEnd),
    /// The backend is, and the client has all that it sent.
    Backend,
}

/// What can be taken up again with another socket.
#[derive(Debug)]
struct Memory {
    held: ResumableEnd,
    share: ReplayShare,
    /// More is kept than may be, though nothing more can be dropped here.
    is_over: bool,
    /// What to grant in the answer to `initialize`, and the id of that, until it comes.
    granting: Option<(Bytes, Granted)>,
    granted: bool,
    /// The client has said that it does not come back.
    farewell: bool,
}

/// The longest message that may be a farewell.
const MAX_CLOSE_REQUEST_BYTES: usize = 128;

/// The backend's side of a connection, which may see several sockets.
#[derive(Debug)]
pub(super) struct Line {
    backend: UnixStream,
    splitter: Splitter,
    to_backend: Outbox,
    /// The backend has said all it will.
    ended: bool,
    /// It does not listen any more.
    deaf: bool,
    memory: Option<Memory>,
}

impl Line {
    /// To a backend.
    pub(super) fn new(backend: UnixStream) -> Self {
        let splitter = Splitter::new(narrows_wire::DEFAULT_MAX_LINE_BYTES);
        Self { backend, splitter, to_backend: Outbox::default(), ended: false, deaf: false, memory: None }
    }

    /// From now on what is sent is kept, and counted. `id` is that of `initialize`, in whose answer `granted` is told.
    pub(super) fn remember(&mut self, held: ResumableEnd, share: ReplayShare, id: Bytes, granted: Granted) {
        let granting = Some((id, granted));
        self.memory = Some(Memory { held, share, is_over: false, granting, granted: false, farewell: false });
    }

    /// Whether the client has been told that it can come back.
    pub(super) fn is_granted(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.granted)
    }

    /// What was sent and taken, if that is kept.
    pub(super) fn held(&mut self) -> Option<&mut ResumableEnd> {
        self.memory.as_mut().map(|memory| &mut memory.held)
    }

    /// Takes a message of the client. The answer that it demands at once, if it is none.
    pub(super) fn take(&mut self, message: &[u8], scratch: &Scratch) -> Option<Bytes> {
        if let Some(memory) = &mut self.memory {
            if message.len() <= MAX_CLOSE_REQUEST_BYTES && resume::is_farewell(&View::parse(message)) {
                memory.farewell = true;
                return None;
            }
            memory.held.took();
        }
        if codec::is_blank(message) {
            return View::parse(message).refusal();
        }
        if !self.deaf {
            codec::put_line(self.to_backend.open(scratch), message);
        }
        None
    }

    /// Says something to the client that the backend has not said.
    pub(super) fn say(&mut self, message: Bytes, socket: &mut Socket, scratch: &Scratch) {
        match &mut self.memory {
            Some(memory) => {
                memory.held.send(message);
                memory.limit();
            }
            None => socket.put(&message, scratch),
        }
    }

    /// Carries until either side is at its end.
    pub(super) fn poll_carry(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        scratch: &Scratch,
    ) -> Poll<PumpEnd> {
        for _ in 0..MAX_ROUNDS {
            let up = match self.poll_up(cx, socket, scratch) {
                Ok(moved) => moved,
                Err(end) => return Poll::Ready(PumpEnd::Socket(end)),
            };
            let down = match self.poll_down(cx, socket, scratch) {
                Ok(moved) => moved,
                Err(end) => return Poll::Ready(end),
            };
            if !up && !down {
                if let Some(memory) = &mut self.memory {
                    memory.held.expire(Instant::now().into_std());
                }
                return socket.poll_tick(cx, scratch).map(PumpEnd::Socket);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// From the client to the backend; whether anything moved.
    fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        scratch: &Scratch,
    ) -> Result<bool, SocketEnd> {
        if !self.poll_backend(cx, scratch) {
            return Ok(false);
        }
        if self.memory.as_ref().is_some_and(|memory| memory.farewell) {
            return Err(SocketEnd::Left(Some(1000)));
        }
        let mut answers = Vec::new();
        let read = socket.poll_read(cx, scratch, |heard| match heard {
            Heard::Message(message) => answers.extend(self.take(message, scratch)),
            Heard::TooLong(view) => {
                if let Some(memory) = &mut self.memory {
                    memory.held.took();
                }
                answers.extend(view.refusal());
                // Whoever waits for an answer is told that it does not come.
                if let Some(error) = codec::instead(&view).filter(|_| !self.deaf) {
                    codec::put_line(self.to_backend.open(scratch), &error);
                }
            }
            Heard::Ping(_) | Heard::Close(_) => {}
        });
        // Only a client that sends messages without a meaning and does not read the replies gets here with a full memory.
        let is_flooded = !answers.is_empty() && self.is_full();
        for answer in answers {
            self.say(answer, socket, scratch);
        }
        self.poll_backend(cx, scratch);
        if is_flooded {
            return Err(SocketEnd::Flooded);
        }
        match read {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(_)) => Ok(true),
            Poll::Ready(Err(end)) => Err(end),
        }
    }

    /// Writes what waits for the backend; whether nothing does any more.
    fn poll_backend(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> bool {
        match self.to_backend.poll_write(cx, &mut self.backend, scratch) {
            Poll::Pending => false,
            Poll::Ready(Ok(_)) => true,
            Poll::Ready(Err(_)) => {
                // What it still has to say is read all the same.
                self.deaf = true;
                self.to_backend.clear(scratch);
                true
            }
        }
    }

    /// From the backend to the client; whether anything moved.
    fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut Socket,
        scratch: &Scratch,
    ) -> Result<bool, PumpEnd> {
        let mut moved = self.serve(socket, scratch);
        match socket.poll_write(cx, scratch) {
            Poll::Pending => return Ok(false),
            Poll::Ready(written) => moved |= written.map_err(PumpEnd::Socket)?,
        }
        if self.is_full() {
            return Ok(moved);
        }
        if self.ended {
            let drained = self.memory.as_ref().is_none_or(|memory| memory.held.ring().is_drained());
            return if drained { Err(PumpEnd::Backend) } else { Ok(true) };
        }
        match self.poll_lines(cx, scratch, Some(&mut *socket)) {
            Poll::Pending => return Ok(moved),
            Poll::Ready(()) => moved = true,
        }
        self.serve(socket, scratch);
        match socket.poll_write(cx, scratch) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(_)) => Ok(moved),
            Poll::Ready(Err(end)) => Err(PumpEnd::Socket(end)),
        }
    }

    /// Puts a helping of what is kept before the socket.
    fn serve(&mut self, socket: &mut Socket, scratch: &Scratch) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        if memory.held.ring().is_drained() {
            return false;
        }
        let now = Instant::now().into_std();
        let mut moved = false;
        while socket.waiting() < WRITE_BATCH_BYTES
            && let Some(message) = memory.held.next(now)
        {
            socket.put(message, scratch);
            moved = true;
        }
        memory.limit();
        moved
    }

    fn is_full(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_full)
    }

    /// Keeps what the backend says while there is no socket, as far as there is room. Ready when there is no more to come.
    pub(super) fn poll_collect(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> Poll<()> {
        self.poll_backend(cx, scratch);
        while !self.ended && !self.is_full() {
            if self.poll_lines(cx, scratch, None).is_pending() {
                return Poll::Pending;
            }
        }
        // Full, or over: either way the next thing to happen is a socket, or the end of the grace.
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads once from the backend. Lines go to what is kept, or else to the socket.
    fn poll_lines(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
        socket: Option<&mut Socket>,
    ) -> Poll<()> {
        let Self { backend, splitter, memory, .. } = self;
        let mut socket = socket;
        let polled = scratch.poll_read(cx, backend, |read| {
            splitter.feed(read, |piece| {
                // Longer than any line may be: nobody could read it.
                let LineRef::Whole(line) = piece else { return };
                match (&mut *memory, &mut socket) {
                    (Some(memory), _) => memory.keep(line),
                    (None, Some(socket)) => socket.put(line, scratch),
                    (None, None) => {}
                }
            });
        });
        if let Some(memory) = memory {
            memory.limit();
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) if count > 0 => Poll::Ready(()),
            Poll::Ready(_) => {
                self.ended = true;
                Poll::Ready(())
            }
        }
    }
}

impl Memory {
    /// Returns `true` if nothing more is to be read from the backend until the client has read what is kept.
    fn is_full(&self) -> bool {
        let ring = self.held.ring();
        ring.is_full() || self.is_over && !ring.is_drained()
    }

    /// Counts what is kept, and drops what was sent if that is too much.
    fn limit(&mut self) {
        let over = self.share.set(self.held.ring().bytes());
        self.is_over = over > 0;
        if over > 0 && self.held.shed(over) > 0 {
            self.is_over = self.share.set(self.held.ring().bytes()) > 0;
        }
    }

    /// Keeps a line of the backend, with the grant in it if it is the answer to `initialize`.
    fn keep(&mut self, line: &[u8]) {
        let line = match &self.granting {
            None => Bytes::copy_from_slice(line),
            Some((id, granted)) => {
                let view = View::parse(line);
                if view.kind() == Kind::Response && view.id() == Some(&**id) {
                    let marked = resume::grant(line, granted);
                    self.granted = marked.is_some();
                    self.granting = None;
                    marked.unwrap_or_else(|| Bytes::copy_from_slice(line))
                } else {
                    Bytes::copy_from_slice(line)
                }
            }
        };
        self.held.send(line);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::replay_memory::ReplayMemory;
    use super::*;
    use crate::identity::{Identity, Proof};

    #[test]
    fn over_the_memory_limit_what_was_sent_goes_and_what_was_not_makes_the_agent_wait() {
        let limits =
            Limits { replay_memory: 64 << 10, replay_memory_per_identity: 64 << 10, ..Limits::default() };
        let share = ReplayMemory::new(&limits).share(&Identity::new(Proof::Token, "a"));
        let held = ResumableEnd::new(limits.keep());
        let mut memory =
            Memory { held, share, is_over: false, granting: None, granted: true, farewell: false };
        let line = vec![b'x'; 10 << 10];
        let send = |memory: &mut Memory| {
            memory.keep(&line);
            memory.limit();
        };
        for _ in 0..100 {
            send(&mut memory);
            assert!(memory.held.next(Instant::now().into_std()).is_some());
            memory.limit();
        }
        assert!(memory.held.ring().bytes() <= 80 << 10, "{}", memory.held.ring().bytes());
        assert!(!memory.is_full());
        // Without a socket nothing is dropped that was not sent.
        let sent = memory.held.counts().sent;
        while !memory.is_full() {
            send(&mut memory);
        }
        let waiting = memory.held.counts().sent - sent;
        assert!(waiting > 0 && memory.held.ring().bytes() <= 90 << 10, "{waiting}");
        assert_eq!(memory.held.resume(sent), Ok(0));
        let rest = std::iter::from_fn(|| memory.held.next(Instant::now().into_std()).map(|_| ())).count();
        assert_eq!(rest as u64, waiting);
        memory.limit();
        assert!(!memory.is_full());
    }
}
