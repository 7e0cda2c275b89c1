//! Owners of sessions that are not open. Knowing a session id is not enough to open it.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_wire::{View, message};
use rustc_hash::FxHashMap;

use super::Ctx;
use super::api::{Action, CoreOutput, OwnedName, PoolId};
use super::identity::Identity;
use super::name_conflict::NameConflict;
use super::session::{Session, SessionKey};
use super::session_list::SessionList;
use super::table::{ClientKey, WorkerKey};
use crate::config::{Config, Limits};

/// Whom a session belongs to, as its name says to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Who asks, or nobody keeps account of it.
    Own,
    /// Somebody else.
    Foreign,
    /// Nobody knows, which is the same answer.
    Unknown,
}

/// How long it is remembered whose a session is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kept {
    /// Nobody is told apart.
    #[default]
    Never,
    /// As long as the bus runs. What it does not know may be whoever's who asks.
    Running,
    /// Also beyond that. What is not known is nobody's.
    Always,
}

/// How many sessions are remembered that are nowhere written down.
const MAX_REMEMBERED_NAMES: usize = 1 << 16;

/// Owners of sessions. Empty where identities are not told apart.
///
/// Names that clients use and names that the agents of a pool use are looked up in different tables: both may be any
/// text, so no text can separate them within one table.
#[derive(Debug, Default)]
pub(super) struct Owners {
    kept: Kept,
    by_name: HashMap<Box<str>, Identity>,
    /// By the pool's name, then by the name that its agents use.
    by_pool: HashMap<Box<str>, HashMap<Box<str>, Identity>>,
    /// Those that are only remembered, for each identity, the oldest first.
    remembered: FxHashMap<Identity, VecDeque<OwnedName>>,
}

impl Owners {
    pub(super) fn new(config: &Config) -> Self {
        let kept = match (config.keeps_owners(), config.tells_apart()) {
            (true, _) => Kept::Always,
            (false, true) => Kept::Running,
            (false, false) => Kept::Never,
        };
        Self { kept, ..Self::default() }
    }

    /// Whether account is kept of it.
    #[inline]
    pub(super) fn are_kept(&self) -> bool {
        self.kept != Kept::Never
    }

    /// A session is this identity's. Not if it is another's: whose it is stays so until it is forgotten.
    pub(super) fn know(&mut self, session: &OwnedName, identity: Identity) {
        if !self.are_kept() || self.owner(session).is_some() {
            return;
        }
        let table = match &session.pool {
            Some(pool) => self.by_pool.entry(pool.clone()).or_default(),
            None => &mut self.by_name,
        };
        table.insert(session.name.clone(), identity);
        if self.kept == Kept::Running {
            self.remembered.entry(identity).or_default().push_back(session.clone());
            // Nobody loses one because of another who has more.
            let count: usize = self.remembered.values().map(VecDeque::len).sum();
            let most = self.remembered.values_mut().max_by_key(|names| names.len());
            if count > MAX_REMEMBERED_NAMES
                && let Some(oldest) = most.and_then(VecDeque::pop_front)
            {
                self.forget(&oldest);
            }
        }
    }

    /// Records the owner of a child session, in buses where a session without a known owner is open to any client. An agent may list the
    /// child, and open it elsewhere, after its session is closed.
    pub(super) fn know_child(&mut self, name: &str, identity: Identity) {
        if self.kept == Kept::Running {
            self.know(&name.into(), identity);
        }
    }

    pub(super) fn forget(&mut self, session: &OwnedName) {
        match &session.pool {
            None => {
                self.by_name.remove(&session.name);
            }
            Some(pool) => {
                if let Some(names) = self.by_pool.get_mut(pool) {
                    names.remove(&session.name);
                    if names.is_empty() {
                        self.by_pool.remove(pool);
                    }
                }
            }
        }
    }

    /// Returns `true` if the session that clients call `name` belongs to another identity.
    pub(super) fn is_anothers(&self, name: &str, identity: Identity) -> bool {
        self.find_owner(name).is_some_and(|owner| owner != identity)
    }

    /// Returns the owner of the session that clients call `name`.
    pub(super) fn find_owner(&self, name: &str) -> Option<Identity> {
        self.by_name.get(name).copied()
    }

    /// Returns the owner of the session that the agents of a pool call `name`.
    fn owner_in_pool(&self, pool: &str, name: &str) -> Option<Identity> {
        self.by_pool.get(pool)?.get(name).copied()
    }

