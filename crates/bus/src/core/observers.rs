//! Several clients on one session: one controls it, the others observe it, and all may be asked for permission.
//!
//! Only where clients connect over a network, and in pools whose protocol is known. Updates of a session are kept in a ring, from which
//! they are replayed to observers that join later.

use std::collections::VecDeque;

use narrows_acp::method;
use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use narrows_wire::{View, message};
use serde_json::{Map, Value, json};

use super::Ctx;
use super::api::CoreOutput;
use super::batch::BatchKey;
use super::deliver::too_slow;
use super::errors::{session_in_use, unknown_server};
use super::memory::{Charge, PENDING_BYTES};
use super::route::Route;
use super::session::{Session, SessionKey, SessionState};
use super::splice::Parts;
use super::state::{
    Asked, MAX_OPEN_REQUESTS, Raw, RequestKind, RequestLocation, RequestOrigin, WorkerLifecycle, WorkerState,
};
use super::table::{ClientKey, WorkerKey};
use super::turn_end::wire_name;

/// The longest answer to the opening of a session that is kept for those who come later.
const MAX_RESULT_BYTES: usize = 64 << 10;
/// How many may watch one session.
const MAX_OBSERVERS: usize = 64;

/// What is kept of a session for those who watch it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    observers: Vec<ClientKey>,
    /// What it has said, as clients were told.
    ring: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// What it said first is no longer there.
    gone: bool,
    /// What it says is a history for its controller, which others have heard.
    quiet: bool,
    /// What it says is a history for one who has just come, or for nobody any more.
    reader: Option<Option<ClientKey>>,
    /// The result that its opening had.
    result: Box<[u8]>,
}

impl Watch {
    /// Who is told its history, if anybody is.
    #[inline]
    pub(super) fn reader(&self) -> Option<Option<ClientKey>> {
        self.reader
    }
}

/// A request for permission that all who are there are asked.
#[derive(Debug)]
pub(super) struct Shared {
    session: SessionKey,
    line: Box<[u8]>,
    batch: Option<BatchKey>,
    _charge: Charge,
    /// Who is asked beside the one who controls the session, and under which number.
    takers: Vec<(ClientKey, u64)>,
}

