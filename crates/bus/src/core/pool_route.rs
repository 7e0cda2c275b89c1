//! Selects the pool of a client's message, and a worker of that pool.

use narrows_acp::method::{METHODS, Scope, Side};
use narrows_wire::{Code, RpcError, View};
use serde_json::Value;

use crate::config::ShareMode;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::errors::{misnamed, uninitialized, unknown_session};
use super::identity::Identity;
use super::open_order::OpeningPlace;
use super::route::Route;
use super::session_keys::{meta_pool, names_any_session};
use super::state::{RequestKind, WorkerLifecycle};
use super::table::{ClientKey, WorkerKey};

impl<O: CoreOutput> Ctx<'_, O> {
    /// Chooses the pool of a client's message. The client stays with that pool.
    pub(super) fn choose_pool(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        what: RequestKind,
    ) -> Result<PoolId, RpcError> {
        if what == RequestKind::Initialize {
            self.reset_removed_pool(client);
        }
        let Some(state) = self.core.client(client) else { return Err(unknown_session()) };
        let now = state.pool;
        let wanted = match message.pool() {
            Some(pool) => Some(pool.into_owned()),
            None if matches!(what, RequestKind::Initialize | RequestKind::New) => meta_pool(message),
            None => None,
        };
        let pool = match (wanted, now) {
            (Some(name), _) => self.wanted_pool(client, &name)?,
            (None, Some(pool)) => self.core.current(pool),
            (None, None) => self.default_pool(client)?,
        };
        if self.core.pool_of(pool).removed {
            return Err(RpcError::new(Code::NotFound, "pool of this connection was removed"));
        }
        // After a reload, the listener of the client may no longer permit the pool that the client uses.
        if !self.may_use(client, pool) {
            return Err(self.deny_pool(client));
        }
        match now {
            Some(now) if now != pool => {
                let own = self.core.clients.get(client).and_then(|state| state.worker);
                let own = own.filter(|worker| self.core.is_exclusive(*worker));
                let both_shared = [now, pool].iter().all(|pool| self.core.pool_of(*pool).is_shared());
                if !both_shared && self.core.current(now) != pool {
                    let words = "pool change requires shared pools";
                    return Err(RpcError::new(Code::InvalidParams, words));
                }
                if let Some(state) = self.core.client(client) {
                    state.pool = Some(pool);
                    state.worker = own;
                }
            }
            Some(_) => {}
            None => {
                if let Some(state) = self.core.client(client) {
                    state.pool = Some(pool);
                }
            }
        }
        Ok(pool)
    }

    pub(super) fn route_shared(
        &mut self,
        client: ClientKey,
        pool: PoolId,
        message: View<'_>,
        what: RequestKind,
    ) -> Route {
        let ready = self.core.pool_of(pool).answer.is_some();
        let is_known = self.core.client(client).is_some_and(|state| state.initialize.is_some());
        match what {
            _ if what != RequestKind::Initialize && !is_known => Route::Refuse(uninitialized()),
            _ if message.session().is_none() && has_scope(message, Scope::Session) => {
                Route::Refuse(misnamed())
            }
            RequestKind::Initialize if ready => Route::Initialize,
            RequestKind::List | RequestKind::Delete if ready => Route::FanOut,
            RequestKind::Initialize | RequestKind::List | RequestKind::Delete => self.wait_for_worker(pool),
            RequestKind::Authenticate | RequestKind::Logout => {
                Route::Refuse(RpcError::new(Code::InvalidParams, "pool has no authentication methods"))
            }
            RequestKind::New => match self.choose_worker(pool, client, &[]) {
                Some(worker) => Route::Worker { worker, session: None },
                None => self.wait_for_room(pool, client),
            },
            RequestKind::Load | RequestKind::Resume => {
                let identity = self.core.clients.get(client).map(|state| state.identity);
                let named = message.session().zip(identity);
                let closed = named.map(|(name, identity)| self.workers_closed_to_name(pool, &name, identity));
                let closed = closed.unwrap_or_default();
                let identity = identity.unwrap_or(Identity::ANYONE);
                match self.choose_worker_for_stored(pool, client, identity, closed.clone()) {
                    OpeningPlace::At(worker) => Route::Worker { worker, session: None },
                    OpeningPlace::Behind(worker) => Route::AwaitCreations(worker),
                    OpeningPlace::Nowhere if closed.is_empty() || self.has_other_workers(pool, &closed) => {
                        self.wait_for_room(pool, client)
                    }
                    OpeningPlace::Nowhere => Route::Refuse(unknown_session()),
                }
            }
            // A message for the whole connection would affect all clients of the shared worker.
            _ if has_scope(message, Scope::Connection) => {
                Route::Refuse(RpcError::new(Code::MethodNotFound, "method not available at a shared worker"))
            }
            _ if message.session().is_some() => Route::Refuse(unknown_session()),
            _ if names_any_session(message) => Route::Refuse(misnamed()),
            _ => self.route_sessionless(client, pool),
        }
    }

    /// Routes a message in a pool without a known protocol, by `sessionId` alone. The client that first names
    /// a session owns it. A session that is first named together with another one is in the same worker.
    pub(super) fn route_without_protocol(
        &mut self,
        client: ClientKey,
        pool: PoolId,
        message: View<'_>,
    ) -> Route {
        let (deep, top) = (message.session(), message.top_session());
        if top.as_deref().is_some_and(|top| self.is_foreign(client, top)) {
            return Route::Refuse(unknown_session());
        }
        let mut home = None;
        if let Some(key) = top.as_deref().and_then(|top| self.core.sessions.find(top)) {
            // An ACP agent ignores a `sessionId` at the top level, and may know the name in the params as
            // that of another session.
            let session = self.core.sessions.get(key);
            if session.is_some_and(|session| self.core.pool_of(session.pool).is_acp()) {
                return Route::Refuse(unknown_session());
            }
            match self.route_session(client, key, RequestKind::Other) {
                Some(Route::Worker { worker, session }) => home = Some((worker, session)),
                Some(other) => return other,
                None => {}
            }
        }
        let Some(name) = deep.or_else(|| top.clone()) else { return self.route_sessionless(client, pool) };
        if let Some((worker, session)) = home
            && top.as_deref() == Some(&*name)
        {
            return Route::Worker { worker, session };
        }
        if let Some(error) = self.refuse_session(client) {
            return Route::Refuse(error);
        }
        let Some(worker) = home.map(|(worker, _)| worker).or_else(|| self.choose_worker(pool, client, &[]))
        else {
            return self.wait_for_worker(pool);
        };
        let tag: Option<Box<[u8]>> = message.tag().map(Box::from);
        if let Some(top) = top.filter(|top| *top != name && home.is_none()) {
            let key = self.enter(&top, worker, Some(client), None, tag.as_deref(), b"{}");
            self.record_owner(key, None);
            if let Some(error) = self.refuse_session(client) {
                return Route::Refuse(error);
            }
        }
        let key = self.enter(&name, worker, Some(client), None, tag.as_deref(), b"{}");
        self.record_owner(key, None);
        Route::Worker { worker, session: Some(key) }
    }

    fn route_sessionless(&mut self, client: ClientKey, pool: PoolId) -> Route {
        if let Some(worker) = self.core.client(client).and_then(|state| state.worker)
            && self
                .core
                .worker(worker)
                .is_some_and(|state| state.stage == WorkerLifecycle::Ready && state.pool == pool)
        {
            return Route::Worker { worker, session: None };
        }
        match self.choose_worker(pool, client, &[]) {
            Some(worker) => {
                if let Some(state) = self.core.client(client) {
                    state.worker = Some(worker);
                }
                Route::Worker { worker, session: None }
            }
            None => self.wait_for_worker(pool),
        }
    }

    /// Routes a client's message in a pool whose workers serve one client at a time.
    pub(super) fn route_own(&mut self, client: ClientKey, pool: PoolId, what: RequestKind) -> Route {
        let opens = what == RequestKind::New || what.reopens();
        let state = self.core.pool_of(pool);
        let per_session = state.settings.share == ShareMode::Session;
        let is_for_all =
            per_session && state.is_acp() && matches!(what, RequestKind::List | RequestKind::Delete);
        if is_for_all && !self.fan_out_workers(client, pool).is_empty() {
            return Route::FanOut;
        }
        if let Some(worker) = self.core.client(client).and_then(|state| state.worker)
            && let Some(state) = self.core.worker(worker)
            && !matches!(state.stage, WorkerLifecycle::Starting | WorkerLifecycle::Stopping)
            && !state.input_closed
            && !(opens && (state.stage == WorkerLifecycle::Retiring || per_session && state.used))
        {
            if state.stage == WorkerLifecycle::Initializing {
                // If workers serve one session each, the next session must not go to this worker either.
                state.used |= opens;
                return Route::Backlog(worker);
            }
            return Route::Worker { worker, session: None };
        }
        if what == RequestKind::Initialize
            && let Some(state) = self.core.client(client)
        {
            // The replayed messages are dropped, because the client is about to send `initialize` itself.
            (state.initialize, state.initialized) = (None, None);
        }
        let route = self.claim_worker(client, pool);
        if let Route::Backlog(worker) = route
            && let Some(state) = self.core.worker(worker)
        {
            state.used |= opens;
        }
        route
    }

    /// Assigns a free worker to a client, and sends the worker the `initialize` that the client sent to an
    /// earlier one.
    pub(super) fn claim_worker(&mut self, client: ClientKey, pool: PoolId) -> Route {
        let free = self.core.pool_of(pool).workers.iter().copied().find(|worker| {
            self.core
                .workers
                .get(*worker)
                .is_some_and(|state| state.stage == WorkerLifecycle::Ready && !state.claimed)
        });
        if self.is_at_worker_share(client, pool) {
            return self.wait_for_own_worker(pool, client);
        }
        let Some(worker) = free else { return self.wait_for_worker(pool) };
        let first = self.core.client(client).and_then(|state| state.worker);
        let first = first.filter(|first| self.core.is_exclusive(*first));
        let is_first =
            first.and_then(|first| self.core.worker(first)).is_none_or(|first| !first.accepts_input());
        let Some(client_state) = self.core.client(client) else { return Route::Hold };
        let is_known = client_state.initialize.is_some();
        let (identity, scopes) = (client_state.identity, client_state.scopes.clone());
        if is_first {
            client_state.worker = Some(worker);
        }
        if let Some(state) = self.core.worker(worker) {
            state.claimed = true;
            state.client = Some(client);
            state.identity = Some(identity);
            state.scopes.clone_from(&scopes);
        }
        self.fill(pool);
        self.name_client(worker, pool, identity, scopes.as_deref());
        if is_known {
            self.replay_initialize(worker, client);
            return Route::Backlog(worker);
        }
        Route::Worker { worker, session: None }
    }

    /// Sends a worker's gate the identity and the scopes of its client. No line of the client may come
    /// before, because the gate would judge that line without them.
    fn name_client(
        &mut self,
        worker: WorkerKey,
        pool: PoolId,
        identity: Identity,
        scopes: Option<&[String]>,
    ) {
        if self.core.pool_of(pool).settings.manifest.is_none() {
            return;
        }
        let name = Value::from(&*self.core.identities.name(identity)).to_string();
        let scopes = scopes.map(|scopes| format!(r#","scopes":{}"#, Value::from(scopes))).unwrap_or_default();
        let line: [&[u8]; 4] = [
            br#"{"jsonrpc":"2.0","method":"narrows/identity","params":{"identity":"#,
            name.as_bytes(),
            scopes.as_bytes(),
            b"}}",
        ];
        self.write_worker(worker, &line);
    }
}

/// Returns `true` if a message has this scope, the session or the connection, in any version of ACP. An agent
/// with sessions of several clients could apply a session message that names no session to any of them, and a
/// connection message to all.
pub(super) fn has_scope(message: View<'_>, scope: Scope) -> bool {
    message.method().is_some_and(|name| {
        let mut methods = METHODS.iter().filter(|method| method.is_received_by(Side::Agent));
        methods.any(|method| method.name == name && method.scope == scope)
    })
}
