//! Child sessions, which an agent announces in a session of a client (`subagent_update`).
//!
//! A child belongs to the session in which it was announced. Messages of the child take the route of that
//! session. The child moves to another worker with the session, and ends with the session.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use memchr::memmem::Finder;
use narrows_acp::method;
use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use narrows_wire::{Part, RpcError, View, member};
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::Ctx;
use super::api::{CoreOutput, LogEvent};
use super::batch::BatchKey;
use super::errors::unknown_session;
use super::former_names::NameUse;
use super::identity::Identity;
use super::restore::name_reused;
use super::route::{MAX_SESSION_NAME_BYTES, Route};
use super::session::{SessionKey, SessionState, quoted};
use super::session_keys::decoded;
use super::splice::Parts;
use super::state::RequestKind;
use super::table::{ClientKey, Key, Table, WorkerKey};

/// Maximum number of child sessions of one session. If there are more, the oldest is forgotten.
const MAX_OF_SESSION: usize = 1_000;
/// Maximum number of child sessions in one worker.
const MAX_OF_WORKER: usize = 4_096;
/// Maximum number of child sessions of one identity.
const MAX_OF_IDENTITY: usize = 16_384;
/// Maximum number of bytes of the ids of one session's child sessions.
const MAX_SESSION_BYTES: usize = 256 << 10;
/// Maximum number of bytes of the ids of one identity's child sessions.
const MAX_IDENTITY_BYTES: usize = 2 << 20;

pub(super) type ChildKey = Key<Child>;

#[derive(Debug)]
pub(super) struct Child {
    /// The session that a client opened and to which this child belongs, possibly through other children.
    pub(super) root: SessionKey,
    identity: Identity,
    /// The worker that announced the child. In another worker, an equal id may be another session.
    worker: WorkerKey,
    /// The id that clients use for the child.
    name: Box<str>,
    /// The id that the agent uses for the child.
    agent_name: Box<str>,
    serial: u64,
}

impl Child {
    /// Returns the id that clients use, as JSON, if the agent uses another id.
    pub(super) fn alias(&self) -> Option<Box<[u8]>> {
        (self.name != self.agent_name).then(|| quoted(&self.name))
    }

    /// Returns the id that the agent uses, as JSON, if clients use another id.
    fn agent_name_json(&self) -> Option<Box<[u8]>> {
        (self.name != self.agent_name).then(|| quoted(&self.agent_name))
    }
}

#[derive(Debug, Default)]
pub(super) struct ChildSet {
    children: VecDeque<ChildKey>,
    /// Total bytes of the ids that the agent uses for these children.
    bytes: usize,
    /// `true` if clients use another id for some child than the agent.
    aliased: bool,
}

#[derive(Debug, Default)]
pub(super) struct Children {
    table: Table<Child>,
    by_name: HashMap<Box<str>, ChildKey>,
    /// Number of children, and bytes of their ids, of each identity.
    held: FxHashMap<Identity, (usize, usize)>,
    serial: u64,
}

impl Children {
    pub(super) fn find(&self, name: &str) -> Option<&Child> {
        self.table.get(*self.by_name.get(name)?)
    }

