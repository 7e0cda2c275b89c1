//! Lines of a client that wait for a worker, in order, until its pool has one or a deadline passes.

use std::hash::Hasher;

use narrows_acp::method::{CANCEL_REQUEST, SESSION_CANCEL};
use narrows_wire::{Code, Kind, RpcError, View};
use rustc_hash::FxHasher;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::from_client::MCP_CANCELLED;
use super::session::{SessionState, Waiting};
use super::state::{Held, HeldLine};
use super::table::ClientKey;
use super::timer::Timer;

/// Where a line is put among those that wait.
#[derive(Clone, Copy)]
enum HeldPosition {
    Front,
    /// Behind the lines that were accepted, before all others.
    Accepted,
    Back,
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Keeps a line that was acted on until the client's pool has a worker for it. It waits before lines that were not:
    /// if it is the rest of an array, they came after that.
    pub(super) fn hold(&mut self, client: ClientKey, line: &[u8], batch: Option<BatchKey>) {
        self.keep(client, HeldLine { line: line.into(), batch, accepted: true }, HeldPosition::Accepted);
    }

    /// Keeps a line behind those of the client that wait.
    pub(super) fn hold_behind(&mut self, client: ClientKey, line: &[u8]) {
        self.keep(client, HeldLine { line: line.into(), batch: None, accepted: false }, HeldPosition::Back);
    }

    /// Whether a message need not wait behind the lines of its client that do: it is for what has its worker, or it is nobody's successor, as
    /// answers are and what cannot be read.
    pub(super) fn overtakes(&mut self, client: ClientKey, message: View<'_>) -> bool {
        match (message.kind(), message.method().as_deref()) {
            (Kind::Response | Kind::Invalid(_), _) => true,
            (Kind::Batch, _) => false,
            (_, Some(CANCEL_REQUEST | MCP_CANCELLED)) => self.can_give_up(client, message),
            (_, method) => {
                let Some(held) = self.core.client(client).and_then(|state| state.held.as_ref()) else {
                    return true;
                };
                // Of two requests with one id, the first one is served.
                let is_doubled = message.id().is_some_and(|id| held.ids.contains(&hash(id)));
                let is_behind = is_doubled || held.has_batch && method != Some(SESSION_CANCEL);
                let session = message.session().and_then(|name| self.core.sessions.find(&name));
                let session = session.and_then(|key| self.core.sessions.get(key)).filter(|_| !is_behind);
                session.is_some_and(|session| {
                    session.owner == Some(client) && matches!(session.place, SessionState::On(_))
                })
            }
        }
    }

