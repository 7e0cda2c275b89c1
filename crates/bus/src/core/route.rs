//! Decides where a message of a client goes.

use narrows_acp::method::Scope;
use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use narrows_wire::{Code, RpcError, View};
use serde_json::json;

use crate::config::ShareMode;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::capacity::share_used_up;
use super::errors::{misnamed, session_in_use, uninitialized, unknown_session};
use super::identity::Identity;
use super::mcp_servers::is_about_server;
use super::name_conflict::NameConflict;
use super::owners::Claim;
use super::pool_route::has_scope;
use super::session::{SessionKey, SessionState};
use super::state::{RequestKind, WorkerLifecycle};
use super::supervisor::input_closed;
use super::table::{ClientKey, WorkerKey};

/// Maximum length of a session name, and of a top-level `sessionId`.
pub(super) const MAX_SESSION_NAME_BYTES: usize = 4_096;

/// Maximum size of a client's `initialize`, which is kept to be sent to further workers.
const MAX_INITIALIZE_BYTES: usize = 64 << 10;

/// Maximum size of a message that opens a session. The event loop, which all clients share, parses the whole
/// message.
const MAX_OPENING_BYTES: usize = 1 << 20;

/// Maximum size of a message that lists or deletes sessions. The whole message is parsed, and sent to each
/// worker.
const MAX_LIST_REQUEST_BYTES: usize = 64 << 10;

const MAX_CLIENT_SESSIONS: usize = 65_536;

/// `retryAfterMs` in the refusal of a new session while memory or file descriptors are short.
const PRESSURE_RETRY_MS: u64 = 1_000;

