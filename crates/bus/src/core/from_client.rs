//! Handles client events: lines, end of input, disconnect.

use narrows_acp::method;
use narrows_wire::{Code, Fault, Kind, Part, RpcError, View, message};
use serde_json::json;

use super::Ctx;
use super::api::{ClientCloseReason, ClientInfo, CoreOutput};
use super::batch::{BatchKey, Sender};
use super::cancellation::cancels_request;
use super::request_id;
use super::route::Route;
use super::session::SessionKey;
use super::splice::Parts;
use super::state::{
    Asked, ClientState, LONG_ID_BYTES, MAX_LONG_IDS, MAX_OPEN_REQUESTS, PoolState, RequestKind,
    RequestLocation, RequestOrigin,
};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

pub(super) const MCP_CANCELLED: &str = "notifications/cancelled";
/// The MCP notification that a client has received the result of `initialize`. The bus keeps it for further
/// workers.
const MCP_INITIALIZED: &str = "notifications/initialized";
const MAX_INITIALIZED_BYTES: usize = 4096;

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn client_open(&mut self, from: ClientInfo<'_>) -> Option<ClientKey> {
        let identity = self.core.identities.number(from.identity);
        let known = self.core.identities.get_mut(identity)?;
        if from.is_authenticated && known.clients >= self.core.limits.max_connections_per_identity {
            known.refused += 1;
            return None;
        }
        if self.core.draining || self.core.clients.len() >= self.core.limits.max_connections {
            return None;
        }
        known.clients += 1;
        self.core.counters.connections += 1;
        let account = self.core.memory.account(identity);
        let key = self.core.clients.insert(ClientState {
            identity,
            account,
            scopes: from.scopes.map(Box::from),
            is_authenticated: from.is_authenticated,
            rate_limited: false,
            listener: from.listener,
            ends_bus: from.ends_bus,
            pools: from.pools.map(Box::from),
            is_owner: from.is_owner,
            pool: None,
            pool_missing: false,
            worker: None,
            initialize: None,
            initialized: None,
            authenticate: None,
            charges: [None, None],
            notices: false,
            inflight: Default::default(),
            repeated: None,
            asked: Default::default(),
            next_ask: 0,
            sessions: Default::default(),
            observing: Default::default(),
            held: None,
            catching_up: false,
            eof: false,
            closing: false,
            full: false,
            oversize: 0,
            self_paused: false,
            pausing: Vec::new(),
            paused: 0,
        });
        Some(key)
    }

    pub(super) fn client_line(&mut self, client: ClientKey, message: View<'_>) {
        let Some(state) = self.core.client(client) else { return };
        if state.closing {
            return;
        }
        let (waits, is_authenticated) = (state.held.is_some(), state.is_authenticated);
        self.core.counters.from_clients += 1;
        if is_authenticated {
            self.count_messages(client, 1);
        }
        if self.refuse_too_much(client, message) {
            return;
        }
        if waits && !self.overtakes(client, message) {
            let rest = match message.kind() {
                Kind::Batch => self.take_answers(client, message),
                _ => Some(message.bytes().into()),
            };
            if let Some(rest) = rest {
                self.hold_behind(client, &rest);
            }
            return;
        }
        self.handle_client_message(client, message, None);
    }

    pub(super) fn handle_client_message(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        if self.refuse_ambiguous(client, message, batch) {
            return;
        }
        match message.kind() {
            Kind::Request => self.client_request(client, message, batch),
            Kind::Notification => self.client_notification(client, message),
            Kind::Response => self.client_response(client, message),
            Kind::Batch => self.handle_batch(Sender::Client(client), message),
            Kind::Invalid(fault) => self.client_fault(client, message, fault),
        }
    }

    pub(super) fn client_request(&mut self, client: ClientKey, message: View<'_>, batch: Option<BatchKey>) {
        let Some(id) = message.id() else { return };
        let Some((what, cancels_request)) = kind_of(message) else { return };
        let tag = message.tag();
        let is_long = id.len() + tag.map_or(0, <[u8]>::len) > LONG_ID_BYTES;
        let most = if is_long { MAX_LONG_IDS } else { MAX_OPEN_REQUESTS };
        if self.core.client(client).is_some_and(|state| state.inflight.len() >= most) {
            let error = RpcError::new(Code::Backpressure, "too many pending requests of this connection");
            self.refuse(client, id, batch, tag, &error);
            return;
        }
        if self.refuse_doubled(client, id, batch, tag) {
            return;
        }
        if self.core.draining {
            self.refuse(client, id, batch, tag, &RpcError::new(Code::Draining, "bus is shutting down"));
            return;
        }
        if cancels_request {
            // The worker knows the request by another id. The client's own id may be the worker's id of
            // another client's request.
            let error = RpcError::new(Code::InvalidRequest, "cancellation must be a notification");
            self.refuse(client, id, batch, tag, &error);
            return;
        }
        let is_cancel = what == RequestKind::Cancel;
        if what == RequestKind::Other
            && let Some((worker, line)) = self.home_of_server(client, message)
        {
            let message = line.as_deref().map_or(message, View::parse);
            self.forward(client, message, batch, worker, None, what);
            return;
        }
        match self.route(client, message, what) {
            Route::Worker { worker, session } => {
                if let Some(session) = session.filter(|_| is_cancel) {
                    self.start_cancelling(session);
                }
                self.forward(client, message, batch, worker, session, what);
            }
            Route::Child { worker, agent_name_json } => {
                self.forward_to_child(client, message, batch, worker, agent_name_json.as_deref());
            }
            Route::Backlog(worker) => self.queue_until_initialized(worker, client, message, batch),
            Route::AwaitCreations(worker) => self.await_creations(worker, client, message, batch),
            Route::Restore(session) => self.await_session(session, client, message, batch),
            Route::Close(session) => {
                self.drop_session(session);
                if let Ok(line) = message::response(id, &json!({})) {
                    self.reply(client, batch, tag, line);
                }
            }
            Route::Attach(session) => self.attach(client, message, batch, session),
            Route::Replay(session) => self.start_replay(client, message, batch, session),
            Route::Detach(session) => {
                self.detach(client, session);
                if let Ok(line) = message::response(id, &json!({})) {
                    self.reply(client, batch, tag, line);
                }
            }
            Route::Hold => self.hold(client, message.bytes(), batch),
            Route::Initialize => self.answer_initialize(client, message, batch),
            Route::FanOut => self.ask_all_workers(client, message, batch, what),
            Route::Refuse(error) => self.refuse(client, id, batch, tag, &error),
        }
    }

    /// Refuses a request whose id is already in use. Returns `true` if it was refused.
    pub(super) fn refuse_doubled(
        &mut self,
        client: ClientKey,
        id: &[u8],
        batch: Option<BatchKey>,
        tag: Option<&[u8]>,
    ) -> bool {
        let doubled = self.core.client(client).is_some_and(|state| state.inflight.contains_key(id));
        if doubled {
            let error = RpcError::new(Code::DuplicateId, "duplicate request id");
            self.refuse(client, id, batch, tag, &error);
        }
        doubled
    }

    fn client_notification(&mut self, client: ClientKey, message: View<'_>) {
        let Some(method) = message.method() else { return };
        if cancels_request(&method) {
            self.cancel_request(client, message);
            return;
        }
        if method == MCP_INITIALIZED
            && message.bytes().len() <= MAX_INITIALIZED_BYTES
            && let Some(state) = self.core.client(client)
        {
            state.initialized = Some(message.bytes().into());
        }
        if let Some((worker, line)) = self.home_of_server(client, message) {
            let message = line.as_deref().map_or(message, View::parse);
            self.send_to_worker(worker, client, &Parts::new(message, &[]));
            return;
        }
        if RequestKind::from_method(&method) != RequestKind::Other
            && self.core.pools.iter().any(PoolState::is_acp)
        {
            // A notification with the method of a request is dropped: it has no meaning, but an agent could
            // act on it.
            self.core.counters.dropped += 1;
            return;
        }
        let what = if method == method::SESSION_CANCEL { RequestKind::Cancel } else { RequestKind::Other };
        match self.route(client, message, what) {
            Route::Child { worker, agent_name_json } => {
                let edit = agent_name_json.as_deref().map(|name| (Part::Session, name));
                self.send_to_worker(worker, client, &Parts::new(message, edit.as_slice()));
            }
            Route::Worker { worker, session } => {
                if method == method::SESSION_CANCEL
                    && let Some(session) = session
                {
                    self.start_cancelling(session);
                }
                self.forward_notification(client, worker, session, message);
            }
            Route::Backlog(worker) => self.queue_until_initialized(worker, client, message, None),
            // A cancellation is dropped if its session is lost and not being restored, because no turn runs.
            Route::Restore(session) if method != method::SESSION_CANCEL || self.is_awaited(session) => {
                self.await_session(session, client, message, None);
            }
            // While the bus drains, no worker is started, so a notification cannot wait for one.
            Route::Hold if !self.core.draining => self.hold(client, message.bytes(), None),
            Route::Hold
            | Route::AwaitCreations(_)
            | Route::Restore(_)
            | Route::Close(_)
            | Route::Attach(_)
            | Route::Replay(_)
            | Route::Detach(_)
            | Route::Initialize
            | Route::FanOut
            | Route::Refuse(_) => {
                self.core.counters.dropped += 1;
            }
        }
    }

    fn forward_notification(
        &mut self,
        client: ClientKey,
        worker: WorkerKey,
        session: Option<SessionKey>,
        message: View<'_>,
    ) {
        let wire = session.and_then(|key| self.core.sessions.get(key)?.agent_name_json.clone());
        let edits: &[(Part, &[u8])] = match &wire {
            Some(wire) => &[(Part::Session, wire)],
            None => &[],
        };
        self.send_to_worker(worker, client, &Parts::new(message, edits));
    }

    fn client_response(&mut self, client: ClientKey, message: View<'_>) {
        let asked = self.take_asked(client, message);
        let Some(asked) = asked else {
            self.core.counters.dropped += 1;
            return;
        };
        match asked.batch {
            Some(batch) => {
                let line = Parts::new(message, &[(Part::Id, &asked.id)]).as_slice().concat();
                self.answer_in_batch(batch, line.into());
            }
            None => self.send_to_worker(asked.worker, client, &Parts::new(message, &[(Part::Id, &asked.id)])),
        }
    }

    /// Removes and returns the worker's request that a response of a client answers.
    fn take_asked(&mut self, client: ClientKey, message: View<'_>) -> Option<Asked> {
        let number = request_id::parse(message.id()?)?;
        let asked = self.core.client(client)?.asked.remove(&number)?;
        self.core.worker(asked.worker)?;
        self.withdraw_others(asked.worker, &asked.id, (client, number));
        Some(asked)
    }

    /// Fails the worker's request that a client has answered with a response that cannot be forwarded.
    pub(super) fn fail_response(&mut self, client: ClientKey, message: View<'_>, error: &RpcError) {
        match self.take_asked(client, message) {
            Some(asked) => self.fail_asked(&asked, error),
            None => self.core.counters.dropped += 1,
        }
    }

    pub(super) fn client_fault(&mut self, client: ClientKey, message: View<'_>, fault: Fault) {
        if let Some(line) = message.refusal() {
            self.write_client(client, &[&line]);
        }
        // A response that cannot be forwarded becomes an error for the worker that waits for it.
        if matches!(fault, Fault::LongResponse | Fault::BadResponse)
            && let Some(asked) = self.take_asked(client, message)
        {
            let code = if fault == Fault::LongResponse { Code::MessageTooLarge } else { Code::Internal };
            self.fail_asked(&asked, &RpcError::new(code, "invalid client response"));
        }
    }

    pub(super) fn fail_asked(&mut self, asked: &Asked, error: &RpcError) {
        let line = message::error(&asked.id, error);
        match asked.batch {
            Some(batch) => self.answer_in_batch(batch, line),
            None => self.write_worker(asked.worker, &[&line]),
        }
    }

    pub(super) fn client_eof(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        state.eof = true;
        let ends_bus = state.ends_bus;
        self.end_asked_requests(client);
        if ends_bus {
            // Requests that a client sent before the end of its input are still answered.
            let at = self.now + self.core.limits.drain_timeout;
            self.core.timers.set(at, Timer::Drained);
        } else {
            self.abandon_turns(client);
        }
        self.close_if_served(client);
    }

    /// Closes a client if its input has ended and all its requests are answered.
    pub(super) fn close_if_served(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        if state.eof && state.inflight.is_empty() && state.held.is_none() && !state.catching_up {
            let ends_bus = state.ends_bus;
            self.close(client, ClientCloseReason::Served);
            if ends_bus {
                self.drain();
            }
        }
    }

    /// Ends the requests of workers that a client will not answer, because its input has ended.
    fn end_asked_requests(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        let mut asked: Vec<_> = std::mem::take(&mut state.asked).into_iter().collect();
        asked.sort_unstable_by_key(|(number, _)| *number);
        for (number, asked) in asked {
            if !self.another_may_answer(client, number, &asked) {
                self.answer_without_client(&asked);
            }
        }
    }

    /// Withdraws a request of a worker from a client. If no other client may answer it, the worker gets an answer.
    pub(super) fn withdraw_unanswered(&mut self, client: ClientKey, number: u64) {
        let Some(asked) = self.core.client(client).and_then(|state| state.asked.remove(&number)) else {
            return;
        };
        if let Ok(line) = message::notification(method::CANCEL_REQUEST, &json!({"requestId": number})) {
            self.write_client(client, &[&line]);
        }
        if !self.another_may_answer(client, number, &asked) {
            self.answer_without_client(&asked);
        }
    }

    pub(super) fn answer_without_client(&mut self, asked: &Asked) {
        if !asked.is_permission {
            self.fail_asked(asked, &RpcError::new(Code::Cancelled, "client disconnected"));
            return;
        }
        let outcome = json!({"outcome": {"outcome": "cancelled"}});
        let Ok(line) = message::response(&asked.id, &outcome) else { return };
        match asked.batch {
            Some(batch) => self.answer_in_batch(batch, line),
            None => self.write_worker(asked.worker, &[&line]),
        }
    }

    /// Starts the grace period of a client's running turns, because the client will not see their end.
    fn abandon_turns(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        let sessions: Vec<SessionKey> = state.sessions.iter().copied().collect();
        let at = self.now + self.core.limits.disconnect_grace;
        for key in sessions {
            let Some(session) = self.core.sessions.get(key) else { continue };
            if session.is_busy() {
                self.core.timers.set(at, Timer::Abandoned(key));
            }
        }
    }

    pub(super) fn client_gone(&mut self, client: ClientKey) {
        self.end_asked_requests(client);
        self.abandon_turns(client);
        let Some(state) = self.core.clients.remove(client) else { return };
        if let Some(known) = self.core.identities.get_mut(state.identity) {
            known.clients -= 1;
        }
        self.core.batches.forget(Sender::Client(client));
        for worker in state.pausing {
            self.resume_worker(worker);
        }
        for place in state.inflight.into_values() {
            if let RequestLocation::At(worker, id) = place
                && let Some(pending) = self.core.worker(worker).and_then(|worker| worker.pending.get_mut(id))
            {
                pending.asker = RequestOrigin::Gone;
            }
        }
        for key in state.observing {
            self.detach(client, key);
        }
        let mut sessions: Vec<SessionKey> = state.sessions.into_iter().collect();
        sessions.sort_unstable();
        for key in sessions {
            if let Some(session) = self.core.sessions.get_mut(key) {
                session.waiting.retain(|waiting| waiting.client != client);
            }
            if self.promote(key) {
                self.detach(client, key);
            } else {
                self.expire_later(key);
            }
        }
        self.forget_client(client);
        if state.ends_bus {
            self.drain();
        }
        self.finish_if_drained();
    }

    fn forget_client(&mut self, client: ClientKey) {
        for worker in self.core.workers.values_mut() {
            worker.pausing.retain(|paused| *paused != client);
            worker.servers.forget(client);
            worker.backlog.retain(|waiting| waiting.client != client);
            worker.refused.retain(|waiting| waiting.client != client);
            if worker.client == Some(client) {
                worker.client = None;
            }
        }
        for pool in &mut self.core.pools {
            pool.waiting.retain(|waiting| *waiting != client);
        }
        // The client may also wait for sessions that it did not own. A later client with the same number must
        // not get the answers.
        self.core.sessions.forget_waiting(client);
        self.core.awaited_creations.forget(client);
        self.stop_idle();
    }
}

/// Returns the kind of a client's request, and `true` if it is a request to cancel another one.
#[inline]
fn kind_of(message: View<'_>) -> Option<(RequestKind, bool)> {
    // Most requests are prompts. The bytes of the method are enough to recognize them.
    if message.is_method(method::SESSION_PROMPT) {
        return Some((RequestKind::Prompt, false));
    }
    let method = message.method()?;
    let kind = if method == method::SESSION_CANCEL {
        RequestKind::Cancel
    } else {
        RequestKind::from_method(&method)
    };
    Some((kind, cancels_request(&method)))
}
