//! The hot path: carries messages from a socket to a backend and back, in one task and without buffers of its own.
//!
//! Everything that one read returns is sent in one write. Data that cannot be written is queued, and its source is not
//! read meanwhile.

use std::task::{Context, Poll};

use bytes::Bytes;
use narrows_wire::{Kind, LineRef, Splitter, View};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::codec::{self, Received};
use super::io::{Outbox, Scratch};
use super::replay_memory::ReplayShare;
use super::socket::{ClientSocket, SocketEnd};
use super::unfinished::MessageMemory;
use crate::resume::{self, Granted, ResumableEnd};

const WRITE_BATCH_BYTES: usize = 64 << 10;

/// Number of rounds of reading and writing after which a task yields to others.
const MAX_ROUNDS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PumpEnd {
    Socket(SocketEnd),
    /// The backend has closed, and the client has all of its output.
    Backend,
}

#[derive(Debug)]
struct ResumeState {
    endpoint: ResumableEnd,
    share: ReplayShare,
    /// `true` if the memory limit is exceeded, and this connection can drop nothing more.
    is_over: bool,
    /// The id of `initialize`, and the capability to grant in the response. `None` once the response was
    /// sent.
    granting: Option<(Bytes, Granted)>,
    granted: bool,
    /// The client has sent a farewell: it will not resume the connection.
    farewell: bool,
}

/// The longest message that is checked for being a farewell.
const MAX_CLOSE_REQUEST_BYTES: usize = 128;

/// The backend side of a connection, which may serve several sockets in turn.
#[derive(Debug)]
pub(super) struct BackendLine {
    backend: UnixStream,
    splitter: Splitter,
    to_backend: Outbox,
    /// The memory of `to_backend`. It counts also while there is no socket.
    queued: MessageMemory,
    ended: bool,
    input_closed: bool,
    resume: Option<ResumeState>,
}

impl BackendLine {
    /// Creates the backend side of a connection that is not resumable.
    pub(super) fn new(backend: UnixStream, queued: MessageMemory) -> Self {
        Self {
            backend,
            splitter: codec::backend_splitter(),
            to_backend: Outbox::default(),
            queued,
            ended: false,
            input_closed: false,
            resume: None,
        }
    }

    /// Makes the connection resumable: from now on messages are counted and kept. `id` is that of `initialize`, in
    /// whose response `granted` is announced.
    pub(super) fn make_resumable(
        &mut self,
        endpoint: ResumableEnd,
        share: ReplayShare,
        id: Bytes,
        granted: Granted,
    ) {
        let granting = Some((id, granted));
        self.resume =
            Some(ResumeState { endpoint, share, is_over: false, granting, granted: false, farewell: false });
    }

    pub(super) fn is_granted(&self) -> bool {
        self.resume.as_ref().is_some_and(|resume| resume.granted)
    }

    pub(super) fn resumable(&mut self) -> Option<&mut ResumableEnd> {
        self.resume.as_mut().map(|resume| &mut resume.endpoint)
    }

    /// Accepts a message of the client. Returns an error response if it is blank.
    fn accept_message(&mut self, message: &[u8], scratch: &Scratch) -> Option<Bytes> {
        if let Some(resume) = &mut self.resume {
            if message.len() <= MAX_CLOSE_REQUEST_BYTES && resume::is_farewell(&View::parse(message)) {
                resume.farewell = true;
                return None;
            }
            resume.endpoint.count_received();
        }
        if codec::is_blank(message) {
            return View::parse(message).refusal();
        }
        if !self.input_closed {
            codec::put_line(self.to_backend.open(scratch), message);
        }
        None
    }

    /// Sends the client a message that does not come from the backend.
    fn send_to_client(&mut self, message: Bytes, socket: &mut ClientSocket, scratch: &Scratch) {
        match &mut self.resume {
            Some(resume) => {
                resume.endpoint.send(message);
                resume.limit_memory();
            }
            None => socket.put(&message, scratch),
        }
    }

