//! The sessions of the bus: their names, their workers and their owners.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::api::{PoolId, Time};
use super::batch::BatchKey;
use super::children::Kin;
use super::identity::Identity;
use super::mcp_server_table::ServerUse;
use super::memory::{Charge, Memory};
use super::observers::Watch;
use super::splice::KeptLine;
use super::state::Abilities;
use super::table::{ClientKey, Key, Table, WorkerKey};

/// The longest params that are kept to take a session up again.
const MAX_KEPT_PARAMS_BYTES: usize = 1 << 20;

/// A session's place in the table.
pub(super) type SessionKey = Key<Session>;

/// Where a session lives.
#[derive(Debug)]
pub(super) enum SessionState {
    /// In a worker.
    On(WorkerKey),
    /// Nowhere: its worker is gone, for this reason.
    Lost(Arc<str>),
    /// It is being resumed in a worker.
    Reviving(WorkerKey),
}

/// A line that waits for its session.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) client: ClientKey,
    pub(super) line: KeptLine,
    pub(super) batch: Option<BatchKey>,
    pub(super) _charge: Charge,
}

/// One conversation.
#[derive(Debug)]
pub(super) struct Session {
    /// How clients call it.
    pub(super) name: Box<str>,
    /// How its worker calls it, as a JSON string, if that is another name.
    pub(super) wire: Option<Box<[u8]>>,
    pub(super) pool: PoolId,
    pub(super) place: SessionState,
    /// What its last worker could do with it.
    pub(super) abilities: Abilities,
    pub(super) owner: Option<ClientKey>,
    /// Since when it has no owner.
    pub(super) ownerless: Option<Time>,
    pub(super) identity: Identity,
    /// Scopes of the token it was opened with, where a gate was told of them; `None`: not narrowed.
    pub(super) scopes: Option<Box<[String]>>,
    /// The `sessionId` at the top level that its client uses, as it stands there.
    pub(super) tag: Option<Box<[u8]>>,
    /// The params of the request that opened it, with which it can be resumed.
    pub(super) params: Box<[u8]>,
    /// For `params`.
    pub(super) params_charge: Option<Charge>,
    /// The MCP servers of its client that it was opened with.
    pub(super) servers: ServerUse,
    /// The open request is still unanswered: its answer decides whether this is a session.
    pub(super) provisional: bool,
    /// Nobody had it, and whether its owner has it now is decided by an answer too.
    pub(super) unsure: bool,
    /// Where the queue of its worker ended when the worker said that it has opened this stored session.
    pub(super) reopened_at: u64,
    /// The ids of its prompts that are unanswered.
    pub(super) prompts: Vec<u64>,
    /// Whether it works, as told by its state (v2).
    pub(super) running: bool,
    /// When it was told to stop, if it has not yet.
    pub(super) cancelling: Option<Time>,
    /// The last of its prompts that was told to stop, by its number.
    pub(super) stopped: u64,
    /// Lines that wait until it lives again.
    pub(super) waiting: Vec<Waiting>,
    /// Since when the first of them does.
    pub(super) awaited: Time,
    /// When it was last written down whose it is.
    pub(super) noted: Time,
    /// A worker died over it: one more is tried.
    pub(super) retried: bool,
    /// The identity whose session, which was closed, had its name at its worker before.
    pub(super) takes_over: Option<Identity>,
    /// Its agent gave its name to another session after it was lost.
    pub(super) is_superseded: bool,
    /// The batch of the request that created it. While that is open, its client does not know the session's name.
    pub(super) named_in: Option<BatchKey>,
    /// What is kept of it for those who come to watch.
    pub(super) watch: Option<Box<Watch>>,
    /// Its child sessions, if it ever had one.
    pub(super) kin: Option<Box<Kin>>,
}

