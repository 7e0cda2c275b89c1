//! Selects a worker with room for a session, and frees or waits for one if there is none.

use std::cmp::Reverse;

use narrows_acp::method;
use narrows_wire::{Code, RpcError, View};
use serde_json::json;

use super::api::{CoreOutput, PoolId, Time};
use super::identity::Identity;
use super::route::Route;
use super::session::{SessionKey, Waiting};
use super::state::{
    InternalRequest, Opening, Pending, RequestLocation, RequestOrigin, WorkerLifecycle, WorkerState,
};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;
use super::turn_end::wire_name;
use super::{Ctx, millis};

/// Time for which the sessions of a worker are limited after the worker has reported that it is full.
const CAPACITY_TRUST_DURATION: Time = Time::from_secs(60);

impl<O: CoreOutput> Ctx<'_, O> {
    /// Returns the least loaded worker that `client` may use, except the workers in `but`. The worker then
    /// belongs to the client's identity.
    pub(super) fn choose_worker(
        &mut self,
        pool: PoolId,
        client: ClientKey,
        but: &[WorkerKey],
    ) -> Option<WorkerKey> {
        let identity = self.core.client(client)?.identity;
        let is_at_worker_share = self.is_at_worker_share(client, pool);
        let is_its = |other: Option<Identity>| other.map_or(!is_at_worker_share, |other| other == identity);
        let state = self.core.pool_of(pool);
        let mixes = state.settings.mix_identities;
        let best = state
            .workers
            .iter()
            .filter(|worker| !but.contains(worker))
            .filter_map(|worker| Some((*worker, self.core.workers.get(*worker)?)))
            .filter(|(_, state)| state.stage == WorkerLifecycle::Ready)
            .filter(|(_, state)| mixes || is_its(state.identity))
            .filter(|(worker, state)| {
                !self.is_full(state) || self.oldest_clientless_session(*worker).is_some()
            })
            .filter(|(worker, state)| {
                !(mixes && self.is_at_session_share(state, identity))
                    || self.oldest_clientless_session_of(*worker, Some(identity)).is_some()
            })
            .min_by_key(|(_, state)| state.sessions.len() + state.pending.len())
            .map(|(worker, _)| worker)?;
        if mixes && self.core.workers.get(best).is_some_and(|state| self.is_at_session_share(state, identity))
        {
            // Room is made by closing a session of this identity that has no client.
            let left = self.oldest_clientless_session_of(best, Some(identity))?;
            self.evict(best, left);
        }
        let state = self.core.worker(best)?;
        state.identity = Some(identity);
        state.tenants.add(identity);
        state.claimed = true;
        Some(best)
    }

    fn is_full(&self, state: &WorkerState) -> bool {
        state.capacity.is_some_and(|(most, until)| self.now < until && state.sessions.len() >= most)
    }

    /// Returns `true` if an identity has its maximum number of sessions in a worker that several identities
    /// share. Sessions that are being opened count too.
    fn is_at_session_share(&self, state: &WorkerState, identity: Identity) -> bool {
        let most = self.share_of_worker(state);
        if state.sessions.len() + state.pending.creating() >= most {
            let is_its = |key: &&SessionKey| {
                self.core.sessions.get(**key).is_some_and(|session| session.identity == identity)
            };
            return state.sessions.iter().filter(is_its).count() + state.pending.creating_for(identity)
                >= most;
        }
        false
    }

    /// Returns the maximum number of sessions of one identity in a worker that identities share. It is half
    /// of the worker's capacity if that is known, other identities are connected, and the pool cannot start
    /// more workers.
    fn share_of_worker(&self, state: &WorkerState) -> usize {
        let most = self.core.limits.max_sessions_per_worker;
        let pool = self.core.pool_of(state.pool);
        let is_crowded = pool.workers.len() >= pool.settings.max_instances as usize
            && self.core.identities.iter().filter(|(_, known)| known.clients > 0).count() > 1;
        let capacity = state.capacity.filter(|(_, until)| is_crowded && self.now < *until);
        capacity.map_or(most, |(capacity, _)| most.min((capacity / 2).max(1)))
    }

    /// Returns `true` if a client's identity may have one more session in this worker, where the fork's
    /// parent is. If necessary, closes a session of the identity that has no client.
    pub(super) fn has_room_for_fork(&mut self, client: ClientKey, worker: WorkerKey) -> bool {
        let Some(identity) = self.core.clients.get(client).map(|state| state.identity) else { return false };
        let Some(state) = self.core.workers.get(worker) else { return false };
        let pool = self.core.pool_of(state.pool);
        if !(pool.is_shared() && pool.settings.mix_identities && self.is_at_session_share(state, identity)) {
            return true;
        }
        let Some(left) = self.oldest_clientless_session_of(worker, Some(identity)) else { return false };
        self.evict(worker, left);
        true
    }

    /// Returns `true` if a client's identity has its maximum number of a pool's workers: three quarters of
    /// `max_instances`, rounded down, but at least one. Without authentication, there is no maximum.
    pub(super) fn is_at_worker_share(&self, client: ClientKey, pool: PoolId) -> bool {
        let Some(client) = self.core.clients.get(client).filter(|client| client.is_authenticated) else {
            return false;
        };
        let state = self.core.pool_of(pool);
        let most = state.settings.max_instances as usize;
        let share = (most - most.div_ceil(4)).max(1);
        let workers = state.workers.iter().filter_map(|worker| self.core.workers.get(*worker));
        let is_its = |worker: &&WorkerState| worker.claimed && worker.identity == Some(client.identity);
        !state.settings.mix_identities && workers.filter(is_its).count() >= share
    }

    /// Routes a client whose identity has its maximum number of workers. The client waits if a worker without
    /// clients can be stopped to make room. Otherwise the client is refused.
    pub(super) fn wait_for_own_worker(&mut self, pool: PoolId, client: ClientKey) -> Route {
        let identity = self.core.client(client).map(|state| state.identity);
        let workers = self.core.pool_of(pool).workers.iter();
        let mut states = workers.filter_map(|worker| self.core.workers.get(*worker));
        let is_going =
            states.any(|state| state.stage == WorkerLifecycle::Stopping && state.identity == identity);
        if is_going || self.make_room(pool, identity) {
            return Route::Hold;
        }
        Route::Refuse(RpcError::new(Code::Backpressure, "worker limit of this identity reached"))
    }

    pub(super) fn wait_for_room(&mut self, pool: PoolId, client: ClientKey) -> Route {
        let Some(identity) = self.core.client(client).map(|state| state.identity) else { return Route::Hold };
        let state = self.core.pool_of(pool);
        let workers = state.workers.iter().filter_map(|worker| self.core.workers.get(*worker));
        let mut ready =
            workers.filter(|worker| worker.stage == WorkerLifecycle::Ready && !self.is_full(worker));
        // The identity has its maximum of sessions in every worker, and no more workers are started for it.
        if state.settings.mix_identities && ready.any(|worker| self.is_at_session_share(worker, identity)) {
            return Route::Refuse(share_used_up());
        }
        if self.is_at_worker_share(client, pool) {
            return self.wait_for_own_worker(pool, client);
        }
        self.wait_for_worker(pool)
    }

    /// Handles a shared worker's refusal to open a session for lack of room. Closes a session without a
    /// client and asks again, or asks another worker, once. Returns the request if neither is possible.
    pub(super) fn find_room(
        &mut self,
        worker: WorkerKey,
        pending: Pending,
        opening: &Opening,
        message: View<'_>,
    ) -> Option<Pending> {
        let pool = self.pool_of_worker(worker);
        let is_full = message.error().is_some_and(|error| error.is(Code::Backpressure));
        if !is_full || !self.core.pool_of(pool).is_shared() || self.core.draining {
            return Some(pending);
        }
        let until = self.now + CAPACITY_TRUST_DURATION;
        if let Some(state) = self.core.worker(worker) {
            state.capacity = Some((state.sessions.len().max(1), until));
        }
        let RequestOrigin::Client { client, id, batch } = &pending.asker else { return Some(pending) };
        if opening.is_repeat || opening.line.is_empty() {
            return Some(pending);
        }
        let (client, batch) = (*client, *batch);
        let charge = self.core.charge_line(client, &opening.line);
        let waiting = Waiting { client, line: (*opening.line).into(), batch, _charge: charge };
        if let Some(state) = self.core.client(client) {
            state.repeated = Some(id.clone());
            state.inflight.insert(id.clone(), RequestLocation::Refused(worker));
        }
        match self.oldest_clientless_session(worker) {
            Some(key) => {
                if let Some(state) = self.core.worker(worker) {
                    state.refused.push(waiting);
                }
                self.evict(worker, key);
            }
            None => self.retry_refused_line(waiting),
        }
        None
    }

    /// Returns the idle session of a worker that has been without a client for the longest time and can be
    /// closed.
    fn oldest_clientless_session(&self, worker: WorkerKey) -> Option<SessionKey> {
        self.oldest_clientless_session_of(worker, None)
    }

    /// Returns the session as [`Self::oldest_clientless_session`] does. If `identity` is given, only sessions
    /// of that identity count.
    fn oldest_clientless_session_of(
        &self,
        worker: WorkerKey,
        identity: Option<Identity>,
    ) -> Option<SessionKey> {
        let state = self.core.workers.get(worker).filter(|state| state.accepts_input())?;
        if !self.core.abilities_of_worker(worker).close {
            return None;
        }
        let left = state.sessions.iter().filter_map(|key| {
            let session = self.core.sessions.get(*key)?;
            let is_its = identity.is_none_or(|identity| session.identity == identity);
            let is_idle = is_its && !session.is_busy() && !session.provisional && session.waiting.is_empty();
            Some((session.ownerless.filter(|_| is_idle)?, *key))
        });
        left.min().map(|(_, key)| key)
    }

    fn evict(&mut self, worker: WorkerKey, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let params = json!({"sessionId": wire_name(session)}).to_string();
        self.drop_session(key);
        self.send_internal_request(
            worker,
            InternalRequest::Evict,
            method::SESSION_CLOSE,
            params.as_bytes(),
            None,
        );
    }

    /// Sends refused requests again, after the worker has answered the close of a session to make room.
    pub(super) fn retry_refused(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        for waiting in std::mem::take(&mut state.refused) {
            self.retry_refused_line(waiting);
        }
    }

    /// Sends a request again that was refused for lack of room. It is handled before all held lines of its
    /// client.
    fn retry_refused_line(&mut self, waiting: Waiting) {
        self.release_request_id(waiting.client, &waiting.line);
        self.handle_again(vec![waiting]);
    }

    /// Routes a message for which its pool has no free worker: it waits, or is refused if no worker is
    /// expected soon.
    pub(super) fn wait_for_worker(&mut self, pool: PoolId) -> Route {
        self.spawn_on_demand(pool);
        let state = self.core.pool_of(pool);
        let total = state.workers.len();
        let hopeless = state.open_until.is_some_and(|until| until > self.now);
        let any_coming = state.workers.iter().any(|worker| {
            self.core.workers.get(*worker).is_some_and(|state| {
                matches!(state.stage, WorkerLifecycle::Starting | WorkerLifecycle::Initializing)
            })
        });
        let any_going = state.workers.iter().any(|worker| {
            self.core.workers.get(*worker).is_some_and(|state| state.stage == WorkerLifecycle::Stopping)
        });
        let exhausted = !any_coming && !any_going && total >= state.settings.max_instances as usize;
        let delayed_until = state.delayed_until;
        if exhausted && !hopeless && self.make_room(pool, None) {
            return Route::Hold;
        }
        if (hopeless && !any_coming) || exhausted {
            return Route::Refuse(self.no_worker(pool, Code::Backpressure));
        }
        if !any_coming {
            // The circuit breaker may have closed meanwhile, although no worker was started.
            let at = delayed_until.max(self.now);
            self.core.timers.set(at, Timer::Respawn(pool));
        }
        Route::Hold
    }

    /// Stops the worker that has been without clients for the longest time, in a pool where each worker
    /// serves one identity. Considers only workers of `identity`, or else of the identity with the most such
    /// workers. Returns `true` if there was one.
    fn make_room(&mut self, pool: PoolId, identity: Option<Identity>) -> bool {
        let state = self.core.pool_of(pool);
        if state.is_shared() && state.settings.mix_identities {
            return false;
        }
        let kept: Vec<(Option<Identity>, Time, WorkerKey)> = state
            .workers
            .iter()
            .filter_map(|worker| {
                let state = self.core.workers.get(*worker)?;
                let left = state.stage == WorkerLifecycle::Ready
                    && state.client.is_none()
                    && state.pending.is_empty();
                let sessions = state.sessions.iter().filter_map(|key| self.core.sessions.get(*key));
                let since = sessions.map(|session| session.ownerless.filter(|_| !session.is_busy()));
                // A worker is a candidate only if no session of it has a client. Its time begins when the
                // last client left.
                let since = since.collect::<Option<Vec<_>>>()?.into_iter().max()?;
                left.then_some((state.identity, since, *worker))
            })
            .filter(|(of, ..)| identity.is_none() || *of == identity)
            .collect();
        let count = |identity| kept.iter().filter(|(of, ..)| *of == identity).count();
        let oldest = kept.iter().min_by_key(|(of, since, worker)| (Reverse(count(*of)), *since, *worker));
        let Some((.., oldest)) = oldest.copied() else { return false };
        self.lose_sessions(oldest, &"agent stopped to make room".into());
        self.stop_worker(oldest, false);
        true
    }

    pub(super) fn no_worker(&self, pool: PoolId, code: Code) -> RpcError {
        let state = self.core.pool_of(pool);
        let until = state.open_until.unwrap_or(state.delayed_until);
        let wait = until.saturating_sub(self.now);
        let words = match (&state.last_loss, state.open_until) {
            (Some(reason), Some(_)) => {
                format!("circuit breaker of pool {:?} is open: {reason}", state.settings.name)
            }
            (Some(reason), None) => format!("no worker of pool {:?} is ready: {reason}", state.settings.name),
            (None, _) => format!("no worker of pool {:?} is free", state.settings.name),
        };
        RpcError::new(code, words).with("retryAfterMs", json!(millis(wait).max(100)))
    }
}

pub(super) fn share_used_up() -> RpcError {
    RpcError::new(Code::Backpressure, "session limit per identity and worker reached")
}
