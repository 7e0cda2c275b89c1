//! All connections and their queues. The core's lines and actions arrive here.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use mio::{Interest, Registry};
use narrows_wire::{RpcError, message};

use crate::core::{ClientCloseReason, ClientId, CoreAction, CoreOutput, PoolId, Time, WorkerId};
use crate::owner_store::OwnerEntry;
use crate::spawner::WorkerEnd;

use super::event_log::Names;
use super::flow::{Intake, Outflow};
use super::handshake::FirstLine;
use super::identity_usage::Accounts;
use super::outbox::{BufferPool, Framing, Outbox};
use super::owner_barrier::OwnerBarrier;
use super::poll_token::PollToken;
use super::stream::Stream;
use super::websocket::WebSocketState;
use super::{DRAIN_LINGER_TIMEOUT, SLOW_LINGER_TIMEOUT};

#[derive(Debug)]
pub(super) struct ClientConn {
    pub(super) input: Stream,
    /// The descriptor for output. `None`: the descriptor for input is used.
    pub(super) output: Option<Stream>,
    pub(super) intake: Intake,
    pub(super) outflow: Outflow,
    /// `true` until the first byte shows that the peer is not a web browser.
    pub(super) checks_json: bool,
    /// `true` if the caller or pings limit the time of a full queue, instead of the stall timeout.
    pub(super) has_own_timeout: bool,
    /// Buffers the first line. It may show that another server serves the connection.
    pub(super) first_line: Option<Box<FirstLine>>,
    pub(super) websocket: Option<Box<WebSocketState>>,
    /// `true` if write readiness is awaited only while the queue is blocked. A unix socket would report it
    /// after every read of the peer.
    sparing: bool,
    pub(super) close_state: Option<CloseState>,
    /// The number of the account of the client's identity.
    pub(super) account: u32,
    /// Number of bytes of the client's incomplete message.
    pub(super) unfinished: usize,
    pub(super) begun: Time,
    /// The number of this connection in `SilentClients`, while it has sent no complete message.
    pub(super) silent: Option<u64>,
    pub(super) descriptors: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CloseState {
    /// The time at which the connection is closed. `None`: it stays open while its queue makes progress.
    pub(super) until: Option<Time>,
    /// `true` if all output was written and then shut down.
    pub(super) shut: bool,
    /// `true` if the reason for closing is queued. Nothing is queued after it.
    told: bool,
    /// `true` if the queue holds only the reason for closing, which the client has time to read.
    pub(super) reads_reason: bool,
}

impl ClientConn {
    pub(super) fn new(input: Stream, output: Option<Stream>, checks_json: bool, sparing: bool) -> Self {
        Self {
            input,
            output,
            intake: Intake::default(),
            outflow: Outflow::default(),
            checks_json,
            has_own_timeout: false,
            first_line: None,
            websocket: None,
            sparing,
            close_state: None,
            account: 0,
            unfinished: 0,
            begun: Time::ZERO,
            silent: None,
            descriptors: 1,
        }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.input.into_fd()
    }

    /// Closes the connection. If it is a WebSocket, also notifies the owner of its handle.
    pub(super) fn close(mut self) {
        let websocket = self.websocket.take();
        drop(self);
        if let Some(websocket) = websocket {
            websocket.notify_closed();
        }
    }

    pub(super) fn output(&self) -> &Stream {
        self.output.as_ref().unwrap_or(&self.input)
    }

    pub(super) fn register(&self, registry: &Registry, slot: u32) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match &self.output {
            Some(output) => {
                self.input.register(registry, PollToken::Client(slot).token(), Interest::READABLE)?;
                output.register(registry, PollToken::ClientOutput(slot).token(), Interest::WRITABLE)
            }
            None if self.sparing => {
                self.input.register(registry, PollToken::Client(slot).token(), Interest::READABLE)
            }
            None => self.input.register(registry, PollToken::Client(slot).token(), both),
        }
    }

