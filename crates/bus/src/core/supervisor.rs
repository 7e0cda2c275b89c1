//! Starts, replaces and retires workers, so that each pool has the configured number.

use std::sync::Arc;
use std::time::Duration;

use narrows_wire::{Code, Effects, RpcError};

use crate::config::ShareMode;

use super::Ctx;
use super::api::{CoreAction, CoreOutput, LogEvent, PoolId, StuckReason};
use super::session::{Session, SessionKey};
use super::state::{Pending, RequestOrigin, Tenants, WorkerLifecycle, WorkerState};
use super::table::WorkerKey;
use super::timer::Timer;

/// The shortest and the longest delay before a pool starts a worker after a loss.
pub(super) const RESTART_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn fill_all(&mut self) {
        for pool in 0..self.core.pools.len() {
            self.fill(PoolId(pool as u32));
        }
    }

    pub(super) fn fill(&mut self, pool: PoolId) {
        self.fill_for(pool, 0);
    }

    /// Starts the workers that a pool lacks, and one more for a message that needs a worker now.
    pub(super) fn spawn_on_demand(&mut self, pool: PoolId) {
        if !self.core.pool_of(pool).is_shared() {
            self.fill_for(pool, 1);
            return;
        }
        // All ready workers are full, or serve another identity.
        let state = self.core.pool_of(pool);
        let stages: Vec<WorkerLifecycle> =
            state.workers.iter().filter_map(|worker| Some(self.core.workers.get(*worker)?.stage)).collect();
        let others = stages.contains(&WorkerLifecycle::Ready);
        let coming = stages
            .iter()
            .any(|stage| matches!(stage, WorkerLifecycle::Starting | WorkerLifecycle::Initializing));
        let room = stages.len() < state.settings.max_instances as usize;
        let may = state.open_until.is_none_or(|until| until <= self.now) && state.delayed_until <= self.now;
        if !others || coming || state.is_leaving() || self.core.draining {
            return;
        }
        if room && may {
            self.spawn(pool);
        } else if !room && !stages.contains(&WorkerLifecycle::Stopping) {
            // To make room, an idle worker of another identity is stopped.
            let idle = state.workers.iter().copied().find(|worker| {
                self.core.workers.get(*worker).is_some_and(|state| {
                    state.stage == WorkerLifecycle::Ready
                        && state.sessions.is_empty()
                        && state.pending.is_empty()
                })
            });
            if let Some(worker) = idle {
                self.stop_worker(worker, false);
            }
        }
    }

    fn fill_for(&mut self, pool: PoolId, extra: usize) {
        loop {
            let state = self.core.pool_of(pool);
            if self.core.draining || state.is_leaving() || state.delayed_until > self.now {
                return;
            }
            let (mut live, mut free, mut coming) = (0, 0, 0);
            for worker in state.workers.iter().filter_map(|worker| self.core.workers.get(*worker)) {
                let counts = matches!(
                    worker.stage,
                    WorkerLifecycle::Starting | WorkerLifecycle::Initializing | WorkerLifecycle::Ready
                );
                live += usize::from(counts);
                free += usize::from(counts && !worker.claimed);
                coming += usize::from(counts && worker.stage != WorkerLifecycle::Ready);
            }
            let instances = state.settings.instances as usize;
            let lacks = if state.is_shared() {
                live < instances
            } else {
                free < (instances + extra.max(state.waiting.len()))
                    && live < state.settings.max_instances as usize
            };
            let trying = match state.open_until {
                Some(until) if until > self.now => false,
                // After the circuit breaker was open, one worker is started first, and the others if that one
                // works. Workers that existed before or are in use are no proof.
                Some(_) if state.is_shared() => coming == 0,
                Some(_) => free == 0,
                None => true,
            };
            if !lacks || !trying {
                return;
            }
            self.spawn(pool);
        }
    }

    fn spawn(&mut self, pool: PoolId) {
        let serial = self.core.next_serial();
        let worker = self.core.workers.insert(WorkerState {
            serial,
            pool,
            stage: WorkerLifecycle::Starting,
            pid: 0,
            client: None,
            inherited: false,
            claimed: false,
            used: false,
            is_v2: false,
            abilities: None,
            announces: false,
            identity: None,
            scopes: None,
            pending: Default::default(),
            next_id: 0,
            queued: 0,
            shared: Default::default(),
            asking: Default::default(),
            sessions: Default::default(),
            aliases: Default::default(),
            children: Default::default(),
            had_session: false,
            former: Default::default(),
            tenants: Tenants::default(),
            recent: None,
            alike: Default::default(),
            overdue_turns: Vec::new(),
            early_messages: Vec::new(),
            early_bytes: 0,
            capacity: None,
            refused: Vec::new(),
            backlog: Vec::new(),
            restores: Vec::new(),
            servers: Default::default(),
            strikes: Vec::new(),
            abandoned: false,
            unwanted: false,
            overdue: false,
            input_closed: false,
            fault: None,
            full: false,
            self_paused: false,
            pausing: Vec::new(),
            charges: Vec::new(),
            paused: 0,
            since: self.now,
        });
        self.core.pool_mut(pool).workers.push(worker);
        self.core.counters.spawned += 1;
        self.out.perform(CoreAction::Spawn { worker: worker.into(), pool });
    }

    pub(super) fn worker_up(&mut self, worker: WorkerKey, pid: u32) {
        let Some(state) = self.core.worker(worker) else { return };
        state.pid = pid;
        let pool = state.pool;
        if state.stage != WorkerLifecycle::Starting {
            return;
        }
        let shared = self.core.pool_of(pool).is_shared();
        if shared && self.core.pool_of(pool).is_acp() {
            self.initialize_worker(worker);
        } else {
            self.make_ready(worker);
        }
    }

    pub(super) fn make_ready(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.stage = WorkerLifecycle::Ready;
        let pool = state.pool;
        self.log(LogEvent::Ready(worker.into()));
        let state = self.core.pool_of(pool);
        if state.is_shared() && !state.is_acp() && state.open_until.is_some_and(|until| until <= self.now) {
            // Without `initialize`, a worker counts as working if it does not exit at once.
            self.core.timers.set(self.now + RESTART_DELAYS.0 * 10, Timer::Respawn(pool));
        }
        self.serve_restores(pool);
        self.serve_waiting(pool);
    }

    /// Closes the circuit breaker of a pool, because one of its workers has shown that it works.
    pub(super) fn close_circuit(&mut self, pool: PoolId) {
        let now = self.now;
        let state = self.core.pool_mut(pool);
        state.failures = 0;
        // Losses just now keep the circuit breaker open, even if one worker works.
        if state.open_until.is_some_and(|until| until <= now) {
            state.open_until = None;
            state.losses.clear();
            self.log(LogEvent::CircuitClosed(pool));
            self.fill(pool);
        }
    }

    pub(super) fn worker_stuck(&mut self, worker: WorkerKey, why: StuckReason) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == WorkerLifecycle::Stopping {
            return;
        }
        match why {
            StuckReason::InputClosed { bytes_read } => self.handle_input_closed(worker, bytes_read),
            StuckReason::OutputClosed => {
                state.fault = Some("closed its output");
                // A retiring worker gets no new messages. Its pending requests fail when the process has
                // exited.
                state.stage = WorkerLifecycle::Retiring;
                self.refresh_answer(worker);
                self.out.perform(CoreAction::Stop { worker: worker.into(), kill: true });
            }
            StuckReason::Stopped | StuckReason::Undrained => {
                let what =
                    if why == StuckReason::Stopped { "was stopped" } else { "does not read its input" };
                self.kill_stuck(worker, what);
            }
        }
    }

    /// Handles that a worker has closed its input. Requests that the worker has not read fail. The others may
    /// still be answered.
    fn handle_input_closed(&mut self, worker: WorkerKey, bytes_read: u64) {
        let Some(state) = self.core.worker(worker) else { return };
        state.input_closed = true;
        let mut unread = state.pending.remove_from(bytes_read);
        self.core.check_sessions(&mut unread);
        for (number, pending) in &unread {
            self.forget_pending(pending, *number);
        }
        let paused = self.core.worker(worker).map(|state| std::mem::take(&mut state.pausing));
        for client in paused.into_iter().flatten() {
            self.resume_client(client);
        }
        // The worker is retired before its requests fail. Otherwise the rest of a batch would be sent to this
        // worker.
        self.retire(worker, "closed its input");
        for (_, pending) in unread {
            self.fail(worker, pending, &input_closed());
        }
    }

    pub(super) fn kill_stuck(&mut self, worker: WorkerKey, what: &'static str) {
        if let Some(state) = self.core.worker(worker) {
            state.fault = Some(what);
        }
        let error = RpcError::new(Code::Deadline, format!("agent process {what}"));
        self.fail_all(worker, &error.effects(Effects::Possible));
        self.lose_sessions(worker, &Arc::from(format!("agent process {what}")));
        self.stop_worker(worker, true);
    }

    pub(super) fn fail_all(&mut self, worker: WorkerKey, error: &RpcError) {
        for (number, pending) in self.take_pending(worker) {
            self.forget_pending(&pending, number);
            self.fail(worker, pending, error);
        }
    }

    /// Removes all pending requests of a worker and returns them in the order in which they were sent.
    pub(super) fn take_pending(&mut self, worker: WorkerKey) -> Vec<(u64, Pending)> {
        let Some(state) = self.core.worker(worker) else { return Vec::new() };
        let creates = state.pending.creates();
        let mut pending = state.pending.remove_from(0);
        self.core.check_sessions(&mut pending);
        if creates {
            self.schedule_opening_retry();
        }
        pending
    }

    pub(super) fn forget_pending(&mut self, pending: &Pending, number: u64) {
        if pending.what.creates() {
            self.schedule_opening_retry();
        }
        let Some(key) = pending.session else { return };
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.prompts.retain(|prompt| *prompt != number);
        if session.provisional && pending.opening.is_some() {
            self.drop_session(key);
        } else if pending.what.reopens()
            && let Some(client) = pending.client()
        {
            self.release_ownership(key, client);
        }
    }

    /// Retires a worker that is at fault. The worker gets no new sessions and is stopped when its turns have
    /// ended.
    pub(super) fn retire(&mut self, worker: WorkerKey, why: &'static str) {
        let at = self.now + self.core.limits.drain_timeout;
        let Some(state) = self.core.worker(worker) else { return };
        // A worker that a reload retired has no time limit, unless it is also at fault.
        if state.stage == WorkerLifecycle::Stopping
            || state.stage == WorkerLifecycle::Retiring && !state.unwanted
        {
            return;
        }
        state.stage = WorkerLifecycle::Retiring;
        state.unwanted = false;
        state.fault = Some(why);
        let pool = state.pool;
        self.core.timers.set(at, Timer::Retired(worker));
        self.refresh_answer(worker);
        self.fill(pool);
        self.end_if_retired(worker);
    }

    pub(super) fn end_if_retired(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        // The stage is checked first: most workers are not retiring, but may have many requests of
        // disconnected clients.
        let is_retiring = state.stage == WorkerLifecycle::Retiring && state.backlog.is_empty();
        let waits = |pending: &Pending| !matches!(pending.asker, RequestOrigin::Gone);
        if is_retiring && !state.pending.values().any(waits) {
            let sessions: Vec<SessionKey> = state.sessions.iter().copied().collect();
            let busy = sessions.iter().any(|key| self.core.sessions.get(*key).is_some_and(Session::is_busy));
            if !busy && !self.has_unmovable_sessions(worker) {
                self.end_retired(worker);
            }
        } else if self.core.draining {
            self.finish_if_drained();
        }
    }

    /// Returns `true` if a worker that a reload retired has sessions that cannot be restored in another
    /// worker.
    fn has_unmovable_sessions(&self, worker: WorkerKey) -> bool {
        let Some(state) = self.core.workers.get(worker) else { return false };
        let abilities = self.core.abilities_of_worker(worker);
        let owned = |key: &SessionKey| self.core.sessions.get(*key).is_some_and(|it| it.owner.is_some());
        state.unwanted
            && !state.overdue
            && !(abilities.load || abilities.resume)
            && state.sessions.iter().any(owned)
    }

    /// Handles the timeout of a retiring worker. Without a fault, the worker may still finish its active
    /// turns.
    pub(super) fn handle_retire_timeout(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        if !state.unwanted {
            self.end_retired(worker);
            return;
        }
        state.overdue = true;
        self.end_if_retired(worker);
    }

    pub(super) fn end_retired(&mut self, worker: WorkerKey) {
        let why = match self.core.worker(worker).and_then(|state| state.fault) {
            Some(fault) => format!("agent {fault} and was replaced"),
            None => "agent was replaced".to_owned(),
        };
        let error = RpcError::new(Code::WorkerLost, why.clone());
        self.fail_all(worker, &error.effects(Effects::Possible));
        self.lose_sessions(worker, &Arc::from(why));
        self.stop_worker(worker, false);
    }

    pub(super) fn stop_worker(&mut self, worker: WorkerKey, kill: bool) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == WorkerLifecycle::Stopping {
            return;
        }
        state.stage = WorkerLifecycle::Stopping;
        self.refresh_answer(worker);
        self.out.perform(CoreAction::Stop { worker: worker.into(), kill });
    }

    /// Stops the exclusive workers that no client uses any more.
    pub(super) fn stop_idle(&mut self) {
        let idle: Vec<WorkerKey> = self
            .core
            .workers
            .iter()
            .filter(|(key, state)| {
                state.claimed
                    && state.sessions.is_empty()
                    && state.pending.is_empty()
                    && matches!(state.stage, WorkerLifecycle::Ready | WorkerLifecycle::Initializing)
                    && !self.core.pool_of(state.pool).is_shared()
                    && match state.client.and_then(|client| self.core.clients.get(client)) {
                        None => true,
                        // The client of this worker has another worker, or the worker was for a session that
                        // has ended.
                        Some(client) => {
                            let per_session =
                                self.core.pool_of(state.pool).settings.share == ShareMode::Session;
                            let is_first = client.worker == Some(*key);
                            state.used && (per_session || client.worker.is_some() && !is_first)
                        }
                    }
            })
            .map(|(key, _)| key)
            .collect();
        for worker in idle {
            self.stop_worker(worker, false);
        }
        self.schedule_abandoned();
    }

    /// Starts the timeout of exclusive workers that have only requests of disconnected clients left.
    fn schedule_abandoned(&mut self) {
        let at = self.now + self.core.limits.cancel_grace;
        for (key, state) in self.core.workers.iter_mut() {
            let shared = self.core.pools[state.pool.0 as usize].is_shared();
            if !shared && state.is_abandoned() && !std::mem::replace(&mut state.abandoned, true) {
                self.core.timers.set(at, Timer::AbandonedWorker(key));
            }
        }
    }

    /// Stops a worker that has not answered the requests of disconnected clients in time.
    pub(super) fn stop_abandoned(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.abandoned = false;
        if state.is_abandoned() {
            self.stop_worker(worker, false);
        }
    }
}

/// Returns the error for a request that its worker never read, because the worker has closed its input.
pub(super) fn input_closed() -> RpcError {
    RpcError::new(Code::WorkerLost, "agent closed its input").effects(Effects::None)
}
