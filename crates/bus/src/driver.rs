//! The event loop: one thread, with one read per source and one write per destination in each round.
//!
//! Readiness is edge-triggered and remembered. A source with more data than one read stays listed and is read
//! again in the next round, after all others. All reads share one buffer, lines are split in place and passed
//! to the [`Router`], which appends to queues. After all reads, each queue is written once.

mod clients;
mod commands;
mod connections;
mod event_log;
mod fd_limit;
mod flow;
mod handshake;
mod identity_usage;
mod outbox;
mod owner_barrier;
mod panic_guard;
mod partial_input;
mod periodic;
mod poll_token;
mod queue_stats;
mod router;
mod silent_clients;
mod slow_readers;
pub(crate) mod stream;
mod websocket;
mod workers;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll};
use narrows_wire::Splitter;

use crate::config::BusLimits;
use crate::core::{ClientId, Time, WorkerId};
use crate::listen::BoundListener;
use crate::log_limit::LogLimit;
use crate::owner_store::OwnerWriter;
use crate::spawner::{Orders, WorkerEvent};

pub(crate) use commands::CommandQueue;
use commands::Upgrade;
pub use commands::{IncomingClient, WebSocketHandle};
pub(crate) use fd_limit::{
    anonymous_connections, cap_connections, max_fd_limit as most_descriptors, needed_descriptors,
    original_fd_limit, raise_fd_limit, room_for_connections,
};
pub use handshake::{ResumableConnection, ResumableConnectionHandler};
pub use queue_stats::Queues;
pub use router::Router;

use connections::{Connections, FlushOutcome};
use panic_guard::About;
use poll_token::PollToken;
use websocket::{ClientDecoder, WebSocketState};

/// Bytes per read. The size fits several long lines, so that few lines have to be joined from two reads.
const READ_BYTES: usize = 512 << 10;
const MAX_POLL_EVENTS: usize = 1024;
/// Time for a client that is being closed to read the rest of its queue.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a client that is closed for reading slowly to read the rest of its queue.
const SLOW_LINGER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for each client to read the rest of its queue when the bus drains.
const DRAIN_LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time for a drain after a panic of the router, which may wait for an event that never comes.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Maximum number of write rounds before the next read. A write can make the core queue more output.
const MAX_FLUSH_ROUNDS: usize = 8;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopError {
    #[error("cannot wait for events: {0}")]
    Poll(io::Error),
    #[error("spawner thread exited")]
    Spawner,
}

pub(crate) struct DriverParts<B: Router> {
    pub(crate) router: B,
    pub(crate) poll: Poll,
    pub(crate) entries: Vec<BoundListener>,
    pub(crate) limits: BusLimits,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) orders: Orders,
    pub(crate) events: Receiver<WorkerEvent>,
    pub(crate) command_queue: Arc<CommandQueue<B::Status>>,
    pub(crate) owner_writer: Option<OwnerWriter>,
    pub(crate) hand_over: Option<ResumableConnectionHandler>,
    pub(crate) descriptors: usize,
}

pub(crate) struct Driver<B: Router> {
    router: B,
    poll: Poll,
    clock: Instant,
    conns: Connections,
    client_decoders: Vec<ClientDecoder>,
    worker_lines: Vec<Splitter>,
    scratch: Box<[u8]>,
    /// Holds the list of ready sources while they are read, to keep its allocation.
    batch: Vec<PollToken>,
    outcome: FlushOutcome,
    listeners: Vec<ListenerSlot>,
    limits: BusLimits,
    environment: Vec<(OsString, OsString)>,
    orders: Orders,
    events: Receiver<WorkerEvent>,
    command_queue: Arc<CommandQueue<B::Status>>,
    /// The handle to the thread that writes session owners. `None` if owners are not recorded.
    owner_writer: Option<OwnerWriter>,
    hand_over: Option<ResumableConnectionHandler>,
    next_check: Time,
    checks: periodic::PeriodicChecks,
    silent: silent_clients::SilentClients,
    descriptors: usize,
    draining: bool,
    failed: Option<LoopError>,
    panics: u64,
    /// After a panic of the router, the time at which a drain ends even if the router does not end it.
    drain_by: Time,
    tick_after: Time,
    /// Threads that copy stdout to a file. At the end, the loop waits briefly for them.
    copied: Vec<Receiver<()>>,
    refused_users: LogLimit,
}

struct ListenerSlot {
    entry: BoundListener,
    readable: bool,
    listed: bool,
}

pub(crate) fn waker_token() -> mio::Token {
    PollToken::Waker.token()
}