impl Shared {
    /// Who is asked beside the one who controls the session.
    pub(super) fn into_takers(self) -> Vec<(ClientKey, u64)> {
        self.takers
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// What is kept of a session that is new here.
    pub(super) fn new_watch(&self, pool: super::PoolId) -> Option<Box<Watch>> {
        (self.core.watched && self.core.pool_of(pool).is_acp()).then(Box::default)
    }

    fn watch(&mut self, key: SessionKey) -> Option<&mut Watch> {
        self.core.sessions.get_mut(key)?.watch.as_deref_mut()
    }

    /// Keeps what a session says to its client, and says it to whoever watches.
    pub(super) fn record(&mut self, key: SessionKey, worker: WorkerKey, parts: &Parts<'_>) {
        let limit = self.core.limits.replay_bytes;
        let (most, _) = self.core.limits.replay_memory();
        let mut kept = self.core.watch_bytes;
        let Some(watch) = self.watch(key).filter(|watch| watch.reader.is_none()) else { return };
        let line: Box<[u8]> = parts.as_slice().concat().into();
        watch.bytes += line.len();
        kept += line.len();
        watch.ring.push_back(line);
        while watch.bytes > limit || kept > most {
            let Some(first) = watch.ring.pop_front() else { break };
            watch.bytes -= first.len();
            kept -= first.len();
            watch.gone = true;
        }
        let observers = if watch.quiet { Vec::new() } else { watch.observers.clone() };
        self.core.watch_bytes = kept;
        for observer in observers {
            self.deliver(observer, worker, parts);
        }
    }

    /// A worker is asked to open a session that is known: what it says next is its whole history, or begins in the middle.
    pub(super) fn rewind(&mut self, key: SessionKey, what: RequestKind) {
        let Some(watch) = self.watch(key) else { return };
        let bytes = std::mem::take(&mut watch.bytes);
        watch.ring.clear();
        watch.quiet = true;
        watch.gone = what != RequestKind::Load;
        self.core.watch_bytes -= bytes;
    }

    /// A session was opened, with this answer, or was not.
    pub(super) fn opened_with(&mut self, key: SessionKey, message: View<'_>) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        // One that is not there yet is tried in the next worker.
        let provisional = session.provisional;
        let Some(watch) = session.watch.as_deref_mut() else { return };
        watch.quiet = provisional && message.result().is_none();
        watch.gone |= !provisional && message.result().is_none();
        let Some(result) = message.result().filter(|result| result.len() <= MAX_RESULT_BYTES) else { return };
        let mut result: Map<String, Value> = serde_json::from_slice(result).unwrap_or_default();
        result.remove("sessionId");
        watch.result = Value::Object(result).to_string().into_bytes().into();
    }

    /// A turn begins: what is said from now on is news, whatever has become of a history.
    pub(super) fn mark_turn_begun(&mut self, key: SessionKey) {
        if let Some(watch) = self.watch(key) {
            watch.quiet = false;
        }
    }

    /// Nothing is kept any more of a session that is no more, and nobody beside its controller is asked in it.
    pub(super) fn unwatch(&mut self, key: SessionKey, worker: Option<WorkerKey>, watch: &Watch) {
        self.core.watch_bytes -= watch.bytes;
        let asked = worker
            .and_then(|worker| self.core.worker(worker))
            .map(|state| state.shared.extract_if(|_, shared| shared.session == key).collect::<Vec<_>>());
        let takers = asked.into_iter().flatten().flat_map(|(_, shared)| shared.into_takers());
        self.withdraw(takers);
        for observer in &watch.observers {
            if let Some(state) = self.core.client(*observer) {
                state.watching.remove(&key);
            }
        }
    }

    /// What is to be done with a message of a client's about a session that another controls; `None`: the same as if it was
    /// its own.
    pub(super) fn route_observer(
        &mut self,
        client: ClientKey,
        key: SessionKey,
        what: RequestKind,
    ) -> Option<Route> {
        let in_use = Some(Route::Refuse(session_in_use()));
        let Some(session) = self.core.sessions.get(key) else { return in_use };
        let (busy, settled) = (session.is_busy(), !session.provisional && !session.unsure);
        let Some(watch) = session.watch.as_deref() else { return in_use };
        let watches = watch.observers.contains(&client);
        let room = watch.observers.len() < MAX_OBSERVERS;
        match what {
            RequestKind::Load if settled && (watches || room) && self.can_tell(key) => Some(Route::Tell(key)),
            _ if what.reopens() && settled && (watches || room) => Some(Route::Attach(key)),
            RequestKind::Close if watches => Some(Route::Detach(key)),
            RequestKind::Prompt if watches && !busy => {
                self.take_over(key, client);
                None
            }
            // Whoever watches may stop a turn, and steer it in no other way.
            RequestKind::Cancel if watches => None,
            _ => in_use,
        }
    }

    /// Whether a turn runs in a session that several can have and that `client` has not begun: it came to control it since.
    pub(super) fn is_anothers_turn(&self, client: ClientKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key).filter(|session| session.watch.is_some()) else {
            return false;
        };
        let Some(worker) = session.worker().and_then(|worker| self.core.workers.get(worker)) else {
            return false;
        };
        let is_own = |asker: &RequestOrigin| matches!(asker, RequestOrigin::Client { client: asker, .. } if *asker == client);
        let mut running = session.prompts.iter().filter_map(|prompt| worker.pending.get(prompt));
        running.any(|pending| !is_own(&pending.asker))
    }

