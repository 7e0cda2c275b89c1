//! Decides whether a session may be in a worker under the name that the worker would use for it.
//!
//! Agents number their sessions, so one name means different sessions in different workers and at different
//! times. A session moves to another worker when it is restored, when a load is tried at the next worker, and
//! after a reload. Each of these moves is checked here, so that no identity gets a session of another
//! identity by its name.

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::identity::Identity;
use super::session::SessionKey;
use super::table::WorkerKey;

/// A conflict about a name: another session already has the name in the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameConflict {
    /// An open session of the same identity, or a child of such a session.
    Own,
    /// An open session of another identity, or a child of such a session.
    Foreign,
    /// A session of another identity that is closed in the bus, but that the agent may still have.
    FormerForeign,
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns the conflict that prevents a session of `identity` from having the name `name` in `worker`.
    /// `except` is the session itself, which is not a conflict.
    pub(super) fn name_conflict(
        &self,
        worker: WorkerKey,
        name: &str,
        identity: Identity,
        except: Option<SessionKey>,
    ) -> Option<NameConflict> {
        let state = self.core.workers.get(worker)?;
        let is_here = |key: &SessionKey| {
            let session = self.core.sessions.get(*key);
            session
                .is_some_and(|session| session.agent_name_json.is_none() && session.worker() == Some(worker))
        };
        let named = self.core.sessions.find(name).filter(is_here);
        let aliased = state.aliases.get(name).copied();
        let family = self.root_of(worker, name);
        let other = [named, aliased, family].into_iter().flatten().find(|key| Some(*key) != except);
        if let Some(other) = other {
            let is_own = self.core.sessions.get(other).is_some_and(|other| other.identity == identity);
            return Some(if is_own { NameConflict::Own } else { NameConflict::Foreign });
        }
        let is_anothers = state.former.is_anothers(name, identity)
            || self.is_anothers_within(identity, self.core.current(state.pool), name);
        is_anothers.then_some(NameConflict::FormerForeign)
    }

    /// Returns `true` if no other session of `worker` conflicts with the name that agents use for this
    /// session.
    pub(super) fn may_live_at(&self, worker: WorkerKey, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        !session.is_superseded
            && self.name_conflict(worker, &session.agent_name(), session.identity, Some(key)).is_none()
    }

    /// Returns the workers of a pool in which the name of a session conflicts with another session.
    pub(super) fn workers_closed_to(&self, pool: PoolId, key: SessionKey) -> Vec<WorkerKey> {
        let workers = self.core.pool_of(pool).workers.iter().copied();
        workers.filter(|worker| !self.may_live_at(*worker, key)).collect()
    }

    /// Returns the workers of a pool in which a session of this name, which is not open, may not be opened.
    pub(super) fn workers_closed_to_name(
        &self,
        pool: PoolId,
        name: &str,
        identity: Identity,
    ) -> Vec<WorkerKey> {
        let workers = self.core.pool_of(pool).workers.iter().copied();
        workers.filter(|worker| self.name_conflict(*worker, name, identity, None).is_some()).collect()
    }
}
