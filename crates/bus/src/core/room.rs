//! Which worker has room, and what becomes of whoever needs one when none has.

use narrows_wire::{Code, RpcError};
use serde_json::json;

use super::api::{Client, Outlet, PoolId, Worker};
use super::route::Route;
use super::state::Stage;
use super::timer::Timer;
use super::{Pass, millis};

impl<O: Outlet> Pass<'_, O> {
    /// The worker with the least to do that `client` may use.
    pub(super) fn place(&mut self, pool: PoolId, client: Client, but: &[Worker]) -> Option<Worker> {
        let identity = self.core.client(client)?.identity;
        let state = self.core.pool_of(pool);
        let mixes = state.settings.mix_identities;
        let best = state
            .workers
            .iter()
            .filter(|worker| !but.contains(worker))
            .filter_map(|worker| Some((*worker, self.core.workers.get(worker.0 as usize)?)))
            .filter(|(_, state)| state.stage == Stage::Ready)
            .filter(|(_, state)| mixes || state.identity.is_none_or(|other| other == identity))
            .min_by_key(|(_, state)| state.sessions.len() + state.pending.len())
            .map(|(worker, _)| worker)?;
        let state = self.core.worker(best)?;
        state.identity = Some(identity);
        state.claimed = true;
        Some(best)
    }

    /// There is no worker now: wait for one, unless there will be none soon.
    pub(super) fn wait_for(&mut self, pool: PoolId) -> Route {
        self.spawn_on_demand(pool);
        let state = self.core.pool_of(pool);
        let total = state.workers.len();
        let hopeless = state.open_until.is_some_and(|until| until > self.now);
        let any_coming = state.workers.iter().any(|worker| {
            self.core
                .workers
                .get(worker.0 as usize)
                .is_some_and(|state| matches!(state.stage, Stage::Starting | Stage::Greeting))
        });
        let any_going = state.workers.iter().any(|worker| {
            self.core.workers.get(worker.0 as usize).is_some_and(|state| state.stage == Stage::Stopping)
        });
        let exhausted = !any_coming && !any_going && total >= state.settings.max_instances as usize;
        let rest_until = state.rest_until;
        if exhausted && !hopeless && self.make_room(pool) {
            return Route::Hold;
        }
        if (hopeless && !any_coming) || exhausted {
            return Route::Refuse(self.no_worker(pool, Code::Backpressure));
        }
        if !any_coming {
            // Whoever closed the circuit meanwhile has not started one.
            let at = rest_until.max(self.now);
            self.core.timers.set(at, Timer::Respawn(pool));
        }
        Route::Hold
    }

    /// Ends the worker of the session that has been without a client for the longest, where each client has its own. Tells
    /// whether there is one.
    fn make_room(&mut self, pool: PoolId) -> bool {
        let state = self.core.pool_of(pool);
        if state.is_shared() {
            return false;
        }
        let workers = state.workers.iter().filter_map(|worker| {
            let state = self.core.workers.get(worker.0 as usize)?;
            let left = state.stage == Stage::Ready && state.client.is_none() && state.pending.is_empty();
            let sessions = state.sessions.iter().filter_map(|key| self.core.sessions.get(*key));
            let since = sessions.map(|session| session.ownerless.filter(|_| !session.is_busy()));
            // All of them, or it is of use to somebody; the last that was left counts.
            let since = since.collect::<Option<Vec<_>>>()?.into_iter().max()?;
            left.then_some((since, *worker))
        });
        let Some((_, oldest)) = workers.min() else { return false };
        self.lose_sessions(oldest, &"its agent made room for another client".into());
        self.stop_worker(oldest, false);
        true
    }

    /// What whoever needs a worker is told when there is none.
    pub(super) fn no_worker(&self, pool: PoolId, code: Code) -> RpcError {
        let state = self.core.pool_of(pool);
        let until = state.open_until.unwrap_or(state.rest_until);
        let wait = until.saturating_sub(self.now);
        let words = match (&state.last_loss, state.open_until) {
            (Some(reason), Some(_)) => {
                format!("the workers of pool {:?} keep dying: {reason}", state.settings.name)
            }
            (Some(reason), None) => format!("no worker of pool {:?} is ready: {reason}", state.settings.name),
            (None, _) => format!("no worker of pool {:?} is free", state.settings.name),
        };
        RpcError::new(code, words).with("retryAfterMs", json!(millis(wait).max(100)))
    }
}
