//! The event loop: one thread, with one read per source and one write per destination in each round.
//!
//! Readiness is edge-triggered and remembered: a source with more data than one read stays listed and is read again in the next
//! round, after all others. All reads share one buffer; lines are split in place and passed to the [`Router`], which appends to
//! queues. After all reads, each queue is written once.

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

use crate::config::Limits;
use crate::core::{ClientId, Time, WorkerId};
use crate::listen::BoundListener;
use crate::log_limit::LogLimit;
use crate::owner_store::OwnerWriter;
use crate::spawner::{Orders, WorkerEvent};

pub(crate) use commands::CommandQueue;
use commands::Upgrade;
pub use commands::{IncomingClient, WebSocketHandle};
pub(crate) use fd_limit::{
    anonymous as anonymous_connections, before as own_descriptors, cap as cap_connections,
    most as most_descriptors, needed as needed_descriptors, raise as raise_descriptors,
    room as room_for_connections,
};
pub use handshake::{HandOver, Handoff};
pub use queue_stats::Queues;
pub use router::Router;

use connections::{Connections, Outcome};
use panic_guard::About;
use poll_token::PollToken;
use websocket::{ClientDecoder, Framed};

/// Bytes per read: several long lines, so that few have to be joined from two reads.
const READ_BYTES: usize = 512 << 10;
const MAX_POLL_EVENTS: usize = 1024;
/// Timeout for a client that is being closed to take the rest of its queue.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for a slow reader.
const SLOW_LINGER_TIMEOUT: Duration = Duration::from_secs(3);
/// The same when the bus drains.
const DRAIN_LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time to drain for a router that has panicked before and may wait for an event that never comes.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Write rounds before the next read, because a write can make the core queue more.
const MAX_FLUSH_ROUNDS: usize = 8;

/// The reason why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopError {
    /// Waiting for events failed.
    #[error("cannot wait for events: {0}")]
    Poll(io::Error),
    /// The spawner thread has ended.
    #[error("the thread that starts processes is gone")]
    Nursery,
}

/// The parts of a driver.
pub(crate) struct Parts<B: Router> {
    pub(crate) brain: B,
    pub(crate) poll: Poll,
    pub(crate) entries: Vec<BoundListener>,
    pub(crate) limits: Limits,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) orders: Orders,
    pub(crate) news: Receiver<WorkerEvent>,
    pub(crate) mailbox: Arc<CommandQueue<B::Status>>,
    pub(crate) ledger: Option<OwnerWriter>,
    pub(crate) hand_over: Option<HandOver>,
    /// Descriptors for connections.
    pub(crate) descriptors: usize,
}

/// The event loop.
pub(crate) struct Driver<B: Router> {
    brain: B,
    poll: Poll,
    clock: Instant,
    ports: Connections,
    /// The incomplete input of each client and worker.
    client_cutters: Vec<ClientDecoder>,
    worker_lines: Vec<Splitter>,
    scratch: Box<[u8]>,
    /// The list of ready sources while it is processed. Kept for its allocation.
    batch: Vec<PollToken>,
    outcome: Outcome,
    listeners: Vec<ListenerSlot>,
    limits: Limits,
    environment: Vec<(OsString, OsString)>,
    orders: Orders,
    news: Receiver<WorkerEvent>,
    mailbox: Arc<CommandQueue<B::Status>>,
    /// The writer of session owners, if they are recorded.
    ledger: Option<OwnerWriter>,
    hand_over: Option<HandOver>,
    /// The time of the next periodic check.
    next_check: Time,
    watch: periodic::Watch,
    /// Clients that have sent no message yet.
    silent: silent_clients::Silent,
    /// Descriptors for connections.
    descriptors: usize,
    draining: bool,
    failed: Option<LoopError>,
    /// Number of panics of the router.
    panics: u64,
    /// The time at which a drain ends even if the router, after a panic, does not end it.
    drain_by: Time,
    /// Timers of the router are not run before this time.
    tick_after: Time,
    /// Threads that copy to a file. They are waited for briefly at the end.
    copied: Vec<Receiver<()>>,
    refused_users: LogLimit,
}