    pub(super) fn deregister(&self, registry: &Registry) {
        self.input.deregister(registry);
        if let Some(output) = &self.output {
            output.deregister(registry);
        }
    }

    #[inline]
    pub(super) fn framing(&self) -> Framing {
        if self.websocket.is_some() { Framing::Frames } else { Framing::Lines }
    }

    pub(super) fn flush(
        &mut self,
        slot: u32,
        now: Time,
        queue_bytes: usize,
        spare: &mut BufferPool,
        registry: &Registry,
    ) -> io::Result<bool> {
        if self.outflow.held.is_some() {
            return Ok(false);
        }
        let was_blocked = self.outflow.blocked;
        let output = self.output.as_ref().unwrap_or(&self.input);
        let (_, drained) = self.outflow.flush(output, now, queue_bytes, spare)?;
        if self.sparing && was_blocked != self.outflow.blocked {
            let interest = match self.outflow.blocked {
                true => Interest::READABLE | Interest::WRITABLE,
                false => Interest::READABLE,
            };
            self.input.reregister(registry, PollToken::Client(slot).token(), interest)?;
        }
        Ok(drained)
    }
}

#[derive(Debug)]
pub(super) struct WorkerConn {
    /// A number that tells this worker from other workers that have had the same slot.
    pub(super) serial: u64,
    pub(super) pid: u32,
    pub(super) stdin: Option<Stream>,
    pub(super) stdout: Option<Stream>,
    pub(super) intake: Intake,
    pub(super) outflow: Outflow,
    pub(super) written: u64,
    pub(super) stopping: bool,
    pub(super) stopped_since: Option<Time>,
    pub(super) stdin_closed_at: Option<Time>,
    pub(super) stdout_closed_at: Option<Time>,
    pub(super) ending: Option<Ending>,
}

#[derive(Debug)]
pub(super) struct Ending {
    /// The time until which the rest of the worker's output is read.
    pub(super) by: Time,
    pub(super) how: WorkerEnd,
}

