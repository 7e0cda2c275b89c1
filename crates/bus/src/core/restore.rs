//! Restores a session of a lost worker in another worker when the session is used next, if the agent can load
//! or resume sessions.

use narrows_acp::method;
use narrows_wire::{Code, RpcError, View};
use serde_json::{Value, json};

use crate::config::ShareMode;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::errors::unknown_server;
use super::former_names::NameUse;
use super::open_order::OpeningPlace;
use super::route::Route;
use super::session::{SessionKey, SessionState, Waiting};
use super::state::{InternalRequest, RequestKind, RequestLocation, WorkerLifecycle};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// Maximum number of lines that wait until a session is restored.
const MAX_WAITING_LINES: usize = 1024;

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn await_session(
        &mut self,
        key: SessionKey,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let limit = self.core.limits.queue_bytes;
        let at = self.now + self.core.limits.initialize_timeout;
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let held: usize = session.waiting.iter().map(|waiting| waiting.line.len()).sum();
        if held > limit || session.waiting.len() >= MAX_WAITING_LINES {
            if let Some(id) = message.id() {
                let error = RpcError::new(Code::Backpressure, "too many requests waiting for the session");
                self.refuse(client, id, batch, message.tag(), &error);
            }
            return;
        }
        let charge = self.core.charge_line(client, message.bytes());
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.waiting.push(Waiting { client, line: message.bytes().into(), batch, _charge: charge });
        let is_lost = matches!(session.place, SessionState::Lost(_)) && session.waiting.len() == 1;
        if is_lost {
            session.waiting_since = self.now;
        }
        self.mark_waiting(client, message, RequestLocation::AtSession(key));
        if is_lost {
            self.core.timers.set(at, Timer::RestoreOverdue(key));
            self.start_restore(key);
        }
    }

    pub(super) fn is_awaited(&self, key: SessionKey) -> bool {
        self.core.sessions.get(key).is_some_and(|session| !session.waiting.is_empty())
    }

    pub(super) fn start_restore(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let SessionState::Lost(reason) = &session.place else { return };
        let (reason, identity) = (reason.clone(), session.identity);
        let pool = self.core.current(session.pool);
        let Some(client) = session.waiting.first().map(|waiting| waiting.client) else { return };
        let abilities = self.core.abilities_of(session);
        let state = self.core.pool_of(pool);
        let is_kept = !session.params.is_empty();
        if state.removed || !is_kept || !(abilities.load || abilities.resume) {
            let error = RpcError::new(Code::NotFound, format!("session lost: {reason}"));
            self.fail_restore(key, &error);
            return;
        }
        let shared = state.is_shared();
        if session.is_superseded {
            self.fail_restore(key, &name_reused());
            return;
        }
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.pool = pool;
        }
        let route = if shared {
            let taken = self.workers_closed_to(pool, key);
            match self.choose_worker_for_stored(pool, client, identity, taken.clone()) {
                OpeningPlace::At(worker) => Route::Worker { worker, session: None },
                OpeningPlace::Behind(worker) => return self.restore_after_creations(worker, key),
                OpeningPlace::Nowhere if self.has_other_workers(pool, &taken) => self.wait_for_worker(pool),
                OpeningPlace::Nowhere => Route::Refuse(name_reused()),
            }
        } else {
            match self.core.client(client).and_then(|state| state.worker) {
                // This worker already has the client's other sessions, if there are any.
                Some(worker) if !self.is_used_up(worker) && self.is_in_pool(worker, pool) => {
                    Route::Worker { worker, session: None }
                }
                _ => self.claim_worker(client, pool),
            }
        };
        match route {
            Route::Worker { worker, .. } if self.is_initialized(worker) => self.send_restore(key, worker),
            Route::Worker { worker, .. } | Route::Backlog(worker) => {
                if let Some(session) = self.core.sessions.get_mut(key) {
                    session.place = SessionState::Restoring(worker);
                }
                if let Some(state) = self.core.worker(worker) {
                    state.sessions.insert(key);
                    // If workers serve one session each, the next session must not go to this worker too.
                    state.used = true;
                }
                self.restore_after_initialize(worker, key);
            }
            Route::Refuse(error) => self.fail_restore(key, &error),
            _ => self.core.pool_mut(pool).restores.push_back(key),
        }
    }

    /// Returns `true` if a pool has, or is about to have, a worker that is not in `taken`.
    pub(super) fn has_other_workers(&self, pool: PoolId, taken: &[WorkerKey]) -> bool {
        let state = self.core.pool_of(pool);
        let stays = |worker: &WorkerKey| {
            let state = self.core.workers.get(*worker);
            state.is_some_and(|state| {
                !matches!(state.stage, WorkerLifecycle::Retiring | WorkerLifecycle::Stopping)
            })
        };
        let all = state.workers.iter().filter(|worker| stays(worker)).count();
        all < state.settings.instances as usize
            || state.workers.iter().any(|worker| stays(worker) && !taken.contains(worker))
    }

    /// Returns `true` if a worker belongs to a pool or to the pool's successor. The client of the worker may
    /// have moved to another pool since.
    fn is_in_pool(&self, worker: WorkerKey, pool: PoolId) -> bool {
        let state = self.core.workers.get(worker);
        state.is_some_and(|state| self.core.current(state.pool) == pool)
    }

    /// Returns `true` if a worker that serves one client cannot accept another session.
    fn is_used_up(&self, worker: WorkerKey) -> bool {
        let Some(state) = self.core.workers.get(worker) else { return true };
        let per_session = self.core.pool_of(state.pool).settings.share == ShareMode::Session;
        !matches!(state.stage, WorkerLifecycle::Initializing | WorkerLifecycle::Ready)
            || per_session && state.used
    }

    pub(super) fn serve_restores(&mut self, pool: PoolId) {
        for key in std::mem::take(&mut self.core.pool_mut(pool).restores) {
            self.start_restore(key);
        }
    }

    pub(super) fn send_restore(&mut self, key: SessionKey, worker: WorkerKey) {
        if !self.may_live_at(worker, key) || !self.has_scopes_of(worker, key) {
            self.fail_restore(key, &name_reused());
            return;
        }
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let name: Value = match &session.agent_name_json {
            Some(wire) => serde_json::from_slice(wire).unwrap_or(Value::Null),
            None => json!(session.name),
        };
        let client = session.owner.or(session.waiting.first().map(|waiting| waiting.client));
        let (pool, params) = (session.pool, session.params.clone());
        let is_v2 = self.core.worker(worker).is_some_and(|state| state.is_v2);
        // The params are checked again, because the configuration may have changed since the session was
        // opened.
        let params = match self.permit_again(client, pool, is_v2, &params) {
            Ok(params) => params,
            Err(error) => {
                self.fail_restore(key, &error);
                return;
            }
        };
        let mut params = serde_json::from_slice(&params).unwrap_or_else(|_| json!({}));
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.place = SessionState::Lost("being restored".into());
        let abilities = self.core.abilities_of_worker(worker);
        params["sessionId"] = name;
        if params.get("mcpServers").is_none() {
            params["mcpServers"] = json!([]);
        }
        self.move_session(key, worker);
        let renamed = self.core.sessions.get(key).map(|session| session.servers.rename_in(&mut params));
        if !matches!(renamed, Some(Ok(_))) {
            self.fail_restore(key, &unknown_server());
            return;
        }
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.place = SessionState::Restoring(worker);
        }
        let method = if abilities.resume { method::SESSION_RESUME } else { method::SESSION_LOAD };
        self.core.counters.revived += 1;
        self.send_internal_request(
            worker,
            InternalRequest::Restore(key),
            method,
            params.to_string().as_bytes(),
            Some(key),
        );
    }

    fn is_restored_by(&self, key: SessionKey, worker: WorkerKey) -> bool {
        let session = self.core.sessions.get(key);
        session.is_some_and(|session| matches!(session.place, SessionState::Restoring(at) if at == worker))
    }

    pub(super) fn handle_restored(&mut self, key: SessionKey, worker: WorkerKey, error: Option<RpcError>) {
        // This restore may have been cancelled, and another one started in another worker.
        if !self.is_restored_by(key, worker) {
            return;
        }
        if let Some(error) = error {
            let error = RpcError::new(Code::NotFound, format!("session lost and not restored: {error}"));
            self.fail_restore(key, &error);
            return;
        }
        let queued = self.core.worker(worker).map_or(0, |state| state.queued);
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.place = SessionState::On(worker);
        session.reopened_at = queued;
        session.retried = false;
        for waiting in std::mem::take(&mut session.waiting) {
            self.release_request_id(waiting.client, &waiting.line);
            self.handle_client_message(waiting.client, View::parse(&waiting.line), waiting.batch);
        }
    }

    pub(super) fn handle_restore_failure(&mut self, key: SessionKey, worker: WorkerKey, error: &RpcError) {
        let gone =
            [Code::WorkerLost, Code::Deadline, Code::Draining].into_iter().find(|code| error.is(*code));
        match gone {
            Some(Code::WorkerLost) if self.is_restored_by(key, worker) && self.may_retry(key) => {
                self.mark_lost_again(key, error);
                self.start_restore(key);
            }
            Some(code) if self.is_restored_by(key, worker) => {
                let words = format!("session not restored: {}", error.message);
                self.fail_restore(key, &RpcError::new(code, words));
            }
            Some(_) => {}
            None => self.handle_restored(key, worker, Some(error.clone())),
        }
    }

    /// Returns `true` if a failed restore is tried once more because its worker was lost. A single loss may
    /// be a coincidence.
    fn may_retry(&mut self, key: SessionKey) -> bool {
        let draining = self.core.draining;
        let Some(session) = self.core.sessions.get_mut(key) else { return false };
        !draining && !std::mem::replace(&mut session.retried, true)
    }

    /// Ends a failed restore: the requests that waited for the session get the error. The session is dropped
    /// if it no longer exists and a client was told so. Otherwise the next use tries again.
    pub(super) fn fail_restore(&mut self, key: SessionKey, error: &RpcError) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let waiting = std::mem::take(&mut session.waiting);
        let is_told = waiting.iter().any(|waiting| View::parse(&waiting.line).id().is_some());
        if is_told && error.is(Code::NotFound) {
            self.drop_session(key);
        } else {
            self.mark_lost_again(key, error);
        }
        for waiting in waiting {
            self.release_request_id(waiting.client, &waiting.line);
            let message = View::parse(&waiting.line);
            if message.method().is_some_and(|method| RequestKind::from_method(&method).reopens()) {
                self.release_ownership(key, waiting.client);
            }
            if let Some(id) = message.id() {
                self.refuse(waiting.client, id, waiting.batch, message.tag(), error);
            }
        }
    }

    fn mark_lost_again(&mut self, key: SessionKey, error: &RpcError) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let Some(worker) = session.worker() else { return };
        session.place = SessionState::Lost(error.message.as_ref().into());
        let (agent_name, identity) = (session.agent_name(), session.identity);
        if let Some(state) = self.core.worker(worker) {
            state.sessions.remove(&key);
            state.forget_alias(key, &agent_name);
            if state.pending.restores(key) {
                // The worker may still open the session, mention it and list it.
                state.former.add(agent_name, identity, NameUse::Opened);
            }
            state.restores.retain(|other| *other != key);
        }
        self.move_children(key, Some(worker), None);
    }

    pub(super) fn handle_restore_timeout(&mut self, key: SessionKey) {
        let timeout = self.core.limits.initialize_timeout;
        let Some(session) = self.core.sessions.get(key) else { return };
        let is_due = self.now >= session.waiting_since + timeout;
        if !is_due || matches!(session.place, SessionState::On(_)) || session.waiting.is_empty() {
            return;
        }
        for pool in &mut self.core.pools {
            pool.restores.retain(|other| *other != key);
        }
        let error = RpcError::new(Code::Deadline, "session not restored in time");
        self.fail_restore(key, &error);
    }
}

/// Returns the error for a lost session whose name the agent has given to another session. Restoring the
/// session could give a client another identity's session.
pub(super) fn name_reused() -> RpcError {
    RpcError::new(Code::NotFound, "session lost, its id was reused")
}
