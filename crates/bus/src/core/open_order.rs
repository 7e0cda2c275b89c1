//! The order of requests that open sessions in a worker which several identities share.
//!
//! An agent that numbers its sessions may create a session for one identity under the name by which another
//! identity asks for a stored session. The agent would open the new session for both. No session is therefore
//! loaded, resumed or restored in a worker that has a pending request of another identity for a new session.
//! Another worker is used, or the request waits for the response.

use narrows_wire::{Code, RpcError, View};
use rustc_hash::FxHashMap;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::identity::Identity;
use super::session::{SessionKey, Waiting};
use super::state::{RequestLocation, WorkerLifecycle};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// Maximum number of requests of one identity that wait for the new sessions of others.
const MAX_WAITING: usize = 1024;

/// Requests and sessions that wait until a worker has answered requests for new sessions.
#[derive(Debug, Default)]
pub(super) struct AwaitedCreations {
    pub(super) lines: Vec<(WorkerKey, Waiting)>,
    sessions: Vec<(WorkerKey, SessionKey)>,
    is_scheduled: bool,
}

impl AwaitedCreations {
    pub(super) fn take_waiting(&mut self, is_it: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        let at = self.lines.iter().position(|(_, waiting)| is_it(waiting))?;
        Some(self.lines.remove(at).1)
    }

    pub(super) fn forget(&mut self, client: ClientKey) {
        self.lines.retain(|(_, waiting)| waiting.client != client);
    }
}

pub(super) enum OpeningPlace {
    At(WorkerKey),
    /// The session is opened in this worker, once the worker has answered the requests for new sessions.
    Behind(WorkerKey),
    Nowhere,
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Chooses a worker in which a client opens a stored session. The workers in `closed` are excluded.
    pub(super) fn choose_worker_for_stored(
        &mut self,
        pool: PoolId,
        client: ClientKey,
        identity: Identity,
        mut closed: Vec<WorkerKey>,
    ) -> OpeningPlace {
        let is_ready = |worker: &WorkerKey| {
            self.core.workers.get(*worker).is_some_and(|state| state.stage == WorkerLifecycle::Ready)
        };
        let state = self.core.pool_of(pool);
        // Only in a pool that mixes identities may a client use a worker of another identity.
        let mixes = state.settings.mix_identities;
        let workers = state.workers.iter().copied().filter(|_| mixes);
        let busy: Vec<WorkerKey> = workers
            .filter(|worker| !closed.contains(worker) && is_ready(worker))
            .filter(|worker| self.creates_for_others(*worker, identity))
            .collect();
        closed.extend(&busy);
        match (self.choose_worker(pool, client, &closed), busy.first()) {
            (Some(worker), _) => OpeningPlace::At(worker),
            (None, Some(worker)) => OpeningPlace::Behind(*worker),
            (None, None) => OpeningPlace::Nowhere,
        }
    }

    /// Returns `true` if a worker has a pending request of another identity for a new session.
    fn creates_for_others(&self, worker: WorkerKey, identity: Identity) -> bool {
        self.core.workers.get(worker).is_some_and(|state| state.pending.creates_for_others(identity))
    }

    pub(super) fn await_creations(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let Some(identity) = self.core.client(client).map(|state| state.identity) else { return };
        let clients = &self.core.clients;
        let is_its =
            |waiting: &Waiting| clients.get(waiting.client).is_some_and(|state| state.identity == identity);
        let lines = &self.core.awaited_creations.lines;
        if lines.iter().filter(|(_, waiting)| is_its(waiting)).count() >= MAX_WAITING {
            if let Some(id) = message.id() {
                let error = RpcError::new(Code::Backpressure, "too many requests wait for new sessions");
                self.refuse(client, id, batch, message.tag(), &error);
            }
            return;
        }
        self.mark_waiting(client, message, RequestLocation::BehindCreations);
        let charge = self.core.charge(client, message.bytes().len());
        let waiting = Waiting { client, line: message.bytes().into(), batch, _charge: charge };
        self.core.awaited_creations.lines.push((worker, waiting));
    }

    /// Restores a lost session in a worker, once the worker has answered the requests for new sessions.
    pub(super) fn restore_after_creations(&mut self, worker: WorkerKey, key: SessionKey) {
        self.core.awaited_creations.sessions.push((worker, key));
    }

    /// Schedules the requests that waited until a worker had answered a request for a new session. The timer
    /// routes them after the caller has finished handling the worker.
    pub(super) fn schedule_opening_retry(&mut self) {
        let awaited = &mut self.core.awaited_creations;
        let is_empty = awaited.lines.is_empty() && awaited.sessions.is_empty();
        if !is_empty && !std::mem::replace(&mut awaited.is_scheduled, true) {
            self.core.timers.set(self.now, Timer::RetryOpenings);
        }
    }

    /// Handles the requests and sessions that no longer wait for new sessions of other identities.
    pub(super) fn retry_openings(&mut self) {
        let mut awaited = std::mem::take(&mut self.core.awaited_creations);
        // The state of each worker and identity is computed once, because many lines may wait for many
        // requests.
        let mut busy: FxHashMap<(WorkerKey, Identity), bool> = FxHashMap::default();
        let mut is_due = |worker: WorkerKey, identity: Option<Identity>| {
            let Some(identity) = identity else { return true };
            !*busy.entry((worker, identity)).or_insert_with(|| self.creates_for_others(worker, identity))
        };
        let lines = awaited.lines.extract_if(.., |(worker, waiting)| {
            is_due(*worker, self.core.clients.get(waiting.client).map(|state| state.identity))
        });
        let lines: Vec<Waiting> = lines.map(|(_, waiting)| waiting).collect();
        let sessions = awaited.sessions.extract_if(.., |(worker, key)| {
            is_due(*worker, self.core.sessions.get(*key).map(|session| session.identity))
        });
        let sessions: Vec<SessionKey> = sessions.map(|(_, key)| key).collect();
        awaited.is_scheduled = false;
        self.core.awaited_creations = awaited;
        for waiting in &lines {
            self.release_request_id(waiting.client, &waiting.line);
        }
        self.handle_again(lines);
        for key in sessions {
            self.start_restore(key);
        }
    }
}
