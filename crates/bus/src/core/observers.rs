//! Several clients in one session: one controls it, the others observe it, and all may be asked for
//! permission.
//!
//! Observers are possible only if clients connect over a network, and only in pools with a known protocol.
//! Updates of a session are kept in a ring, and are replayed from there to observers that join later.

use std::collections::VecDeque;
use std::sync::Arc;

use narrows_acp::method;
use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use narrows_wire::{View, message};
use serde_json::{Map, Value, json};

use super::Ctx;
use super::api::CoreOutput;
use super::batch::BatchKey;
use super::deliver::too_slow;
use super::errors::{session_in_use, unknown_server};
use super::kept::KeptBytes;
use super::memory::{ASKED_BYTES, Charge, PENDING_BYTES};
use super::route::Route;
use super::session::{Session, SessionKey, SessionState};
use super::splice::Parts;
use super::state::{
    Asked, MAX_OPEN_REQUESTS, Raw, RequestKind, RequestLocation, RequestOrigin, WorkerLifecycle, WorkerState,
};
use super::table::{ClientKey, WorkerKey};
use super::turn_end::wire_name;

/// Maximum size of a response to the request that opened a session, if it is kept for clients that join
/// later.
const MAX_RESULT_BYTES: usize = 64 << 10;
const MAX_OBSERVERS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ObserverState {
    observers: Vec<ClientKey>,
    /// The latest updates of the session, as clients got them.
    ring: VecDeque<Box<[u8]>>,
    bytes: usize,
    is_truncated: bool,
    /// `true` while updates replay the history for the controller only. The observers already have the
    /// history.
    replays_to_controller: bool,
    /// The new observer that gets the replayed history. The inner `None`: that client has disconnected.
    replay_target: Option<Option<ClientKey>>,
    result: Option<Arc<KeptBytes>>,
}

impl ObserverState {
    /// Returns the observer to which the history is replayed. The inner `None`: that client has disconnected.
    #[inline]
    pub(super) fn replay_target(&self) -> Option<Option<ClientKey>> {
        self.replay_target
    }

    #[cfg(test)]
    pub(super) fn result(&self) -> Option<&Arc<KeptBytes>> {
        self.result.as_ref()
    }
}

/// A permission request that was sent to the controller of a session and to all its observers.
#[derive(Debug)]
pub(super) struct SharedRequest {
    session: SessionKey,
    line: Box<[u8]>,
    batch: Option<BatchKey>,
    _charge: Charge,
    recipients: Vec<(ClientKey, u64)>,
}

