//! `initialize`: sent once to a shared worker, answered to each of its clients, and replayed to further
//! workers of a client.

use narrows_acp::capability::AUTHORIZES;
use narrows_acp::method;
use narrows_base::json::has_more_values_than;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::{Value, json};

use crate::config::PoolProtocol;

use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::deliver::too_slow;
use super::session::{Session, SessionKey, Waiting};
use super::state::{Abilities, InternalRequest, RequestKind, RequestLocation, WorkerLifecycle};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;
use super::{Core, Ctx};

const MAX_BACKLOG_LINES: usize = 1024;

/// Maximum size of a worker's result of `initialize`. The bus parses the whole result, and keeps it for each
/// shared worker.
const MAX_ANSWER_BYTES: usize = 256 << 10;
const MAX_ANSWER_VALUES: usize = 4_000;

const NAME: &str = "narrows-bus";

impl Core {
    pub(super) fn abilities_of_worker(&self, worker: WorkerKey) -> Abilities {
        let Some(state) = self.workers.get(worker) else { return Abilities::default() };
        let pool = self.pool_of(state.pool);
        if pool.is_shared() { pool.abilities } else { state.abilities.unwrap_or_default() }
    }

    /// Returns the session capabilities of the worker of a session, or of the last worker that had the
    /// session.
    pub(super) fn abilities_of(&self, session: &Session) -> Abilities {
        let pool = self.pool_of(session.pool);
        if pool.is_shared() {
            return pool.abilities;
        }
        let state = session.worker().and_then(|worker| self.workers.get(worker));
        state.and_then(|state| state.abilities).unwrap_or(session.abilities)
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn initialize_worker(&mut self, worker: WorkerKey) {
        let Some(pool) = self.core.worker(worker).map(|state| state.pool) else { return };
        let settings = &self.core.pool_of(pool).settings;
        let capabilities = with_mark(settings.client_capabilities.clone());
        let info = json!({"name": NAME, "title": "Narrows bus", "version": env!("CARGO_PKG_VERSION")});
        let params = match settings.protocol {
            PoolProtocol::V2 => json!({"protocolVersion": 2, "capabilities": capabilities, "info": info}),
            _ => json!({"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": info}),
        };
        self.send_initialize(worker, params.to_string().as_bytes());
    }

    pub(super) fn replay_initialize(&mut self, worker: WorkerKey, client: ClientKey) {
        let Some(params) = self.core.client(client).and_then(|state| state.initialize.clone()) else {
            return;
        };
        self.send_initialize(worker, &params);
    }

    fn send_initialize(&mut self, worker: WorkerKey, params: &[u8]) {
        let at = self.now + self.core.limits.initialize_timeout;
        let Some(state) = self.core.worker(worker) else { return };
        state.stage = WorkerLifecycle::Initializing;
        self.core.timers.set(at, Timer::InitializeTimeout(worker));
        self.send_internal_request(worker, InternalRequest::Initialize, method::INITIALIZE, params, None);
    }

    pub(super) fn queue_until_initialized(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let limit = self.core.limits.queue_bytes;
        let Some(state) = self.core.worker(worker) else { return };
        let held: usize = state.backlog.iter().map(|waiting| waiting.line.len()).sum();
        if held > limit || state.backlog.len() >= MAX_BACKLOG_LINES {
            if let Some(id) = message.id() {
                let error = RpcError::new(Code::Backpressure, "too many requests waiting for the agent");
                self.refuse(client, id, batch, message.tag(), &error);
            }
            return;
        }
        self.mark_waiting(client, message, RequestLocation::InBacklog(worker));
        let charge = self.core.charge_line(client, message.bytes());
        if let Some(state) = self.core.worker(worker) {
            state.backlog.push(Waiting { client, line: message.bytes().into(), batch, _charge: charge });
        }
    }

    /// Records where a request waits that was not sent to a worker yet. Its id counts as in use.
    pub(super) fn mark_waiting(&mut self, client: ClientKey, message: View<'_>, at: RequestLocation) {
        if let (Some(id), Some(state)) = (message.id(), self.core.client(client)) {
            state.inflight.insert(id.into(), at);
        }
    }

    pub(super) fn release_request_id(&mut self, client: ClientKey, line: &[u8]) {
        let message = View::parse(line);
        if message.kind() == Kind::Request
            && let (Some(id), Some(state)) = (message.id(), self.core.client(client))
        {
            state.inflight.remove(id);
        }
    }

    pub(super) fn finish_internal_request(
        &mut self,
        worker: WorkerKey,
        errand: InternalRequest,
        message: View<'_>,
    ) {
        match errand {
            InternalRequest::Initialize => self.handle_initialize_result(worker, message),
            InternalRequest::Authenticate => match message.error() {
                Some(error) => self.fail_backlog(worker, &error, None),
                None => self.finish_initialize_replay(worker),
            },
            InternalRequest::Restore(key) => self.handle_restored(key, worker, message.error()),
            InternalRequest::Close => self.stop_idle(),
            InternalRequest::Evict => self.retry_refused(worker),
        }
    }

    pub(super) fn fail_internal_request(
        &mut self,
        worker: WorkerKey,
        errand: InternalRequest,
        error: &RpcError,
    ) {
        match errand {
            InternalRequest::Initialize | InternalRequest::Authenticate => {}
            InternalRequest::Close => self.stop_idle(),
            InternalRequest::Evict => self.retry_refused(worker),
            InternalRequest::Restore(key) => self.handle_restore_failure(key, worker, error),
        }
    }

    fn handle_initialize_result(&mut self, worker: WorkerKey, message: View<'_>) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage != WorkerLifecycle::Initializing {
            return;
        }
        let (pool, client) = (state.pool, state.client);
        if message.result().is_some_and(is_too_long) {
            self.fail_initialize(worker, "sent too long an initialize result");
            return;
        }
        let answer = message.result().and_then(|result| serde_json::from_slice::<Value>(result).ok());
        let Some(answer) = answer else {
            match (client, message.error()) {
                (Some(_), Some(error)) => self.fail_backlog(worker, &error, None),
                _ => self.fail_initialize(worker, "rejected initialize"),
            }
            return;
        };
        self.record_version(worker, &answer);
        if !self.core.pool_of(pool).is_shared() {
            self.record_abilities(worker, &answer);
            self.close_circuit(pool);
            let login = client.and_then(|client| self.core.client(client)?.authenticate.clone());
            match login {
                Some((method, params)) => {
                    self.send_internal_request(worker, InternalRequest::Authenticate, &method, &params, None);
                }
                None => self.finish_initialize_replay(worker),
            }
            return;
        }
        let wanted = match self.core.pool_of(pool).settings.protocol {
            PoolProtocol::V2 => 2,
            _ => 1,
        };
        if answer["protocolVersion"] != wanted {
            self.fail_initialize(worker, "has another protocol version than its pool");
            return;
        }
        self.core.pool_mut(pool).answers.insert(worker, answer);
        self.refresh_pool(pool);
        self.close_circuit(pool);
        self.make_ready(worker);
    }

