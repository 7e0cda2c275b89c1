//! Opens sessions, binds them to a worker, and drops them.

use std::borrow::Cow;

use narrows_wire::{Code, Effects, Kind, RpcError, View};

use super::Ctx;
use super::api::{CoreOutput, LogEvent};
use super::batch::BatchKey;
use super::errors::{session_in_use, unknown_session};
use super::former_names::NameUse;
use super::identity::Identity;
use super::mcp_server_table::ServerUse;
use super::name_conflict::NameConflict;
use super::open_order::OpeningPlace;
use super::open_timeout::EARLY_REQUEST_TIMEOUT;
use super::progress;
use super::request_id::Digits;
use super::restore::name_reused;
use super::route::MAX_SESSION_NAME_BYTES;
use super::session::{Session, SessionKey, SessionState, quoted};
use super::splice::Parts;
use super::state::{EarlyMessage, Opening, Pending, RequestLocation, RequestOrigin};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// Maximum number of bytes of a worker's messages that are queued because their sessions are not known yet.
const MAX_EARLY_MESSAGE_BYTES: usize = 1 << 20;

impl<O: CoreOutput> Ctx<'_, O> {
    /// Adds a session that `worker` calls `name`. It belongs to `identity`, or, if that is absent, to the
    /// identity of `owner` or of the worker.
    pub(super) fn enter(
        &mut self,
        name: &str,
        worker: WorkerKey,
        owner: Option<ClientKey>,
        identity: Option<Identity>,
        tag: Option<&[u8]>,
        params: &[u8],
    ) -> SessionKey {
        let of_owner = owner.and_then(|owner| self.core.client(owner)).map(|owner| owner.identity);
        let pool = self.core.worker(worker).map(|state| (state.pool, state.identity));
        let of_worker = pool.and_then(|(_, identity)| identity);
        let identity = identity.or(of_owner).or(of_worker).unwrap_or(Identity::ANYONE);
        let sharing = pool.and_then(|(pool, _)| self.new_sharing(pool));
        let scopes = self.scopes_at(worker, owner);
        let session = Session {
            name: name.into(),
            agent_name_json: None,
            pool: pool.map_or(super::PoolId(0), |(pool, _)| pool),
            place: SessionState::On(worker),
            abilities: self.core.abilities_of_worker(worker),
            owner,
            ownerless: None,
            identity,
            scopes,
            tag: None,
            removals: 0,
            params: Box::default(),
            params_charge: None,
            name_charge: None,
            provisional: false,
            owner_unconfirmed: false,
            reopened_at: 0,
            prompts: Vec::new(),
            running: false,
            cancelling: None,
            last_cancelled_prompt: 0,
            waiting: Vec::new(),
            waiting_since: self.now,
            owner_recorded_at: self.now,
            retried: false,
            previous_identity: self.core.workers.get(worker).and_then(|state| state.former.opened_by(name)),
            is_superseded: false,
            named_in: None,
            sharing,
            child_set: None,
            servers: ServerUse::default(),
        };
        self.forget_child_named(worker, name);
        self.supersede_lost(name, session.pool);
        // A worker that numbers its sessions may use a name that an earlier session had, in this or another
        // pool.
        let (owners, children) = (&self.core.owners, &self.core.children);
        let is_taken = |name: &str| owners.is_anothers(name, identity) || children.contains(name);
        let key = self.core.sessions.insert(session, is_taken);
        self.core.sessions.keep_params(key, params, self.core.limits.session_params());
        self.core.keep_tag(key, tag);
        self.core.counters.sessions += 1;
        let aliased = self.core.sessions.get(key).is_some_and(|session| session.agent_name_json.is_some());
        if let Some(state) = self.core.worker(worker) {
            state.sessions.insert(key);
            state.used = true;
            state.former.remove(name);
            if aliased {
                state.aliases.insert(name.into(), key);
            }
        }
        match owner.and_then(|owner| self.core.client(owner)) {
            Some(owner) => {
                owner.sessions.insert(key);
            }
            None => self.expire_later(key),
        }
        key
    }

    /// Marks a lost session as superseded if an agent of its pool, or of the pool's successor, has given its
    /// name to another session.
    fn supersede_lost(&mut self, name: &str, pool: super::PoolId) {
        let Some(key) = self.core.sessions.find(name) else { return };
        let Some(lost) = self.core.sessions.get(key) else { return };
        let is_same_pool = self.core.current(lost.pool) == self.core.current(pool);
        if is_same_pool
            && lost.agent_name_json.is_none()
            && lost.worker().is_none()
            && let Some(lost) = self.core.sessions.get_mut(key)
        {
            lost.is_superseded = true;
        }
    }

    /// Starts the grace period after which a session without a client is dropped.
    pub(super) fn expire_later(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let (abilities, is_acp) = (self.core.abilities_of(session), self.core.pool_of(session.pool).is_acp());
        let limits = &self.core.limits;
        // If the agent cannot open the session again, no client can return to it.
        let can_return = abilities.load || abilities.resume || !is_acp;
        let grace = if can_return { limits.session_grace } else { limits.disconnect_grace };
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.owner = None;
        session.ownerless = Some(self.now);
        self.core.timers.set(self.now + grace, Timer::Expired(key));
    }

    /// Adds a session before its worker has answered the request to open it, so that the replayed history
    /// reaches the client before the response does.
    pub(super) fn enter_provisionally(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        message: View<'_>,
    ) -> Option<SessionKey> {
        let name = message.session()?;
        let params = message.params().unwrap_or(b"{}");
        let key = self.enter(&name, worker, Some(client), None, message.tag(), params);
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.provisional = true;
        }
        Some(key)
    }

    pub(super) fn handle_opened(&mut self, worker: WorkerKey, mut pending: Pending, message: View<'_>) {
        let Some(mut opening) = pending.opening.take() else { return };
        if pending.what.creates() {
            self.handle_created(worker, pending, &mut opening, message);
        } else {
            self.handle_reopened(worker, pending, opening, message);
        }
    }

    /// Returns the name that clients use for the session in a response, if the worker uses another. Only for
    /// methods that do not open sessions.
    pub(super) fn alias_in(
        &mut self,
        worker: WorkerKey,
        pending: &Pending,
        message: View<'_>,
    ) -> Result<Option<Box<[u8]>>, RpcError> {
        let Some(name) = message.session() else { return Ok(None) };
        self.add_named_session(worker, pending, message)?;
        let session = self.session_of(worker, &name).and_then(|key| self.core.sessions.get(key));
        let aliased = session.filter(|session| session.agent_name_json.is_some());
        Ok(aliased.map(|session| quoted(&session.name)))
    }

    /// Adds the session that a response names, in a pool without a known protocol.
    ///
    /// # Errors
    /// If the client may not have another session, or the name is too long.
    fn add_named_session(
        &mut self,
        worker: WorkerKey,
        pending: &Pending,
        message: View<'_>,
    ) -> Result<(), RpcError> {
        if self.core.pool_of(self.pool_of_worker(worker)).is_acp() {
            return Ok(());
        }
        if let Some(name) = message.session()
            && let RequestOrigin::Client { client, .. } = &pending.asker
            && self.session_of(worker, &name).is_none()
        {
            self.check_name(worker, &name)?;
            if let Some(error) = self.refuse_session(*client) {
                return Err(error);
            }
            let key = self.enter(&name, worker, Some(*client), None, pending.tag.as_deref(), b"{}");
            self.record_owner(key, Some(*client));
        }
        Ok(())
    }

    fn check_name(&mut self, worker: WorkerKey, name: &str) -> Result<(), RpcError> {
        if name.len() <= MAX_SESSION_NAME_BYTES {
            return Ok(());
        }
        self.strike(worker, "returned too long a session id");
        Err(RpcError::new(Code::Internal, "agent session id too long"))
    }

    fn handle_created(
        &mut self,
        worker: WorkerKey,
        pending: Pending,
        opening: &mut Opening,
        message: View<'_>,
    ) {
        self.schedule_opening_retry();
        let name = message.session().filter(|_| message.result().is_some());
        let Some(name) = name else {
            self.clear_used(worker);
            if let Some(pending) = self.find_room(worker, pending, opening, message) {
                self.forward_response(worker, pending, message, None);
            }
            self.drop_early_messages(worker);
            return;
        };
        if let Err(error) = self.check_name(worker, &name) {
            self.clear_used(worker);
            self.fail(worker, pending, &error.effects(Effects::Possible));
            self.drop_early_messages(worker);
            return;
        }
        let owner = pending.client();
        let known = self.session_of(worker, &name);
        let known_session = known.and_then(|key| self.core.sessions.get(key));
        // The known session may have been opened by another identity after the worker got this request. In
        // that case, it is the session that this request created.
        let is_made_meanwhile = known_session.is_some_and(|session| {
            session.identity != opening.identity && session.reopened_at > pending.start
        });
        let is_open = known_session.is_some_and(|session| !session.provisional) && !is_made_meanwhile;
        let is_restoring =
            known_session.is_some_and(|session| matches!(session.place, SessionState::Restoring(_)));
        if let Some(known) = known.filter(|_| is_restoring) {
            // The worker has just created another session under the name of the session that is being
            // restored, so it cannot restore the latter.
            self.fail_restore(known, &name_reused());
        } else if let Some(known) = known.filter(|_| !is_open) {
            // Another request to open the session was sent before the session existed. The session belongs to
            // the client for which it was created.
            self.drop_session(known);
        } else if let Some(known) = known {
            // The worker has returned one session for two requests, but the session must not get two owners.
            let same = self.core.sessions.get(known).is_some_and(|session| session.owner == owner);
            if same {
                let alias = self.alias_in(worker, &pending, message).unwrap_or_default();
                self.forward_response(worker, pending, message, alias.as_deref());
            } else {
                self.strike(worker, "returned the same session twice");
                let error = RpcError::new(Code::Internal, "agent returned a session already in use");
                self.fail(worker, pending, &error.effects(Effects::Possible));
            }
            return;
        }
        let request = View::parse(&opening.line);
        let params = request.params().unwrap_or(b"{}");
        let key = self.enter(&name, worker, owner, Some(opening.identity), pending.tag.as_deref(), params);
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.servers = std::mem::take(&mut opening.servers);
            session.named_in = pending.batch();
        }
        self.record_owner(key, owner);
        self.record_open_result(key, message);
        self.deliver_early_messages(worker, &name);
        let alias = self
            .core
            .sessions
            .get(key)
            .filter(|session| session.agent_name_json.is_some())
            .map(|session| quoted(&session.name));
        self.forward_response(worker, pending, message, alias.as_deref());
        self.drop_early_messages(worker);
    }

    fn handle_reopened(
        &mut self,
        worker: WorkerKey,
        mut pending: Pending,
        mut opening: Box<Opening>,
        message: View<'_>,
    ) {
        let Some(key) = pending.session else {
            let request = View::parse(&opening.line);
            // The request was cancelled while it was pending, and its name may now belong to another session.
            let name = request.session().filter(|_| message.result().is_some());
            match name.and_then(|name| self.name_conflict(worker, &name, opening.identity, None)) {
                Some(NameConflict::Own) => self.fail(worker, pending, &session_in_use()),
                Some(_) => self.fail(worker, pending, &unknown_session()),
                None => self.forward_response(worker, pending, message, None),
            }
            return;
        };
        let provisional = self.core.sessions.get(key).is_some_and(|session| session.provisional);
        self.record_open_result(key, message);
        if message.result().is_some() {
            let params = View::parse(&opening.line).params().unwrap_or(b"{}");
            let asker = pending.client();
            let queued = self.core.worker(worker).map_or(0, |state| state.queued);
            let Some(session) = self.core.sessions.get_mut(key) else { return };
            if std::mem::take(&mut session.provisional) {
                session.reopened_at = queued;
            }
            session.owner_unconfirmed &= session.owner != asker;
            session.servers = std::mem::take(&mut opening.servers);
            self.core.sessions.keep_params(key, params, self.core.limits.session_params());
            self.record_owner(key, None);
            // If the response names a further session, that one is added only if the client may have another.
            let alias = self.alias_in(worker, &pending, message).unwrap_or_default();
            self.forward_response(worker, pending, message, alias.as_deref());
            return;
        }
        let unknown = message.error().is_some_and(|error| error.is(Code::NotFound));
        if provisional
            && unknown
            && !opening.line.is_empty()
            && self.core.pool_of(self.pool_of_worker(worker)).is_shared()
        {
            let pool = self.pool_of_worker(worker);
            // In some workers, the name of the session may now belong to another session.
            let mut closed = self.workers_closed_to(pool, key);
            closed.extend(&opening.tried);
            if let Some(client) = pending.client() {
                match self.choose_worker_for_stored(pool, client, opening.identity, closed) {
                    OpeningPlace::At(next) => {
                        opening.tried.push(next);
                        self.move_session(key, next);
                        self.try_next(next, client, pending, opening);
                        return;
                    }
                    OpeningPlace::Behind(next) => {
                        self.drop_session(key);
                        self.clear_used(worker);
                        self.release_request_id(client, &opening.line);
                        let batch = pending.batch();
                        self.await_creations(next, client, View::parse(&opening.line), batch);
                        return;
                    }
                    OpeningPlace::Nowhere => {}
                }
            }
        }
        if provisional {
            pending.session = None;
            self.drop_session(key);
            self.clear_used(worker);
            pending = match self.find_room(worker, pending, &opening, message) {
                None => return,
                Some(pending) => pending,
            };
        } else {
            if let Some(client) = pending.client() {
                self.release_ownership(key, client);
            }
        }
        self.forward_response(worker, pending, message, None);
    }

    /// Removes the owner of a session if the owner's request to load or resume it failed and the session had
    /// no owner before. The owner stays if the session was opened since, or another such request is pending.
    pub(super) fn release_ownership(&mut self, key: SessionKey, client: ClientKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        if !session.owner_unconfirmed || session.owner != Some(client) {
            return;
        }
        let asks_again = |pending: &Pending| {
            let is_it = pending.what.reopens() && pending.client() == Some(client);
            is_it && self.core.session_of_pending(pending) == Some(key)
        };
        let worker = session.worker().and_then(|worker| self.core.workers.get(worker));
        if worker.is_some_and(|worker| worker.pending.values().any(asks_again)) {
            return;
        }
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.owner_unconfirmed = false;
        let (owner, worker) = (session.owner, session.worker());
        if let Some(state) = worker.and_then(|worker| self.core.worker(worker))
            && state.inherited
            && state.client == owner
        {
            state.client = None;
        }
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        if let Some(owner) = session.owner.and_then(|owner| self.core.client(owner)) {
            owner.sessions.remove(&key);
        }
        self.expire_later(key);
    }

    /// Allows a worker for one session to get another session, because the first one was not opened.
    fn clear_used(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.used = state.pending.opens() || !state.sessions.is_empty() || state.had_session;
    }

    fn try_next(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        pending: Pending,
        mut opening: Box<Opening>,
    ) {
        let params = View::parse(&opening.line).params().unwrap_or_default();
        // The servers at the former worker are dropped first, so that their memory is free for the same
        // servers here.
        opening.servers = ServerUse::default();
        opening.servers = self.enter_servers(worker, client, params).unwrap_or_default();
        _ = self.charge_servers(client, &mut opening.servers);
        let message = View::parse(&opening.line);
        // The ids of all servers that this line names were just added.
        let served = self.opening_with_servers(&opening.servers, message).unwrap_or_default();
        let message = served.as_deref().map_or(message, View::parse);
        let removals = self.core.removals_of(pending.session);
        let Some(state) = self.core.worker(worker) else { return };
        state.next_id += 1;
        let number = state.next_id;
        let start = state.queued;
        if let RequestOrigin::Client { id, .. } = &pending.asker
            && let Some(state) = self.core.client(client)
        {
            state.inflight.insert(id.clone(), RequestLocation::At(worker, number));
        }
        let digits = Digits::new(number);
        let line =
            pending.progress.as_ref().and_then(|_| progress::with_token(message, Some(digits.as_bytes())));
        let message = line.as_deref().map_or(message, View::parse);
        self.send_to_worker(
            worker,
            client,
            &Parts::new(message, &[(narrows_wire::Part::Id, digits.as_bytes())]),
        );
        if let Some(state) = self.core.worker(worker) {
            state.pending.insert(
                number,
                Pending { start, session_removals: removals, opening: Some(opening), ..pending },
            );
        }
    }

    pub(super) fn pool_of_worker(&self, worker: WorkerKey) -> super::PoolId {
        self.core.workers.get(worker).map_or(super::PoolId(0), |state| state.pool)
    }

    pub(super) fn move_session(&mut self, key: SessionKey, to: WorkerKey) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let from = session.worker();
        let params = session.params.clone();
        session.place = SessionState::On(to);
        session.removals += 1;
        // The numbers of prompts are valid for the former worker only.
        session.prompts.clear();
        session.last_cancelled_prompt = 0;
        let agent_name = session.agent_name();
        let name = session.agent_name_json.is_some().then(|| agent_name.clone());
        if let Some(from) = from.and_then(|from| self.core.worker(from)) {
            from.sessions.remove(&key);
            from.forget_alias(key, &agent_name);
        }
        if let Some(to) = self.core.worker(to) {
            to.sessions.insert(key);
            to.used = true;
            to.former.remove(&agent_name);
            if let Some(name) = name {
                to.aliases.insert(name, key);
            }
        }
        self.move_children(key, from, Some(to));
        // The new worker gets the MCP servers of the session's client.
        let client = self.client_of_servers(key);
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.servers = ServerUse::default();
        }
        let mut servers = ServerUse::default();
        if let Some(client) = client {
            servers = self.enter_servers(to, client, &params).unwrap_or_default();
            _ = self.charge_servers(client, &mut servers);
        }
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.servers = servers;
        }
    }

    pub(super) fn drop_session(&mut self, key: SessionKey) {
        let Some(mut session) = self.core.sessions.remove(key) else { return };
        self.forget_children(session.worker(), session.child_set.take());
        if let Some(sharing) = &session.sharing {
            self.end_sharing(key, session.worker(), sharing);
        }
        if let Some(owner) = session.owner.and_then(|owner| self.core.client(owner)) {
            owner.sessions.remove(&key);
        }
        if let Some(worker) = session.worker().and_then(|worker| self.core.worker(worker)) {
            // A worker that has not answered a restore may still open the session.
            let may_have = matches!(session.place, SessionState::On(_)) || worker.pending.restores(key);
            let is_opened = !session.provisional && may_have;
            let used = if is_opened { NameUse::Opened } else { NameUse::Asked };
            let name = session.agent_name();
            worker.forget_alias(key, &name);
            worker.former.add(name, session.identity, used);
            worker.had_session |= !session.provisional;
            worker.sessions.remove(&key);
            worker.restores.retain(|other| *other != key);
        }
    }

    pub(super) fn session_of(&self, worker: WorkerKey, name: &str) -> Option<SessionKey> {
        let state = self.core.workers.get(worker)?;
        let is_it = |key: &SessionKey| {
            self.core.sessions.get(*key).is_some_and(|session| {
                *session.name == *name
                    && session.agent_name_json.is_none()
                    && session.worker() == Some(worker)
            })
        };
        // Most messages of a worker are about the same session as the message before.
        let recent = state.recent.filter(is_it);
        recent
            .or_else(|| self.core.sessions.find(name).filter(is_it))
            .or_else(|| state.aliases.get(name).copied())
    }

    /// Queues a worker's message about a session that is not known yet. Returns `false` if there is no room
    /// for the message.
    pub(super) fn keep_early_message(
        &mut self,
        worker: WorkerKey,
        name: Cow<'_, str>,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) -> bool {
        let now = self.now;
        let Some(state) = self.core.worker(worker) else { return true };
        if state.early_bytes + message.bytes().len() > MAX_EARLY_MESSAGE_BYTES {
            self.core.counters.dropped += 1;
            self.log(LogEvent::Dropped {
                worker: worker.into(),
                why: "too many messages about an unknown session",
            });
            return false;
        }
        state.early_bytes += message.bytes().len();
        let (name, line) = (name.into(), message.bytes().into());
        state.early_messages.push(EarlyMessage { name, line, batch, since: now });
        if message.kind() == Kind::Request {
            self.core.timers.set(now + EARLY_REQUEST_TIMEOUT, Timer::EarlyRequest(worker));
        }
        true
    }

    pub(super) fn deliver_early_messages(&mut self, worker: WorkerKey, name: &str) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.early_messages.is_empty() {
            return;
        }
        let (known, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.early_messages).into_iter().partition(|early| *early.name == *name);
        state.early_bytes = others.iter().map(|early| early.line.len()).sum();
        state.early_messages = others;
        for EarlyMessage { line, batch, .. } in known {
            self.handle_worker_message(worker, View::parse(&line), batch);
        }
    }

    /// Handles a worker's queued messages about unknown sessions once no session is being created.
    pub(super) fn drop_early_messages(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.pending.creates() || state.early_messages.is_empty() {
            return;
        }
        state.early_bytes = 0;
        for EarlyMessage { line, batch, .. } in std::mem::take(&mut state.early_messages) {
            self.handle_worker_message(worker, View::parse(&line), batch);
        }
    }
}
