//! Stopping, and going on with other settings.

use narrows_wire::{Code, Effects, Kind, RpcError, View};

use crate::config::{Config, Pool};

use super::Pass;
use super::api::{Action, Client, Outlet, PoolId, Reason, Worker};
use super::state::{Asker, PoolState, Stage};
use super::timer::Timer;

impl<O: Outlet> Pass<'_, O> {
    pub(super) fn drain(&mut self) {
        if self.core.draining {
            return;
        }
        self.core.draining = true;
        let at = self.now + self.core.limits.drain_timeout;
        self.core.timers.set(at, Timer::Drained);
        let error = RpcError::new(Code::Draining, "the bus is stopping");
        for client in self.all_clients() {
            self.refuse_held(client, &error);
        }
        self.if_drained();
    }

    fn all_clients(&self) -> Vec<Client> {
        self.core.clients.iter().map(|(key, _)| Client(key as u32)).collect()
    }

    fn all_workers(&self) -> Vec<Worker> {
        self.core.workers.iter().map(|(key, _)| Worker(key as u32)).collect()
    }

    /// Ends everything once nobody waits for an answer any more.
    pub(super) fn if_drained(&mut self) {
        if !self.core.draining || self.core.finished {
            return;
        }
        let waits = self.core.clients.iter().any(|(_, client)| !client.inflight.is_empty());
        let runs = self.core.sessions.iter().any(|(_, session)| session.running && session.owner.is_some());
        if waits || runs {
            return;
        }
        for worker in self.all_workers() {
            self.stop_worker(worker, false);
        }
        for client in self.all_clients() {
            self.close(client, Reason::Draining);
        }
        if self.core.workers.is_empty() && self.core.clients.is_empty() {
            self.core.finished = true;
            self.out.act(Action::Finished);
        }
    }

    /// The time for running turns is over.
    pub(super) fn stop_waiting(&mut self) {
        self.drain();
        let error = RpcError::new(Code::Draining, "the bus has stopped").effects(Effects::Possible);
        for worker in self.all_workers() {
            self.fail_all(worker, &error);
        }
        // Whatever is left was sent nowhere.
        let error = RpcError::new(Code::Draining, "the bus has stopped");
        let mut lines = Vec::new();
        for (_, worker) in &mut self.core.workers {
            lines.append(&mut worker.backlog);
        }
        let keys: Vec<_> = self.core.sessions.iter().map(|(key, _)| key).collect();
        for key in keys {
            lines.extend(
                self.core.sessions.get_mut(key).into_iter().flat_map(|it| std::mem::take(&mut it.waiting)),
            );
        }
        for line in lines {
            self.forget_elsewhere(line.client, &line.line);
            let message = View::parse(&line.line);
            if let (Kind::Request, Some(id)) = (message.kind(), message.id()) {
                self.refuse(line.client, id, line.batch, message.tag(), &error);
            }
        }
        for client in self.all_clients() {
            self.refuse_held(client, &error);
            let Some(state) = self.core.client(client) else { continue };
            let mut ids: Vec<_> = state.inflight.keys().cloned().collect();
            ids.sort_unstable();
            for id in ids {
                if let Some(state) = self.core.client(client) {
                    state.inflight.remove(&id);
                }
                self.refuse(client, &id, None, None, &error);
            }
        }
        for (_, worker) in &mut self.core.workers {
            for pending in worker.pending.values_mut() {
                pending.asker = Asker::Gone;
            }
        }
        let keys: Vec<_> = self.core.sessions.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(session) = self.core.sessions.get_mut(key) {
                session.running = false;
            }
        }
        self.if_drained();
    }

    pub(super) fn reload(&mut self, config: &Config) {
        self.core.limits = config.limits.clone();
        self.core.listeners = config.listen.iter().map(|listen| listen.pool.clone()).collect();
        let live: Vec<usize> =
            (0..self.core.pools.len()).filter(|&index| self.core.pools[index].successor.is_none()).collect();
        let mut kept = Vec::new();
        for settings in &config.pools {
            let same = live.iter().copied().find(|&index| {
                let pool = &self.core.pools[index];
                !pool.removed && pool.settings.name == settings.name
            });
            match same {
                Some(index) if is_same_kind(&self.core.pools[index].settings, settings) => {
                    self.core.pools[index].settings = settings.clone();
                    kept.push(index);
                    self.shrink(PoolId(index as u32));
                }
                Some(index) => {
                    self.core.pools.push(PoolState::new(settings.clone()));
                    let successor = PoolId((self.core.pools.len() - 1) as u32);
                    self.core.pools[index].successor = Some(successor);
                    // Until it knows better, it can what its predecessor could.
                    self.core.pool_mut(successor).abilities = self.core.pools[index].abilities;
                    self.move_waiting(PoolId(index as u32), successor);
                }
                None => self.core.pools.push(PoolState::new(settings.clone())),
            }
        }
        for index in live {
            if kept.contains(&index) {
                continue;
            }
            if self.core.pools[index].successor.is_none() {
                self.core.pools[index].removed = true;
                self.refuse_removed(PoolId(index as u32));
            }
            self.wind_down(PoolId(index as u32));
        }
        self.fill_all();
    }

    /// Whoever waits for a worker of a pool that is no more, and has none in its place, waits in vain.
    fn refuse_removed(&mut self, pool: PoolId) {
        let error = RpcError::new(Code::NotFound, "the pool of this connection is no longer there");
        for client in std::mem::take(&mut self.core.pool_mut(pool).waiting) {
            self.refuse_held(client, &error);
        }
        for key in std::mem::take(&mut self.core.pool_mut(pool).revivals) {
            self.fail_revival(key, &error);
        }
    }

    /// Whoever waits for a worker of a pool that is no more waits for one of its successor.
    fn move_waiting(&mut self, from: PoolId, to: PoolId) {
        let waiting = std::mem::take(&mut self.core.pool_mut(from).waiting);
        let revivals = std::mem::take(&mut self.core.pool_mut(from).revivals);
        self.core.pool_mut(to).waiting = waiting;
        self.core.pool_mut(to).revivals = revivals;
        for (_, client) in &mut self.core.clients {
            if client.pool == Some(from) && client.held.is_some() {
                client.pool = Some(to);
            }
        }
    }

    /// Lets the workers of a pool that is no more go: at once if nobody uses them, else when their turns end.
    fn wind_down(&mut self, pool: PoolId) {
        let shared = self.core.pool_of(pool).is_shared();
        for worker in self.core.pool_of(pool).workers.clone() {
            let Some(state) = self.core.worker(worker) else { continue };
            if !state.claimed && (state.stage != Stage::Ready || state.pending.is_empty()) {
                self.stop_worker(worker, false);
            } else if shared {
                self.let_go(worker);
            }
        }
    }

    /// Lets surplus workers of a shared pool go.
    fn shrink(&mut self, pool: PoolId) {
        let state = self.core.pool_of(pool);
        if !state.is_shared() {
            return;
        }
        let live: Vec<Worker> = state
            .workers
            .iter()
            .copied()
            .filter(|worker| {
                self.core.workers.get(worker.0 as usize).is_some_and(|state| {
                    matches!(state.stage, Stage::Starting | Stage::Greeting | Stage::Ready)
                })
            })
            .collect();
        let surplus = live.len().saturating_sub(state.settings.instances as usize);
        // Those first that nobody would miss.
        let mut live: Vec<Worker> = live.into_iter().rev().collect();
        live.sort_by_key(|worker| {
            self.core
                .workers
                .get(worker.0 as usize)
                .map_or(0, |state| state.sessions.len() + state.pending.len())
        });
        for worker in live.into_iter().take(surplus) {
            self.let_go(worker);
        }
    }

    /// Lets a worker go that has done nothing wrong, when nobody needs it any more, however long that takes.
    fn let_go(&mut self, worker: Worker) {
        let Some(state) = self.core.worker(worker) else { return };
        if !matches!(state.stage, Stage::Retiring | Stage::Stopping) {
            state.stage = Stage::Retiring;
            state.unwanted = true;
            self.refresh_answer(worker);
            self.if_retired(worker);
        }
    }
}

/// Whether workers of one pool are workers of the other.
fn is_same_kind(one: &Pool, other: &Pool) -> bool {
    Pool { instances: 0, max_instances: 0, ..one.clone() }
        == Pool { instances: 0, max_instances: 0, ..other.clone() }
}
