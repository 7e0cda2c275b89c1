//! The loop that carries bytes: one thread, one read per source and one write per destination in each round.
//!
//! Readiness is edge-triggered and remembered, so whoever had more than fits into one read stays on a list and is read
//! again in the next round, after everybody else. All reads share one buffer; lines are cut in it where they stand and
//! shown to the [`Router`], which appends to queues. When everybody was read, each queue is written once.

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

/// How much is read at a time: a few long lines, so that none has to be put together from two reads.
const READ_BYTES: usize = 512 << 10;
/// How many events are taken at a time.
const MAX_POLL_EVENTS: usize = 1024;
/// How long a client that is hung up on may take for what waits for it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for one that reads slowly, as long as it takes something.
const SLOW_LINGER_TIMEOUT: Duration = Duration::from_secs(3);
/// The same when the bus stops.
const DRAIN_LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than it should a brain may take to stop if it has failed before, and may wait for what never comes.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// How often writing is repeated because it made the core say more, before anything is read again.
const MAX_FLUSH_ROUNDS: usize = 8;

/// Why a loop ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopError {
    /// The system does not tell what happens.
    #[error("cannot wait for events: {0}")]
    Poll(io::Error),
    /// Nobody starts processes any more.
    #[error("the thread that starts processes is gone")]
    Nursery,
}

/// Everything a loop is made of.
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
    /// How many descriptors connections may take.
    pub(crate) descriptors: usize,
}

/// The loop.
pub(crate) struct Driver<B: Router> {
    brain: B,
    poll: Poll,
    clock: Instant,
    ports: Connections,
    /// What is unfinished of each client's, and of each worker's.
    client_cutters: Vec<ClientDecoder>,
    worker_lines: Vec<Splitter>,
    scratch: Box<[u8]>,
    /// The list of those to be read while it is worked off; kept for its memory.
    batch: Vec<PollToken>,
    outcome: Outcome,
    listeners: Vec<ListenerSlot>,
    limits: Limits,
    environment: Vec<(OsString, OsString)>,
    orders: Orders,
    news: Receiver<WorkerEvent>,
    mailbox: Arc<CommandQueue<B::Status>>,
    /// Where it is written down whose sessions are.
    ledger: Option<OwnerWriter>,
    hand_over: Option<HandOver>,
    /// When [`checks`] wants to look again.
    next_check: Time,
    watch: periodic::Watch,
    /// Those who have sent no message yet.
    silent: silent_clients::Silent,
    /// How many descriptors connections may take.
    descriptors: usize,
    draining: bool,
    failed: Option<LoopError>,
    /// How often the brain has failed.
    panics: u64,
    /// When a brain that has failed must have stopped, once it was told to.
    drain_by: Time,
    /// Before that, the brain is not told the time.
    tick_after: Time,
    /// Threads that copy to a file, which are given a moment at the end.
    copied: Vec<Receiver<()>>,
    /// Connections that were refused because of their user.
    refused_users: LogLimit,
}

/// Where clients come in.
struct ListenerSlot {
    entry: BoundListener,
    readable: bool,
    listed: bool,
}

/// The place of the waker that other threads use.
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

    /// Carries until the core has finished.
    ///
    /// # Errors
    /// When that is no longer possible.
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

    /// Registers what is there from the beginning and tells the core.
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

    /// How long nothing needs to be done unless something happens.
    fn timeout(&self) -> Option<Duration> {
        if !self.ports.ready.is_empty() || self.ports.is_busy() {
            return Some(Duration::ZERO);
        }
        let next = self.deadline().unwrap_or(Time::MAX).min(self.next_check);
        (next != Time::MAX).then(|| next.saturating_sub(self.clock.elapsed()))
    }

    /// Looks again at `when` at the latest.
    fn check_by(&mut self, when: Time) {
        self.next_check = self.next_check.min(when);
    }

    /// Reads once from everybody on the list. Who is put on it meanwhile waits for the next round.
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

    /// Does what the core ordered and writes what it said, until it says no more.
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
                // Whoever was lost meanwhile is not told of again.
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

    /// Keeps everybody to other limits, also those who are there. What comes in frames keeps the length it was let in with.
    fn set_limits(&mut self, limits: &Limits) {
        self.limits = limits.clone();
        self.ports.queue_bytes = limits.queue_bytes;
        let clients = self.client_cutters.iter_mut().filter_map(|cutter| match cutter {
            ClientDecoder::Lines(lines) => Some(lines),
            ClientDecoder::Frames(_) => None,
        });
        clients.chain(&mut self.worker_lines).for_each(|lines| lines.set_limit(limits.max_line));
    }

    /// Does what handles of the bus were asked for.
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
                // Whoever cannot stop gently still stops.
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
                // Whoever asked may have gone away.
                _ = asker.send((status, Queues::measure(&self.ports)));
            }
        }
    }
}