#[derive(Debug)]
pub(super) enum Route {
    Worker {
        worker: WorkerKey,
        session: Option<SessionKey>,
    },
    /// Send the message to the worker of a child session. `agent_name_json` is the id that the agent uses for
    /// the child if clients use another.
    Child {
        worker: WorkerKey,
        agent_name_json: Option<Box<[u8]>>,
    },
    /// Queue the message until this worker is initialized.
    Backlog(WorkerKey),
    /// Queue the message until this worker has answered the requests for new sessions.
    AwaitCreations(WorkerKey),
    Restore(SessionKey),
    /// Close a session that has no worker, because its worker was lost.
    Close(SessionKey),
    /// Make the client an observer of a session that another client controls.
    Attach(SessionKey),
    /// Make the client an observer, and have the worker replay the history.
    Replay(SessionKey),
    /// End the client's observation of a session.
    Detach(SessionKey),
    /// Queue the message, and all later lines of the client, until there is a worker.
    Hold,
    Initialize,
    /// Send the message to every worker that the client uses or may use.
    FanOut,
    Refuse(RpcError),
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn route(&mut self, client: ClientKey, message: View<'_>, what: RequestKind) -> Route {
        let name = message.session();
        let longest = name.as_ref().map_or(0, |name| name.len()).max(message.tag().map_or(0, <[u8]>::len));
        if longest > MAX_SESSION_NAME_BYTES {
            return Route::Refuse(RpcError::new(Code::InvalidParams, "session id too long"));
        }
        if matches!(what, RequestKind::Initialize | RequestKind::Authenticate)
            && message.bytes().len() > MAX_INITIALIZE_BYTES
        {
            return Route::Refuse(RpcError::new(
                Code::MessageTooLarge,
                "initialize or authenticate request too long",
            ));
        }
        if (what.creates() || what.reopens())
            && (message.bytes().len() > MAX_OPENING_BYTES
                || has_more_values_than(message.bytes(), MAX_PEER_VALUES))
        {
            return Route::Refuse(RpcError::new(Code::MessageTooLarge, "request to open a session too long"));
        }
        if matches!(what, RequestKind::List | RequestKind::Delete)
            && message.bytes().len() > MAX_LIST_REQUEST_BYTES
        {
            return Route::Refuse(RpcError::new(
                Code::MessageTooLarge,
                "request to list or delete sessions too long",
            ));
        }
        // Requests for open sessions are refused too: opening a session again makes the bus keep other
        // params, and a fork is a new session.
        if (what.creates() || what.reopens())
            && let Some(error) = self.refuse_under_pressure(client)
        {
            return Route::Refuse(error);
        }
        if what.creates()
            && let Some(error) = self.refuse_session(client)
        {
            return Route::Refuse(error);
        }
        let known = name.as_deref().and_then(|name| self.core.sessions.find(name));
        // A child session has the owner and the pool of the session to which it belongs.
        let root = name.as_deref().filter(|_| known.is_none()).and_then(|name| self.core.children.find(name));
        let family = known.or(root.map(|child| child.root));
        // A client may always cancel its own turn, even if the listener no longer permits the pool after a
        // reload.
        let stops_own =
            what == RequestKind::Cancel && family.is_some_and(|key| self.is_owned_by(client, key));
        let claim = match name.as_deref() {
            Some(name) if !stops_own => self.claim_of(client, name, family),
            _ => Claim::Own,
        };
        // A message that concerns the whole connection is not routed by the session that it names, because
        // the worker may be shared.
        let is_acp = |key| {
            let session = self.core.sessions.get(key);
            session.is_some_and(|session| self.core.pool_of(session.pool).is_acp())
        };
        let is_of_session = claim == Claim::Own
            && family.is_some_and(|key| !(is_acp(key) && concerns_connection(message, what)));
        if let Some(key) = known.filter(|_| is_of_session) {
            if is_acp(key) && !self.is_initialized_for(client, key) {
                return Route::Refuse(uninitialized());
            }
            if let Err(error) = self.permit_in_session(client, key, message, what) {
                return Route::Refuse(error);
            }
            match self.route_session(client, key, what) {
                Some(Route::Worker { worker, .. })
                    if what == RequestKind::Fork && !self.has_room_for_fork(client, worker) =>
                {
                    return Route::Refuse(share_used_up());
                }
                Some(route) => return route,
                None => {}
            }
        }
        if known.is_none()
            && is_of_session
            && let Some(route) =
                name.as_deref().and_then(|name| self.route_child(client, name, message, what))
        {
            return route;
        }
        if self.has_too_many(client) {
            return Route::Refuse(too_many_sessions());
        }
        if what.reopens()
            && let Some(error) = self.refuse_session(client)
        {
            return Route::Refuse(error);
        }
        if what != RequestKind::Initialize && self.core.client(client).is_some_and(|state| state.pool_missing)
        {
            let words = "initialize failed: name an existing pool first";
            return Route::Refuse(RpcError::new(Code::InvalidRequest, words));
        }
        let chosen = self.choose_pool(client, message, what);
        if let Some(state) = self.core.client(client)
            && what == RequestKind::Initialize
        {
            state.pool_missing = chosen.is_err();
        }
        let pool = match chosen {
            Ok(pool) => pool,
            Err(error) => return Route::Refuse(error),
        };
        if let Some(error) = self.refuse_long_extension(pool, message) {
            return Route::Refuse(error);
        }
        if self.misleads(client, pool, message) {
            return Route::Refuse(misnamed());
        }
        // The servers are checked before any worker is started for the message. If the message opens a
        // session, they are checked again when it is sent, because the version of the worker counts.
        if let Err(error) = self.permit_servers(client, pool, false, message, what) {
            return Route::Refuse(error);
        }
        if let Some(error) = self.refuse_server(pool, message) {
            return Route::Refuse(error);
        }
        // The ownership is checked last, so that every other error is the same whether the session exists or
        // not.
        let is_named_first = claim == Claim::Unknown && !self.core.pool_of(pool).is_acp();
        let identity = self.core.client(client).map(|state| state.identity);
        let is_anothers = identity
            .zip(name.as_deref())
            .is_some_and(|(identity, name)| self.is_anothers_within(identity, pool, name));
        if (claim != Claim::Own && !is_named_first) || is_anothers {
            return Route::Refuse(unknown_session());
        }
        if (what.reopens() || what == RequestKind::Delete)
            && let Some(error) = name.as_deref().and_then(|name| self.refuse_agent_name(client, pool, name))
        {
            return Route::Refuse(error);
        }
        let state = self.core.pool_of(pool);
        match (state.settings.share, state.is_acp()) {
            (ShareMode::All, true) => self.route_shared(client, pool, message, what),
            (ShareMode::All, false) => self.route_without_protocol(client, pool, message),
            (ShareMode::Connection | ShareMode::Session, _) => self.route_own(client, pool, what),
        }
    }

    #[inline]
    fn claim_of(&self, client: ClientKey, name: &str, key: Option<SessionKey>) -> Claim {
        if key.is_some_and(|key| !self.may_reach(client, key)) {
            return Claim::Foreign;
        }
        if !self.core.owners.are_kept() {
            return Claim::Own;
        }
        let Some(state) = self.core.clients.get(client) else { return Claim::Unknown };
        self.claim_on(state.identity, name, key)
    }

