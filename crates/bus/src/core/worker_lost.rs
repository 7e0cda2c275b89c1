//! Handles lost workers: their pending requests, their sessions, and the circuit breaker of their pool.

use std::sync::Arc;
use std::time::Duration;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::json;

use super::Ctx;
use super::api::{CoreOutput, LogEvent, PoolId, Time, WorkerExit};
use super::batch::Sender;
use super::children::child_lost;
use super::former_names::NameUse;
use super::session::{Session, SessionKey, SessionState, Waiting};
use super::state::{RequestKind, RequestOrigin, WorkerLifecycle, WorkerState};
use super::supervisor::RESTART_DELAYS;
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// The longest delay of a start after the bus itself lacked resources. Clients wait until the delay ends.
const MAX_SHORTAGE_DELAY: Duration = Duration::from_secs(5);

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn worker_gone(&mut self, worker: WorkerKey, end: &WorkerExit) {
        let Some(state) = self.core.worker(worker) else { return };
        let (pool, stage, fault) = (state.pool, state.stage, state.fault);
        state.stage = WorkerLifecycle::Stopping;
        let written = state.queued.saturating_sub(end.unsent.len() as u64);
        let reason: Arc<str> = match fault {
            Some(fault) => format!("{fault}; {}", end.reason).into(),
            None => end.reason.as_str().into(),
        };
        let pending = self.take_pending(worker);
        let asking: Vec<_> =
            self.core.worker(worker).map(|state| std::mem::take(&mut state.asking)).into_iter().collect();
        let sessions = self.core.worker(worker).map_or(0, |state| state.sessions.len());
        let shared = self.core.worker(worker).map(|state| std::mem::take(&mut state.shared));
        let others = shared.into_iter().flatten().flat_map(|(_, shared)| shared.into_recipients());
        self.withdraw(asking.into_iter().flatten().map(|(_, asked)| asked).chain(others));
        // A provisional session is dropped and not lost, because no client has it yet.
        for (number, pending) in &pending {
            self.forget_pending(pending, *number);
        }
        let stopped: Vec<u64> = pending
            .iter()
            .filter(|(_, pending)| pending.what == RequestKind::Prompt)
            .filter(|(number, pending)| {
                pending
                    .session
                    .and_then(|key| self.core.sessions.get(key))
                    .is_some_and(|session| session.last_cancelled_prompt >= *number)
            })
            .map(|(number, _)| *number)
            .collect();
        self.lose_sessions(worker, &reason);
        let requests = pending.len();
        let mut unread = Vec::new();
        for (number, pending) in pending {
            if pending.start >= written && matches!(pending.asker, RequestOrigin::Client { .. }) {
                // A turn that was cancelled is not started again in another worker.
                match stopped.contains(&number) {
                    true => self.send_cancelled(pending.asker, pending.tag.as_deref()),
                    // Another worker may not have this child session.
                    false if pending.what == RequestKind::Child => self.fail(worker, pending, &child_lost()),
                    false => unread.push(pending),
                }
                continue;
            }
            let effects = if pending.start >= end.bytes_read { Effects::None } else { Effects::Possible };
            let mut error = RpcError::new(Code::WorkerLost, format!("agent process exited: {reason}"));
            if end.oom {
                error = error.with("oom", json!(true));
            }
            self.fail(worker, pending, &error.effects(effects).with("worker", json!(worker.slot())));
        }
        let Some(state) = self.core.workers.remove(worker) else { return };
        self.core.batches.forget(Sender::Worker(worker));
        self.forget_worker(worker, &state);
        if stage != WorkerLifecycle::Stopping || fault.is_some() {
            self.log(LogEvent::Lost {
                worker: worker.into(),
                reason: reason.to_string(),
                requests,
                sessions,
            });
            match end.lacked_resources {
                true => self.delay_after_shortage(pool, state.since, reason),
                false => self.count_loss(pool, state.since, &reason),
            }
        }
        let mut lines: Vec<Waiting> = unread
            .iter()
            .filter_map(|pending| self.unsent(pending, &end.unsent[(pending.start - written) as usize..]))
            .collect();
        for waiting in &state.backlog {
            self.release_request_id(waiting.client, &waiting.line);
        }
        lines.extend(state.backlog);
        self.handle_again(lines);
        self.fill(pool);
        if !self.core.pool_of(pool).waiting.is_empty() {
            self.spawn_on_demand(pool);
        }
        self.finish_if_drained();
    }

    fn forget_worker(&mut self, worker: WorkerKey, state: &WorkerState) {
        for client in &state.pausing {
            self.resume_client(*client);
        }
        for client in self.core.clients.values_mut() {
            client.pausing.retain(|paused| *paused != worker);
            if client.worker == Some(worker) {
                client.worker = None;
            }
        }
        let pool = self.core.pool_mut(state.pool);
        pool.workers.retain(|other| *other != worker);
        pool.answers.remove(&worker);
        self.refresh_pool(state.pool);
        for key in &state.restores {
            if let Some(session) = self.core.sessions.get_mut(*key) {
                session.place = SessionState::Lost("agent process exited".into());
                self.start_restore(*key);
            }
        }
    }

    /// Counts a lost worker and delays the next start of its pool. The delay grows if the worker was started
    /// after the previous loss. It does not grow if several workers that ran at the same time are lost
    /// together.
    fn count_loss(&mut self, pool: PoolId, since: Time, reason: &str) {
        self.core.counters.lost += 1;
        let (now, limits) = (self.now, &self.core.limits);
        let (window, budget) = (limits.restart_window, limits.restart_budget as usize);
        let state = &mut self.core.pools[pool.0 as usize];
        // Other clients see this reason, so it must not contain stderr lines, which may be about one client.
        state.last_loss = Some(reason.split("; stderr").next().unwrap_or_default().into());
        let in_a_row = state.losses.back().is_none_or(|last| since >= *last);
        state.losses.retain(|at| now.saturating_sub(*at) < window);
        // Several workers that ran for long and are lost together count as one loss.
        if in_a_row || now.saturating_sub(since) < window || state.losses.is_empty() {
            state.losses.push_back(now);
        }
        if in_a_row {
            let longest = RESTART_DELAYS.0.saturating_mul(1 << state.failures.min(20)).min(RESTART_DELAYS.1);
            state.failures += 1;
            let rest = longest.mul_f64(self.core.random.f64());
            state.delayed_until = now + rest;
        }
        let mut next = state.delayed_until;
        let opens = state.losses.len() >= budget.max(1);
        if opens {
            let was_open = state.open_until.is_some();
            // When the circuit breaker closes, the window has passed, or workers are started one at a time.
            let until = now + window.min(RESTART_DELAYS.1);
            state.open_until = Some(until);
            next = until;
            if !was_open {
                self.log(LogEvent::CircuitOpened(pool));
            }
            self.refuse_waiting(pool);
        }
        self.core.timers.set(next, Timer::Respawn(pool));
    }

    /// Delays the next start of a pool because a worker could not be started for lack of resources. This does
    /// not count as a loss. The waiting clients get an error.
    fn delay_after_shortage(&mut self, pool: PoolId, since: Time, reason: Arc<str>) {
        let state = &mut self.core.pools[pool.0 as usize];
        state.last_loss = Some(reason);
        // Workers that were started together and failed together delay the next start once.
        if since >= state.delayed_until {
            let longest =
                RESTART_DELAYS.0.saturating_mul(1 << state.failures.min(20)).min(MAX_SHORTAGE_DELAY);
            state.failures += 1;
            state.delayed_until = self.now + longest.mul_f64(self.core.random.f64());
        }
        let next = state.delayed_until;
        self.refuse_waiting(pool);
        self.core.timers.set(next, Timer::Respawn(pool));
    }

    /// Refuses the clients and sessions that wait for a worker of `pool`, unless a worker could serve them.
    fn refuse_waiting(&mut self, pool: PoolId) {
        let shared = self.core.pool_of(pool).is_shared();
        if self.core.pool_of(pool).workers.iter().any(|worker| {
            // An exclusive worker that has a client serves no other client.
            let hope =
                |state: &WorkerState| state.stage != WorkerLifecycle::Stopping && (shared || !state.claimed);
            self.core.workers.get(*worker).is_some_and(hope)
        }) {
            return;
        }
        let error = self.no_worker(pool, Code::Backpressure);
        let waiting: Vec<ClientKey> = self.core.pool_mut(pool).waiting.drain(..).collect();
        for client in waiting {
            self.refuse_held(client, &error);
        }
        for key in std::mem::take(&mut self.core.pool_mut(pool).restores) {
            self.fail_restore(key, &error);
        }
    }

    pub(super) fn lose_sessions(&mut self, worker: WorkerKey, reason: &Arc<str>) {
        let Some(state) = self.core.worker(worker) else { return };
        let mut sessions: Vec<SessionKey> = state.sessions.iter().copied().collect();
        sessions.sort_unstable();
        for key in sessions {
            self.lose_session(worker, key, reason);
        }
    }

    fn lose_session(&mut self, worker: WorkerKey, key: SessionKey, reason: &Arc<str>) {
        let was_running = self.core.sessions.get(key).is_some_and(|session| session.running);
        if !self.remove_from_worker(worker, key, reason) {
            return;
        }
        let Some(session) = self.core.sessions.get(key) else { return };
        let is_told = session.is_replaying();
        if let Some(owner) = session.owner {
            self.notify(owner, key, reason);
            if was_running {
                let error = RpcError::new(Code::WorkerLost, format!("turn interrupted: {reason}"));
                self.send_failed(owner, key, &error.effects(Effects::Possible));
            }
        }
        if is_told {
            self.finish_replay(key, false);
        }
    }

    /// Removes a session from its worker. Returns `true` if the session is lost now. Returns `false` for a
    /// session that is being restored, because the end of the restore handles that.
    pub(super) fn remove_from_worker(
        &mut self,
        worker: WorkerKey,
        key: SessionKey,
        reason: &Arc<str>,
    ) -> bool {
        let opened = self.core.sessions.get(key).filter(|session| !session.provisional);
        let former = opened.map(|session| (session.agent_name(), session.identity));
        let agent_name = self.core.sessions.get(key).map(Session::agent_name);
        if let Some(state) = self.core.worker(worker) {
            if let Some((name, identity)) = former {
                // The worker may still run and send messages about the session.
                state.former.add(name, identity, NameUse::Opened);
            }
            state.sessions.remove(&key);
            state.forget_alias(key, &agent_name.unwrap_or_default());
        }
        self.move_children(key, Some(worker), None);
        let abilities = self.core.sessions.get(key).map(|session| self.core.abilities_of(session));
        let Some(session) = self.core.sessions.get_mut(key) else { return false };
        // Responses that this worker still sends do not affect the session in another worker.
        session.removals += 1;
        session.abilities = abilities.unwrap_or_default();
        session.prompts.clear();
        session.running = false;
        session.cancelling = None;
        session.last_cancelled_prompt = 0;
        if matches!(session.place, SessionState::Restoring(_)) {
            return false;
        }
        session.place = SessionState::Lost(reason.clone());
        true
    }

    fn notify(&mut self, client: ClientKey, key: SessionKey, reason: &str) {
        if !self.core.client(client).is_some_and(|state| state.notices) {
            return;
        }
        let Some(session) = self.core.sessions.get(key) else { return };
        let pool = self.core.pool_of(session.pool);
        if !pool.is_acp() {
            return;
        }
        let abilities = self.core.abilities_of(session);
        let description = if abilities.load || abilities.resume {
            format!("{reason}. The next prompt restores the session.")
        } else {
            format!("{reason}. The agent cannot restore the session.")
        };
        let update = json!({"sessionUpdate": "notice", "severity": "warning",
            "title": "Agent process exited", "description": description});
        self.send_update(client, key, &update);
    }

    /// Tells clients that their worker no longer waits for the answers to these requests.
    pub(super) fn withdraw(&mut self, asked: impl Iterator<Item = (ClientKey, u64)>) {
        let mut asked: Vec<_> = asked.collect();
        asked.sort_unstable();
        for (client, number) in asked {
            let Some(state) = self.core.client(client) else { continue };
            if state.asked.remove(&number).is_some()
                && let Ok(line) = message::notification(method::CANCEL_REQUEST, &json!({"requestId": number}))
            {
                self.write_client(client, &[&line]);
            }
        }
    }
}