/// A configured listener.
struct ListenerSlot {
    entry: BoundListener,
    readable: bool,
    listed: bool,
}

/// Returns the token of the waker that other threads use.
pub(crate) fn waker_token() -> mio::Token {
    PollToken::Waker.token()
}

impl<B: Router> Driver<B> {
    pub(crate) fn new(parts: Parts<B>) -> Self {
        let Parts { brain, poll, entries, limits, environment, orders, news, mailbox, .. } = parts;
        let (ledger, hand_over, descriptors) = (parts.ledger, parts.hand_over, parts.descriptors);
        let mut ports = Connections::new(limits.queue_bytes, limits.stall_timeout);
        ports.holding.on = ledger.is_some();
        Self {
            brain,
            poll,
            clock: Instant::now(),
            ports,
            client_cutters: Vec::new(),
            worker_lines: Vec::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            batch: Vec::new(),
            outcome: Outcome::default(),
            listeners: entries
                .into_iter()
                .map(|entry| ListenerSlot { entry, readable: false, listed: false })
                .collect(),
            limits,
            environment,
            orders,
            news,
            mailbox,
            ledger,
            hand_over,
            next_check: Time::MAX,
            watch: periodic::Watch::default(),
            silent: silent_clients::Silent::default(),
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

    /// Runs until the core has finished.
    ///
    /// # Errors
    /// If the loop cannot continue.
    pub(crate) fn run(mut self) -> Result<(), LoopError> {
        let result = self.carry();
        let copied = std::mem::take(&mut self.copied);
        drop(self);
        for copied in copied {
            _ = copied.recv_timeout(LINGER_TIMEOUT);
        }
        result
    }

    fn carry(&mut self) -> Result<(), LoopError> {
        let mut events = Events::with_capacity(MAX_POLL_EVENTS);
        self.open()?;
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.ports.finished && self.ports.closing.is_empty() && !self.ports.is_busy() {
                return Ok(());
            }
            match self.poll.poll(&mut events, self.timeout()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                Err(error) => return Err(LoopError::Poll(error)),
            }
            let now = self.clock.elapsed();
            self.ports.now = now;
            let mut woken = false;
            for event in &events {
                let place = PollToken::from_token(event.token());
                match place {
                    PollToken::Client(slot) => {
                        let Some(conn) = self.ports.client(slot) else { continue };
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
                            self.ports.list_client(slot);
                        }
                        if event.is_writable() {
                            self.ports.unblock_client(slot);
                        }
                    }
                    PollToken::Stdout(slot) => {
                        let Some(hand) = self.ports.worker(slot) else { continue };
                        hand.intake.readable = true;
                        hand.intake.hung_up |= event.is_read_closed() || event.is_error();
                        self.ports.list_worker(slot);
                    }
                    PollToken::Stdin(slot) => {
                        if event.is_write_closed() || event.is_error() {
                            self.stdin_closed(slot);
                        }
                        self.ports.unblock_worker(slot);
                    }
                    PollToken::ClientOutput(slot) => {
                        if event.is_write_closed() || event.is_error() {
                            self.drop_client(now, slot);
                        } else {
                            self.ports.unblock_client(slot);
                        }
                    }
                    PollToken::Listener(slot) => self.list_listener(slot),
                    PollToken::Waker => woken = true,
                }
            }
            if woken {
                self.run_commands(now);
                self.handle_worker_events(now);
                self.take_kept();
            }
            self.read_all(now);
            self.tick(now);
            if self.next_check <= now || self.has_queued_much() {
                self.check(now);
            }
            self.settle(now);
        }
    }