    /// Returns `true` if a client may not use the session of this name.
    pub(super) fn is_foreign(&self, client: ClientKey, name: &str) -> bool {
        self.claim_of(client, name, self.core.sessions.find(name)) == Claim::Foreign
    }

    /// Returns `true` if a client may use an open session: it owns the session, or it has sent `initialize`
    /// and can take the session over.
    fn is_initialized_for(&self, client: ClientKey, key: SessionKey) -> bool {
        self.is_owned_by(client, key)
            || self.core.clients.get(client).is_some_and(|state| state.initialize.is_some())
    }

    fn is_owned_by(&self, client: ClientKey, key: SessionKey) -> bool {
        self.core.sessions.get(key).is_some_and(|session| session.owner == Some(client))
    }

    fn refuse_under_pressure(&self, client: ClientKey) -> Option<RpcError> {
        let is_anonymous =
            self.core.clients.get(client).is_some_and(|state| state.identity == Identity::ANYONE);
        let refuses = self.core.pressure || self.core.anonymous_pressure && is_anonymous;
        refuses.then(|| {
            let error = RpcError::new(Code::Backpressure, "bus overloaded, no new sessions");
            error.with("retryAfterMs", json!(PRESSURE_RETRY_MS))
        })
    }

    /// Returns the error if a client may open no further session, because memory is short, or the connection
    /// or its identity has its maximum.
    pub(super) fn refuse_session(&mut self, client: ClientKey) -> Option<RpcError> {
        let refused = self.refuse_under_pressure(client);
        if refused.is_some() {
            return refused;
        }
        if self.has_too_many(client) {
            return Some(too_many_sessions());
        }
        let identity = self.core.clients.get(client).map_or(Identity::ANYONE, |state| state.identity);
        if self.core.sessions.has_long_names(identity, self.core.limits.session_params()) {
            return Some(RpcError::new(Code::Backpressure, "session ids take too much memory"));
        }
        let words = "session limit of this identity reached";
        (!self.may_open_session(client)).then(|| RpcError::new(Code::Backpressure, words))
    }

    fn has_too_many(&self, client: ClientKey) -> bool {
        self.core.clients.get(client).is_some_and(|state| state.sessions.len() >= MAX_CLIENT_SESSIONS)
    }

    fn may_open_session(&mut self, client: ClientKey) -> bool {
        let Some(state) = self.core.clients.get(client).filter(|state| state.is_authenticated) else {
            return true;
        };
        let identity = state.identity;
        let may = self.core.has_room(identity);
        if !may && let Some(known) = self.core.identities.get_mut(identity) {
            known.refused += 1;
        }
        may
    }

    /// Routes a message about a known session. `None`: the session has to be opened anew.
    pub(super) fn route_session(
        &mut self,
        client: ClientKey,
        key: SessionKey,
        what: RequestKind,
    ) -> Option<Route> {
        let identity = self.core.client(client)?.identity;
        let session = self.core.sessions.get(key)?;
        let any_client = !self.core.pool_of(session.pool).is_acp();
        if session.identity != identity {
            return Some(Route::Refuse(unknown_session()));
        }
        if self.has_other_scopes(client, key) && !self.yield_to_scopes(key) {
            return Some(Route::Refuse(session_in_use()));
        }
        let session = self.core.sessions.get(key)?;
        match session.owner {
            Some(owner)
                if owner == client && what == RequestKind::Prompt && self.is_anothers_turn(client, key) =>
            {
                return Some(Route::Refuse(session_in_use()));
            }
            Some(owner) if owner == client || any_client => {}
            Some(owner) if what.reopens() && self.has_left(owner, key) => {
                if let Some(state) = self.core.client(owner) {
                    state.sessions.remove(&key);
                }
                self.adopt(key, client, what);
            }
            Some(_) => {
                if let Some(route) = self.route_observer(client, key, what) {
                    return Some(route);
                }
            }
            None if any_client || what.reopens() => self.adopt(key, client, what),
            None if matches!(what, RequestKind::Close | RequestKind::Delete) => {}
            None => {
                let error = RpcError::new(Code::NotFound, "session must be loaded or resumed first");
                return Some(Route::Refuse(error));
            }
        }
        // While the history of a session is replayed to an observer, other messages of the session wait.
        if self.core.sessions.get(key)?.is_replaying() {
            return Some(Route::Restore(key));
        }
        match self.core.sessions.get(key)?.place {
            SessionState::On(worker) => {
                let can_move = self.can_move(key);
                let state = self.core.worker(worker)?;
                match state.stage {
                    WorkerLifecycle::Initializing => Some(Route::Backlog(worker)),
                    _ if state.input_closed => self.route_input_closed(client, key, worker, what),
                    WorkerLifecycle::Retiring if state.unwanted && can_move => {
                        self.remove_from_worker(worker, key, &"agent was replaced".into());
                        self.route_session(client, key, what)
                    }
                    _ => Some(Route::Worker { worker, session: Some(key) }),
                }
            }
            SessionState::Restoring(_) => Some(Route::Restore(key)),
            // Other lines already wait for this session to be restored. The message is handled after those.
            SessionState::Lost(_) if self.is_awaited(key) => Some(Route::Restore(key)),
            SessionState::Lost(_) if what == RequestKind::Close => Some(Route::Close(key)),
            SessionState::Lost(_) if what.reopens() || what == RequestKind::Delete => {
                let session = self.core.sessions.get(key)?;
                let (name, pool) = (session.name.clone(), self.core.current(session.pool));
                if let Some(error) = self.refuse_agent_name(client, pool, &name) {
                    self.release_ownership(key, client);
                    return Some(Route::Refuse(error));
                }
                self.drop_session(key);
                None
            }
            SessionState::Lost(_) => Some(Route::Restore(key)),
        }
    }

