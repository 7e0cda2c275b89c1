//! Access of clients to pools.
//!
//! A listener and a token can each be restricted to some pools. A client may use the pools that both permit.
//! A session in any other pool is answered like a session of another identity: as if it did not exist.

use narrows_wire::{Code, RpcError};
use serde_json::json;

use super::Ctx;
use super::api::{CoreOutput, LogEvent, PoolId};
use super::session::SessionKey;
use super::state::ClientState;
use super::table::ClientKey;
use crate::config::ListenerSettings;

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns `true` if a client may use a pool of this name, whether or not such a pool exists.
    fn permits(&self, state: &ClientState, pool: &str) -> bool {
        let listener = self.core.listeners.get(state.listener);
        listener.is_none_or(|listener| listener.permits(pool))
            && state.pools.as_ref().is_none_or(|pools| pools.iter().any(|name| name == pool))
    }

    #[inline]
    pub(super) fn is_restricted(&self, client: ClientKey) -> bool {
        let Some(state) = self.core.clients.get(client) else { return true };
        let listener = self.core.listeners.get(state.listener);
        state.pools.is_some() || listener.is_some_and(|listener| !listener.permits_all())
    }

    pub(super) fn may_use(&self, client: ClientKey, pool: PoolId) -> bool {
        if !self.is_restricted(client) {
            return true;
        }
        let state = self.core.clients.get(client);
        state.is_some_and(|state| self.permits(state, &self.core.pool_of(pool).settings.name))
    }

    #[inline]
    pub(super) fn may_reach(&self, client: ClientKey, session: SessionKey) -> bool {
        self.core.sessions.get(session).is_none_or(|session| self.may_use(client, session.pool))
    }

    /// Ends what clients do in sessions whose pools they may no longer use. A running turn of such a client goes on.
    pub(super) fn end_forbidden_use(&mut self) {
        let mut clients: Vec<ClientKey> = self.core.clients.iter().map(|(client, _)| client).collect();
        clients.retain(|client| self.is_restricted(*client));
        for client in clients {
            let Some(state) = self.core.clients.get(client) else { continue };
            let mut observed: Vec<SessionKey> = state.observing.iter().copied().collect();
            let mut controlled: Vec<SessionKey> = state.sessions.iter().copied().collect();
            observed.sort_unstable();
            controlled.sort_unstable();
            for key in observed {
                self.remove_if_forbidden(client, key);
            }
            for key in controlled {
                self.end_forbidden_control(key);
            }
        }
    }

    /// Makes an observer the controller of a session whose controller may no longer use its pool, unless a turn runs.
    pub(super) fn end_forbidden_control(&mut self, key: SessionKey) {
        if self.has_forbidden_control(key) {
            self.promote(key);
        }
    }

    /// Returns `true` if no turn runs in a session and its controller may not use its pool.
    pub(super) fn has_forbidden_control(&self, key: SessionKey) -> bool {
        let Some(session) = self.core.sessions.get(key).filter(|session| !session.is_busy()) else {
            return false;
        };
        session.owner.is_some_and(|owner| !self.may_reach(owner, key))
    }

    /// Removes an observer that may not use the pool of a session, and its right to answer requests of that session.
    pub(super) fn remove_if_forbidden(&mut self, client: ClientKey, key: SessionKey) {
        if self.may_reach(client, key) {
            return;
        }
        self.detach(client, key);
        let Some(state) = self.core.clients.get(client) else { return };
        let of_session = state.asked.iter().filter(|(_, asked)| asked.session == Some(key));
        let mut numbers: Vec<u64> = of_session.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in numbers {
            self.withdraw_unanswered(client, number);
        }
    }

    /// Returns the pool that a client asks for. A pool that the client may not use is refused whether it
    /// exists or not.
    pub(super) fn wanted_pool(&mut self, client: ClientKey, name: &str) -> Result<PoolId, RpcError> {
        let permitted = self.core.clients.get(client).is_some_and(|state| self.permits(state, name));
        match permitted {
            true => self.find_pool(name),
            false => Err(self.deny_pool(client)),
        }
    }

    /// Returns the pool of a client that names none: the default one of its listener, or the first that the
    /// client may use.
    pub(super) fn default_pool(&mut self, client: ClientKey) -> Result<PoolId, RpcError> {
        let Some(state) = self.core.clients.get(client) else { return self.first_pool() };
        let named =
            self.core.listeners.get(state.listener).into_iter().flat_map(ListenerSettings::pool_names);
        let all = self.core.order.iter().map(|pool| self.core.pool_of(*pool).settings.name.as_str());
        let usable = named.chain(all).filter(|name| self.permits(state, name));
        let first = usable.filter_map(|name| self.find_pool(name).ok()).next();
        if let Some(pool) = first {
            return Ok(pool);
        }
        if self.core.order.is_empty() { self.first_pool() } else { Err(self.deny_pool(client)) }
    }

    fn find_pool(&self, name: &str) -> Result<PoolId, RpcError> {
        let mut pools = self.core.order.iter().copied();
        pools
            .find(|pool| self.core.pool_of(*pool).settings.name == name)
            .ok_or_else(|| RpcError::new(Code::InvalidParams, "unknown pool").with("pool", json!(name)))
    }

    fn first_pool(&self) -> Result<PoolId, RpcError> {
        let first = self.core.order.first().copied();
        first.ok_or_else(|| RpcError::new(Code::NotFound, "no pool configured"))
    }

    pub(super) fn deny_pool(&mut self, client: ClientKey) -> RpcError {
        self.core.counters.refused_pools += 1;
        self.log(LogEvent::PoolRefused(client.into()));
        RpcError::new(Code::PolicyDenied, "pool not allowed for this client")
    }
}