    /// Marks a worker as ready once the replayed `initialize` and `authenticate` are answered, and sends the
    /// lines that waited for that.
    fn finish_initialize_replay(&mut self, worker: WorkerKey) {
        let client = self.core.worker(worker).and_then(|state| state.client);
        if let Some(line) = client.and_then(|client| self.core.client(client)?.initialized.clone()) {
            self.write_worker(worker, &[&line]);
        }
        let Some(state) = self.core.worker(worker) else { return };
        state.stage = WorkerLifecycle::Ready;
        let backlog = std::mem::take(&mut state.backlog);
        let restores = std::mem::take(&mut state.restores);
        for key in restores {
            self.send_restore(key, worker);
        }
        for waiting in backlog {
            self.release_request_id(waiting.client, &waiting.line);
            self.send_backlog(worker, waiting.client, View::parse(&waiting.line), waiting.batch);
        }
        // The requests for which the worker was started may have been cancelled meanwhile.
        self.stop_idle();
    }

    fn send_backlog(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let what = message.method().map_or(RequestKind::Other, |method| RequestKind::from_method(&method));
        let session = message.session().and_then(|name| self.core.sessions.find(&name));
        let is_child = message.session().is_some_and(|name| self.core.children.contains(&name));
        let is_anew =
            session.is_none() && !is_child && !matches!(what, RequestKind::List | RequestKind::Delete);
        if message.id().is_some() && is_anew {
            self.forward(client, message, batch, worker, None, what);
        } else {
            // While the message waited, its session may have got another owner or worker, so the message is
            // routed anew.
            self.handle_client_message(client, message, batch);
        }
    }