impl<B: Router> Driver<B> {
    pub(crate) fn new(parts: DriverParts<B>) -> Self {
        let DriverParts { router, poll, entries, limits, environment, orders, events, command_queue, .. } =
            parts;
        let (owner_writer, hand_over, descriptors) = (parts.owner_writer, parts.hand_over, parts.descriptors);
        let mut conns = Connections::new(limits.queue_bytes, limits.stall_timeout);
        conns.barrier.on = owner_writer.is_some();
        Self {
            router,
            poll,
            clock: Instant::now(),
            conns,
            client_decoders: Vec::new(),
            worker_lines: Vec::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            batch: Vec::new(),
            outcome: FlushOutcome::default(),
            listeners: entries
                .into_iter()
                .map(|entry| ListenerSlot { entry, readable: false, listed: false })
                .collect(),
            limits,
            environment,
            orders,
            events,
            command_queue,
            owner_writer,
            hand_over,
            next_check: Time::MAX,
            checks: periodic::PeriodicChecks::default(),
            silent: silent_clients::SilentClients::default(),
            descriptors,
            draining: false,
            failed: None,
            panics: 0,
            drain_by: Time::MAX,
            tick_after: Time::ZERO,
            copied: Vec::new(),
            refused_users: LogLimit::default(),
        }
    }

    /// Runs the event loop until the core has finished.
    ///
    /// # Errors
    /// If the event loop cannot continue.
    pub(crate) fn run(mut self) -> Result<(), LoopError> {
        let result = self.run_rounds();
        let copied = std::mem::take(&mut self.copied);
        drop(self);
        for copied in copied {
            _ = copied.recv_timeout(LINGER_TIMEOUT);
        }
        result
    }

