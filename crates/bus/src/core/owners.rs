//! Owners of sessions that are not open. Knowing a session id is not enough to open it.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use narrows_wire::{View, message};
use rustc_hash::FxHashMap;

use super::Ctx;
use super::api::{CoreAction, CoreOutput, OwnedName, PoolId};
use super::identity::Identity;
use super::name_conflict::NameConflict;
use super::session::{Session, SessionKey};
use super::session_list::SessionList;
use super::table::{ClientKey, WorkerKey};
use crate::config::{BusLimits, Config};

/// The relation of a session to an identity that names it: own, foreign or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The session belongs to this identity, or owners are not kept.
    Own,
    Foreign,
    /// The owner is unknown. The client gets the same answer as for a session of another identity.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OwnerRetention {
    /// Owners are not kept: all clients have the same identity.
    #[default]
    Never,
    /// Owners are kept in memory until the bus ends. A session without a known owner is open to all clients.
    Running,
    /// Owners are kept on disk. A session without a known owner is open to no client.
    Always,
}

const MAX_REMEMBERED_NAMES: usize = 1 << 16;

#[derive(Debug, Default)]
struct Remembered {
    names: VecDeque<OwnedName>,
    bytes: usize,
}

impl Remembered {
    fn pop(&mut self) -> Option<OwnedName> {
        let oldest = self.names.pop_front()?;
        self.bytes -= oldest.record_bytes();
        Some(oldest)
    }
}

/// Owners of sessions by name. Empty if all clients have the same identity.
///
/// Names that clients use and names that the agents of a pool use are in different tables. Names of either
/// kind may be any text, so no separator could tell them apart in one table.
#[derive(Debug, Default)]
pub(super) struct Owners {
    kept: OwnerRetention,
    by_name: HashMap<Box<str>, Identity>,
    /// Owners by the name of the pool, and there by the name that the pool's agents use.
    by_pool: HashMap<Box<str>, HashMap<Box<str>, Identity>>,
    /// Names whose owners are kept in memory only, per identity.
    remembered: FxHashMap<Identity, Remembered>,
    /// Maximum number of bytes of the owners in `remembered`: of all identities, and of one.
    limits: (usize, usize),
}

impl Owners {
    pub(super) fn new(config: &Config) -> Self {
        let kept = match (config.keeps_owners(), config.separates_users()) {
            (true, _) => OwnerRetention::Always,
            (false, true) => OwnerRetention::Running,
            (false, false) => OwnerRetention::Never,
        };
        Self { kept, limits: config.limits.owner_memory(), ..Self::default() }
    }

    #[inline]
    pub(super) fn are_kept(&self) -> bool {
        self.kept != OwnerRetention::Never
    }

    /// Records the owner of a session, unless the session already has a recorded owner.
    pub(super) fn know(&mut self, session: &OwnedName, identity: Identity) {
        if !self.are_kept() || self.owner(session).is_some() {
            return;
        }
        let table = match &session.pool {
            Some(pool) => self.by_pool.entry(pool.clone()).or_default(),
            None => &mut self.by_name,
        };
        table.insert(session.name.clone(), identity);
        if self.kept == OwnerRetention::Running {
            let own = self.remembered.entry(identity).or_default();
            own.names.push_back(session.clone());
            own.bytes += session.record_bytes();
            self.forget_oldest();
        }
    }

    /// Forgets owners that are kept in memory only while there are too many. The identity with the most loses
    /// its oldest ones, so that one identity cannot displace the owners of another.
    fn forget_oldest(&mut self) {
        let (most, most_of_one) = self.limits;
        loop {
            let count: usize = self.remembered.values().map(|own| own.names.len()).sum();
            let bytes: usize = self.remembered.values().map(|own| own.bytes).sum();
            let Some(largest) = self.remembered.values_mut().max_by_key(|own| own.bytes) else { return };
            if count <= MAX_REMEMBERED_NAMES && bytes <= most && largest.bytes <= most_of_one {
                return;
            }
            let Some(oldest) = largest.pop() else { return };
            self.forget(&oldest);
        }
    }