    pub(super) fn get(&self, key: ChildKey) -> Option<&Child> {
        self.table.get(key)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn insert(
        &mut self,
        root: SessionKey,
        identity: Identity,
        worker: WorkerKey,
        name: Box<str>,
        agent_name: Box<str>,
    ) -> ChildKey {
        self.serial += 1;
        let held = self.held.entry(identity).or_default();
        *held = (held.0 + 1, held.1 + agent_name.len());
        let child = Child { root, identity, worker, name: name.clone(), agent_name, serial: self.serial };
        let key = self.table.insert(child);
        self.by_name.insert(name, key);
        key
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.table.iter().map(|(_, child)| child.agent_name.len()).sum()
    }

    fn remove(&mut self, key: ChildKey) -> Option<Child> {
        let child = self.table.remove(key)?;
        self.by_name.remove(&child.name);
        if let Some(held) = self.held.get_mut(&child.identity) {
            *held = (held.0 - 1, held.1 - child.agent_name.len());
            if held.0 == 0 {
                self.held.remove(&child.identity);
            }
        }
        Some(child)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpdateEvent {
    /// A state update of version 2. `true`: the agent works in the session.
    Running(bool),
    Child(Box<str>),
}

/// The beginnings, before `KIND_END`, of the update kinds that [`read_update`] parses.
const KINDS: [&[u8]; 2] = [b"\"state", b"\"subagent"];
const KIND_END: &[u8] = b"_update\"";
/// Frequent update kinds, which need no action of the bus. They are compared with the closing quote.
const COMMON_KINDS: [&[u8]; 2] = [b"agent_message_chunk\"", b"agent_thought_chunk\""];
/// The searcher is built once, because that takes longer than a search of one update.
static END_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(KIND_END));

/// Parses an update if the bus acts on its kind. Most other kinds are recognized by their bytes at the usual
/// position, the rest by one search of the text.
#[inline]
pub(super) fn read_update(message: View<'_>) -> Option<UpdateEvent> {
    match kind_at_usual_place(message) {
        Some(kind) if !kind.ends_with(KIND_END) => None,
        _ => parse_update(message.params()?),
    }
}

fn parse_update(params: &[u8]) -> Option<UpdateEvent> {
    let is_kind = |at: usize| KINDS.iter().any(|kind| params[..at].ends_with(kind));
    END_FINDER.find_iter(params).find(|at| is_kind(*at))?;
    let inner = |text: &'_ [u8], key: &str| member(text, key).ok().flatten();
    let update = params.get(inner(params, "update")?)?;
    let text = |key: &str| inner(update, key).and_then(|place| update.get(place)).and_then(decoded);
    match text("sessionUpdate")?.as_str() {
        "state_update" => Some(UpdateEvent::Running(text("state").as_deref() != Some("idle"))),
        "subagent_update" => {
            let name = text("sessionId").filter(|name| !name.is_empty())?;
            (name.len() <= MAX_SESSION_NAME_BYTES).then(|| UpdateEvent::Child(name.into()))
        }
        _ => None,
    }
}

/// Returns the first kind of an update, with its closing quote, if the members of the message are in the
/// usual order. An update with two kinds is ambiguous, so the bus may ignore it.
#[inline]
fn kind_at_usual_place(message: View<'_>) -> Option<&[u8]> {
    let session = message.part_range(Part::Session)?;
    // The position of the session's name is already known from the scan of the message.
    let through_key = message.bytes().get(message.envelope().params.range().start..session.start)?;
    let update = message.bytes().get(session.end..message.envelope().params.range().end)?;
    let kind = update.strip_prefix(br#","update":{"sessionUpdate":""#)?;
    if through_key != br#"{"sessionId":"# {
        return None;
    }
    let common = COMMON_KINDS.iter().find(|common| kind.starts_with(common));
    let length = common.map(|common| common.len());
    kind.get(..length.or_else(|| memchr::memchr(b'"', kind).map(|quote| quote + 1))?)
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn child_of(&self, worker: WorkerKey, name: &str) -> Option<&Child> {
        let state = self.core.workers.get(worker)?;
        self.core.children.get(*state.children.get(name)?)
    }

    pub(super) fn root_of(&self, worker: WorkerKey, name: &str) -> Option<SessionKey> {
        self.child_of(worker, name).map(|child| child.root)
    }

    /// Handles the announcement of a child session. Returns `true` if the child is new. A child that is
    /// already known stays unchanged.
    pub(super) fn add_child(&mut self, worker: WorkerKey, root: SessionKey, agent_name: &str) -> bool {
        let Some(identity) = self.core.sessions.get(root).map(|session| session.identity) else {
            return false;
        };
        self.yield_to_child(worker, identity, agent_name);
        if self.session_of(worker, agent_name).is_some() {
            return false;
        }
        if let Some(child) = self.child_of(worker, agent_name) {
            if child.worker == worker || child.root == root {
                return false;
            }
            // A child of another session moved here with that session. The worker now gives the name to a
            // child of its own, so the other child loses the name.
            self.forget_child_named(worker, agent_name);
        }
        if !self.make_room_for_child(worker, root, agent_name.len()) {
            self.log(LogEvent::Dropped {
                worker: worker.into(),
                why: "too many child sessions of one identity",
            });
            self.expect_unknown_child(worker, agent_name.into(), identity);
            return false;
        }
        let (owners, children) = (&self.core.owners, &self.core.children);
        let is_taken = |name: &str| owners.is_anothers(name, identity) || children.contains(name);
        let name = self.core.sessions.free_name(agent_name, is_taken);
        let aliased = *name != *agent_name;
        self.core.owners.know_child(&name, identity);
        let key = self.core.children.insert(root, identity, worker, name, agent_name.into());
        if let Some(session) = self.core.sessions.get_mut(root) {
            let child_set = session.child_set.get_or_insert_default();
            child_set.children.push_back(key);
            child_set.bytes += agent_name.len();
            child_set.aliased |= aliased;
        }
        if let Some(state) = self.core.worker(worker) {
            state.children.insert(agent_name.into(), key);
            state.former.remove(agent_name);
        }
        true
    }

    /// Records a child that is announced in a session that the worker no longer has. The name of the child
    /// stays reserved for the identity of that session.
    pub(super) fn record_former_child(&mut self, worker: WorkerKey, message: View<'_>) {
        let Some(UpdateEvent::Child(child)) = read_update(message) else { return };
        let Some(state) = self.core.workers.get(worker) else { return };
        let owner = message.session().and_then(|name| state.former.owner(&name));
        let Some(identity) = owner else { return };
        self.yield_to_child(worker, identity, &child);
        if self.session_of(worker, &child).is_none() && self.child_of(worker, &child).is_none() {
            self.expect_unknown_child(worker, child, identity);
        }
    }

    /// Cancels a request to open a session if its worker announces a child of the same name in a session of
    /// another identity. The worker has not read the request yet. If it did, it would open the child.
    fn yield_to_child(&mut self, worker: WorkerKey, identity: Identity, name: &str) {
        let Some(key) = self.session_of(worker, name) else { return };
        let Some(session) = self.core.sessions.get(key) else { return };
        match session.place {
            _ if session.identity == identity => {}
            SessionState::Restoring(_) => self.fail_restore(key, &name_reused()),
            _ if session.provisional => self.drop_session(key),
            _ => {}
        }
    }

    /// Drops the announcement of a child in a shared worker whose clients have not declared that they show
    /// children. The child belongs to no client. Messages about it are dropped too, and are no protocol
    /// violations.
    #[inline]
    pub(super) fn drop_unshown_child(&mut self, worker: WorkerKey, message: View<'_>) -> bool {
        let Some(state) = self.core.workers.get(worker) else { return false };
        let pool = self.core.pool_of(state.pool);
        if state.announces || !pool.is_shared() || !pool.is_acp() {
            return false;
        }
        let Some(UpdateEvent::Child(child)) = read_update(message) else { return false };
        let parent_owner = |name: &str| {
            let parent = self.session_of(worker, name).and_then(|key| self.core.sessions.get(key));
            parent.map(|parent| parent.identity).or_else(|| state.former.owner(name))
        };
        let Some(identity) = message.session().and_then(|name| parent_owner(&name)) else { return false };
        self.core.counters.dropped += 1;
        self.yield_to_child(worker, identity, &child);
        let is_open = self.session_of(worker, &child).is_some();
        let Some(state) = self.core.workers.get(worker).filter(|_| !is_open) else { return true };
        let is_new = !state.former.contains(&child);
        self.expect_unknown_child(worker, child, identity);
        if is_new {
            self.log(LogEvent::Dropped {
                worker: worker.into(),
                why: "child session without the capability `subagents`",
            });
        }
        true
    }

    /// Forgets the oldest children of a session or of its worker until there is room for one more id of this
    /// length. Returns `false` if the other sessions of the identity use all the room.
    fn make_room_for_child(&mut self, worker: WorkerKey, root: SessionKey, length: usize) -> bool {
        loop {
            let Some(session) = self.core.sessions.get(root) else { return false };
            let (count, bytes) = self.core.children.held.get(&session.identity).copied().unwrap_or_default();
            let identity_is_full = count >= MAX_OF_IDENTITY || bytes + length > MAX_IDENTITY_BYTES;
            let child_set = session.child_set.as_deref();
            let session_is_full = child_set.is_some_and(|child_set| {
                child_set.children.len() >= MAX_OF_SESSION || child_set.bytes + length > MAX_SESSION_BYTES
            });
            let oldest_of_session = child_set.and_then(|child_set| child_set.children.front().copied());
            let Some(state) = self.core.workers.get(worker) else { return false };
            let oldest = if session_is_full || identity_is_full {
                oldest_of_session
            } else if state.children.len() >= MAX_OF_WORKER {
                let serial = |key: &ChildKey| self.core.children.get(*key).map(|child| child.serial);
                state.children.values().copied().min_by_key(serial)
            } else {
                return true;
            };
            let Some(oldest) = oldest else { return false };
            self.forget_child(worker, oldest);
            let why = "too many child sessions, oldest forgotten";
            self.log(LogEvent::Dropped { worker: worker.into(), why });
        }
    }

    fn forget_child(&mut self, worker: WorkerKey, key: ChildKey) {
        let Some(child) = self.core.children.remove(key) else { return };
        let child_set =
            self.core.sessions.get_mut(child.root).and_then(|session| session.child_set.as_deref_mut());
        if let Some(child_set) = child_set {
            child_set.children.retain(|other| *other != key);
            child_set.bytes -= child.agent_name.len();
        }
        self.expect_no_more(worker, key, child);
    }

    /// Lets a worker still mention a forgotten child without a protocol violation.
    fn expect_no_more(&mut self, worker: WorkerKey, key: ChildKey, child: Child) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.children.get(&child.agent_name) != Some(&key) {
            return;
        }
        state.children.remove(&child.agent_name);
        self.expect_name_no_more(worker, child.agent_name, child.identity);
    }

    /// Lets a worker mention a child that its session does not have, without a protocol violation.
    fn expect_unknown_child(&mut self, worker: WorkerKey, name: Box<str>, identity: Identity) {
        self.core.owners.know_child(&name, identity);
        self.expect_name_no_more(worker, name, identity);
    }

    fn expect_name_no_more(&mut self, worker: WorkerKey, name: Box<str>, identity: Identity) {
        if let Some(state) = self.core.worker(worker) {
            state.former.add(name, identity, NameUse::Opened);
        }
    }

    pub(super) fn forget_child_named(&mut self, worker: WorkerKey, name: &str) {
        let key = self.core.worker(worker).and_then(|state| state.children.get(name).copied());
        if let Some(key) = key {
            self.forget_child(worker, key);
        }
    }

    pub(super) fn forget_children(&mut self, worker: Option<WorkerKey>, child_set: Option<Box<ChildSet>>) {
        for key in child_set.into_iter().flat_map(|child_set| child_set.children) {
            if let Some(child) = self.core.children.remove(key)
                && let Some(worker) = worker
            {
                self.expect_no_more(worker, key, child);
            }
        }
    }

    /// Moves the children of a session to another worker. A child is forgotten if that worker uses the
    /// child's name for something else, or used it for another identity. The former worker may still mention
    /// the children.
    pub(super) fn move_children(&mut self, root: SessionKey, from: Option<WorkerKey>, to: Option<WorkerKey>) {
        let child_set = self.core.sessions.get(root).and_then(|session| session.child_set.as_deref());
        let Some(child_set) = child_set.filter(|child_set| !child_set.children.is_empty()) else { return };
        for key in child_set.children.clone() {
            let Some(child) = self.core.children.get(key) else { continue };
            let (agent_name, identity) = (child.agent_name.clone(), child.identity);
            if let Some(from) = from.and_then(|from| self.core.worker(from))
                && from.children.get(&agent_name) == Some(&key)
            {
                from.children.remove(&agent_name);
                from.former.add(agent_name.clone(), identity, NameUse::Opened);
            }
            let Some(to) = to else { continue };
            if self.name_conflict(to, &agent_name, identity, None).is_some() {
                self.forget_child(to, key);
            } else if let Some(state) = self.core.worker(to) {
                state.former.remove(&agent_name);
                state.children.insert(agent_name, key);
            }
        }
    }

    /// Routes a client's message about a child like a message about the child's session. Requests that open,
    /// list, close or delete sessions, or that concern the whole connection, are refused for a child.
    pub(super) fn route_child(
        &mut self,
        client: ClientKey,
        name: &str,
        message: View<'_>,
        what: RequestKind,
    ) -> Option<Route> {
        let child = self.core.children.find(name)?;
        let (root, wire) = (child.root, child.agent_name_json());
        let identity = self.core.clients.get(client)?.identity;
        if self.core.sessions.get(root).is_none_or(|session| session.identity != identity) {
            return Some(Route::Refuse(unknown_session()));
        }
        let method = message.method().map_or(RequestKind::Other, |method| RequestKind::from_method(&method));
        if !matches!(method, RequestKind::Prompt | RequestKind::Other) {
            return Some(Route::Refuse(unknown_session()));
        }
        if let Err(error) = self.permit_in_session(client, root, message, method) {
            return Some(Route::Refuse(error));
        }
        let what = if what == RequestKind::Cancel { RequestKind::Cancel } else { RequestKind::Other };
        match self.route_session(client, root, what)? {
            Route::Worker { worker, .. } => Some(Route::Child { worker, agent_name_json: wire }),
            other => Some(other),
        }
    }

    pub(super) fn forward_to_child(
        &mut self,
        client: ClientKey,
        message: View<'_>,
        batch: Option<BatchKey>,
        worker: WorkerKey,
        wire: Option<&[u8]>,
    ) {
        let line = wire.map(|wire| Parts::new(message, &[(Part::Session, wire)]).as_slice().concat());
        let message = line.as_deref().map_or(message, View::parse);
        self.forward(client, message, batch, worker, None, RequestKind::Child);
    }

    /// Returns the id that clients use for the child that a message is about, if the agent uses another id.
    /// The outer `None`: the message is not about a child.
    pub(super) fn child_alias(&self, worker: WorkerKey, message: View<'_>) -> Option<Option<Box<[u8]>>> {
        self.child_of(worker, &message.session()?).map(Child::alias)
    }

    /// Returns a message in which the agent's ids of child sessions are replaced by those that clients use,
    /// or `None` if no id differs.
    pub(super) fn rename_children(
        &self,
        worker: WorkerKey,
        root: SessionKey,
        message: View<'_>,
    ) -> Option<Vec<u8>> {
        let session = self.core.sessions.get(root)?;
        let child_set = session.child_set.as_deref()?;
        if !(child_set.aliased || session.agent_name_json.is_some())
            || message.method().as_deref() != Some(method::SESSION_UPDATE)
        {
            return None;
        }
        // Children are looked up only if the message has a second id. The first one is that of the session.
        memchr::memmem::find_iter(message.bytes(), b"essionId\"").nth(1)?;
        // A message with too many values is not parsed, so it keeps the ids that the agent uses for children.
        if has_more_values_than(message.bytes(), MAX_PEER_VALUES) {
            return None;
        }
        let mut line: Value = serde_json::from_slice(message.bytes()).ok()?;
        let update = line.get_mut("params")?.get_mut("update")?;
        let shown = |name: &str| match self.session_of(worker, name) {
            Some(key) => {
                self.core.sessions.get(key).filter(|_| key == root).map(|session| session.name.clone())
            }
            None => {
                let child = self.child_of(worker, name).filter(|child| child.root == root);
                child.map(|child| child.name.clone())
            }
        };
        let mut changed = false;
        let mut respell = |value: &mut Value, key: &str| {
            let shown = value.get(key).and_then(Value::as_str).and_then(shown);
            if let Some(shown) = shown.filter(|shown| value[key] != **shown) {
                value[key] = Value::from(&*shown);
                changed = true;
            }
        };
        for key in ["sessionId", "senderSessionId", "recipientSessionId"] {
            respell(update, key);
        }
        for place in ["/background", "/state/background"] {
            for entry in update.pointer_mut(place).and_then(Value::as_array_mut).into_iter().flatten() {
                respell(entry, "sessionId");
            }
        }
        changed.then(|| line.to_string().into_bytes())
    }
}

pub(super) fn child_lost() -> RpcError {
    RpcError::new(narrows_wire::Code::WorkerLost, "agent process exited").effects(narrows_wire::Effects::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_state_and_subagent_updates_are_parsed() {
        #[track_caller]
        fn check(params: &str, expected: Option<&UpdateEvent>) {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
            assert_eq!(read_update(View::parse(line.as_bytes())).as_ref(), expected, "{params}");
        }
        check(
            r#"{"update":{"sessionUpdate":"state_update","state":"idle"}}"#,
            Some(&UpdateEvent::Running(false)),
        );
        check(
            r#"{"update":{"state":"running","sessionUpdate":"state_update"}}"#,
            Some(&UpdateEvent::Running(true)),
        );
        check(
            r#"{"update":{"sessionUpdate":"subagent_update","sessionId":"c"}}"#,
            Some(&UpdateEvent::Child("c".into())),
        );
        check(r#"{"update":{"sessionUpdate":"subagent_update","sessionId":7}}"#, None);
        check(r#"{"update":{"sessionUpdate":"subagent_update","sessionId":""}}"#, None);
        let long = "x".repeat(MAX_SESSION_NAME_BYTES + 1);
        check(&format!(r#"{{"update":{{"sessionUpdate":"subagent_update","sessionId":"{long}"}}}}"#), None);
        check(r#"{"update":{"sessionUpdate":"tool_call_update","rawInput":["subagent_update"]}}"#, None);
        check(r#"{"update":{"sessionUpdate":"agent_message_chunk","text":"\"subagent_update\""}}"#, None);
        check(r#"{"other":{"sessionUpdate":"subagent_update","sessionId":"c"}}"#, None);
        check(
            r#"{"sessionId":"s","update":{"sessionUpdate":"subagent_update","sessionId":"c"}}"#,
            Some(&UpdateEvent::Child("c".into())),
        );
        let tail = r#""sessionUpdate":"subagent_update","sessionId":"c"}}"#;
        for head in ["", r#""sessionId":"s","#, r#""sessionId":"s\"","#] {
            check(&format!(r#"{{{head}"update":{{"sessionUpdate":"plan",{tail}"#), None);
        }
        // The text of an update inside a session's name is not an update.
        let name = r#"s\",\"update\":{\"sessionUpdate\":\"plan\""#;
        check(&format!(r#"{{"sessionId":"{name}","update":{{{tail}"#), Some(&UpdateEvent::Child("c".into())));
        check("{}", None);
    }
}