    /// Returns `true` if a session can or must move to another worker, and no request or turn of the session
    /// is in progress.
    fn can_move(&self, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let abilities = self.core.abilities_of(session);
        let worker = session.worker().and_then(|worker| self.core.workers.get(worker));
        let must = worker.is_some_and(|worker| worker.overdue);
        !session.is_busy() && !session.provisional && (abilities.load || abilities.resume || must)
    }

    /// Routes a message of a session whose worker has closed its input. An active turn ends in that worker;
    /// every other message moves the session to another worker.
    fn route_input_closed(
        &mut self,
        client: ClientKey,
        key: SessionKey,
        worker: WorkerKey,
        what: RequestKind,
    ) -> Option<Route> {
        let session = self.core.sessions.get(key)?;
        // The response to the request that opens the session decides whether it exists, and who owns it.
        if session.is_busy() || session.provisional || session.owner_unconfirmed {
            return Some(Route::Refuse(input_closed()));
        }
        self.remove_from_worker(worker, key, &"agent closed its input".into());
        self.route_session(client, key, what)
    }

    /// Refuses a session name that only a worker uses, for a session that clients know by another name. For
    /// clients, no session has this name.
    fn refuse_agent_name(&mut self, client: ClientKey, pool: PoolId, name: &str) -> Option<RpcError> {
        let identity = self.core.client(client)?.identity;
        let mut workers = self.core.pool_of(pool).workers.iter();
        workers.find_map(|worker| match self.name_conflict(*worker, name, identity, None)? {
            NameConflict::Own => Some(session_in_use()),
            NameConflict::Foreign => Some(unknown_session()),
            // The session of this name may still be in another worker.
            NameConflict::FormerForeign => None,
        })
    }

    /// Returns `true` if the client of a session has ended its input or is being closed, so that another
    /// client may take over a session of a shared worker.
    fn has_left(&self, owner: ClientKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let is_silent =
            self.core.clients.get(owner).is_some_and(|state| state.closing || state.eof && !state.ends_bus);
        is_silent && session.sharing.is_none() && self.core.pool_of(session.pool).is_shared()
    }

    /// Makes `client` the owner of a session that has no client.
    fn adopt(&mut self, key: SessionKey, client: ClientKey, what: RequestKind) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.owner = Some(client);
        session.ownerless = None;
        session.owner_unconfirmed = what.reopens();
        // If workers serve one client at a time, the first client that returns also gets the worker of the
        // session.
        if let Some(worker) = session.worker()
            && self.core.is_exclusive(worker)
            && let Some(state) = self.core.worker(worker)
            && state.client.is_none()
        {
            state.client = Some(client);
            state.inherited = true;
        }
        if let Some(state) = self.core.client(client) {
            state.sessions.insert(key);
        }
    }
}

/// Returns `true` if a message concerns all sessions of a connection. Session lists do not, because the bus
/// merges them for each client, and messages that open sessions do not.
fn concerns_connection(message: View<'_>, what: RequestKind) -> bool {
    match what {
        RequestKind::Initialize | RequestKind::Authenticate | RequestKind::Logout => true,
        RequestKind::Other => has_scope(message, Scope::Connection) && !is_about_server(message),
        _ => false,
    }
}

fn too_many_sessions() -> RpcError {
    RpcError::new(Code::Backpressure, "session limit of this connection reached")
}
