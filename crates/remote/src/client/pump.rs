//! Carries messages over one socket, in both directions at once.

use std::future::pending;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_link::{IncomingFrames, OutgoingLines};
use narrows_wire::{Code, Frame, Kind, RawId, RpcError, View, message};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::pending::PendingRequests;
use super::reconnect::{ANSWERS_TIMEOUT, CLOSE_TIMEOUT};
use super::socket::{Read, Reader, ServerSocket, SocketError, Writer};
use crate::resume::{self, Granted, Keep, ResumableEnd};

/// Time to read the server's reason for a close after a write has failed.
const CLOSE_REASON_TIMEOUT: Duration = Duration::from_millis(200);

/// State of the resume capability, which the client requests in `initialize`.
#[derive(Debug)]
pub(super) enum ResumeMode {
    Fresh,
    /// The client has requested the capability in `initialize`, and this is the request id. Nothing else is
    /// sent before the response, so that `initialize` can be repeated on another socket.
    Requested(RawId),
    Resumable(Granted),
    Plain,
}

/// The part of a connection that outlives a socket.
#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) endpoint: ResumableEnd,
    pub(super) pending: PendingRequests,
    pub(super) mode: ResumeMode,
    pub(super) ended: bool,
    leaving: bool,
    /// The text of the last message, if that was an error without a request id. A server gives this reason
    /// for a close.
    pub(super) closing_error: Option<String>,
}

#[derive(Debug)]
pub(super) struct SharedLinkState {
    state: Mutex<LinkState>,
    changed: Notify,
}

impl SharedLinkState {
    pub(super) fn new(keep: Keep) -> Self {
        let (endpoint, pending) = (ResumableEnd::new(keep), PendingRequests::default());
        let state = LinkState {
            endpoint,
            pending,
            mode: ResumeMode::Fresh,
            ended: false,
            leaving: false,
            closing_error: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        // No code panics while it holds the lock. Even after a panic the state would be consistent.
        lock(&self.state)
    }
}

impl LinkState {
    /// Queues a message of the link's user. Adds the resume capability to the first message.
    pub(super) fn queue(&mut self, line: Bytes) {
        let mut line = line;
        if matches!(self.mode, ResumeMode::Fresh) {
            self.mode = ResumeMode::Plain;
            if let Some(marked) = resume::ask(&line) {
                if let Some(id) = View::parse(&marked).id() {
                    self.mode = ResumeMode::Requested(RawId::copy(id));
                }
                line = marked;
            }
        }
        self.pending.record(&line, self.endpoint.counts().sent + 1);
        self.endpoint.send(line);
    }