impl SharedRequest {
    pub(super) fn into_recipients(self) -> Vec<(ClientKey, u64)> {
        self.recipients
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn new_sharing(&self, pool: super::PoolId) -> Option<Box<ObserverState>> {
        (self.core.is_observable && self.core.pool_of(pool).is_acp()).then(Box::default)
    }

    fn sharing(&mut self, key: SessionKey) -> Option<&mut ObserverState> {
        self.core.sessions.get_mut(key)?.sharing.as_deref_mut()
    }

    /// Keeps an update of a session in the ring and sends it to the observers.
    pub(super) fn record(&mut self, key: SessionKey, worker: WorkerKey, parts: &Parts<'_>) {
        let limit = self.core.limits.replay_bytes;
        let (most, _) = self.core.limits.replay_memory();
        let mut kept = self.core.kept_replay_bytes;
        let Some(sharing) = self.sharing(key).filter(|sharing| sharing.replay_target.is_none()) else {
            return;
        };
        let line: Box<[u8]> = parts.as_slice().concat().into();
        sharing.bytes += line.len();
        kept += line.len();
        sharing.ring.push_back(line);
        while sharing.bytes > limit || kept > most {
            let Some(first) = sharing.ring.pop_front() else { break };
            sharing.bytes -= first.len();
            kept -= first.len();
            sharing.is_truncated = true;
        }
        let observers = if sharing.replays_to_controller { Vec::new() } else { sharing.observers.clone() };
        self.core.kept_replay_bytes = kept;
        for observer in observers {
            self.deliver(observer, worker, parts);
        }
    }

    /// Clears the kept updates before a worker opens a known session again: a load replays the whole history,
    /// and after a resume the updates begin in the middle of it.
    pub(super) fn rewind(&mut self, key: SessionKey, what: RequestKind) {
        let Some(sharing) = self.sharing(key) else { return };
        let bytes = std::mem::take(&mut sharing.bytes);
        sharing.ring.clear();
        sharing.replays_to_controller = true;
        sharing.is_truncated = what != RequestKind::Load;
        self.core.kept_replay_bytes -= bytes;
    }

    pub(super) fn record_open_result(&mut self, key: SessionKey, message: View<'_>) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        // A provisional session may be opened in the next worker, with another response.
        let provisional = session.provisional;
        let Some(sharing) = session.sharing.as_deref_mut() else { return };
        sharing.replays_to_controller = provisional && message.result().is_none();
        sharing.is_truncated |= !provisional && message.result().is_none();
        let Some(result) = message.result().filter(|result| result.len() <= MAX_RESULT_BYTES) else { return };
        let mut result: Map<String, Value> = serde_json::from_slice(result).unwrap_or_default();
        result.remove("sessionId");
        sharing.result = None;
        let kept = self.core.keep_result(key, Value::Object(result).to_string().as_bytes());
        if let Some(sharing) = self.sharing(key) {
            sharing.result = kept;
        }
    }

    /// Ends the replay of a session's history when a turn begins: all later updates are new.
    pub(super) fn mark_turn_begun(&mut self, key: SessionKey) {
        if let Some(sharing) = self.sharing(key) {
            sharing.replays_to_controller = false;
        }
    }

    /// Removes the sharing of a session that has ended, and withdraws its permission requests from observers.
    pub(super) fn end_sharing(
        &mut self,
        key: SessionKey,
        worker: Option<WorkerKey>,
        sharing: &ObserverState,
    ) {
        self.core.kept_replay_bytes -= sharing.bytes;
        let asked = worker
            .and_then(|worker| self.core.worker(worker))
            .map(|state| state.shared.extract_if(|_, shared| shared.session == key).collect::<Vec<_>>());
        let recipients = asked.into_iter().flatten().flat_map(|(_, shared)| shared.into_recipients());
        self.withdraw(recipients);
        for observer in &sharing.observers {
            if let Some(state) = self.core.client(*observer) {
                state.observing.remove(&key);
            }
        }
    }

    /// Routes a client's message about a session that another client controls. `None`: the message is routed
    /// like one of the controller.
    pub(super) fn route_observer(
        &mut self,
        client: ClientKey,
        key: SessionKey,
        what: RequestKind,
    ) -> Option<Route> {
        let in_use = Some(Route::Refuse(session_in_use()));
        let Some(session) = self.core.sessions.get(key) else { return in_use };
        let (busy, settled) = (session.is_busy(), !session.provisional && !session.owner_unconfirmed);
        let Some(sharing) = session.sharing.as_deref() else { return in_use };
        let watches = sharing.observers.contains(&client);
        let room = sharing.observers.len() < MAX_OBSERVERS;
        match what {
            RequestKind::Load if settled && (watches || room) && self.can_replay(key) => {
                Some(Route::Replay(key))
            }
            _ if what.reopens() && settled && (watches || room) => Some(Route::Attach(key)),
            RequestKind::Close if watches => Some(Route::Detach(key)),
            RequestKind::Prompt if watches && !busy => {
                self.change_controller(key, client);
                None
            }
            // An observer may cancel a turn, but not influence it in any other way.
            RequestKind::Cancel if watches => None,
            _ => in_use,
        }
    }

    /// Returns `true` if the running turn of an observable session was started by another client than its
    /// present controller `client`.
    pub(super) fn is_anothers_turn(&self, client: ClientKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key).filter(|session| session.sharing.is_some()) else {
            return false;
        };
        let Some(worker) = session.worker().and_then(|worker| self.core.workers.get(worker)) else {
            return false;
        };
        let is_own = |asker: &RequestOrigin| matches!(asker, RequestOrigin::Client { client: asker, .. } if *asker == client);
        let mut running = session.prompts.iter().filter_map(|prompt| worker.pending.get(prompt));
        running.any(|pending| !is_own(&pending.asker))
    }

    fn can_replay(&self, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let SessionState::On(worker) = session.place else { return false };
        let is_ready = |state: &WorkerState| state.stage == WorkerLifecycle::Ready && !state.input_closed;
        self.core.abilities_of(session).load
            && self.core.workers.get(worker).is_some_and(is_ready)
            && !(session.is_busy() || session.is_replaying() || session.params.is_empty())
            && session.waiting.is_empty()
    }