    /// Fails the requests that wait for the initialization of a worker that will not serve them.
    fn fail_backlog(&mut self, worker: WorkerKey, error: &RpcError, fault: Option<&'static str>) {
        let Some(state) = self.core.worker(worker) else { return };
        let backlog = std::mem::take(&mut state.backlog);
        let restores = std::mem::take(&mut state.restores);
        for waiting in backlog {
            self.release_request_id(waiting.client, &waiting.line);
            if let Some(id) = View::parse(&waiting.line).id() {
                self.refuse(waiting.client, id, waiting.batch, None, error);
            }
        }
        for key in restores {
            self.fail_restore(key, error);
        }
        // The params that the agent rejects are its only client's, so the agent is not at fault.
        if let Some(state) = self.core.worker(worker) {
            state.fault = fault;
        }
        self.stop_worker(worker, false);
    }

    pub(super) fn fail_initialize(&mut self, worker: WorkerKey, why: &'static str) {
        let error = RpcError::new(Code::Deadline, format!("agent {why}"));
        self.fail_all(worker, &error);
        self.fail_backlog(worker, &error, Some(why));
    }

    /// Keeps the params of a client's `initialize` and `authenticate`, to send them to further workers of the
    /// client.
    pub(super) fn remember(&mut self, client: ClientKey, message: View<'_>, what: RequestKind) {
        let notices = what == RequestKind::Initialize && takes_notices(message);
        let charge = self.core.charge(client, message.bytes().len());
        let Some(state) = self.core.client(client) else { return };
        let params = message.params().map(Box::from);
        if what == RequestKind::Initialize {
            state.initialize = params;
            state.charges[0] = Some(charge);
            state.notices = notices;
        } else {
            let method: Option<Box<str>> = message.method().map(Box::from);
            state.authenticate = method.zip(params);
            state.charges[1] = Some(charge);
        }
    }

    /// Handles the response of a client's own worker to `initialize`, `authenticate` or `logout`.
    pub(super) fn record_initialize_result(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        what: RequestKind,
        message: View<'_>,
    ) {
        let Some(pool) = self.core.worker(worker).map(|state| state.pool) else { return };
        match (what, message.result()) {
            (RequestKind::Initialize, Some(result)) => {
                if !is_too_long(result)
                    && let Ok(answer) = serde_json::from_slice::<Value>(result)
                {
                    self.record_abilities(worker, &answer);
                    self.record_version(worker, &answer);
                }
                self.close_circuit(pool);
            }
            (RequestKind::Initialize, None) => {
                if let Some(state) = self.core.client(client) {
                    state.initialize = None;
                }
            }
            (RequestKind::Authenticate, None) | (RequestKind::Logout, Some(_)) => {
                if let Some(state) = self.core.client(client) {
                    state.authenticate = None;
                }
            }
            _ => {}
        }
    }

    fn record_version(&mut self, worker: WorkerKey, answer: &Value) {
        if let Some(state) = self.core.worker(worker) {
            state.is_v2 = answer["protocolVersion"] == 2;
        }
        self.record_announces(worker);
    }