    /// Replaces the next message, which is longer than the server allows, so that both ends count the same
    /// messages. An error replaces a response. A cancellation of an unsent request replaces any other
    /// message. Returns the errors for the link's user.
    pub(super) fn replace_oversized(&mut self, why: &str) -> Vec<Frame> {
        let Self { endpoint, pending, .. } = self;
        let mut answers = Vec::new();
        endpoint.replace_next(|line| {
            answers = pending.refuse_oversized(line, why);
            let view = View::parse(line);
            let id = view.id().unwrap_or(b"null");
            match view.kind() {
                Kind::Response => message::error(id, &RpcError::new(Code::MessageTooLarge, why.to_owned())),
                _ => [br#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"#, id, b"}}"]
                    .concat()
                    .into(),
            }
        });
        answers
    }

    fn next(&mut self) -> Option<Bytes> {
        if matches!(self.mode, ResumeMode::Requested(_)) && self.endpoint.ring().position() > 0 {
            return None;
        }
        self.endpoint.next(Instant::now()).cloned()
    }

    /// Returns `true` until the response to `initialize` has arrived.
    pub(super) fn is_uninitialized(&self) -> bool {
        matches!(self.mode, ResumeMode::Fresh | ResumeMode::Requested(_))
    }

    /// Returns the granted capability and the response without the capability, if `frame` is the response to
    /// `initialize`.
    fn granted_in(&self, frame: &Frame) -> Option<(ResumeMode, Frame)> {
        let ResumeMode::Requested(id) = &self.mode else { return None };
        if frame.result().is_none() && frame.error().is_none() || frame.id() != Some(id.as_bytes()) {
            return None;
        }
        Some(match resume::granted(frame.bytes()) {
            Some((granted, plain)) => (ResumeMode::Resumable(granted), Frame::parse(plain)),
            None => (ResumeMode::Plain, frame.clone()),
        })
    }

    /// Drops messages that need no replay. Called after all messages were written to the socket.
    fn prune_written(&mut self) {
        match self.mode {
            ResumeMode::Plain => self.endpoint.forget(),
            _ => self.endpoint.expire(Instant::now()),
        }
    }
}

pub(super) enum PumpEnd {
    Done,
    Broken(SocketError),
}

pub(super) async fn pump(
    shared: &SharedLinkState,
    outgoing: &mut OutgoingLines,
    incoming: &IncomingFrames,
    socket: ServerSocket,
    silence: Duration,
) -> PumpEnd {
    let ServerSocket { mut reader, mut writer } = socket;
    let silence_limit = writer.has_pings().then_some(silence);
    let abandoned = outgoing.abandoned();
    let end = tokio::select! {
        biased;
        () = abandoned => return PumpEnd::Done,
        written = write(shared, outgoing, &mut writer, silence / 3) => match written {
            Ok(()) => return PumpEnd::Done,
            Err(broken) => {
                // A server that refuses a client closes without reading. So writing fails first, and the
                // reason may still be readable.
                match timeout(CLOSE_REASON_TIMEOUT, read(shared, incoming, &mut reader, None)).await {
                    Ok(SocketError::Oversized) => SocketError::Oversized,
                    _ => broken,
                }
            }
        },
        broken = read(shared, incoming, &mut reader, silence_limit) => broken,
    };
    if shared.state().leaving {
        return PumpEnd::Done;
    }
    PumpEnd::Broken(end)
}

async fn read(
    shared: &SharedLinkState,
    incoming: &IncomingFrames,
    reader: &mut Reader,
    silence: Option<Duration>,
) -> SocketError {
    loop {
        let next = match silence {
            Some(limit) => timeout(limit, reader.next()).await.unwrap_or(Err(SocketError::Silent)),
            None => reader.next().await,
        };
        let frame = match next {
            Ok(Read::Message(line)) => Frame::parse(line),
            Ok(Read::TooLong(head)) => Frame::too_long(head),
            Ok(Read::Sign) => continue,
            Err(broken) => return broken,
        };
        if resume::is_fence(&frame.view()) {
            return SocketError::Fenced;
        }
        let (mode, frame) =
            shared.state().granted_in(&frame).map_or((None, frame), |(mode, frame)| (Some(mode), frame));
        // Sending fails if the link's user reads no more input. The user may still send messages.
        let _ = incoming.send(frame.clone()).await;
        // The message counts as received once it is delivered. No await may come between delivery and
        // counting.
        let mut state = shared.state();
        state.endpoint.count_received();
        state.pending.record_answers(&frame);
        state.closing_error = closing_error(&frame);
        if let Some(mode) = mode {
            state.mode = mode;
        }
        drop(state);
        shared.changed.notify_one();
    }
}

/// Returns the text of an error without a request id: servers send one before they close a connection.
fn closing_error(frame: &Frame) -> Option<String> {
    let is_nameless = frame.kind() == Kind::Response && frame.id().is_none();
    is_nameless.then(|| frame.error()).flatten().map(|error| error.message.into_owned())
}

async fn write(
    shared: &SharedLinkState,
    outgoing: &mut OutgoingLines,
    writer: &mut Writer,
    every: Duration,
) -> Result<(), SocketError> {
    let mut lines = Vec::new();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick of an interval completes immediately, so it is skipped here.
    ticks.tick().await;
    loop {
        outgoing.mark_writing();
        loop {
            let Some(line) = shared.state().next() else { break };
            writer.put(line.clone()).await?;
            outgoing.count_written(&line);
        }
        writer.flush().await?;
        let (drained, full, ended) = {
            let mut state = shared.state();
            state.prune_written();
            (state.endpoint.ring().is_drained(), state.endpoint.ring().is_full(), state.ended)
        };
        if drained {
            outgoing.mark_flushed();
        }
        if drained && ended {
            break;
        }
        tokio::select! {
            more = outgoing.recv_lines(&mut lines), if !full && !ended => {
                let mut state = shared.state();
                state.ended = !more;
                lines.drain(..).for_each(|line| state.queue(line));
            }
            () = shared.changed.notified() => {}
            // The flush at the top of the loop sends the pong for this ping.
            () = writer.ping_received() => {}
            _ = ticks.tick() => writer.ping().await?,
        }
    }
    let answered = async {
        while !shared.state().pending.is_empty() {
            tokio::select! {
                () = shared.changed.notified() => {}
                () = writer.ping_received() => writer.flush().await?,
            }
        }
        Ok::<(), SocketError>(())
    };
    // The link's user is gone, so responses that arrive after the timeout are discarded.
    let _ = timeout(ANSWERS_TIMEOUT, answered).await;
    let is_resumable = {
        let mut state = shared.state();
        state.leaving = true;
        matches!(state.mode, ResumeMode::Resumable(_))
    };
    let closing = async {
        if is_resumable {
            writer.put(resume::farewell()).await?;
        }
        writer.flush().await?;
        writer.close().await;
        // Closing a socket with unread input resets it, and the farewell would be lost. So the server must
        // close first.
        pending::<Result<(), SocketError>>().await
    };
    timeout(CLOSE_TIMEOUT, closing).await.unwrap_or(Ok(()))
}