    /// Acts once more on lines of clients that came to nothing, in their order. What came behind them still waits behind
    /// them.
    pub(super) fn take_again(&mut self, lines: Vec<Waiting>) {
        let waits = |core: &super::Core, client: ClientKey| {
            core.clients.get(client).is_some_and(|state| state.held.is_some())
        };
        let (behind, free): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| waits(self.core, line.client));
        for line in behind.into_iter().rev() {
            let held = HeldLine { line: line.line, batch: line.batch, accepted: true };
            self.keep(line.client, held, HeldPosition::Front);
        }
        for line in &free {
            self.catch_up(line.client, true);
        }
        for line in &free {
            self.handle_client_message(line.client, View::parse(&line.line), line.batch);
        }
        for line in free {
            self.catch_up(line.client, false);
            self.close_if_served(line.client);
        }
    }

    fn keep(&mut self, client: ClientKey, line: HeldLine, place: HeldPosition) {
        let limit = self.core.limits.queue_bytes;
        let at = self.now + self.core.limits.initialize_timeout;
        let serial = self.core.next_serial();
        let charge = self.core.charge(client, 0);
        let Some(state) = self.core.client(client) else { return };
        let pool = state.pool;
        let is_first = state.held.is_none();
        let held = state.held.get_or_insert_with(|| Box::new(Held { serial, ..Held::default() }));
        held.bytes += line.line.len();
        held.charge.get_or_insert(charge);
        held.has_batch |= line.line.trim_ascii_start().starts_with(b"[");
        held.ids.extend(line.line.id().map(hash));
        let at_index = match place {
            HeldPosition::Front => 0,
            HeldPosition::Accepted => held.lines.partition_point(|line| line.accepted),
            HeldPosition::Back => held.lines.len(),
        };
        held.lines.insert(at_index, line);
        held.recharge();
        let pauses = held.bytes > limit && !held.paused;
        held.paused |= pauses;
        if is_first {
            self.core.timers.set(at, Timer::Held(client, serial));
            if let Some(pool) = pool {
                self.core.pool_mut(pool).waiting.push_back(client);
            }
        }
        if pauses {
            self.pause_client(client);
        }
    }

    /// Lets clients go on that wait for a worker of `pool`, the longest waiting first, until one has to wait again.
    pub(super) fn serve_waiting(&mut self, pool: PoolId) {
        while let Some(client) = self.core.pool_mut(pool).waiting.pop_front() {
            let waits_here = !self.release(client)
                && self.core.client(client).is_some_and(|state| state.pool == Some(pool));
            if waits_here {
                // It waits in front again: whoever came first goes first.
                let waiting = &mut self.core.pool_mut(pool).waiting;
                waiting.retain(|other| *other != client);
                waiting.push_front(client);
                return;
            }
        }
    }

    /// The same for a client whose first line waits no more.
    pub(super) fn release_anew(&mut self, client: ClientKey) {
        for pool in &mut self.core.pools {
            pool.waiting.retain(|waiting| *waiting != client);
        }
        self.release(client);
    }

    /// Acts on what a client has waiting. Tells whether all of it has gone.
    fn release(&mut self, client: ClientKey) -> bool {
        let Some(held) = self.take_held(client) else { return true };
        self.catch_up(client, true);
        let mut lines = held.lines.into_iter();
        for HeldLine { line, batch, .. } in lines.by_ref() {
            self.handle_client_message(client, View::parse(&line), batch);
            if self.core.client(client).is_none_or(|state| state.held.is_some()) {
                break;
            }
        }
        // The one that had to wait again is the first of those that wait now.
        for line in lines {
            self.keep(client, line, HeldPosition::Back);
        }
        self.catch_up(client, false);
        let released = self.core.client(client).is_none_or(|state| state.held.is_none());
        if released {
            self.close_if_served(client);
        }
        released
    }

    /// While it does, a client that is owed nothing for the moment is not hung up on.
    fn catch_up(&mut self, client: ClientKey, on: bool) {
        if let Some(state) = self.core.client(client) {
            state.catching_up = on;
        }
    }

    fn take_held(&mut self, client: ClientKey) -> Option<Box<Held>> {
        let held = self.core.client(client)?.held.take()?;
        if held.paused {
            self.resume_client(client);
        }
        Some(held)
    }

    /// Refuses what a client has waiting: it has waited long enough.
    pub(super) fn give_up_waiting(&mut self, client: ClientKey) {
        let Some(pool) = self.core.client(client).and_then(|state| state.pool) else { return };
        let error = self.no_worker(pool, Code::Deadline);
        self.refuse_held(client, &error);
    }

    /// Refuses what a client has waiting.
    pub(super) fn refuse_held(&mut self, client: ClientKey, error: &RpcError) {
        let Some(held) = self.take_held(client) else { return };
        for pool in &mut self.core.pools {
            pool.waiting.retain(|waiting| *waiting != client);
        }
        self.catch_up(client, true);
        for held in held.lines {
            // The next entry of a batch whose first was refused may wait by now: all behind it waits too.
            if self.core.client(client).is_some_and(|state| state.held.is_some()) {
                self.keep(client, held, HeldPosition::Back);
                continue;
            }
            let HeldLine { line, batch, .. } = held;
            let message = View::parse(&line);
            match (message.kind(), message.id()) {
                (Kind::Request, Some(id)) => {
                    if !self.refuse_doubled(client, id, batch, message.tag()) {
                        self.refuse(client, id, batch, message.tag(), error);
                    }
                }
                (Kind::Batch, _) => self.refuse_batch(client, message, error),
                (Kind::Invalid(fault), _) => self.client_fault(client, message, fault),
                _ => self.core.counters.dropped += 1,
            }
        }
        self.catch_up(client, false);
        self.close_if_served(client);
    }
}

/// A hash of an id. Two ids with one hash only make a line wait that need not.
fn hash(id: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(id);
    hasher.finish()
}
