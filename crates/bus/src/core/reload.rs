//! Applies a changed configuration: pools are kept, replaced, added and removed.

use narrows_wire::{Code, RpcError};

use crate::config::{Config, Pool, ShareMode};

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::state::{PoolState, WorkerLifecycle, WorkerState};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn reload(&mut self, config: &Config) {
        self.core.limits = config.limits.clone();
        self.core.listeners.clone_from(&config.listen);
        self.end_forbidden_use();
        let before = std::mem::take(&mut self.core.order);
        self.core.order = config.pools.iter().map(|settings| self.settle_pool(settings)).collect();
        // Pools are removed only after all others are settled, so that clients of a stopped worker are served
        // by the pools that remain.
        for pool in before {
            if self.core.order.contains(&pool) {
                self.shrink(pool);
                continue;
            }
            if self.core.pool_of(pool).successor.is_none() {
                self.core.pool_mut(pool).removed = true;
                self.refuse_removed(pool);
            }
            self.stop_leaving_pool(pool);
        }
        self.fill_all();
    }

    /// Returns the pool for these settings. An existing pool of this name stays if only adjustable settings
    /// differ. Any other pool of this name, also a removed one, is replaced by a new pool.
    fn settle_pool(&mut self, settings: &Pool) -> PoolId {
        let is_it = |pool: &PoolState| pool.successor.is_none() && pool.settings.name == settings.name;
        let former = self.core.pools.iter().position(is_it).map(|index| PoolId(index as u32));
        if let Some(pool) = former
            && !self.core.pool_of(pool).removed
            && is_same_kind(&self.core.pool_of(pool).settings, settings)
        {
            self.core.pool_mut(pool).settings = settings.clone();
            return pool;
        }
        let pool = PoolId(self.core.pools.len() as u32);
        self.core.pools.push(PoolState::new(settings.clone()));
        if let Some(former) = former {
            self.core.pool_mut(former).successor = Some(pool);
            // Until its workers are initialized, the new pool is assumed to have the capabilities of the pool
            // that it replaces.
            self.core.pool_mut(pool).abilities = self.core.pool_of(former).abilities;
            self.move_waiting(former, pool);
        }
        pool
    }

    /// Resets a client whose pool was removed, as if the client had chosen no pool. Its sessions stay in
    /// their workers.
    pub(super) fn reset_removed_pool(&mut self, client: ClientKey) {
        let Some(pool) = self.core.clients.get(client).and_then(|state| state.pool) else {
            return;
        };
        if !self.core.pool_of(self.core.current(pool)).removed {
            return;
        }
        let Some(state) = self.core.client(client) else { return };
        state.pool = None;
        // The client sent these params to agents of the removed pool. Agents of another pool must not get
        // them.
        state.initialize = None;
        state.authenticate = None;
        let Some(worker) = state.worker.take() else { return };
        if !self.core.is_exclusive(worker) {
            return;
        }
        let Some(state) = self.core.worker(worker) else { return };
        // A worker that is still busy is stopped when it becomes idle.
        state.used = true;
        if state.sessions.is_empty() && state.pending.is_empty() && state.backlog.is_empty() {
            self.stop_worker(worker, false);
        }
    }

    /// Refuses the clients and sessions that wait for a worker of a pool that was removed without a
    /// successor.
    fn refuse_removed(&mut self, pool: PoolId) {
        let error = RpcError::new(Code::NotFound, "pool of this connection was removed");
        for client in std::mem::take(&mut self.core.pool_mut(pool).waiting) {
            self.refuse_held(client, &error);
        }
        for key in std::mem::take(&mut self.core.pool_mut(pool).restores) {
            self.fail_restore(key, &error);
        }
    }

    /// Lets clients and sessions that wait for a worker of a replaced pool wait for its successor instead.
    fn move_waiting(&mut self, from: PoolId, to: PoolId) {
        let waiting = std::mem::take(&mut self.core.pool_mut(from).waiting);
        let restores = std::mem::take(&mut self.core.pool_mut(from).restores);
        self.core.pool_mut(to).waiting = waiting;
        self.core.pool_mut(to).restores = restores;
        for client in self.core.clients.values_mut() {
            if client.pool == Some(from) && client.held.is_some() {
                client.pool = Some(to);
            }
        }
    }

    /// Stops the workers of a pool that was replaced or removed: unused ones at once, others when their turns
    /// have ended.
    fn stop_leaving_pool(&mut self, pool: PoolId) {
        let state = self.core.pool_of(pool);
        let shared = state.is_shared();
        let per_session = state.settings.share == ShareMode::Session && state.is_acp();
        for worker in self.core.pool_of(pool).workers.clone() {
            let Some(state) = self.core.worker(worker) else { continue };
            if !state.claimed && (state.stage != WorkerLifecycle::Ready || state.pending.is_empty()) {
                self.stop_worker(worker, false);
            } else if shared {
                self.retire_unwanted(worker);
                if self.core.pool_of(pool).removed {
                    self.schedule_retire_timeout(worker);
                }
            } else if per_session {
                // From now on, no session may be opened in this worker, not even a first one.
                state.used = true;
            }
        }
        if per_session {
            self.stop_idle();
        }
    }

    fn shrink(&mut self, pool: PoolId) {
        let state = self.core.pool_of(pool);
        let live: Vec<(WorkerKey, &WorkerState)> = state
            .workers
            .iter()
            .rev()
            .filter_map(|worker| Some((*worker, self.core.workers.get(*worker)?)))
            .filter(|(_, state)| {
                matches!(
                    state.stage,
                    WorkerLifecycle::Starting | WorkerLifecycle::Initializing | WorkerLifecycle::Ready
                )
            })
            .collect();
        let going =
            if state.is_shared() { surplus_shared(state, live) } else { surplus_unclaimed(state, live) };
        for worker in going {
            if self.core.is_exclusive(worker) {
                self.stop_worker(worker, false);
            } else {
                self.retire_unwanted(worker);
            }
        }
    }

    /// Sets the timeout of a worker that a reload retires. After the timeout the worker is stopped when no
    /// turn runs in it, even if clients have sessions there.
    fn schedule_retire_timeout(&mut self, worker: WorkerKey) {
        let at = self.now + self.core.limits.drain_timeout;
        self.core.timers.set(at, Timer::Retired(worker));
    }

    /// Retires a worker that is not at fault. The worker is stopped as soon as no client needs it, without a
    /// time limit.
    fn retire_unwanted(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        if !matches!(state.stage, WorkerLifecycle::Retiring | WorkerLifecycle::Stopping) {
            state.stage = WorkerLifecycle::Retiring;
            state.unwanted = true;
            self.refresh_answer(worker);
            self.end_if_retired(worker);
        }
    }
}

