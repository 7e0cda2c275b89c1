//! Requests that are sent to several workers, and the merged answer.

use std::collections::{BTreeMap, HashSet};

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View};
use serde_json::{Map, Value, json};

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::batch::BatchKey;
use super::deliver::too_slow;
use super::errors::unknown_session;
use super::memory::{Charge, PENDING_BYTES, RETRY_MS};
use super::route::Route;
use super::session_list::SessionList;
use super::state::{Raw, RequestKind, RequestLocation, RequestOrigin, WorkerLifecycle, WorkerState};
use super::table::{ClientKey, Key, WorkerKey};
use super::timer::Timer;

pub(super) type FanKey = Key<FanOut>;

/// A request that was sent to several workers, with the answers so far.
#[derive(Debug)]
pub(super) struct FanOut {
    client: ClientKey,
    id: Raw,
    batch: Option<BatchKey>,
    tag: Option<Raw>,
    what: RequestKind,
    name: Option<Box<str>>,
    left: usize,
    /// The requests that workers have not answered yet, each with the id that its worker knows.
    parts: Vec<(WorkerKey, u64)>,
    charge: Charge,
    bytes: usize,
    succeeded: bool,
    error: Option<RpcError>,
    /// The merged entries of the workers' session lists, joined by commas.
    sessions: Vec<u8>,
    seen: HashSet<String>,
    /// The worker's cursor for the next page of its list, by the serial of the worker.
    cursors: BTreeMap<String, Value>,
}

impl FanOut {
    /// Returns the effects that a failed request may have had, for its error.
    fn effects(&self) -> Effects {
        if self.what == RequestKind::List { Effects::None } else { Effects::Possible }
    }

