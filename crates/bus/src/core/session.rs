//! The sessions of the bus: their names, their workers and their owners.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use super::Core;
use super::api::{PoolId, Time};
use super::batch::BatchKey;
use super::children::ChildSet;
use super::identity::Identity;
use super::kept::KeptBytes;
use super::mcp_server_table::ServerUse;
use super::memory::{Charge, Memory};
use super::observers::ObserverState;
use super::splice::KeptLine;
use super::state::{Abilities, Pending};
use super::table::{ClientKey, Key, Table, WorkerKey};

/// Maximum size of params that are kept to restore a session.
const MAX_KEPT_PARAMS_BYTES: usize = 1 << 20;

pub(super) type SessionKey = Key<Session>;

#[derive(Debug)]
pub(super) enum SessionState {
    On(WorkerKey),
    /// In no worker: its worker was lost, for this reason.
    Lost(Arc<str>),
    Restoring(WorkerKey),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) client: ClientKey,
    pub(super) line: KeptLine,
    pub(super) batch: Option<BatchKey>,
    pub(super) _charge: Charge,
}

#[derive(Debug)]
pub(super) struct Session {
    /// The name for clients.
    pub(super) name: Box<str>,
    /// The worker's name as a JSON string, if it differs from `name`.
    pub(super) agent_name_json: Option<Box<[u8]>>,
    pub(super) pool: PoolId,
    pub(super) place: SessionState,
    /// Number of times that the session was removed from a worker. Requests sent before the last removal no
    /// longer apply to it.
    pub(super) removals: u64,
    /// The session capabilities of its last worker.
    pub(super) abilities: Abilities,
    pub(super) owner: Option<ClientKey>,
    /// The time since when the session has no owner. `None`: it has one.
    pub(super) ownerless: Option<Time>,
    pub(super) identity: Identity,
    /// Scopes of the token it was opened with, if sent to a gate; `None`: unrestricted.
    pub(super) scopes: Option<Box<[String]>>,
    /// The top-level `sessionId` that the client of the session uses, as raw JSON.
    pub(super) tag: Option<KeptBytes>,
    /// The params of the request that opened the session, used to restore it.
    pub(super) params: Box<[u8]>,
    pub(super) params_charge: Option<Charge>,
    pub(super) name_charge: Option<Charge>,
    /// The MCP servers of the client with which the session was opened.
    pub(super) servers: ServerUse,
    /// `true` while the request to open it is pending. The response decides whether the session exists.
    pub(super) provisional: bool,
    /// `true` if it had no owner before a pending request to open it. The response decides whether its
    /// present owner keeps it.
    pub(super) owner_unconfirmed: bool,
    /// Number of bytes ever queued for the worker when it confirmed that it opened this stored session.
    pub(super) reopened_at: u64,
    pub(super) prompts: Vec<u64>,
    /// `true` while the agent works in the session, according to its state updates (v2).
    pub(super) running: bool,
    /// The time when the turn was cancelled. `None` once the turn has ended.
    pub(super) cancelling: Option<Time>,
    /// The number of the session's last cancelled prompt.
    pub(super) last_cancelled_prompt: u64,
    pub(super) waiting: Vec<Waiting>,
    /// The time since when the first of `waiting` waits.
    pub(super) waiting_since: Time,
    /// The time when the owner was last recorded.
    pub(super) owner_recorded_at: Time,
    /// `true` if a worker was lost while restoring the session. One more attempt is made.
    pub(super) retried: bool,
    /// The identity whose session had this name in the worker before, and was closed.
    pub(super) previous_identity: Option<Identity>,
    /// `true` if the agent gave the session's name to another session after this one was lost.
    pub(super) is_superseded: bool,
    /// The batch of the request that created the session. Until the batch is answered, the client does not
    /// know the session's name.
    pub(super) named_in: Option<BatchKey>,
    pub(super) sharing: Option<Box<ObserverState>>,
    /// The child sessions. `None` if the session never had any.
    pub(super) child_set: Option<Box<ChildSet>>,
}

impl Session {
    pub(super) fn worker(&self) -> Option<WorkerKey> {
        match self.place {
            SessionState::On(worker) | SessionState::Restoring(worker) => Some(worker),
            SessionState::Lost(_) => None,
        }
    }

    pub(super) fn agent_name(&self) -> Box<str> {
        let wire = self.agent_name_json.as_deref().and_then(|wire| serde_json::from_slice(wire).ok());
        wire.unwrap_or_else(|| self.name.clone())
    }

    /// Returns the client to which the worker's updates of the session are sent.
    #[inline]
    pub(super) fn recipient(&self) -> Option<ClientKey> {
        self.sharing.as_deref().and_then(ObserverState::replay_target).unwrap_or(self.owner)
    }

    pub(super) fn is_replaying(&self) -> bool {
        self.sharing.as_deref().is_some_and(|sharing| sharing.replay_target().is_some())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running || !self.prompts.is_empty()
    }

    pub(super) fn is_stopping(&self) -> bool {
        let goes_on = self.running || self.prompts.iter().any(|prompt| *prompt <= self.last_cancelled_prompt);
        self.cancelling.is_some() && goes_on
    }

