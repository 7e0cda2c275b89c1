//! Lines of a client that wait for a worker, in order, until its pool has one or a deadline passes.

use std::hash::Hasher;

use narrows_acp::method::SESSION_CANCEL;
use narrows_wire::{Code, Kind, RpcError, View};
use rustc_hash::FxHasher;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::cancellation::cancels_request;
use super::session::{SessionState, Waiting};
use super::state::{Held, HeldLine};
use super::table::ClientKey;
use super::timer::Timer;

#[derive(Clone, Copy)]
enum HeldPosition {
    Front,
    /// The line is placed after the accepted lines and before all others.
    Accepted,
    Back,
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Holds an accepted line until the client's pool has a worker for it. It is placed before lines that
    /// were not handled yet, because they came later. The same applies to the rest of a batch.
    pub(super) fn hold(&mut self, client: ClientKey, line: &[u8], batch: Option<BatchKey>) {
        self.insert_held(
            client,
            HeldLine { line: line.into(), batch, accepted: true },
            HeldPosition::Accepted,
        );
    }

    /// Holds a line that comes after the held lines of its client.
    pub(super) fn hold_behind(&mut self, client: ClientKey, line: &[u8]) {
        self.insert_held(
            client,
            HeldLine { line: line.into(), batch: None, accepted: false },
            HeldPosition::Back,
        );
    }

    /// Returns `true` if a message need not wait behind the held lines of its client: its session has a
    /// worker, or its order does not matter, as with responses and invalid lines.
    pub(super) fn overtakes(&mut self, client: ClientKey, message: View<'_>) -> bool {
        match (message.kind(), message.method().as_deref()) {
            (Kind::Response | Kind::Invalid(_), _) => true,
            (Kind::Batch, _) => false,
            (_, Some(method)) if cancels_request(method) => self.can_cancel(client, message),
            (_, method) => {
                let Some(held) = self.core.client(client).and_then(|state| state.held.as_ref()) else {
                    return true;
                };
                // If a held request has the same id, the message has to wait behind that request.
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

    /// Handles lines of clients again, in order, because their worker was lost or had no room. Held lines of
    /// the same client that came later stay behind them.
    pub(super) fn handle_again(&mut self, lines: Vec<Waiting>) {
        let waits = |core: &super::Core, client: ClientKey| {
            core.clients.get(client).is_some_and(|state| state.held.is_some())
        };
        let (behind, free): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| waits(self.core, line.client));
        for line in behind.into_iter().rev() {
            let held = HeldLine { line: line.line, batch: line.batch, accepted: true };
            self.insert_held(line.client, held, HeldPosition::Front);
        }
        for line in &free {
            self.set_catching_up(line.client, true);
        }
        for line in &free {
            self.handle_client_message(line.client, View::parse(&line.line), line.batch);
        }
        for line in free {
            self.set_catching_up(line.client, false);
            self.close_if_served(line.client);
        }
    }

    fn insert_held(&mut self, client: ClientKey, line: HeldLine, place: HeldPosition) {
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

    /// Handles the lines of the clients that wait for a worker of `pool`, longest wait first, until a client
    /// has to wait again.
    pub(super) fn serve_waiting(&mut self, pool: PoolId) {
        while let Some(client) = self.core.pool_mut(pool).waiting.pop_front() {
            let waits_here = !self.release(client)
                && self.core.client(client).is_some_and(|state| state.pool == Some(pool));
            if waits_here {
                // A client that has to wait again stays first in the queue.
                let waiting = &mut self.core.pool_mut(pool).waiting;
                waiting.retain(|other| *other != client);
                waiting.push_front(client);
                return;
            }
        }
    }

    /// Handles the held lines of a client whose first line was cancelled.
    pub(super) fn release_after_cancel(&mut self, client: ClientKey) {
        for pool in &mut self.core.pools {
            pool.waiting.retain(|waiting| *waiting != client);
        }
        self.release(client);
    }

    /// Handles the held lines of a client. Returns `true` if no line is held afterwards.
    fn release(&mut self, client: ClientKey) -> bool {
        let Some(held) = self.take_held(client) else { return true };
        self.set_catching_up(client, true);
        let mut lines = held.lines.into_iter();
        for HeldLine { line, batch, .. } in lines.by_ref() {
            self.handle_client_message(client, View::parse(&line), batch);
            if self.core.client(client).is_none_or(|state| state.held.is_some()) {
                break;
            }
        }
        // The line that had to wait again is already the first held line. These lines follow it.
        for line in lines {
            self.insert_held(client, line, HeldPosition::Back);
        }
        self.set_catching_up(client, false);
        let released = self.core.client(client).is_none_or(|state| state.held.is_none());
        if released {
            self.close_if_served(client);
        }
        released
    }

    /// Sets `catching_up` of a client, which then stays open even without pending requests.
    fn set_catching_up(&mut self, client: ClientKey, on: bool) {
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

    pub(super) fn expire_held(&mut self, client: ClientKey) {
        let Some(pool) = self.core.client(client).and_then(|state| state.pool) else { return };
        let error = self.no_worker(pool, Code::Deadline);
        self.refuse_held(client, &error);
    }

    pub(super) fn refuse_held(&mut self, client: ClientKey, error: &RpcError) {
        let Some(held) = self.take_held(client) else { return };
        for pool in &mut self.core.pools {
            pool.waiting.retain(|waiting| *waiting != client);
        }
        self.set_catching_up(client, true);
        for held in held.lines {
            // After one entry of a batch was refused, the next may have to wait, with all lines behind it.
            if self.core.client(client).is_some_and(|state| state.held.is_some()) {
                self.insert_held(client, held, HeldPosition::Back);
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
        self.set_catching_up(client, false);
        self.close_if_served(client);
    }
}

/// Returns a hash of a request id. If two ids have the same hash, a line waits unnecessarily.
fn hash(id: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(id);
    hasher.finish()
}