    fn owner(&self, session: &OwnedName) -> Option<Identity> {
        match &session.pool {
            Some(pool) => self.owner_in_pool(pool, &session.name),
            None => self.find_owner(&session.name),
        }
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Whose a session is that `identity` names; of one that is open, `key` says where it stands.
    pub(super) fn claim_on(&self, identity: Identity, name: &str, key: Option<SessionKey>) -> Claim {
        if !self.core.owners.are_kept() {
            return Claim::Own;
        }
        let live = key.and_then(|key| self.core.sessions.get(key)).map(|session| session.identity);
        match live.or_else(|| self.core.owners.find_owner(name)) {
            Some(owner) if owner == identity => Claim::Own,
            Some(_) => Claim::Foreign,
            None if self.core.owners.kept == Kept::Running => Claim::Own,
            None => Claim::Unknown,
        }
    }

    /// Has it written down whose a session is, before `client` is told of it.
    pub(super) fn record_owner(&mut self, key: SessionKey, client: Option<ClientKey>) {
        if !self.core.owners.are_kept() {
            return;
        }
        let now = self.now;
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.noted = now;
        let (name, identity, pool) = (session.name.clone(), session.identity, session.pool);
        let takes_over = session.takes_over.take();
        let wire = session.wire.as_deref().and_then(|wire| serde_json::from_slice::<Box<str>>(wire).ok());
        let agent_name = wire.as_deref().unwrap_or(&name);
        let in_pool = OwnedName { pool: Some(self.pool_name(pool).into()), name: agent_name.into() };
        self.write_owner(OwnedName { pool: None, name }, identity, client);
        let before = self.core.owners.owner(&in_pool);
        if wire.is_none() && before.is_none() {
            return;
        }
        // Once sessions of several identities have had a name, it opens none of them: which one an agent means by it is known only while that
        // one is open. Unless the worker that had the last one has given the name out again, and knows only this one by it.
        let is_contested = before.is_some_and(|before| before != identity) && before != takes_over;
        let owner = if is_contested { Identity::SEVERAL } else { identity };
        if before.is_some_and(|before| before != owner) {
            self.disown(in_pool.clone());
        }
        self.write_owner(in_pool, owner, client);
    }

    /// A session is used. Now and then that is written down: one that is open for long is not one that nobody uses.
    #[inline]
    pub(super) fn refresh_owner(&mut self, key: SessionKey) {
        if !self.core.owners.are_kept() {
            return;
        }
        let refresh = Limits::owner_refresh(self.core.limits.owner_expiry);
        let is_old = |session: &Session| self.now.saturating_sub(session.noted) >= refresh;
        if self.core.sessions.get(key).is_some_and(is_old) {
            self.record_owner(key, None);
        }
    }

    fn write_owner(&mut self, session: OwnedName, identity: Identity, client: Option<ClientKey>) {
        self.core.owners.know(&session, identity);
        let identity = self.core.identities.name(identity);
        self.out.act(Action::Own { client: client.map(Into::into), session, identity });
    }

    fn pool_name(&self, pool: PoolId) -> &str {
        &self.core.pool_of(pool).settings.name
    }

    /// Whether the agents of a pool know somebody else's session by this name.
    pub(super) fn is_anothers_within(&self, identity: Identity, pool: PoolId, name: &str) -> bool {
        let owner = self.core.owners.owner_in_pool(self.pool_name(pool), name);
        owner.is_some_and(|owner| owner != identity)
    }

    /// Returns `true` if a client may see the session or child session that `worker` lists as `name`.
    pub(super) fn is_listed_for(&self, client: ClientKey, worker: WorkerKey, name: &str) -> bool {
        let Some(identity) = self.core.clients.get(client).map(|state| state.identity) else { return false };
        let conflict = self.name_conflict(worker, name, identity, None);
        if matches!(conflict, Some(NameConflict::Foreign | NameConflict::FormerForeign)) {
            return false;
        }
        let here = self.session_of(worker, name).or_else(|| self.root_of(worker, name));
        let known = here.or_else(|| self.core.sessions.find(name));
        let known = known.or_else(|| self.core.children.find(name).map(|child| child.root));
        known.is_none_or(|key| self.may_reach(client, key))
            && self.claim_on(identity, name, known) == Claim::Own
    }

    /// A worker's list of sessions, under the client's own id for it, without those that are not the client's. `None` if it
    /// is to be passed on as it is.
    pub(super) fn own_list(
        &self,
        client: ClientKey,
        worker: WorkerKey,
        id: &[u8],
        message: View<'_>,
    ) -> Option<Bytes> {
        let restricted = self.is_restricted(client);
        let result = message.result().filter(|_| restricted || self.core.owners.are_kept())?;
        let list = match SessionList::read(result) {
            Ok(list) => list,
            Err(error) => return Some(message::error(id, &error)),
        };
        let mut entries = Vec::new();
        for entry in list.sessions() {
            if self.is_listed_for(client, worker, &entry.name) {
                entry.append_to(&mut entries, &entry.name);
            }
        }
        let result = list.with_entries(&entries);
        let line: [&[u8]; 5] = [br#"{"jsonrpc":"2.0","id":"#, id, br#","result":"#, &result, b"}"];
        Some(line.concat().into())
    }

    /// A session was deleted: it is nobody's.
    pub(super) fn disown(&mut self, session: OwnedName) {
        if self.core.owners.are_kept() {
            self.core.owners.forget(&session);
            self.out.act(Action::Disown { session });
        }
    }
}