    /// Records whether a worker may announce child sessions: always in version 2, and in version 1 if its
    /// client shows them.
    fn record_announces(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.workers.get(worker) else { return };
        let pool = self.core.pool_of(state.pool);
        let shows = match state.client.and_then(|client| self.core.clients.get(client)) {
            _ if pool.is_shared() => pool.settings.client_capabilities["subagents"].is_object(),
            Some(client) => client.initialize.as_deref().is_some_and(shows_children),
            None => false,
        };
        let announces = pool.is_acp() && (state.is_v2 || shows);
        if let Some(state) = self.core.worker(worker) {
            state.announces = announces;
        }
    }

    /// Records the session capabilities of one worker of a client. The client's other workers may differ,
    /// because a gate refuses some clients.
    fn record_abilities(&mut self, worker: WorkerKey, answer: &Value) {
        if let Some(state) = self.core.worker(worker) {
            state.abilities = Some(abilities(answer));
        }
    }

    /// Answers a client's `initialize` with the merged results of a shared pool's workers.
    pub(super) fn answer_initialize(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let Some(id) = message.id() else { return };
        let tag = message.tag();
        let notices = takes_notices(message);
        let Some(state) = self.core.client(client) else { return };
        state.notices = notices;
        let Some(pool) = state.pool else { return };
        let wanted = asked_version(message);
        let own = if self.core.pool_of(pool).settings.protocol == PoolProtocol::V2 { 2 } else { 1 };
        let Some(wanted) = wanted else {
            let error =
                RpcError::new(Code::InvalidParams, "protocolVersion must be a number from 0 to 65535");
            self.refuse(client, id, batch, tag, &error);
            return;
        };
        if wanted < own {
            let error = RpcError::new(Code::UnsupportedVersion, "pool requires a later protocol version")
                .with("requested", json!(wanted))
                .with("supported", json!([own]));
            self.refuse(client, id, batch, tag, &error);
            return;
        }
        if self.is_self_paused(client) {
            self.refuse(client, id, batch, tag, &too_slow());
            return;
        }
        let Some(answer) = self.core.pool_of(pool).answer.clone() else { return };
        // After a reload the client may move to another pool, whose workers need these params with the
        // version that was agreed on here.
        self.remember(client, message, RequestKind::Initialize);
        if let Some(state) = self.core.client(client)
            && wanted > own
        {
            state.initialize = state.initialize.take().and_then(|params| with_version(&params, own));
        }
        let parts: [&[u8]; 5] = [br#"{"jsonrpc":"2.0","id":"#, id, br#","result":"#, &answer, b"}"];
        self.reply(client, batch, tag, parts.concat().into());
    }

    pub(super) fn refresh_answer(&mut self, worker: WorkerKey) {
        let Some(pool) = self.core.worker(worker).map(|state| state.pool) else { return };
        self.core.pool_mut(pool).answers.remove(&worker);
        self.refresh_pool(pool);
    }

    pub(super) fn refresh_pool(&mut self, pool: PoolId) {
        let state = self.core.pool_mut(pool);
        if !state.is_shared() {
            return;
        }
        // If no worker is left, the last merged result stays valid: a pool keeps its capabilities while it
        // restarts.
        let mut answers: Vec<_> = state.answers.iter().collect();
        answers.sort_unstable_by_key(|(worker, _)| **worker);
        let Some(merged) =
            answers.into_iter().map(|(_, answer)| answer.clone()).reduce(|all, one| common(all, &one))
        else {
            return;
        };
        let mut merged = merged;
        if let Some(fields) = merged.as_object_mut() {
            fields.insert("authMethods".to_owned(), json!([]));
        }
        // Capabilities that would apply to all clients of a shared worker are removed.
        for capabilities in ["agentCapabilities", "capabilities"] {
            if let Some(fields) = merged.get_mut(capabilities).and_then(Value::as_object_mut) {
                fields.retain(|key, _| !matches!(&**key, "auth" | "providers"));
            }
        }
        state.abilities = abilities(&merged);
        state.answer = Some(merged.to_string().into_bytes().into());
    }

    pub(super) fn is_initialized(&self, worker: WorkerKey) -> bool {
        self.core
            .workers
            .get(worker)
            .is_some_and(|state| matches!(state.stage, WorkerLifecycle::Ready | WorkerLifecycle::Retiring))
    }

    pub(super) fn restore_after_initialize(&mut self, worker: WorkerKey, key: SessionKey) {
        if let Some(state) = self.core.worker(worker) {
            state.restores.push(key);
        }
    }
}

pub(super) fn is_too_long(result: &[u8]) -> bool {
    result.len() > MAX_ANSWER_BYTES || has_more_values_than(result, MAX_ANSWER_VALUES)
}

/// Merges two results of `initialize`. Capabilities that differ are removed; every other member has its first
/// value.
fn common(mut all: Value, one: &Value) -> Value {
    for key in ["agentCapabilities", "capabilities"] {
        let Some(mine) = all.get_mut(key) else { continue };
        *mine = intersection(mine, one.get(key).unwrap_or(&Value::Null));
    }
    all
}

fn intersection(one: &Value, other: &Value) -> Value {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => one
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), intersection(value, other.get(key)?))))
            .filter(|(_, value)| !value.is_null())
            .collect(),
        (Value::Bool(one), Value::Bool(other)) => Value::Bool(*one && *other),
        (one, other) if one == other => one.clone(),
        _ => Value::Null,
    }
}

