//! Forwards a client's request to a worker under a new id, and the response back under the client's id.

use narrows_wire::{Code, DuplicateKey, Effects, Part, RpcError, View};

use super::Ctx;
use super::api::CoreOutput;
use super::batch::BatchKey;
use super::identity::Identity;
use super::initialize::is_too_long;
use super::mcp_server_table::ServerUse;
use super::mcp_servers::is_about_server;
use super::memory::PENDING_BYTES;
use super::progress::{self, MAX_TOKEN_BYTES};
use super::request_id::{self, Digits};
use super::session::{SessionKey, Waiting, quoted};
use super::splice::Parts;
use super::state::{InternalRequest, Opening, Pending, RequestKind, RequestLocation, RequestOrigin};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// Maximum size of a request to open a session that is kept until it is answered, because it may have to be
/// sent to another worker.
const MAX_KEPT_OPENING_BYTES: usize = 256 << 10;

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn forward(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
        worker: WorkerKey,
        session: Option<SessionKey>,
        what: RequestKind,
    ) {
        let Some(id) = message.id() else { return };
        let tag = message.tag();
        let pool = self.pool_of_worker(worker);
        let is_v2 = self.core.worker(worker).is_some_and(|state| state.is_v2);
        // Prompts and other requests were checked when they were routed, and nothing is inserted into them.
        // Messages to MCP servers were not checked there.
        let is_judged = match what {
            RequestKind::Prompt => true,
            RequestKind::Other => !is_about_server(message),
            _ => false,
        };
        let permitted = match is_judged {
            true => Ok(None),
            false => self.permit_servers(client, pool, is_v2, message, what),
        };
        let permitted = match permitted {
            Ok(permitted) => permitted,
            Err(error) => {
                self.refuse(client, id, batch, tag, &error);
                return;
            }
        };
        let message = permitted.as_deref().map_or(message, View::parse);
        let (mut served, mut servers) = (None, ServerUse::default());
        if what.creates() || what.reopens() {
            servers = match self.enter_servers(worker, client, message.params().unwrap_or_default()) {
                Ok(servers) => servers,
                Err(error) => {
                    self.refuse(client, id, batch, tag, &error);
                    return;
                }
            };
            // In a shared pool without a known protocol, ids of MCP servers stay unchanged. Only progress
            // tokens are replaced there.
            let knows = !self.exchanges_tokens(worker);
            match self.opening_with_servers(&servers, message) {
                Ok(line) => served = line.filter(|_| knows),
                Err(error) if knows => {
                    self.refuse(client, id, batch, tag, &error);
                    return;
                }
                Err(_) => {}
            }
            if let Some(parent) = session.and_then(|key| self.core.sessions.get(key))
                && what == RequestKind::Fork
            {
                servers.extend(&parent.servers);
            }
            if let Err(error) = self.charge_servers(client, &mut servers) {
                self.refuse(client, id, batch, tag, &error);
                return;
            }
        }
        let token = match self.exchanges_tokens(worker).then(|| progress::token_of_request(message)) {
            None => None,
            Some(Ok(place)) if place.as_ref().is_some_and(|place| place.len() > MAX_TOKEN_BYTES) => {
                let error = RpcError::new(Code::InvalidParams, "progressToken too long");
                self.refuse(client, id, batch, tag, &error);
                return;
            }
            Some(Ok(place)) => place,
            Some(Err(DuplicateKey)) => {
                let error = RpcError::new(Code::InvalidParams, "duplicate progressToken");
                self.refuse(client, id, batch, tag, &error);
                return;
            }
        };
        let session = match session {
            None if what.reopens() => self.enter_provisionally(client, worker, message),
            known => known,
        };
        if let Some(key) = session.filter(|_| what.reopens()) {
            self.rewind(key, what);
        }
        let identity = self.core.client(client).map_or(Identity::ANYONE, |state| state.identity);
        // If the request is longer, it is not sent to another worker, and its session is not restored.
        let opens = what.creates() || what.reopens();
        let length = message.bytes().len();
        let is_kept = length <= MAX_KEPT_OPENING_BYTES && !(opens && self.core.is_too_much(identity, length));
        let line = if is_kept { message.bytes() } else { b"" };
        let charge = opens.then(|| self.core.charge(client, line.len()));
        let repeated =
            self.core.client(client).and_then(|state| state.repeated.take_if(|repeated| **repeated == *id));
        let is_repeat = repeated.is_some();
        let opening = charge.map(|charge| {
            let (line, tried) = (line.into(), vec![worker]);
            Box::new(Opening { line, identity, tried, is_repeat, is_overdue: false, servers, charge })
        });
        if what == RequestKind::Initialize || what == RequestKind::Authenticate {
            self.remember(client, message, what);
        }
        let deadline = self.now + self.core.limits.initialize_timeout;
        let open_deadline = self.now + self.core.limits.open_timeout;
        let Some(pool) = self.core.worker(worker).map(|state| state.pool) else { return };
        let is_acp = self.core.pool_of(pool).is_acp();
        let Some(state) = self.core.worker(worker) else { return };
        state.next_id += 1;
        let number = state.next_id;
        state.used |= opening.is_some();
        if what == RequestKind::Initialize && is_acp {
            self.core.timers.set(deadline, Timer::Unanswered(worker, number));
        }
        if what.creates() && is_acp {
            self.core.timers.set(open_deadline, Timer::Unopened(worker, number));
        }
        let kept = id.len() + tag.map_or(0, <[u8]>::len) + token.as_ref().map_or(0, ExactSizeIterator::len);
        let request_charge = self.core.charge(client, PENDING_BYTES + kept);
        let removals = self.core.removals_of(session);
        let Some(state) = self.core.worker(worker) else { return };
        state.pending.insert(
            number,
            Pending {
                asker: RequestOrigin::Client { client, id: id.into(), batch },
                what,
                session,
                session_removals: removals,
                start: state.queued,
                tag: tag.map(Box::from),
                progress: token.as_ref().map(|place| message.bytes()[place.clone()].into()),
                opening,
                charge: Some(request_charge),
            },
        );
        if let Some(state) = self.core.client(client) {
            state.inflight.insert(id.into(), RequestLocation::At(worker, number));
        }
        let mut wire = None;
        if let Some(state) = session.and_then(|key| self.core.sessions.get_mut(key)) {
            wire = state.agent_name_json.clone();
            if what == RequestKind::Prompt {
                state.prompts.push(number);
            }
            if let (Some(tag), Some(key)) = (tag, session)
                && state.tag.as_deref() != Some(tag)
            {
                self.core.keep_tag(key, Some(tag));
            }
        }
        if let Some(key) = session {
            self.refresh_owner(key);
        }
        if what == RequestKind::Prompt
            && let Some(key) = session
        {
            self.mark_turn_begun(key);
            self.abandon_if_closed(client, key);
        }
        let digits = Digits::new(number);
        let both;
        let one = [(Part::Id, digits.as_bytes())];
        let edits: &[(Part, &[u8])] = match &wire {
            Some(wire) => {
                both = [(Part::Id, digits.as_bytes()), (Part::Session, &**wire)];
                &both
            }
            None => &one,
        };
        let message = served.as_deref().map_or(message, View::parse);
        let line =
            token.map(|place| progress::with_range_replaced(message.bytes(), place, digits.as_bytes()));
        let message = line.as_deref().map_or(message, View::parse);
        self.send_to_worker(worker, client, &Parts::new(message, edits));
    }

    pub(super) fn send_internal_request(
        &mut self,
        worker: WorkerKey,
        errand: InternalRequest,
        method: &str,
        params: &[u8],
        session: Option<SessionKey>,
    ) {
        self.send_request(worker, RequestOrigin::Internal(errand), method, params, session);
    }

    pub(super) fn send_request(
        &mut self,
        worker: WorkerKey,
        asker: RequestOrigin,
        method: &str,
        params: &[u8],
        session: Option<SessionKey>,
    ) {
        let removals = self.core.removals_of(session);
        let Some(state) = self.core.worker(worker).filter(|state| !state.input_closed) else { return };
        state.next_id += 1;
        let number = state.next_id;
        let start = state.queued;
        let what = RequestKind::Other;
        let (tag, progress, opening, charge) = (None, None, None, None);
        let pending = Pending {
            asker,
            what,
            session,
            session_removals: removals,
            start,
            tag,
            progress,
            opening,
            charge,
        };
        state.pending.insert(number, pending);
        let digits = Digits::new(number);
        let parts: [&[u8]; 7] = [
            br#"{"jsonrpc":"2.0","id":"#,
            digits.as_bytes(),
            br#","method":""#,
            method.as_bytes(),
            br#"","params":"#,
            params,
            b"}",
        ];
        self.write_worker(worker, &parts);
    }

    pub(super) fn worker_response(&mut self, worker: WorkerKey, message: View<'_>) {
        if message.envelope().result.is_some() && message.envelope().error.is_some() {
            self.fail_answered(worker, message, Code::Internal, "agent response has both result and error");
            self.strike(worker, "sent an invalid response");
            return;
        }
        let Some(state) = self.core.worker(worker) else { return };
        let number = message.id().and_then(request_id::parse);
        let Some(mut pending) = number.and_then(|number| state.pending.remove(number)) else {
            self.strike(worker, "answered an unknown request");
            return;
        };
        pending.session = self.core.session_of_pending(&pending);
        let number = number.unwrap_or_default();
        self.mark_healthy(worker);
        if pending.what == RequestKind::Initialize
            && self.core.pool_of(self.pool_of_worker(worker)).is_acp()
            && message.result().is_some_and(is_too_long)
        {
            if let Some(client) = pending.client().and_then(|client| self.core.client(client)) {
                client.initialize = None;
            }
            let error = RpcError::new(Code::MessageTooLarge, "agent response too long");
            self.fail(worker, pending, &error.effects(Effects::Possible));
            self.retire(worker, "sent too long an initialize result");
            return;
        }
        if pending.opening.is_some() {
            self.handle_opened(worker, pending, message);
        } else {
            let alias = match self.alias_in(worker, &pending, message) {
                Ok(alias) => alias,
                Err(error) => {
                    self.settle_session(&pending, number, false);
                    self.fail(worker, pending, &error.effects(Effects::Possible));
                    self.end_if_retired(worker);
                    return;
                }
            };
            self.settle_session(&pending, number, message.result().is_some());
            self.forward_response(worker, pending, message, alias.as_deref());
        }
        self.end_if_retired(worker);
    }

    /// Closes the circuit breaker of a pool whose workers get no `initialize`, because any response shows
    /// that a worker works.
    fn mark_healthy(&mut self, worker: WorkerKey) {
        let Some(pool) = self.core.worker(worker).map(|state| state.pool) else { return };
        let state = self.core.pool_of(pool);
        if !state.is_acp() && (state.failures > 0 || state.open_until.is_some()) {
            self.close_circuit(pool);
        }
    }

    /// Forwards a response to the client whose request it answers. With `name`, the session in the response
    /// is renamed.
    pub(super) fn forward_response(
        &mut self,
        worker: WorkerKey,
        pending: Pending,
        message: View<'_>,
        name: Option<&[u8]>,
    ) {
        match pending.asker {
            RequestOrigin::Client { client, id, batch } => {
                if let Some(state) = self.core.client(client) {
                    state.inflight.remove(&id);
                }
                if matches!(
                    pending.what,
                    RequestKind::Initialize | RequestKind::Authenticate | RequestKind::Logout
                ) {
                    self.record_initialize_result(worker, client, pending.what, message);
                }
                if pending.what == RequestKind::List
                    && let Some(line) = self.own_list(client, worker, &id, message)
                {
                    self.reply(client, batch, pending.tag.as_deref(), line);
                    return;
                }
                let both;
                let one = [(Part::Id, &*id)];
                let edits: &[(Part, &[u8])] = match name {
                    Some(name) => {
                        both = [(Part::Id, &*id), (Part::Session, name)];
                        &both
                    }
                    None => &one,
                };
                let parts = match &pending.tag {
                    Some(tag) => Parts::with_tag(message, edits, tag),
                    None => Parts::new(message, edits),
                };
                match batch {
                    Some(batch) => self.answer_in_batch(batch, parts.as_slice().concat().into()),
                    None => self.deliver(client, worker, &parts),
                }
                self.close_if_served(client);
            }
            RequestOrigin::Internal(errand) => self.finish_internal_request(worker, errand, message),
            RequestOrigin::Fan(fan) => self.add_fan_part(fan, worker, Ok(message)),
            RequestOrigin::Gone => self.stop_idle(),
        }
    }

    pub(super) fn fail(&mut self, worker: WorkerKey, pending: Pending, error: &RpcError) {
        match pending.asker {
            RequestOrigin::Client { client, id, batch } => {
                if let Some(state) = self.core.client(client) {
                    state.inflight.remove(&id);
                }
                self.refuse(client, &id, batch, pending.tag.as_deref(), error);
            }
            RequestOrigin::Internal(errand) => self.fail_internal_request(worker, errand, error),
            RequestOrigin::Fan(fan) => self.add_fan_part(fan, worker, Err(error)),
            RequestOrigin::Gone => self.stop_idle(),
        }
    }

    /// Fails a request whose response cannot be forwarded.
    pub(super) fn fail_answered(
        &mut self,
        worker: WorkerKey,
        message: View<'_>,
        code: Code,
        words: &'static str,
    ) {
        let Some(state) = self.core.worker(worker) else { return };
        let Some(number) = message.id().and_then(request_id::parse) else { return };
        let Some(mut pending) = state.pending.remove(number) else { return };
        pending.session = self.core.session_of_pending(&pending);
        let error = RpcError::new(code, words).effects(Effects::Possible);
        self.forget_pending(&pending, number);
        if let Some(key) = pending.session.filter(|_| pending.what == RequestKind::Replay) {
            self.finish_replay(key, false);
        }
        self.fail(worker, pending, &error);
        self.drop_early_messages(worker);
        self.end_if_retired(worker);
    }

    /// Returns a client's request that its worker never read, as the client sent it.
    pub(super) fn unsent(&mut self, pending: &Pending, unsent: &[u8]) -> Option<Waiting> {
        let RequestOrigin::Client { client, id, batch } = &pending.asker else { return None };
        if let Some(state) = self.core.client(*client) {
            state.inflight.remove(id);
        }
        // The kept line, unlike the queued one, contains the client's own ids of MCP servers.
        if let Some(opening) = pending.opening.as_ref().filter(|opening| !opening.line.is_empty()) {
            let charge = self.core.charge_line(*client, &opening.line);
            return Some(Waiting {
                client: *client,
                line: (*opening.line).into(),
                batch: *batch,
                _charge: charge,
            });
        }
        let end = memchr::memchr(b'\n', unsent).unwrap_or(unsent.len());
        let line = View::parse(&unsent[..end]);
        let restored = progress::with_token(line, pending.progress.as_deref());
        let line = restored.as_deref().map_or(line, View::parse);
        let name = pending
            .session
            .and_then(|key| self.core.sessions.get(key))
            .filter(|session| session.agent_name_json.is_some())
            .map(|session| quoted(&session.name));
        let mut edits: Vec<(Part, &[u8])> = vec![(Part::Id, id)];
        if let Some(name) = &name {
            edits.push((Part::Session, name));
        }
        let line = Parts::new(line, &edits).as_slice().concat();
        let charge = self.core.charge_line(*client, &line);
        Some(Waiting { client: *client, line: (*line).into(), batch: *batch, _charge: charge })
    }
}