    /// Records the owner of a child session, in a bus where a session without a known owner is open to all
    /// clients. An agent may list the child after the parent is closed, so that another client could open the
    /// child.
    pub(super) fn know_child(&mut self, name: &str, identity: Identity) {
        if self.kept == OwnerRetention::Running {
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

    pub(super) fn find_owner(&self, name: &str) -> Option<Identity> {
        self.by_name.get(name).copied()
    }

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
    /// Returns the relation of a session to `identity`, which calls it `name`. `key` is given if the session
    /// is open.
    pub(super) fn claim_on(&self, identity: Identity, name: &str, key: Option<SessionKey>) -> Claim {
        if !self.core.owners.are_kept() {
            return Claim::Own;
        }
        let live = key.and_then(|key| self.core.sessions.get(key)).map(|session| session.identity);
        match live.or_else(|| self.core.owners.find_owner(name)) {
            Some(owner) if owner == identity => Claim::Own,
            Some(_) => Claim::Foreign,
            None if self.core.owners.kept == OwnerRetention::Running => Claim::Own,
            None => Claim::Unknown,
        }
    }

    /// Has the owner of a session written to disk. `client` gets its next output, the response, only after
    /// that.
    pub(super) fn record_owner(&mut self, key: SessionKey, client: Option<ClientKey>) {
        if !self.core.owners.are_kept() {
            return;
        }
        let now = self.now;
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.owner_recorded_at = now;
        let (name, identity, pool) = (session.name.clone(), session.identity, session.pool);
        let takes_over = session.previous_identity.take();
        let wire =
            session.agent_name_json.as_deref().and_then(|wire| serde_json::from_slice::<Box<str>>(wire).ok());
        let agent_name = wire.as_deref().unwrap_or(&name);
        let in_pool = OwnedName { pool: Some(self.pool_name(pool).into()), name: agent_name.into() };
        self.write_owner(OwnedName { pool: None, name }, identity, client);
        let before = self.core.owners.owner(&in_pool);
        if wire.is_none() && before.is_none() {
            return;
        }
        // A name that sessions of several identities have had opens none of them, because it is unknown which
        // one an agent means. The exception is a worker that had the last session and has reused the name: it
        // knows only the new one.
        let is_contested = before.is_some_and(|before| before != identity) && before != takes_over;
        let owner = if is_contested { Identity::SEVERAL } else { identity };
        if before.is_some_and(|before| before != owner) {
            self.disown(in_pool.clone());
        }
        self.write_owner(in_pool, owner, client);
    }

    /// Records at intervals that a session is in use, so that the owner of a long-lived session does not
    /// expire.
    #[inline]
    pub(super) fn refresh_owner(&mut self, key: SessionKey) {
        if !self.core.owners.are_kept() {
            return;
        }
        let refresh = BusLimits::owner_refresh(self.core.limits.owner_expiry);
        let is_old = |session: &Session| self.now.saturating_sub(session.owner_recorded_at) >= refresh;
        if self.core.sessions.get(key).is_some_and(is_old) {
            self.record_owner(key, None);
        }
    }

    fn write_owner(&mut self, session: OwnedName, identity: Identity, client: Option<ClientKey>) {
        self.core.owners.know(&session, identity);
        let identity = self.core.identities.name(identity);
        self.out.perform(CoreAction::RecordOwner { client: client.map(Into::into), session, identity });
    }

    fn pool_name(&self, pool: PoolId) -> &str {
        &self.core.pool_of(pool).settings.name
    }

    /// Returns `true` if the agents of a pool know a session of another identity by this name.
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
        // If owners are not kept, only an open session shows that the name is another identity's.
        let is_anothers = |key| self.core.sessions.get(key).is_some_and(|open| open.identity != identity);
        known.is_none_or(|key| self.may_reach(client, key) && !is_anothers(key))
            && self.claim_on(identity, name, known) == Claim::Own
    }

    /// Returns a worker's session list without the sessions that the client may not see, under the client's
    /// id of the request. `None`: the client may see all sessions.
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

    pub(super) fn disown(&mut self, session: OwnedName) {
        if self.core.owners.are_kept() {
            self.core.owners.forget(&session);
            self.out.perform(CoreAction::DeleteOwner { session });
        }
    }
}