    /// Adds an observer by having the worker replay the history. The session is loaded with the controller's
    /// params, so that nothing about the session changes.
    pub(super) fn start_replay(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
        key: SessionKey,
    ) {
        let Some(id) = message.id() else { return };
        let Some(session) = self.core.sessions.get(key) else { return };
        let Some(worker) = session.worker() else { return };
        let (owner, pool, params) = (session.owner, session.pool, session.params.clone());
        let name = wire_name(session);
        let is_v2 = self.core.worker(worker).is_some_and(|state| state.is_v2);
        let params = match self.permit_again(owner, pool, is_v2, &params) {
            Ok(params) => params,
            Err(error) => {
                self.refuse(client, id, batch, message.tag(), &error);
                return;
            }
        };
        let mut params: Value = serde_json::from_slice(&params).unwrap_or_default();
        if !params.is_object() {
            params = json!({});
        }
        params["sessionId"] = name;
        if params.get("mcpServers").is_none() {
            params["mcpServers"] = json!([]);
        }
        // The session may still have the MCP servers of an earlier controller.
        let Some(session) = self.core.sessions.get(key) else { return };
        if session.servers.rename_in(&mut params).is_err() {
            self.refuse(client, id, batch, message.tag(), &unknown_server());
            return;
        }
        self.add_observer(client, key);
        if let Some(sharing) = self.sharing(key) {
            sharing.replay_target = Some(Some(client));
        }
        let asker = RequestOrigin::Client { client, id: id.into(), batch };
        let charge = self.core.charge(client, PENDING_BYTES);
        self.send_request(worker, asker, method::SESSION_LOAD, params.to_string().as_bytes(), Some(key));
        let Some(state) = self.core.worker(worker) else { return };
        let number = state.next_id;
        if let Some(pending) = state.pending.get_mut(number) {
            pending.what = RequestKind::Replay;
            pending.tag = message.tag().map(Box::from);
            pending.charge = Some(charge);
        }
        if let Some(state) = self.core.client(client) {
            state.inflight.insert(id.into(), RequestLocation::At(worker, number));
        }
    }