fn abilities(answer: &Value) -> Abilities {
    if answer["protocolVersion"] == 2 {
        let has = answer["capabilities"]["session"].is_object();
        return Abilities { load: false, resume: has, close: has };
    }
    let agent = &answer["agentCapabilities"];
    let has = |name: &str| agent["sessionCapabilities"][name].is_object();
    Abilities { load: agent["loadSession"] == true, resume: has("resume"), close: has("close") }
}

fn asked_version(message: View<'_>) -> Option<u16> {
    let params: Value = serde_json::from_slice(message.params()?).ok()?;
    u16::try_from(params["protocolVersion"].as_u64()?).ok()
}

/// Adds the mark that clients may decide about commands and MCP tools themselves. The prompts and MCP servers
/// of a session show whether its client does. Otherwise the mark has no effect.
fn with_mark(mut capabilities: Value) -> Value {
    if let Some(offers) = capabilities.as_object_mut()
        && let Some(meta) = offers.entry("_meta").or_insert_with(|| json!({})).as_object_mut()
    {
        meta.entry(AUTHORIZES).or_insert(Value::Bool(true));
    }
    capabilities
}

fn with_version(params: &[u8], version: u16) -> Option<Box<[u8]>> {
    let mut params: Value = serde_json::from_slice(params).ok()?;
    params["protocolVersion"] = version.into();
    Some(params.to_string().into_bytes().into())
}

/// Returns `true` if a client with these params of `initialize` shows notices. In version 2 all clients do.
fn takes_notices(message: View<'_>) -> bool {
    let Some(params) = message.params().and_then(|params| serde_json::from_slice::<Value>(params).ok())
    else {
        return false;
    };
    params["protocolVersion"].as_u64() >= Some(2)
        || params["clientCapabilities"]["session"]["notices"].is_object()
}

fn shows_children(params: &[u8]) -> bool {
    let params = serde_json::from_slice::<Value>(params).unwrap_or_default();
    params["clientCapabilities"]["subagents"].is_object()
}

/// Returns the response, with the stop reason `cancelled`, to a prompt whose turn the worker does not end.
pub(super) fn cancelled_answer(id: &[u8]) -> Option<bytes::Bytes> {
    message::response(id, &json!({"stopReason": "cancelled"})).ok()
}
