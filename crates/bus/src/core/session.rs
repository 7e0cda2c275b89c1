//! The sessions of the bus, with their names, workers and owners.

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

const MAX_KEPT_PARAMS_BYTES: usize = 1 << 20;

pub(super) type SessionKey = Key<Session>;

#[derive(Debug)]
pub(super) enum SessionState {
    On(WorkerKey),
    /// The worker of the session was lost, for this reason, and no other worker has the session.
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
    /// The name that clients use for the session.
    pub(super) name: Box<str>,
    /// The name that the worker uses for the session, as a JSON string. `None`: the worker uses `name` too.
    pub(super) agent_name_json: Option<Box<[u8]>>,
    pub(super) pool: PoolId,
    pub(super) place: SessionState,
    /// Number of times that the session was removed from a worker. A request that was sent before the last
    /// removal no longer affects the session.
    pub(super) removals: u64,
    pub(super) abilities: Abilities,
    pub(super) owner: Option<ClientKey>,
    /// The time at which the session lost its owner. `None`: it has an owner.
    pub(super) ownerless: Option<Time>,
    pub(super) identity: Identity,
    /// The scopes of the token with which the session was opened, if a gate got them. `None`: unrestricted.
    pub(super) scopes: Option<Box<[String]>>,
    /// The top-level `sessionId` that the client of the session sends, as raw JSON.
    pub(super) tag: Option<KeptBytes>,
    /// The params of the request that opened the session. They are kept to restore it.
    pub(super) params: Box<[u8]>,
    pub(super) params_charge: Option<Charge>,
    pub(super) name_charge: Option<Charge>,
    pub(super) servers: ServerUse,
    /// `true` while the request to open the session is pending. The response decides whether the session
    /// exists.
    pub(super) provisional: bool,
    /// `true` if the session had no owner before a pending request to open it. The response decides whether
    /// the present owner keeps the session.
    pub(super) owner_unconfirmed: bool,
    /// When the worker confirmed that it opened this stored session: the number of bytes ever queued for the
    /// worker until then.
    pub(super) reopened_at: u64,
    pub(super) prompts: Vec<u64>,
    pub(super) running: bool,
    /// The time when the turn of the session was cancelled. `None` once that turn has ended.
    pub(super) cancelling: Option<Time>,
    pub(super) last_cancelled_prompt: u64,
    pub(super) waiting: Vec<Waiting>,
    pub(super) waiting_since: Time,
    pub(super) owner_recorded_at: Time,
    /// `true` if a worker was lost while it restored the session. The restore is tried once more.
    pub(super) retried: bool,
    /// The identity of an earlier, closed session that had the same name in the same worker.
    pub(super) previous_identity: Option<Identity>,
    /// `true` if the agent gave the session's name to another session after the worker of this one was lost.
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

    /// Returns the client that gets the worker's updates of the session.
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

    /// Forgets a cancellation whose turn has ended, so that it does not cancel a later turn.
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
    /// Number of names that were generated. No name is generated twice, so a client with an outdated name
    /// cannot reach another session by it.
    made: u64,
    /// Bytes of kept params and server ids. They are counted apart from queued messages: otherwise a client
    /// with many sessions could no longer send long messages.
    kept: Memory,
    names: Memory,
    /// The last opening response that was kept for each identity.
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

    /// Adds a session under its name, or under a similar name that is free. `is_anothers` returns `true` for
    /// the name of another identity's session that is not open.
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

    /// Returns the name `own`, or a similar one if `own` is in use.
    pub(super) fn free_name(&mut self, own: &str, is_anothers: impl Fn(&str) -> bool) -> Box<str> {
        let is_taken = |name: &str| self.by_name.contains_key(name) || is_anothers(name);
        let mut name: Box<str> = own.into();
        while name.is_empty() || is_taken(&name) {
            self.made += 1;
            name = format!("{own}~{}", self.made + 1).into();
        }
        name
    }

    /// Replaces the params that are kept to restore a session. If they are too long, or exceed `limits` (of
    /// all identities, and of one), none are kept, and the session cannot be restored in another worker.
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

    /// Charges an identity for bytes that are kept as long as a session, within the limits for params.
    /// Returns `None` if the bytes do not fit.
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

    /// Returns `true` if the session names of an identity, or of all identities, take so many bytes that no
    /// more are accepted.
    pub(super) fn has_long_names(&self, identity: Identity, limits: (usize, usize)) -> bool {
        let (all, one) = self.names.held(identity);
        all > limits.0 || one > limits.1
    }

    /// Returns the bytes of an identity's session params and of the data kept beside them, and the bytes of
    /// its session names.
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
    /// Returns the number of times that a session was removed from a worker, for a request about the session
    /// to store.
    pub(super) fn removals_of(&self, session: Option<SessionKey>) -> u64 {
        session.and_then(|key| self.sessions.get(key)).map_or(0, |session| session.removals)
    }

    /// Returns the session of a pending request. `None`: the session has ended, or was removed from the
    /// worker after the request was sent.
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

pub(super) fn take_first(lines: &mut Vec<Waiting>, is_it: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
    let at = lines.iter().position(is_it)?;
    Some(lines.remove(at))
}

pub(super) fn quoted(text: &str) -> Box<[u8]> {
    serde_json::to_vec(text).expect("text is plain data").into()
}