    /// Ends the replay of a session's history. Messages that waited for that continue.
    pub(super) fn finish_replay(&mut self, key: SessionKey, succeeded: bool) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let waiting = std::mem::take(&mut session.waiting);
        let reader =
            session.sharing.as_deref_mut().and_then(|sharing| sharing.replay_target.take()).flatten();
        if let Some(reader) = reader.filter(|_| !succeeded) {
            self.detach(reader, key);
        }
        for waiting in waiting {
            self.release_request_id(waiting.client, &waiting.line);
            self.handle_client_message(waiting.client, View::parse(&waiting.line), waiting.batch);
        }
    }

    fn add_observer(&mut self, client: ClientKey, key: SessionKey) {
        if let Some(sharing) = self.sharing(key)
            && !sharing.observers.contains(&client)
        {
            sharing.observers.push(client);
        }
        if let Some(state) = self.core.client(client) {
            state.observing.insert(key);
        }
    }

    fn change_controller(&mut self, key: SessionKey, client: ClientKey) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let before = session.owner.replace(client);
        session.ownerless = None;
        let Some(sharing) = session.sharing.as_deref_mut() else { return };
        sharing.observers.retain(|observer| *observer != client);
        sharing.observers.extend(before);
        if let Some(state) = self.core.client(client) {
            state.observing.remove(&key);
            state.sessions.insert(key);
        }
        if let Some(state) = before.and_then(|before| self.core.client(before)) {
            state.sessions.remove(&key);
            state.observing.insert(key);
        }
        if let Some(before) = before {
            self.remove_if_forbidden(before, key);
        }
    }

    /// Makes an observer the controller of a session whose client has disconnected. Returns `true` if the
    /// session has an observer.
    pub(super) fn promote(&mut self, key: SessionKey) -> bool {
        let is_there = |core: &super::Core, client: &ClientKey| {
            core.clients.get(*client).is_some_and(|state| !state.eof && !state.closing)
        };
        let observers = self.sharing(key).map(|sharing| sharing.observers.clone()).unwrap_or_default();
        let may_control = |client: &ClientKey| {
            is_there(self.core, client)
                && !self.has_other_scopes(*client, key)
                && self.may_reach(*client, key)
        };
        let Some(next) = observers.into_iter().find(may_control) else {
            return false;
        };
        self.change_controller(key, next);
        true
    }

    /// Adds an observer to a session: sends it the kept updates, the pending permission requests, and the
    /// response.
    pub(super) fn attach(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
        key: SessionKey,
    ) {
        let Some(id) = message.id() else { return };
        if self.is_self_paused(client) {
            self.refuse(client, id, batch, message.tag(), &too_slow());
            return;
        }
        self.add_observer(client, key);
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let (name, worker) = (session.name.clone(), session.worker());
        let Some(sharing) = session.sharing.as_deref_mut() else { return };
        let gone = sharing.is_truncated;
        let told: Vec<String> = sharing.ring.iter().filter_map(|line| marked_as_replay(line)).collect();
        let result = sharing.result.as_deref().map_or(&b""[..], |result| result);
        let mut result: Map<String, Value> = serde_json::from_slice(result).unwrap_or_default();
        set_meta(&mut result, "replay", json!({"complete": !gone}));
        if gone {
            self.send_truncated_notice(client, &name);
        }
        for line in told {
            self.write_client(client, &[line.as_bytes()]);
        }
        if let Some(worker) = worker {
            self.ask_new_observer(client, worker, key);
        }
        if let Ok(line) = message::response(id, &result) {
            self.reply(client, batch, message.tag(), line);
        }
    }

    fn send_truncated_notice(&mut self, client: ClientKey, name: &str) {
        if !self.core.client(client).is_some_and(|state| state.notices) {
            return;
        }
        let params = json!({"sessionId": name, "update": {"sessionUpdate": "notice", "severity": "info",
            "title": "Replay is incomplete", "description": "Older updates of this session are no longer available."},
            "_meta": {"narrows": {"replay": true}}});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.write_client(client, &[&line]);
        }
    }

    pub(super) fn detach(&mut self, client: ClientKey, key: SessionKey) {
        if let Some(sharing) = self.sharing(key) {
            sharing.observers.retain(|observer| *observer != client);
            // After this observer leaves, no client gets the rest of the replayed history.
            if sharing.replay_target == Some(Some(client)) {
                sharing.replay_target = Some(None);
            }
        }
        if let Some(state) = self.core.client(client) {
            state.observing.remove(&key);
        }
        if let Some(worker) = self.core.sessions.get(key).and_then(Session::worker) {
            self.withdraw_from(client, worker, key);
        }
    }

    fn withdraw_from(&mut self, client: ClientKey, worker: WorkerKey, key: SessionKey) {
        let Some(state) = self.core.worker(worker) else { return };
        let mut numbers = Vec::new();
        for shared in state.shared.values_mut().filter(|shared| shared.session == key) {
            numbers.extend(
                shared.recipients.iter().filter(|(taker, _)| *taker == client).map(|(_, number)| *number),
            );
            shared.recipients.retain(|(taker, _)| *taker != client);
        }
        self.withdraw(numbers.into_iter().map(|number| (client, number)));
    }

    pub(super) fn ask_observers(
        &mut self,
        worker: WorkerKey,
        key: SessionKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let Some(id) = message.id() else { return };
        let Some(observers) = self.sharing(key).map(|sharing| sharing.observers.clone()) else {
            return;
        };
        let Some(identity) = self.core.sessions.get(key).map(|session| session.identity) else { return };
        // Over the memory limit, only the controller gets a permission request.
        if self.core.is_too_much(identity, message.bytes().len()) {
            self.core.counters.dropped += 1;
            return;
        }
        let charge = self.core.memory.charge(identity, message.bytes().len());
        let shared = SharedRequest {
            session: key,
            line: message.bytes().into(),
            batch,
            _charge: charge,
            recipients: Vec::new(),
        };
        if let Some(state) = self.core.worker(worker) {
            state.shared.insert(id.into(), shared);
        }
        for observer in observers {
            self.ask_observer(observer, worker, id);
        }
    }

    fn ask_new_observer(&mut self, client: ClientKey, worker: WorkerKey, key: SessionKey) {
        let Some(state) = self.core.workers.get(worker) else { return };
        let is_open = |shared: &SharedRequest| {
            shared.session == key && shared.recipients.iter().all(|(taker, _)| *taker != client)
        };
        let mut ids: Vec<Raw> =
            state.shared.iter().filter(|(_, shared)| is_open(shared)).map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        for id in ids {
            self.ask_observer(client, worker, &id);
        }
    }

    fn ask_observer(&mut self, client: ClientKey, worker: WorkerKey, id: &[u8]) {
        let Some(shared) = self.core.workers.get(worker).and_then(|state| state.shared.get(id)) else {
            return;
        };
        let (key, line, batch) = (shared.session, shared.line.clone(), shared.batch);
        let bytes = ASKED_BYTES + id.len();
        if self.core.is_asked_too_much(client, bytes) {
            return;
        }
        let Some(state) = self.core.client(client) else { return };
        if state.eof || state.closing || state.asked.len() >= MAX_OPEN_REQUESTS {
            return;
        }
        state.next_ask += 1;
        let number = state.next_ask;
        let (id_of_worker, session) = (id.into(), Some(key));
        let charge = Some(state.account.charge(bytes));
        let is_permission = true;
        let asked = Asked { worker, id: id_of_worker, batch, is_permission, session, server: None, charge };
        state.asked.insert(number, asked);
        if let Some(shared) = self.core.worker(worker).and_then(|state| state.shared.get_mut(id)) {
            shared.recipients.push((client, number));
        }
        self.forward_to_client(worker, client, Some(key), View::parse(&line), Some(number));
    }

    /// Withdraws a worker's request from the other clients after one client has answered it.
    pub(super) fn withdraw_others(&mut self, worker: WorkerKey, id: &[u8], by: (ClientKey, u64)) {
        let Some(state) = self.core.worker(worker) else { return };
        let first = state.asking.remove(id);
        let Some(shared) = state.shared.remove(id) else { return };
        let others: Vec<_> =
            first.into_iter().chain(shared.recipients).filter(|other| *other != by).collect();
        self.withdraw(others.into_iter());
    }

    /// Handles that a client will not answer a worker's request. Returns `true` if another client may still
    /// answer.
    pub(super) fn another_may_answer(&mut self, client: ClientKey, number: u64, asked: &Asked) -> bool {
        let Some(state) = self.core.worker(asked.worker) else { return false };
        let first = state.asking.get(&asked.id).copied();
        let Some(shared) = state.shared.get_mut(&asked.id) else {
            state.asking.remove(&asked.id);
            return false;
        };
        shared.recipients.retain(|taker| *taker != (client, number));
        if first != Some((client, number)) {
            return true;
        }
        if shared.recipients.is_empty() {
            state.shared.remove(&asked.id);
            state.asking.remove(&asked.id);
            return false;
        }
        let next = shared.recipients.remove(0);
        state.asking.insert(asked.id.clone(), next);
        true
    }

    /// Withdraws a request from all clients that got it, except the first: that one gets the worker's own
    /// cancellation. If the first client still answers, nothing is withdrawn again.
    pub(super) fn withdraw_shared(&mut self, worker: WorkerKey, id: &[u8]) {
        let shared = self.core.worker(worker).and_then(|state| state.shared.remove(id));
        self.withdraw(shared.into_iter().flat_map(SharedRequest::into_recipients));
    }

    /// Withdraws a permission request that its worker cancels. The client that gets the worker's own
    /// cancellation is left out.
    pub(super) fn withdraw_cancelled(&mut self, worker: WorkerKey, message: View<'_>) {
        let cancels_request = message.method().as_deref() == Some(method::CANCEL_REQUEST);
        let Some(raw) = message.request_id().filter(|_| cancels_request) else { return };
        self.withdraw_shared(worker, raw);
    }
}