/// Returns the workers of a shared pool that the new settings leave no room for, least used ones first.
fn surplus_shared(pool: &PoolState, mut live: Vec<(WorkerKey, &WorkerState)>) -> Vec<WorkerKey> {
    let most = live.len().saturating_sub(pool.settings.instances as usize);
    live.sort_by_key(|(_, state)| state.sessions.len() + state.pending.len());
    live.into_iter().take(most).map(|(worker, _)| worker).collect()
}

/// Returns the unclaimed workers that the new settings leave no room for, in a pool whose workers serve one
/// client each. Workers that are not ready come first.
fn surplus_unclaimed(pool: &PoolState, live: Vec<(WorkerKey, &WorkerState)>) -> Vec<WorkerKey> {
    let (claimed, mut free): (Vec<_>, Vec<_>) = live.into_iter().partition(|(_, state)| state.claimed);
    let wanted = pool.settings.instances as usize + pool.waiting.len() + pool.restores.len();
    let room = (pool.settings.max_instances as usize).saturating_sub(claimed.len());
    let most = free.len().saturating_sub(wanted.min(room));
    free.sort_by_key(|(_, state)| state.stage == WorkerLifecycle::Ready);
    free.into_iter().take(most).map(|(worker, _)| worker).collect()
}

/// Returns `true` if the workers of one pool can serve the other, because only adjustable settings differ.
fn is_same_kind(one: &Pool, other: &Pool) -> bool {
    let of_workers = |pool: &Pool| Pool {
        instances: 0,
        max_instances: 0,
        mcp: None,
        mcp_servers: Vec::new(),
        client_meta: Vec::new(),
        ..pool.clone()
    };
    of_workers(one) == of_workers(other)
}