impl WorkerConn {
    fn new(serial: u64) -> Self {
        Self {
            serial,
            pid: 0,
            stdin: None,
            stdout: None,
            intake: Intake::default(),
            outflow: Outflow { blocked: true, ..Outflow::default() },
            written: 0,
            stopping: false,
            stopped_since: None,
            stdin_closed_at: None,
            stdout_closed_at: None,
            ending: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeferredAction {
    Spawn(WorkerId, u64, PoolId),
    Stop(WorkerId, u64, bool),
}

#[derive(Debug)]
pub(super) struct Connections {
    pub(super) now: Time,
    pub(super) queue_bytes: usize,
    pub(super) queued: usize,
    /// Time for a client that is disconnected as a slow reader to read the reason.
    reason_timeout: Duration,
    pub(super) clients: Vec<Option<ClientConn>>,
    pub(super) accounts: Accounts,
    pub(super) workers: Vec<Option<WorkerConn>>,
    pub(super) ready: Vec<PollToken>,
    pub(super) dirty: Vec<PollToken>,
    /// Holds the list `dirty` while the queues are written, to keep its allocation.
    flushing: Vec<PollToken>,
    pub(super) full: Vec<u32>,
    pub(super) closing: Vec<u32>,
    pub(super) actions: Vec<DeferredAction>,
    pub(super) names: Names,
    pub(super) barrier: OwnerBarrier,
    pub(super) finished: bool,
    spare: BufferPool,
    next_serial: u64,
}

#[derive(Debug, Default)]
pub(super) struct FlushOutcome {
    pub(super) drained: Vec<PollToken>,
    pub(super) lost: Vec<u32>,
    /// `true` if a worker's pipe was blocked or closed in this round, so that the worker must be checked.
    pub(super) must_check: bool,
}

impl Connections {
    pub(super) fn new(queue_bytes: usize, reason_timeout: Duration) -> Self {
        Self {
            now: Time::ZERO,
            queue_bytes,
            queued: 0,
            reason_timeout,
            clients: Vec::new(),
            accounts: Accounts::default(),
            workers: Vec::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            flushing: Vec::new(),
            full: Vec::new(),
            closing: Vec::new(),
            actions: Vec::new(),
            names: Names::default(),
            barrier: OwnerBarrier::default(),
            finished: false,
            spare: BufferPool::default(),
            next_serial: 0,
        }
    }

    #[inline]
    pub(super) fn client(&mut self, slot: u32) -> Option<&mut ClientConn> {
        self.clients.get_mut(slot as usize)?.as_mut()
    }

    #[inline]
    pub(super) fn worker(&mut self, slot: u32) -> Option<&mut WorkerConn> {
        self.workers.get_mut(slot as usize)?.as_mut()
    }

    #[inline]
    pub(super) fn accepts_lines(&self, slot: u32) -> bool {
        matches!(self.clients.get(slot as usize), Some(Some(conn)) if conn.close_state.is_none())
    }

    /// Lists a client for reading if it has data and is not paused.
    #[inline]
    pub(super) fn list_client(&mut self, slot: u32) {
        if let Some(Some(conn)) = self.clients.get_mut(slot as usize)
            && conn.intake.needs_listing()
        {
            conn.intake.listed = true;
            self.ready.push(PollToken::Client(slot));
        }
    }

    /// Lists a worker for reading if it has data and is not paused.
    #[inline]
    pub(super) fn list_worker(&mut self, slot: u32) {
        if let Some(Some(conn)) = self.workers.get_mut(slot as usize)
            && conn.intake.needs_listing()
        {
            conn.intake.listed = true;
            self.ready.push(PollToken::Stdout(slot));
        }
    }

    pub(super) fn unblock_client(&mut self, slot: u32) {
        if let Some(Some(conn)) = self.clients.get_mut(slot as usize)
            && conn.outflow.blocked
            && !conn.outflow.dirty
        {
            // The stall timeout begins at the first blocked write, so `blocked` stays set until the next
            // write.
            conn.outflow.dirty = true;
            self.dirty.push(PollToken::Client(slot));
        }
    }

    pub(super) fn unblock_worker(&mut self, slot: u32) {
        if let Some(Some(conn)) = self.workers.get_mut(slot as usize)
            && conn.outflow.blocked
            && !conn.outflow.dirty
        {
            conn.outflow.dirty = true;
            self.dirty.push(PollToken::Stdin(slot));
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.dirty.is_empty() || !self.actions.is_empty()
    }

    /// Closes a client after its queue is written or the linger timeout expires.
    pub(super) fn close_client(&mut self, slot: u32, reason: ClientCloseReason) {
        let until = match reason {
            ClientCloseReason::Served => None,
            ClientCloseReason::Draining => Some(self.now + DRAIN_LINGER_TIMEOUT),
            ClientCloseReason::SlowReader => Some(self.now + SLOW_LINGER_TIMEOUT),
        };
        if let Some(Some(conn)) = self.clients.get_mut(slot as usize)
            && conn.close_state.is_none()
        {
            conn.close_state = Some(CloseState { until, shut: false, told: false, reads_reason: false });
            self.closing.push(slot);
        }
    }

    /// Closes a client and queues the reason as its last message.
    pub(super) fn disconnect(&mut self, slot: u32, reason: &RpcError) {
        self.to_client(ClientId(slot), &[&message::error(b"null", reason)]);
        self.close_client(slot, ClientCloseReason::SlowReader);
        self.seal_queue(slot);
    }

    /// Removes all queued messages of a client except one that is partly written and the last one, which is
    /// the reason why the client is disconnected.
    pub(super) fn skip_to_reason(&mut self, slot: u32) {
        let until = self.now + self.reason_timeout.max(SLOW_LINGER_TIMEOUT);
        if let Some(conn) = self.client(slot) {
            let framing = conn.framing();
            conn.outflow.outbox.keep_last(framing);
            // The queue now holds only the rest of a partly written message, and the reason.
            if let Some(close_state) = &mut conn.close_state {
                (close_state.until, close_state.reads_reason) = (Some(until), true);
            }
        }
    }

    /// Drops the queue of a client that is being disconnected, and the client with it.
    pub(super) fn drop_queue(&mut self, slot: u32) {
        let now = self.now;
        if let Some(conn) = self.client(slot)
            && let Some(close_state) = &mut conn.close_state
        {
            conn.outflow.outbox = Outbox::default();
            // A message may be cut off, so nothing follows it, not even a close frame.
            (close_state.shut, close_state.told, close_state.until) = (true, true, Some(now));
        }
    }

    pub(super) fn seal_queue(&mut self, slot: u32) {
        let now = self.now;
        if let Some(conn) = self.client(slot) {
            conn.outflow.progress = now;
            if let Some(close_state) = &mut conn.close_state {
                close_state.told = true;
            }
        }
    }

    pub(super) fn put_raw(&mut self, slot: u32, bytes: &[u8]) {
        let Some(Some(conn)) = self.clients.get_mut(slot as usize) else { return };
        let flow = &mut conn.outflow;
        flow.outbox.append(&[bytes], &mut self.spare);
        if !flow.dirty && !flow.blocked {
            flow.dirty = true;
            self.dirty.push(PollToken::Client(slot));
        }
    }

    pub(super) fn write_last(&mut self, slot: u32, registry: &Registry) {
        if let Some(Some(conn)) = self.clients.get_mut(slot as usize) {
            // A failed write does not matter, because the connection is closed next.
            _ = conn.flush(slot, self.now, self.queue_bytes, &mut self.spare, registry);
            conn.output().shut();
        }
    }

    fn flush_client(&mut self, slot: u32, registry: &Registry, outcome: &mut FlushOutcome) {
        let Some(Some(conn)) = self.clients.get_mut(slot as usize) else { return };
        conn.outflow.dirty = false;
        match conn.flush(slot, self.now, self.queue_bytes, &mut self.spare, registry) {
            Ok(true) => outcome.drained.push(PollToken::Client(slot)),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(client = slot, %error, "client write failed");
                outcome.lost.push(slot);
            }
        }
    }

    pub(super) fn flush(&mut self, registry: &Registry, outcome: &mut FlushOutcome) {
        std::mem::swap(&mut self.dirty, &mut self.flushing);
        for index in 0..self.flushing.len() {
            let place = self.flushing[index];
            match place {
                PollToken::Client(slot) => self.flush_client(slot, registry, outcome),
                PollToken::Stdin(slot) => {
                    let Some(Some(conn)) = self.workers.get_mut(slot as usize) else { continue };
                    conn.outflow.dirty = false;
                    let Some(stdin) = &conn.stdin else { continue };
                    let was_blocked = conn.outflow.blocked;
                    match conn.outflow.flush(stdin, self.now, self.queue_bytes, &mut self.spare) {
                        Ok((written, drained)) => {
                            conn.written += written as u64;
                            outcome.must_check |= conn.outflow.blocked && !was_blocked;
                            if drained {
                                outcome.drained.push(place);
                            }
                        }
                        Err(error) => {
                            tracing::debug!(worker = slot, %error, "worker closed its stdin");
                            conn.outflow.blocked = true;
                            conn.stdin_closed_at.get_or_insert(self.now);
                            outcome.must_check = true;
                        }
                    }
                }
                PollToken::Waker
                | PollToken::Listener(_)
                | PollToken::ClientOutput(_)
                | PollToken::Stdout(_) => {}
            }
        }
        self.flushing.clear();
    }
}

impl CoreOutput for Connections {
    #[inline]
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize {
        let Some(Some(conn)) = self.clients.get_mut(client.0 as usize) else { return 0 };
        if conn.close_state.is_some_and(|close_state| close_state.shut || close_state.told) {
            return 0;
        }
        let framing = conn.framing();
        let flow = &mut conn.outflow;
        let before = flow.outbox.waiting();
        let output = conn.output.as_ref().unwrap_or(&conn.input);
        flow.put(Some(output), framing, parts, self.now, &mut self.spare);
        let waiting = flow.outbox.waiting();
        self.queued += waiting.saturating_sub(before);
        if waiting > 0 && !flow.dirty && !flow.blocked {
            flow.dirty = true;
            self.dirty.push(PollToken::Client(client.0));
        }
        if waiting > self.queue_bytes && !flow.is_full {
            flow.is_full = true;
            if !conn.has_own_timeout {
                self.full.push(client.0);
            }
        }
        waiting
    }

    #[inline]
    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize {
        let Some(Some(conn)) = self.workers.get_mut(worker.0 as usize) else { return 0 };
        let flow = &mut conn.outflow;
        conn.written +=
            flow.put(conn.stdin.as_ref(), Framing::Lines, parts, self.now, &mut self.spare) as u64;
        let waiting = flow.outbox.waiting();
        if waiting > 0 && !flow.dirty && !flow.blocked {
            flow.dirty = true;
            self.dirty.push(PollToken::Stdin(worker.0));
        }
        flow.is_full |= waiting > self.queue_bytes;
        waiting
    }

    fn perform(&mut self, action: CoreAction) {
        match action {
            CoreAction::Spawn { worker, pool } => {
                let slot = worker.0 as usize;
                if self.workers.len() <= slot {
                    self.workers.resize_with(slot + 1, || None);
                }
                self.next_serial += 1;
                self.workers[slot] = Some(WorkerConn::new(self.next_serial));
                self.actions.push(DeferredAction::Spawn(worker, self.next_serial, pool));
            }
            CoreAction::Stop { worker, kill } => {
                // The worker is identified by its serial, because the slot may belong to another worker when
                // the command is executed.
                if let Some(Some(conn)) = self.workers.get(worker.0 as usize) {
                    self.actions.push(DeferredAction::Stop(worker, conn.serial, kill));
                }
            }
            CoreAction::PauseWorker(worker) => {
                if let Some(conn) = self.worker(worker.0) {
                    conn.intake.paused = true;
                }
            }
            CoreAction::ResumeWorker(worker) => {
                let now = self.now;
                if let Some(conn) = self.worker(worker.0) {
                    conn.intake.paused = false;
                    // The timeout for the worker to read starts anew, because a worker that could not write
                    // may also have been unable to read.
                    conn.outflow.progress = now;
                }
                self.list_worker(worker.0);
            }
            CoreAction::PauseClient(client) => {
                if let Some(conn) = self.client(client.0) {
                    conn.intake.paused = true;
                }
            }
            CoreAction::ResumeClient(client) => {
                if let Some(conn) = self.client(client.0) {
                    conn.intake.paused = false;
                }
                self.list_client(client.0);
            }
            CoreAction::Close { client, reason } => {
                if reason == ClientCloseReason::SlowReader {
                    tracing::warn!(client = client.0, "closing slow client of a shared worker");
                }
                tracing::debug!(client = client.0, ?reason, "closing client");
                self.close_client(client.0, reason);
                if reason == ClientCloseReason::SlowReader {
                    self.skip_to_reason(client.0);
                }
            }
            CoreAction::RecordOwner { client, session, identity } => {
                self.add_entry(OwnerEntry::Record { session, identity }, client);
            }
            CoreAction::DeleteOwner { session } => self.add_entry(OwnerEntry::Delete { session }, None),
            CoreAction::Log(note) => self.names.log(&note),
            CoreAction::Finished => self.finished = true,
        }
    }
}