    /// Whether the worker of a session has nothing to do but tell its history.
    fn can_tell(&self, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let SessionState::On(worker) = session.place else { return false };
        let is_ready = |state: &WorkerState| state.stage == WorkerLifecycle::Ready && !state.input_closed;
        self.core.abilities_of(session).load
            && self.core.workers.get(worker).is_some_and(is_ready)
            && !(session.is_busy() || session.is_told() || session.params.is_empty())
            && session.waiting.is_empty()
    }

    /// Lets a client watch a session, of which its worker tells it the history. It is asked for as its controller did, so
    /// that nothing about it changes.
    pub(super) fn tell_history(
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
        // The present controller may not be the client that owns these servers.
        let Some(session) = self.core.sessions.get(key) else { return };
        if session.servers.rename_in(&mut params).is_err() {
            self.refuse(client, id, batch, message.tag(), &unknown_server());
            return;
        }
        self.enroll(client, key);
        if let Some(watch) = self.watch(key) {
            watch.reader = Some(Some(client));
        }
        let asker = RequestOrigin::Client { client, id: id.into(), batch };
        let charge = self.core.charge(client, PENDING_BYTES);
        self.send_request(worker, asker, method::SESSION_LOAD, params.to_string().as_bytes(), Some(key));
        let Some(state) = self.core.worker(worker) else { return };
        let number = state.next_id;
        if let Some(pending) = state.pending.get_mut(&number) {
            pending.what = RequestKind::Tell;
            pending.tag = message.tag().map(Box::from);
            pending.charge = Some(charge);
        }
        if let Some(state) = self.core.client(client) {
            state.inflight.insert(id.into(), RequestLocation::At(worker, number));
        }
    }

