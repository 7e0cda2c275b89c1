//! Scopes of tokens at gates.
//!
//! A gate gets the scopes of its client's token once. Only clients whose tokens have the scopes with which a
//! session was opened may use that session. Two tokens of one name can have different scopes.

use narrows_wire::{Code, Effects, RpcError};

use super::Ctx;
use super::api::CoreOutput;
use super::session::SessionKey;
use super::table::{ClientKey, WorkerKey};

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns the scopes of a session that `owner` opens in `worker`: those that the worker's gate got, or
    /// those of the owner if the worker is shared.
    pub(super) fn scopes_at(&self, worker: WorkerKey, owner: Option<ClientKey>) -> Option<Box<[String]>> {
        let owner = owner.and_then(|owner| self.core.clients.get(owner));
        match owner.filter(|_| !self.core.is_exclusive(worker)) {
            Some(owner) => owner.scopes.clone(),
            None => self.core.workers.get(worker)?.scopes.clone(),
        }
    }

    /// Returns `true` if a session is in a worker with a gate, or will be when it is restored.
    fn is_gated(&self, key: SessionKey) -> bool {
        self.core.sessions.get(key).is_some_and(|session| {
            [session.pool, self.core.current(session.pool)]
                .into_iter()
                .any(|pool| self.core.pool_of(pool).settings.manifest.is_some())
        })
    }

    /// Returns `true` if a session is behind a gate and was opened with other scopes than this client has.
    pub(super) fn has_other_scopes(&self, client: ClientKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let scopes = self.core.clients.get(client).map(|client| &client.scopes);
        scopes != Some(&session.scopes) && self.is_gated(key)
    }

    /// Returns `true` if the gate of a worker has the scopes of a session, or the worker has no gate.
    pub(super) fn has_scopes_of(&self, worker: WorkerKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let Some(state) = self.core.workers.get(worker) else { return false };
        !self.core.is_exclusive(worker) || state.scopes == session.scopes || !self.is_gated(key)
    }

    /// Makes a session available to a client with other scopes, by stopping its worker so that the session
    /// can be opened anew. Returns `false` if another client has the session.
    pub(super) fn yield_to_scopes(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return true };
        match session.worker() {
            _ if session.owner.is_some() => false,
            Some(worker) => self.end_kept(worker),
            None => session.waiting.is_empty(),
        }
    }

    /// Stops a worker unless a connected client uses it. Returns `false` if one does.
    fn end_kept(&mut self, worker: WorkerKey) -> bool {
        let Some(state) = self.core.workers.get(worker) else { return true };
        let mut sessions = state.sessions.iter().filter_map(|key| self.core.sessions.get(*key));
        if state.client.is_some() || sessions.any(|session| session.owner.is_some()) {
            return false;
        }
        let error = RpcError::new(Code::WorkerLost, "agent stopped: client scopes changed");
        self.fail_all(worker, &error.effects(Effects::Possible));
        self.lose_sessions(worker, &"client scopes changed".into());
        self.stop_worker(worker, false);
        true
    }
}