impl Session {
    pub(super) fn worker(&self) -> Option<WorkerKey> {
        match self.place {
            SessionState::On(worker) | SessionState::Reviving(worker) => Some(worker),
            SessionState::Lost(_) => None,
        }
    }

    /// Returns the name that its worker uses.
    pub(super) fn agent_name(&self) -> Box<str> {
        let wire = self.wire.as_deref().and_then(|wire| serde_json::from_slice(wire).ok());
        wire.unwrap_or_else(|| self.name.clone())
    }

    /// Who hears what its worker says of it.
    #[inline]
    pub(super) fn hearer(&self) -> Option<ClientKey> {
        self.watch.as_deref().and_then(Watch::reader).unwrap_or(self.owner)
    }

    /// Whether its worker tells its history to somebody who came to watch.
    pub(super) fn is_told(&self) -> bool {
        self.watch.as_deref().is_some_and(|watch| watch.reader().is_some())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running || !self.prompts.is_empty()
    }

    /// Returns `true` if a turn that was told to stop has not ended.
    pub(super) fn is_stopping(&self) -> bool {
        let goes_on = self.running || self.prompts.iter().any(|prompt| *prompt <= self.stopped);
        self.cancelling.is_some() && goes_on
    }

    /// Forgets a cancellation whose turn is over. A turn that was begun meanwhile was told nothing.
    pub(super) fn end_cancelling(&mut self) {
        if !self.is_stopping() {
            self.cancelling = None;
        }
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    table: Table<Session>,
    by_name: HashMap<Box<str>, SessionKey>,
    /// How many of them each identity has.
    counts: FxHashMap<Identity, usize>,
    /// How many names were made. None is ever made again: who has one that is no longer good must not reach another session by it.
    made: u64,
    /// How many bytes of params and of ids of servers are kept. Counted apart from messages that wait, as they stay: a client with many sessions could
    /// send nothing long any more.
    kept: Memory,
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

    /// Enters a session under its name, or under a free one like it. `is_anothers` tells of a name
    /// whether a session of somebody else is called so that is not open.
    pub(super) fn insert(&mut self, mut session: Session, is_anothers: impl Fn(&str) -> bool) -> SessionKey {
        let name = self.free_name(&session.name, is_anothers);
        if name != session.name {
            let own = std::mem::replace(&mut session.name, name);
            if session.wire.is_none() {
                session.wire = Some(quoted(&own));
            }
        }
        *self.counts.entry(session.identity).or_default() += 1;
        let name = session.name.clone();
        let key = self.table.insert(session);
        self.by_name.insert(name, key);
        key
    }

    /// `own`, or a free name like it if a session is called so.
    pub(super) fn free_name(&mut self, own: &str, is_anothers: impl Fn(&str) -> bool) -> Box<str> {
        let is_taken = |name: &str| self.by_name.contains_key(name) || is_anothers(name);
        let mut name: Box<str> = own.into();
        while name.is_empty() || is_taken(&name) {
            self.made += 1;
            name = format!("{own}~{}", self.made + 1).into();
        }
        name
    }

    /// Keeps the params with which a session was opened instead of what was kept before. Not if they are too long to be kept for its
    /// life, or if all that is kept would be more than `limits`, those of all sessions and of one identity: then the session cannot be
    /// restored in another worker.
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

    /// Charges an identity for what is kept as long as a session, within the same limits. `None` if there is no room for it.
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

    /// How many of them an identity has.
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

    /// Takes out the first line that waits and is the one.
    pub(super) fn take_waiting(&mut self, is_it: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        self.table.values_mut().find_map(|session| take_first(&mut session.waiting, &is_it))
    }

    /// Takes out what a client that is gone has waiting.
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

/// Takes out the first line that is the one.
pub(super) fn take_first(lines: &mut Vec<Waiting>, is_it: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
    let at = lines.iter().position(is_it)?;
    Some(lines.remove(at))
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> Box<[u8]> {
    serde_json::to_vec(text).expect("text is plain data").into()
}