    /// The history of a session was told, or will not be: whatever waited for that goes on.
    pub(super) fn history_told(&mut self, key: SessionKey, succeeded: bool) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let waiting = std::mem::take(&mut session.waiting);
        let reader = session.watch.as_deref_mut().and_then(|watch| watch.reader.take()).flatten();
        if let Some(reader) = reader.filter(|_| !succeeded) {
            self.detach(reader, key);
        }
        for waiting in waiting {
            self.forget_elsewhere(waiting.client, &waiting.line);
            self.handle_client_message(waiting.client, View::parse(&waiting.line), waiting.batch);
        }
    }

    /// A client watches a session from now on.
    fn enroll(&mut self, client: ClientKey, key: SessionKey) {
        if let Some(watch) = self.watch(key)
            && !watch.observers.contains(&client)
        {
            watch.observers.push(client);
        }
        if let Some(state) = self.core.client(client) {
            state.watching.insert(key);
        }
    }

    /// Makes an observer the one who controls a session, and the one who did an observer.
    fn take_over(&mut self, key: SessionKey, client: ClientKey) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let before = session.owner.replace(client);
        session.ownerless = None;
        let Some(watch) = session.watch.as_deref_mut() else { return };
        watch.observers.retain(|observer| *observer != client);
        watch.observers.extend(before);
        if let Some(state) = self.core.client(client) {
            state.watching.remove(&key);
            state.sessions.insert(key);
        }
        if let Some(state) = before.and_then(|before| self.core.client(before)) {
            state.sessions.remove(&key);
            state.watching.insert(key);
        }
    }

    /// Gives a session whose client goes to one who watches it. Tells whether there is one.
    pub(super) fn promote(&mut self, key: SessionKey) -> bool {
        let is_there = |core: &super::Core, client: &ClientKey| {
            core.clients.get(*client).is_some_and(|state| !state.eof && !state.closing)
        };
        let observers = self.watch(key).map(|watch| watch.observers.clone()).unwrap_or_default();
        let may_control =
            |client: &ClientKey| is_there(self.core, client) && !self.has_other_scopes(*client, key);
        let Some(next) = observers.into_iter().find(may_control) else {
            return false;
        };
        self.take_over(key, next);
        true
    }

    /// A client watches a session from now on: it is told what was said before, what is asked for now, and that it is open.
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
        self.enroll(client, key);
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let (name, worker) = (session.name.clone(), session.worker());
        let Some(watch) = session.watch.as_deref_mut() else { return };
        let gone = watch.gone;
        let told: Vec<String> = watch.ring.iter().filter_map(|line| flagged(line)).collect();
        let mut result: Map<String, Value> = serde_json::from_slice(&watch.result).unwrap_or_default();
        mark(&mut result, "replay", json!({"complete": !gone}));
        if gone {
            self.say_start_is_gone(client, &name);
        }
        for line in told {
            self.write_client(client, &[line.as_bytes()]);
        }
        if let Some(worker) = worker {
            self.ask_late(client, worker, key);
        }
        if let Ok(line) = message::response(id, &result) {
            self.reply(client, batch, message.tag(), line);
        }
    }

    fn say_start_is_gone(&mut self, client: ClientKey, name: &str) {
        if !self.core.client(client).is_some_and(|state| state.notices) {
            return;
        }
        let params = json!({"sessionId": name, "update": {"sessionUpdate": "notice", "severity": "info",
            "title": "The beginning is missing", "description": "What follows is only the end of what was said in this session."},
            "_meta": {"narrows": {"replay": true}}});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.write_client(client, &[&line]);
        }
    }

    /// A client does not want to watch a session any more.
    pub(super) fn detach(&mut self, client: ClientKey, key: SessionKey) {
        if let Some(watch) = self.watch(key) {
            watch.observers.retain(|observer| *observer != client);
            // What is still to come of a history is nobody's.
            if watch.reader == Some(Some(client)) {
                watch.reader = Some(None);
            }
        }
        if let Some(state) = self.core.client(client) {
            state.watching.remove(&key);
        }
        if let Some(worker) = self.core.sessions.get(key).and_then(Session::worker) {
            self.forget_taker(client, worker, key);
        }
    }

    /// It is no longer asked what all who watch are.
    fn forget_taker(&mut self, client: ClientKey, worker: WorkerKey, key: SessionKey) {
        let Some(state) = self.core.worker(worker) else { return };
        let mut numbers = Vec::new();
        for shared in state.shared.values_mut().filter(|shared| shared.session == key) {
            numbers.extend(
                shared.takers.iter().filter(|(taker, _)| *taker == client).map(|(_, number)| *number),
            );
            shared.takers.retain(|(taker, _)| *taker != client);
        }
        self.withdraw(numbers.into_iter().map(|number| (client, number)));
    }

    /// Asks everybody who watches for a permission, too.
    pub(super) fn ask_observers(
        &mut self,
        worker: WorkerKey,
        key: SessionKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        let Some(id) = message.id() else { return };
        let Some(observers) = self.watch(key).map(|watch| watch.observers.clone()) else { return };
        let Some(identity) = self.core.sessions.get(key).map(|session| session.identity) else { return };
        // Too much is kept already: then only the one is asked who controls the session.
        if self.core.is_too_much(identity, message.bytes().len()) {
            self.core.counters.dropped += 1;
            return;
        }
        let charge = self.core.memory.charge(identity, message.bytes().len());
        let shared =
            Shared { session: key, line: message.bytes().into(), batch, _charge: charge, takers: Vec::new() };
        if let Some(state) = self.core.worker(worker) {
            state.shared.insert(id.into(), shared);
        }
        for observer in observers {
            self.ask_observer(observer, worker, id);
        }
    }

    /// Asks one who has just come for what the others were asked before.
    fn ask_late(&mut self, client: ClientKey, worker: WorkerKey, key: SessionKey) {
        let Some(state) = self.core.workers.get(worker) else { return };
        let is_open = |shared: &Shared| {
            shared.session == key && shared.takers.iter().all(|(taker, _)| *taker != client)
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
        let Some(state) = self.core.client(client) else { return };
        if state.eof || state.closing || state.asked.len() >= MAX_OPEN_REQUESTS {
            return;
        }
        state.next_ask += 1;
        let number = state.next_ask;
        let (id_of_worker, session) = (id.into(), Some(key));
        let asked = Asked { worker, id: id_of_worker, batch, is_permission: true, session, server: None };
        state.asked.insert(number, asked);
        if let Some(shared) = self.core.worker(worker).and_then(|state| state.shared.get_mut(id)) {
            shared.takers.push((client, number));
        }
        self.forward_to_client(worker, client, Some(key), View::parse(&line), Some(number));
    }

    /// Somebody has answered a worker's request: nobody else need.
    pub(super) fn answered(&mut self, worker: WorkerKey, id: &[u8], by: (ClientKey, u64)) {
        let Some(state) = self.core.worker(worker) else { return };
        let first = state.asking.remove(id);
        let Some(shared) = state.shared.remove(id) else { return };
        let others: Vec<_> = first.into_iter().chain(shared.takers).filter(|other| *other != by).collect();
        self.withdraw(others.into_iter());
    }

    /// A client will not answer a worker's request. Tells whether somebody else may.
    pub(super) fn another_may_answer(&mut self, client: ClientKey, number: u64, asked: &Asked) -> bool {
        let Some(state) = self.core.worker(asked.worker) else { return false };
        let first = state.asking.get(&asked.id).copied();
        let Some(shared) = state.shared.get_mut(&asked.id) else {
            state.asking.remove(&asked.id);
            return false;
        };
        shared.takers.retain(|taker| *taker != (client, number));
        if first != Some((client, number)) {
            return true;
        }
        if shared.takers.is_empty() {
            state.shared.remove(&asked.id);
            state.asking.remove(&asked.id);
            return false;
        }
        let next = shared.takers.remove(0);
        state.asking.insert(asked.id.clone(), next);
        true
    }

    /// A worker gives up on a request that several are asked: those are told who are not told by the way.
    pub(super) fn give_up_on_all(&mut self, worker: WorkerKey, message: View<'_>) {
        let cancels_request = message.method().as_deref() == Some(method::CANCEL_REQUEST);
        let Some(raw) = message.request_id().filter(|_| cancels_request) else { return };
        // They are not told again when the one answers whom the worker has told, and nobody else is asked.
        let shared = self.core.worker(worker).and_then(|state| state.shared.remove(raw));
        self.withdraw(shared.into_iter().flat_map(Shared::into_takers));
    }
}