fn marked_as_replay(line: &[u8]) -> Option<String> {
    // An update with too many values is replayed to a new observer without the mark.
    if has_more_values_than(line, MAX_PEER_VALUES) {
        return String::from_utf8(line.to_vec()).ok();
    }
    let mut message: Value = serde_json::from_slice(line).ok()?;
    set_meta(message.get_mut("params")?.as_object_mut()?, "replay", json!(true));
    Some(message.to_string())
}

fn set_meta(params: &mut Map<String, Value>, key: &str, value: Value) {
    let mut meta = take_object(params, "_meta");
    let mut ours = take_object(&mut meta, "narrows");
    ours.insert(key.to_owned(), value);
    meta.insert("narrows".to_owned(), Value::Object(ours));
    params.insert("_meta".to_owned(), Value::Object(meta));
}

fn take_object(object: &mut Map<String, Value>, key: &str) -> Map<String, Value> {
    match object.remove(key) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_too_many_values_is_replayed_without_the_mark() {
        let line = |values: usize| format!(r#"{{"params":{{"a":[{}0]}}}}"#, "0,".repeat(values));
        let marked = r#""_meta":{"narrows":{"replay":true}}"#;
        assert!(marked_as_replay(line(10).as_bytes()).unwrap().contains(marked));
        let long = line(MAX_PEER_VALUES);
        assert_eq!(marked_as_replay(long.as_bytes()), Some(long));
    }
}