    /// Records an error of one worker. "Method not found" does not replace any other error.
    fn record_error(&mut self, error: RpcError) {
        if self.error.as_ref().is_none_or(|error| error.is(Code::MethodNotFound)) {
            self.error = Some(error);
        }
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn ask_all_workers(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
        what: RequestKind,
    ) {
        let Some(id) = message.id() else { return };
        let Some(state) = self.core.client(client) else { return };
        let Some(pool) = state.pool else { return };
        let identity = Some(state.identity);
        let params: Result<Option<Map<String, Value>>, _> =
            message.params().map_or(Ok(None), serde_json::from_slice);
        let Ok(params) = params else {
            let error = RpcError::new(Code::InvalidParams, "params must be an object");
            self.refuse(client, id, batch, message.tag(), &error);
            return;
        };
        let mut params = params.unwrap_or_default();
        let cursors = match params.remove("cursor") {
            None | Some(Value::Null) => None,
            Some(cursor) => match cursor.as_str().and_then(read_cursor) {
                Some(cursors) => Some(cursors),
                None => {
                    let error = RpcError::new(Code::InvalidParams, "invalid cursor");
                    self.refuse(client, id, batch, message.tag(), &error);
                    return;
                }
            },
        };
        let there = self.fan_out_workers(client, pool);
        let is_there = |wanted: &String| there.iter().any(|(serial, _)| serial == wanted);
        if cursors.as_ref().is_some_and(|cursors| !cursors.keys().all(is_there)) {
            let words = "cursor expired: an agent exited";
            let error = RpcError::new(Code::InvalidParams, words);
            self.refuse(client, id, batch, message.tag(), &error);
            return;
        }
        // A client must not delete a session of another identity that has the same name.
        let named = message.session().filter(|_| what == RequestKind::Delete).zip(identity);
        let is_closed = |worker: WorkerKey| {
            named
                .as_ref()
                .is_some_and(|(name, identity)| self.name_conflict(worker, name, *identity, None).is_some())
        };
        let has_listeners = !there.is_empty();
        let asked: Vec<(WorkerKey, Option<Value>)> = there
            .into_iter()
            .filter(|(_, worker)| !is_closed(*worker))
            .filter_map(|(serial, worker)| match &cursors {
                None => Some((worker, None)),
                Some(cursors) => cursors.get(&serial).map(|cursor| (worker, Some(cursor.clone()))),
            })
            .collect();
        if asked.is_empty() && has_listeners && named.is_some() {
            self.refuse(client, id, batch, message.tag(), &unknown_session());
            return;
        }
        // The bus's own messages pause no client, so this check limits those that a worker does not read.
        let is_self_paused = |worker| self.core.workers.get(worker).is_some_and(|state| state.self_paused);
        if asked.iter().any(|(worker, _)| is_self_paused(*worker)) {
            let error = RpcError::new(Code::Backpressure, "agent does not read its input");
            let error = error.with("retryAfterMs", json!(RETRY_MS));
            self.refuse(client, id, batch, message.tag(), &error);
            return;
        }
        if asked.is_empty() && cursors.is_none() {
            // Without any worker, the list of sessions is unknown, not empty.
            match self.wait_for_worker(pool) {
                Route::Refuse(error) => self.refuse(client, id, batch, message.tag(), &error),
                _ => self.hold(client, message.bytes(), batch),
            }
            return;
        }
        let params = Value::Object(params).to_string();
        let bytes = PENDING_BYTES + params.len() + asked.len() * PENDING_BYTES;
        let fan = FanOut {
            client,
            id: id.into(),
            batch,
            tag: message.tag().map(Box::from),
            what,
            name: message.session().filter(|_| what == RequestKind::Delete).map(Into::into),
            left: asked.len(),
            parts: Vec::with_capacity(asked.len()),
            charge: self.core.charge(client, bytes),
            bytes,
            succeeded: asked.is_empty(),
            error: None,
            sessions: Vec::new(),
            seen: HashSet::new(),
            cursors: BTreeMap::new(),
        };
        let key = self.core.fans.insert(fan);
        if let Some(state) = self.core.client(client) {
            state.inflight.insert(id.into(), RequestLocation::Fanned(key));
        }
        if asked.is_empty() {
            self.finish_fan(key);
            return;
        }
        let at = self.now + self.core.limits.initialize_timeout;
        self.core.timers.set(at, Timer::Fanned(key));
        let method = if what == RequestKind::List { method::SESSION_LIST } else { method::SESSION_DELETE };
        for (worker, cursor) in asked {
            let with_cursor = cursor.map(|cursor| {
                let comma = if params == "{}" { "" } else { "," };
                format!(r#"{{"cursor":{cursor}{comma}{}"#, &params[1..])
            });
            let params = with_cursor.as_deref().unwrap_or(&params);
            self.send_request(worker, RequestOrigin::Fan(key), method, params.as_bytes(), None);
            let number = self.core.worker(worker).map(|state| state.next_id);
            if let (Some(number), Some(fan)) = (number, self.core.fans.get_mut(key)) {
                fan.parts.push((worker, number));
            }
        }
    }

    /// Returns the workers that get a client's request for several workers, each with its serial: all workers
    /// of a shared pool, or those of the client.
    pub(super) fn fan_out_workers(&mut self, client: ClientKey, id: PoolId) -> Vec<(String, WorkerKey)> {
        let identity = self.core.client(client).map(|state| state.identity);
        let pool = self.core.pool_of(id);
        let (is_shared, mixes) = (pool.is_shared(), pool.settings.mix_identities);
        let is_meant = |state: &WorkerState| match is_shared {
            true => state.pool == id && (mixes || state.identity.is_none_or(|other| Some(other) == identity)),
            false => state.client == Some(client),
        };
        self.core
            .workers
            .iter()
            .filter(|(_, state)| {
                matches!(state.stage, WorkerLifecycle::Ready | WorkerLifecycle::Retiring)
                    && !state.input_closed
            })
            .filter(|(_, state)| is_meant(state))
            .map(|(worker, state)| (state.serial.to_string(), worker))
            .collect()
    }

    pub(super) fn expire_fan_out(&mut self, key: FanKey) {
        let Some(fan) = self.core.fans.get_mut(key) else { return };
        let error = RpcError::new(Code::Deadline, "agent did not respond in time");
        fan.record_error(error.effects(fan.effects()));
        self.forget_fan_parts(key);
        self.finish_fan(key);
    }

    /// Stops waiting for the workers that have not answered. Returns those workers and the ids by which they
    /// know the request.
    pub(super) fn forget_fan_parts(&mut self, key: FanKey) -> Vec<(WorkerKey, u64)> {
        let parts = self.core.fans.get_mut(key).map(|fan| std::mem::take(&mut fan.parts));
        let mut parts = parts.unwrap_or_default();
        parts.retain(|(worker, number)| {
            let pending = self.core.worker(*worker).and_then(|state| state.pending.get_mut(*number));
            let pending =
                pending.filter(|pending| matches!(pending.asker, RequestOrigin::Fan(of) if of == key));
            pending.is_some_and(|pending| {
                pending.asker = RequestOrigin::Gone;
                true
            })
        });
        parts
    }

    pub(super) fn fail_fan(&mut self, key: FanKey, error: RpcError) {
        if let Some(fan) = self.core.fans.get_mut(key) {
            fan.error = Some(error.effects(fan.effects()));
            fan.succeeded = false;
            self.finish_fan(key);
        }
    }

    pub(super) fn add_fan_part(&mut self, key: FanKey, worker: WorkerKey, part: Result<View<'_>, &RpcError>) {
        let serial = self.core.worker(worker).map_or(0, |state| state.serial);
        let Some(client) = self.core.fans.get(key).map(|fan| fan.client) else { return };
        let identity = self.core.clients.get(client).map(|client| client.identity);
        let bytes = part.as_ref().map_or(0, |message| message.bytes().len());
        let is_too_much = identity.is_some_and(|identity| self.core.is_too_much(identity, bytes));
        let outcome = match part {
            Ok(_) if is_too_much => Err(too_slow()),
            Ok(message) => match message.error() {
                Some(error) => Err(error),
                None => Ok(message.result().unwrap_or(b"null")),
            },
            Err(error) => Err(error.clone()),
        };
        let is_list = self.core.fans.get(key).is_some_and(|fan| fan.what == RequestKind::List);
        let outcome = outcome.and_then(|result| match is_list {
            true => SessionList::read(result).map(Some),
            false => Ok(None),
        });
        let mut listed = Vec::new();
        for entry in outcome.iter().flatten().flat_map(SessionList::sessions) {
            // Sessions of other identities are left out of the merged list.
            if !self.is_listed_for(client, worker, &entry.name) {
                continue;
            }
            let session = self.session_of(worker, &entry.name).and_then(|key| self.core.sessions.get(key));
            let name = session.map_or_else(|| entry.name.clone(), |session| session.name.to_string());
            listed.push((name, entry));
        }
        let Some(fan) = self.core.fans.get_mut(key) else { return };
        match outcome {
            Ok(list) => {
                fan.succeeded = true;
                for (name, entry) in listed {
                    if fan.seen.contains(&name) {
                        continue;
                    }
                    let before = fan.sessions.len();
                    entry.append_to(&mut fan.sessions, &name);
                    fan.bytes += fan.sessions.len() - before + size_of::<String>() + name.len();
                    fan.seen.insert(name);
                }
                fan.charge.set(fan.bytes);
                if let Some(cursor) = list.and_then(|list| list.cursor) {
                    fan.cursors
                        .insert(serial.to_string(), serde_json::from_slice(cursor).unwrap_or_default());
                }
            }
            Err(error) => {
                fan.record_error(error);
            }
        }
        fan.left -= 1;
        if fan.left == 0 {
            self.finish_fan(key);
        }
    }

    fn finish_fan(&mut self, key: FanKey) {
        let Some(fan) = self.core.fans.remove(key) else { return };
        let Some(state) = self.core.client(fan.client) else { return };
        state.inflight.remove(&fan.id);
        // A list without the sessions of one worker is incomplete, unless that worker cannot list sessions. A
        // deletion succeeds if any worker has deleted the session.
        let is_whole = fan.what != RequestKind::List
            || fan.error.as_ref().is_none_or(|error| error.is(Code::MethodNotFound));
        if !fan.succeeded || !is_whole {
            let error = fan.error.unwrap_or_else(|| RpcError::new(Code::WorkerLost, "no agent responded"));
            self.refuse(fan.client, &fan.id, fan.batch, fan.tag.as_deref(), &error);
            return;
        }
        if let Some(name) = &fan.name {
            self.disown((&**name).into());
        }
        if fan.what == RequestKind::List && self.is_self_paused(fan.client) {
            self.refuse(fan.client, &fan.id, fan.batch, fan.tag.as_deref(), &too_slow());
            return;
        }
        let list: [&[u8]; 3] = match fan.what {
            RequestKind::List => [br#""sessions":["#, &fan.sessions, b"]"],
            _ => [b"", b"", b""],
        };
        let cursor = match fan.cursors.is_empty() {
            true => String::new(),
            false => format!(r#","nextCursor":{}"#, json!(json!(fan.cursors).to_string())),
        };
        let [name, entries, end] = list;
        let line: [&[u8]; 8] = [
            br#"{"jsonrpc":"2.0","id":"#,
            &fan.id,
            br#","result":{"#,
            name,
            entries,
            end,
            cursor.as_bytes(),
            b"}}",
        ];
        self.reply(fan.client, fan.batch, fan.tag.as_deref(), line.concat().into());
    }
}

fn read_cursor(text: &str) -> Option<BTreeMap<String, Value>> {
    serde_json::from_str(text).ok()
}