    pub(super) fn poll_pump(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ClientSocket,
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
                if let Some(resume) = &mut self.resume {
                    resume.endpoint.expire(Instant::now().into_std());
                }
                return socket.poll_tick(cx, scratch).map(PumpEnd::Socket);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Carries messages from the client to the backend. Returns `true` if anything moved.
    fn poll_up(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ClientSocket,
        scratch: &Scratch,
    ) -> Result<bool, SocketEnd> {
        if !self.poll_backend(cx, scratch) {
            return Ok(false);
        }
        if self.resume.as_ref().is_some_and(|resume| resume.farewell) {
            return Err(SocketEnd::Left(Some(1000)));
        }
        let mut answers = Vec::new();
        let read = socket.poll_read(cx, scratch, |heard| match heard {
            Received::Message(message) => answers.extend(self.accept_message(message, scratch)),
            Received::TooLong(view) => {
                if let Some(resume) = &mut self.resume {
                    resume.endpoint.count_received();
                }
                answers.extend(view.refusal());
                // The requester gets an error in place of the response.
                if let Some(error) = codec::oversized_response_error(&view).filter(|_| !self.input_closed) {
                    codec::put_line(self.to_backend.open(scratch), &error);
                }
            }
            Received::Ping(_) | Received::Close(_) => {}
        });
        // Only a client that sends invalid messages and does not read the replies gets here with a full ring.
        let is_flooded = !answers.is_empty() && self.is_full();
        for answer in answers {
            self.send_to_client(answer, socket, scratch);
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

    /// Writes what is queued for the backend. Returns `true` if the queue is empty.
    fn poll_backend(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> bool {
        let is_empty = match self.to_backend.poll_write(cx, &mut self.backend, scratch) {
            Poll::Pending => false,
            Poll::Ready(Ok(_)) => true,
            Poll::Ready(Err(_)) => {
                // The backend accepts no more input, but its remaining output is still read.
                self.input_closed = true;
                self.to_backend.clear(scratch);
                true
            }
        };
        // At most what one read has completed: the socket is read only while this is empty. A long message has counted
        // since it began.
        self.queued.set(self.to_backend.held());
        is_empty
    }

    /// Carries messages from the backend to the client. Returns `true` if anything moved.
    fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ClientSocket,
        scratch: &Scratch,
    ) -> Result<bool, PumpEnd> {
        let mut moved = self.fill_socket(socket, scratch);
        match socket.poll_write(cx, scratch) {
            Poll::Pending => return Ok(false),
            Poll::Ready(written) => moved |= written.map_err(PumpEnd::Socket)?,
        }
        if self.is_full() {
            return Ok(moved);
        }
        if self.ended {
            let drained = self.resume.as_ref().is_none_or(|resume| resume.endpoint.ring().is_drained());
            return if drained { Err(PumpEnd::Backend) } else { Ok(true) };
        }
        match self.poll_lines(cx, scratch, Some(&mut *socket)) {
            Poll::Pending => return Ok(moved),
            Poll::Ready(()) => moved = true,
        }
        self.fill_socket(socket, scratch);
        match socket.poll_write(cx, scratch) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(_)) => Ok(moved),
            Poll::Ready(Err(end)) => Err(PumpEnd::Socket(end)),
        }
    }

    /// Moves a batch of kept messages to the socket. Returns `true` if there was a batch to move.
    fn fill_socket(&mut self, socket: &mut ClientSocket, scratch: &Scratch) -> bool {
        let Some(resume) = &mut self.resume else { return false };
        if resume.endpoint.ring().is_drained() {
            return false;
        }
        let now = Instant::now().into_std();
        let mut moved = false;
        while socket.queued() < WRITE_BATCH_BYTES
            && let Some(message) = resume.endpoint.next(now)
        {
            socket.put(message, scratch);
            moved = true;
        }
        resume.limit_memory();
        moved
    }

    fn is_full(&self) -> bool {
        self.resume.as_ref().is_some_and(ResumeState::is_full)
    }

    /// Collects the output of the backend while there is no socket, as far as there is room. Ready when the backend has
    /// closed.
    pub(super) fn poll_collect(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> Poll<()> {
        self.poll_backend(cx, scratch);
        while !self.ended && !self.is_full() {
            if self.poll_lines(cx, scratch, None).is_pending() {
                return Poll::Pending;
            }
        }
        // The ring is full or the backend has closed. Next, a new socket arrives or the grace period ends.
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads once from the backend. Lines go to the ring, or to the socket if the connection is not resumable.
    fn poll_lines(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
        socket: Option<&mut ClientSocket>,
    ) -> Poll<()> {
        let Self { backend, splitter, resume, .. } = self;
        let mut socket = socket;
        let polled = scratch.poll_read(cx, backend, |read| {
            splitter.feed(read, |piece| {
                // None is too long for this splitter.
                let LineRef::Whole(line) = piece else { return };
                match (&mut *resume, &mut socket) {
                    (Some(resume), _) => resume.keep_line(line),
                    (None, Some(socket)) => socket.put(line, scratch),
                    (None, None) => {}
                }
            });
        });
        if let Some(resume) = resume {
            resume.limit_memory();
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

impl ResumeState {
    /// Returns `true` if the backend must not be read until the client has read more.
    fn is_full(&self) -> bool {
        let ring = self.endpoint.ring();
        ring.is_full() || self.is_over && !ring.is_drained()
    }

    /// Counts the kept bytes towards the limits, and drops written messages if a limit is exceeded.
    fn limit_memory(&mut self) {
        let over = self.share.set(self.endpoint.ring().bytes());
        self.is_over = over > 0;
        if over > 0 && self.endpoint.shed(over) > 0 {
            self.is_over = self.share.set(self.endpoint.ring().bytes()) > 0;
        }
    }

    /// Keeps a line of the backend. If the line is the response to `initialize`, adds the granted capability.
    fn keep_line(&mut self, line: &[u8]) {
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
        self.endpoint.send(line);
    }
}

#[cfg(test)]
mod tests {
    use super::super::HttpLimits;
    use super::super::replay_memory::ReplayMemory;
    use super::*;
    use crate::identity::{Identity, Proof};

    #[test]
    fn over_the_memory_limit_sent_messages_are_dropped_and_others_slow_the_agent() {
        let limits = HttpLimits {
            replay_memory: 64 << 10,
            replay_memory_per_identity: 64 << 10,
            ..HttpLimits::default()
        };
        let share = ReplayMemory::new(&limits).share(&Identity::new(Proof::Token, "a"));
        let endpoint = ResumableEnd::new(limits.keep());
        let mut resume =
            ResumeState { endpoint, share, is_over: false, granting: None, granted: true, farewell: false };
        let line = vec![b'x'; 10 << 10];
        let send = |resume: &mut ResumeState| {
            resume.keep_line(&line);
            resume.limit_memory();
        };
        for _ in 0..100 {
            send(&mut resume);
            assert!(resume.endpoint.next(Instant::now().into_std()).is_some());
            resume.limit_memory();
        }
        assert!(resume.endpoint.ring().bytes() <= 80 << 10, "{}", resume.endpoint.ring().bytes());
        assert!(!resume.is_full());
        // While there is no socket, only messages that were already written are dropped.
        let sent = resume.endpoint.counts().sent;
        while !resume.is_full() {
            send(&mut resume);
        }
        let waiting = resume.endpoint.counts().sent - sent;
        assert!(waiting > 0 && resume.endpoint.ring().bytes() <= 90 << 10, "{waiting}");
        assert_eq!(resume.endpoint.resume(sent), Ok(0));
        let rest = std::iter::from_fn(|| resume.endpoint.next(Instant::now().into_std()).map(|_| ())).count();
        assert_eq!(rest as u64, waiting);
        resume.limit_memory();
        assert!(!resume.is_full());
    }
}