    /// Forgets a cancellation whose turn has ended, so that a later turn is not cancelled.
    pub(super) fn end_cancelling(&mut self) {
        if !self.is_stopping() {
            self.cancelling = None;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    table: Table<Session>,
    by_name: HashMap<Box<str>, SessionKey>,
    counts: FxHashMap<Identity, usize>,
    /// Number of generated names. No name is generated twice, so a client with an outdated name cannot reach
    /// another session by it.
    made: u64,
    /// Bytes of kept params and server ids. They stay, so they are counted apart from queued messages.
    /// Otherwise a client with many sessions could no longer send long messages.
    kept: Memory,
    /// Bytes of the names of sessions.
    names: Memory,
    /// The last result that was kept for each identity.
    pub(super) last_results: FxHashMap<Identity, Weak<KeptBytes>>,
}

impl Sessions {
    pub(super) fn find(&self, name: &str) -> Option<SessionKey> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, key: SessionKey) -> Option<&Session> {
        self.table.get(key)
    }

    pub(super) fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.table.get_mut(key)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.table.iter()
    }

    /// Adds a session under its name, or under a similar free one. `is_anothers` returns `true` for the name
    /// of another identity's session that is not open.
    pub(super) fn insert(&mut self, mut session: Session, is_anothers: impl Fn(&str) -> bool) -> SessionKey {
        let name = self.free_name(&session.name, is_anothers);
        if name != session.name {
            let own = std::mem::replace(&mut session.name, name);
            if session.agent_name_json.is_none() {
                session.agent_name_json = Some(quoted(&own));
            }
        }
        *self.counts.entry(session.identity).or_default() += 1;
        let name = session.name.clone();
        let bytes = 2 * name.len() + session.agent_name_json.as_ref().map_or(0, |wire| wire.len());
        session.name_charge = Some(self.names.charge(session.identity, bytes));
        let key = self.table.insert(session);
        self.by_name.insert(name, key);
        key
    }

    /// Returns `own`, or a similar name if `own` is in use.
    pub(super) fn free_name(&mut self, own: &str, is_anothers: impl Fn(&str) -> bool) -> Box<str> {
        let is_taken = |name: &str| self.by_name.contains_key(name) || is_anothers(name);
        let mut name: Box<str> = own.into();
        while name.is_empty() || is_taken(&name) {
            self.made += 1;
            name = format!("{own}~{}", self.made + 1).into();
        }
        name
    }

    /// Replaces the params kept to restore a session. They are not kept if they are too long or exceed
    /// `limits`, for all sessions and for one identity. Then the session cannot be restored in another
    /// worker.
    pub(super) fn keep_params(&mut self, key: SessionKey, params: &[u8], limits: (usize, usize)) {
        let Some(session) = self.table.get_mut(key) else { return };
        (session.params, session.params_charge) = (Box::default(), None);
        let identity = session.identity;
        if params.len() > MAX_KEPT_PARAMS_BYTES {
            return;
        }
        let Some(charge) = self.charge_kept(identity, params.len(), limits) else { return };
        if let Some(session) = self.table.get_mut(key) {
            (session.params, session.params_charge) = (params.into(), Some(charge));
        }
    }

    /// Charges an identity for bytes that are kept as long as a session, within the limits of params. `None`
    /// if they do not fit.
    pub(super) fn charge_kept(
        &mut self,
        identity: Identity,
        bytes: usize,
        limits: (usize, usize),
    ) -> Option<Charge> {
        let (all, one) = self.kept.held(identity);
        let has_room = all + bytes <= limits.0 && one + bytes <= limits.1;
        has_room.then(|| self.kept.charge(identity, bytes))
    }

    /// Returns `true` if the session names of an identity, or of all, already take so many bytes that no more
    /// are accepted.
    pub(super) fn has_long_names(&self, identity: Identity, limits: (usize, usize)) -> bool {
        let (all, one) = self.names.held(identity);
        all > limits.0 || one > limits.1
    }

    /// Returns the bytes of an identity's params with the data kept beside them, and the bytes of its session
    /// names.
    #[cfg(test)]
    pub(super) fn held(&self, identity: Identity) -> (usize, usize) {
        (self.kept.held(identity).1, self.names.held(identity).1)
    }

    pub(super) fn of_identity(&self, identity: Identity) -> usize {
        self.counts.get(&identity).copied().unwrap_or(0)
    }

    fn uncount(&mut self, identity: Identity) {
        if let Some(count) = self.counts.get_mut(&identity) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&identity);
            }
        }
    }

    pub(super) fn forget_waiting(&mut self, client: ClientKey) {
        for session in self.table.values_mut() {
            session.waiting.retain(|waiting| waiting.client != client);
        }
    }

    pub(super) fn remove(&mut self, key: SessionKey) -> Option<Session> {
        let session = self.table.remove(key)?;
        self.by_name.remove(&session.name);
        self.uncount(session.identity);
        Some(session)
    }
}

impl Core {
    /// Returns the number of times that a session was removed from a worker. A request about the session
    /// stores it.
    pub(super) fn removals_of(&self, session: Option<SessionKey>) -> u64 {
        session.and_then(|key| self.sessions.get(key)).map_or(0, |session| session.removals)
    }

    /// Returns the session of a request. `None` if it has ended, or was removed from the worker of the
    /// request.
    pub(super) fn session_of_pending(&self, pending: &Pending) -> Option<SessionKey> {
        pending.session.filter(|key| {
            self.sessions.get(*key).is_some_and(|session| session.removals == pending.session_removals)
        })
    }

    pub(super) fn check_sessions(&self, requests: &mut [(u64, Pending)]) {
        for (_, pending) in requests {
            pending.session = self.session_of_pending(pending);
        }
    }
}

/// Removes and returns the first line that matches.
pub(super) fn take_first(lines: &mut Vec<Waiting>, is_it: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
    let at = lines.iter().position(is_it)?;
    Some(lines.remove(at))
}

pub(super) fn quoted(text: &str) -> Box<[u8]> {
    serde_json::to_vec(text).expect("text is plain data").into()
}