    fn run_rounds(&mut self) -> Result<(), LoopError> {
        let mut events = Events::with_capacity(MAX_POLL_EVENTS);
        self.open()?;
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.conns.finished && self.conns.closing.is_empty() && !self.conns.is_busy() {
                return Ok(());
            }
            match self.poll.poll(&mut events, self.timeout()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                Err(error) => return Err(LoopError::Poll(error)),
            }
            let now = self.clock.elapsed();
            self.conns.now = now;
            let mut woken = false;
            for event in &events {
                let place = PollToken::from_token(event.token());
                match place {
                    PollToken::Client(slot) => {
                        let Some(conn) = self.conns.client(slot) else { continue };
                        if event.is_write_closed() && conn.output.is_none() {
                            conn.intake.dead = true;
                            if conn.intake.ended {
                                self.drop_client(now, slot);
                                continue;
                            }
                        }
                        if event.is_readable() || event.is_read_closed() || event.is_error() {
                            conn.intake.readable = true;
                            conn.intake.hung_up |= event.is_read_closed() || event.is_error();
                            self.conns.list_client(slot);
                        }
                        if event.is_writable() {
                            self.conns.unblock_client(slot);
                        }
                    }
                    PollToken::Stdout(slot) => {
                        let Some(conn) = self.conns.worker(slot) else { continue };
                        conn.intake.readable = true;
                        conn.intake.hung_up |= event.is_read_closed() || event.is_error();
                        self.conns.list_worker(slot);
                    }
                    PollToken::Stdin(slot) => {
                        if event.is_write_closed() || event.is_error() {
                            self.stdin_closed(slot);
                        }
                        self.conns.unblock_worker(slot);
                    }
                    PollToken::ClientOutput(slot) => {
                        if event.is_write_closed() || event.is_error() {
                            self.drop_client(now, slot);
                        } else {
                            self.conns.unblock_client(slot);
                        }
                    }
                    PollToken::Listener(slot) => self.list_listener(slot),
                    PollToken::Waker => woken = true,
                }
            }
            if woken {
                self.run_commands(now);
                self.handle_worker_events(now);
                self.handle_owner_events();
            }
            self.read_all(now);
            self.tick(now);
            if self.next_check <= now || self.has_queued_much() {
                self.check(now);
            }
            self.settle(now);
        }
    }

    fn open(&mut self) -> Result<(), LoopError> {
        let mut own = Vec::new();
        for (slot, listener_slot) in self.listeners.iter_mut().enumerate() {
            let slot = u32::try_from(slot).unwrap_or(u32::MAX);
            match &mut listener_slot.entry {
                BoundListener::Socket(listener) => self
                    .poll
                    .registry()
                    .register(
                        &mut SourceFd(&listener.fd.as_raw_fd()),
                        PollToken::Listener(slot).token(),
                        Interest::READABLE,
                    )
                    .map_err(LoopError::Poll)?,
                BoundListener::Elsewhere => {}
                BoundListener::Stdio(ends) => own.extend(ends.take().map(|ends| (slot, ends))),
            }
        }
        let now = self.clock.elapsed();
        self.conns.now = now;
        self.router.start(now, &mut self.conns);
        for (listener, ends) in own {
            self.open_stdio(now, listener, ends);
        }
        self.start_checks(now);
        self.settle(now);
        Ok(())
    }

    /// Returns the time that the loop may wait for events. `None`: without a limit.
    fn timeout(&self) -> Option<Duration> {
        if !self.conns.ready.is_empty() || self.conns.is_busy() {
            return Some(Duration::ZERO);
        }
        let next = self.deadline().unwrap_or(Time::MAX).min(self.next_check);
        (next != Time::MAX).then(|| next.saturating_sub(self.clock.elapsed()))
    }

    /// Makes the next periodic check due at `when` or earlier.
    fn check_by(&mut self, when: Time) {
        self.next_check = self.next_check.min(when);
    }

    /// Reads once from each listed source. A source that is listed meanwhile is read in the next round.
    fn read_all(&mut self, now: Time) {
        std::mem::swap(&mut self.conns.ready, &mut self.batch);
        for index in 0..self.batch.len() {
            match self.batch[index] {
                PollToken::Client(slot) => self.read_client(now, slot),
                PollToken::Stdout(slot) => self.read_worker(now, slot),
                PollToken::Listener(slot) => self.accept(now, slot),
                PollToken::Waker | PollToken::ClientOutput(_) | PollToken::Stdin(_) => {}
            }
        }
        self.batch.clear();
    }

    fn settle(&mut self, now: Time) {
        for _ in 0..MAX_FLUSH_ROUNDS {
            self.perform_actions(now);
            self.send_entries();
            self.conns.flush(self.poll.registry(), &mut self.outcome);
            if !self.conns.closing.is_empty() {
                self.close_clients(now);
            }
            if !self.conns.full.is_empty() || self.outcome.must_check {
                self.outcome.must_check = false;
                self.watch_queues();
            }
            for slot in std::mem::take(&mut self.outcome.lost) {
                self.drop_client(now, slot);
            }
            for place in std::mem::take(&mut self.outcome.drained) {
                // A client that was lost meanwhile is already removed, and has no entry.
                match place {
                    PollToken::Client(slot) if self.conns.client(slot).is_some() => {
                        self.call_router(About::Client(slot), |router, conns| {
                            router.client_drained(now, ClientId(slot), conns);
                        });
                    }
                    PollToken::Stdin(slot) if self.conns.worker(slot).is_some() => {
                        self.call_router(About::Worker(slot), |router, conns| {
                            router.worker_drained(now, WorkerId(slot), conns);
                        });
                    }
                    _ => {}
                }
            }
            if !self.conns.is_busy() {
                return;
            }
        }
    }

    /// Applies changed limits, also to present connections. A WebSocket keeps its maximum message length.
    fn set_limits(&mut self, limits: &BusLimits) {
        self.limits = limits.clone();
        self.conns.queue_bytes = limits.queue_bytes;
        let clients = self.client_decoders.iter_mut().filter_map(|decoder| match decoder {
            ClientDecoder::Lines(lines) => Some(lines),
            ClientDecoder::Frames(_) => None,
        });
        clients.chain(&mut self.worker_lines).for_each(|lines| lines.set_limit(limits.max_line));
    }

    fn run_commands(&mut self, now: Time) {
        let commands = self.command_queue.take();
        if let Some(config) = commands.reload {
            self.set_limits(&config.limits);
            self.descriptors = room_for_connections(&config);
            self.call_router(About::All, |router, conns| router.reload(now, &config, conns));
            self.start_checks(now);
        }
        if commands.drain && !self.draining {
            self.draining = true;
            self.drain_by = now + self.limits.drain_timeout + DRAIN_GRACE;
            self.check_by(self.drain_by);
            if self.call_router(About::All, |router, conns| router.drain(now, conns)).is_none() {
                // A router that panics cannot drain, so the bus stops at once.
                self.conns.finished = true;
            }
        }
        for (socket, from) in commands.incoming {
            self.admit_incoming(now, socket, &from);
        }
        for Upgrade { upgraded, from, number, ended } in commands.upgrades {
            let websocket = WebSocketState::new(now, upgraded.idle, number, ended);
            self.admit_upgraded(now, upgraded, &from, websocket);
        }
        self.send_away(&commands.close_requests);
        for asker in commands.status {
            if let Some(status) = self.call_router(About::All, |router, _| router.status(now)) {
                // The receiver of the status may have been dropped.
                _ = asker.send((status, Queues::measure(&self.conns)));
            }
        }
    }
}