    /// Registers the listeners and starts the router.
    fn open(&mut self) -> Result<(), LoopError> {
        let mut own = Vec::new();
        for (slot, door) in self.listeners.iter_mut().enumerate() {
            let slot = u32::try_from(slot).unwrap_or(u32::MAX);
            match &mut door.entry {
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
        self.ports.now = now;
        self.brain.start(now, &mut self.ports);
        for (listener, ends) in own {
            self.open_stdio(now, listener, ends);
        }
        self.start_watching(now);
        self.settle(now);
        Ok(())
    }

    /// Returns how long to wait for events.
    fn timeout(&self) -> Option<Duration> {
        if !self.ports.ready.is_empty() || self.ports.is_busy() {
            return Some(Duration::ZERO);
        }
        let next = self.deadline().unwrap_or(Time::MAX).min(self.next_check);
        (next != Time::MAX).then(|| next.saturating_sub(self.clock.elapsed()))
    }

    /// Schedules a periodic check at `when` or earlier.
    fn check_by(&mut self, when: Time) {
        self.next_check = self.next_check.min(when);
    }

    /// Reads once from each listed source. Sources listed meanwhile wait for the next round.
    fn read_all(&mut self, now: Time) {
        std::mem::swap(&mut self.ports.ready, &mut self.batch);
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

    /// Performs the core's actions and writes its output until there is no more.
    fn settle(&mut self, now: Time) {
        for _ in 0..MAX_FLUSH_ROUNDS {
            self.carry_out(now);
            self.send_entries();
            self.ports.flush(self.poll.registry(), &mut self.outcome);
            if !self.ports.closing.is_empty() {
                self.hang_up(now);
            }
            if !self.ports.full.is_empty() || self.outcome.look {
                self.outcome.look = false;
                self.watch_queues();
            }
            for slot in std::mem::take(&mut self.outcome.lost) {
                self.drop_client(now, slot);
            }
            for place in std::mem::take(&mut self.outcome.drained) {
                // A client lost meanwhile is already removed.
                match place {
                    PollToken::Client(slot) if self.ports.client(slot).is_some() => {
                        self.ask(About::Client(slot), |brain, ports| {
                            brain.client_drained(now, ClientId(slot), ports);
                        });
                    }
                    PollToken::Stdin(slot) if self.ports.worker(slot).is_some() => {
                        self.ask(About::Worker(slot), |brain, ports| {
                            brain.worker_drained(now, WorkerId(slot), ports);
                        });
                    }
                    _ => {}
                }
            }
            if !self.ports.is_busy() {
                return;
            }
        }
    }

    /// Applies other limits, also to present connections. A WebSocket keeps its maximum message length.
    fn set_limits(&mut self, limits: &Limits) {
        self.limits = limits.clone();
        self.ports.queue_bytes = limits.queue_bytes;
        let clients = self.client_cutters.iter_mut().filter_map(|cutter| match cutter {
            ClientDecoder::Lines(lines) => Some(lines),
            ClientDecoder::Frames(_) => None,
        });
        clients.chain(&mut self.worker_lines).for_each(|lines| lines.set_limit(limits.max_line));
    }

    /// Runs the commands from handles of the bus.
    fn run_commands(&mut self, now: Time) {
        let mail = self.mailbox.empty();
        if let Some(config) = mail.reload {
            self.set_limits(&config.limits);
            self.descriptors = fd_limit::room(&config);
            self.ask(About::All, |brain, ports| brain.reload(now, &config, ports));
            self.start_watching(now);
        }
        if mail.drain && !self.draining {
            self.draining = true;
            self.drain_by = now + self.limits.drain_timeout + DRAIN_GRACE;
            self.check_by(self.drain_by);
            if self.ask(About::All, |brain, ports| brain.drain(now, ports)).is_none() {
                // A router that panics cannot drain, but the bus still stops.
                self.ports.finished = true;
            }
        }
        for (socket, from) in mail.newcomers {
            self.admit_newcomer(now, socket, &from);
        }
        for Upgrade { upgraded, from, number, ended } in mail.upgrades {
            let framed = Framed::new(now, upgraded.idle, number, ended);
            self.admit_upgraded(now, upgraded, &from, framed);
        }
        self.send_away(&mail.farewells);
        for asker in mail.status {
            if let Some(status) = self.ask(About::All, |brain, _| brain.status(now)) {
                // The receiver may be gone.
                _ = asker.send((status, Queues::measure(&self.ports)));
            }
        }
    }
}