/// A message as one that was sent before.
fn flagged(line: &[u8]) -> Option<String> {
    // One that is too long to be read is sent without the mark.
    if has_more_values_than(line, MAX_PEER_VALUES) {
        return String::from_utf8(line.to_vec()).ok();
    }
    let mut message: Value = serde_json::from_slice(line).ok()?;
    mark(message.get_mut("params")?.as_object_mut()?, "replay", json!(true));
    Some(message.to_string())
}

/// Puts something of ours into `_meta`, beside what is there.
fn mark(params: &mut Map<String, Value>, key: &str, value: Value) {
    let mut meta = inner(params, "_meta");
    let mut ours = inner(&mut meta, "narrows");
    ours.insert(key.to_owned(), value);
    meta.insert("narrows".to_owned(), Value::Object(ours));
    params.insert("_meta".to_owned(), Value::Object(meta));
}

/// Takes an object out of another; whatever else stood there is none.
fn inner(object: &mut Map<String, Value>, key: &str) -> Map<String, Value> {
    match object.remove(key) {
        Some(Value::Object(inner)) => inner,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_too_many_values_is_sent_again_as_it_is() {
        let line = |values: usize| format!(r#"{{"params":{{"a":[{}0]}}}}"#, "0,".repeat(values));
        let marked = r#""_meta":{"narrows":{"replay":true}}"#;
        assert!(flagged(line(10).as_bytes()).unwrap().contains(marked));
        let long = line(MAX_PEER_VALUES);
        assert_eq!(flagged(long.as_bytes()), Some(long));
    }
}
