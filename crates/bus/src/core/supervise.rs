//! Keeping pools at strength, and what happens when a worker goes.

use std::sync::Arc;
use std::time::Duration;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::json;

use crate::config::Share;

use super::Pass;
use super::api::{Action, Client, End, Note, Outlet, PoolId, Stuck, Time, Worker};
use super::batch::Sender;
use super::session::{Place, Session, SessionKey, Waiting};
use super::state::{Asker, Pending, Stage, What, WorkerState};
use super::timer::Timer;

/// The shortest and the longest rest after a loss.
const RESTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// The longest rest where the fault is ours: whoever comes meanwhile waits for its end.
const LACK: Duration = Duration::from_secs(5);

impl<O: Outlet> Pass<'_, O> {
    pub(super) fn fill_all(&mut self) {
        for pool in 0..self.core.pools.len() {
            self.fill(PoolId(pool as u32));
        }
    }

    /// Starts the workers that a pool lacks.
    pub(super) fn fill(&mut self, pool: PoolId) {
        self.fill_for(pool, 0);
    }

    /// The same, for one more that is wanted now.
    pub(super) fn spawn_on_demand(&mut self, pool: PoolId) {
        if !self.core.pool_of(pool).is_shared() {
            self.fill_for(pool, 1);
            return;
        }
        // Those that are ready serve somebody else, whom this client must not meet.
        let state = self.core.pool_of(pool);
        let stages: Vec<Stage> = state
            .workers
            .iter()
            .filter_map(|worker| Some(self.core.workers.get(worker.0 as usize)?.stage))
            .collect();
        let others = stages.contains(&Stage::Ready) && !state.settings.mix_identities;
        let coming = stages.iter().any(|stage| matches!(stage, Stage::Starting | Stage::Greeting));
        let room = stages.len() < state.settings.max_instances as usize;
        let may = state.open_until.is_none_or(|until| until <= self.now)
            && state.rest_until <= self.now
            && state.successor.is_none();
        if !others || coming || state.removed || self.core.draining {
            return;
        }
        if room && may {
            self.spawn(pool);
        } else if !room && !stages.contains(&Stage::Stopping) {
            // Somebody else's that does nothing makes room.
            let idle = state.workers.iter().copied().find(|worker| {
                self.core.workers.get(worker.0 as usize).is_some_and(|state| {
                    state.stage == Stage::Ready && state.sessions.is_empty() && state.pending.is_empty()
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
            if self.core.draining || state.removed || state.successor.is_some() || state.rest_until > self.now
            {
                return;
            }
            let (mut live, mut free) = (0, 0);
            for worker in state.workers.iter().filter_map(|worker| self.core.workers.get(worker.0 as usize)) {
                let counts = matches!(worker.stage, Stage::Starting | Stage::Greeting | Stage::Ready);
                live += usize::from(counts);
                free += usize::from(counts && !worker.claimed);
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
                // One is tried; when it does well, the others follow. What somebody has for himself shows nothing.
                Some(_) if state.is_shared() => live == 0,
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
        let key = self.core.workers.insert(WorkerState {
            serial,
            pool,
            stage: Stage::Starting,
            pid: 0,
            client: None,
            inherited: false,
            claimed: false,
            used: false,
            identity: None,
            pending: Default::default(),
            next_id: 0,
            queued: 0,
            asking: Default::default(),
            sessions: Default::default(),
            aliases: Default::default(),
            former: Default::default(),
            recent: None,
            alike: Default::default(),
            creating: 0,
            strangers: Vec::new(),
            strangers_bytes: 0,
            backlog: Vec::new(),
            revivals: Vec::new(),
            servers: Default::default(),
            strikes: Vec::new(),
            deaf: false,
            fault: None,
            full: false,
            pausing: Vec::new(),
            paused: 0,
            since: self.now,
        });
        let worker = Worker(key as u32);
        self.core.pool_mut(pool).workers.push(worker);
        self.core.counters.spawned += 1;
        self.out.act(Action::Spawn { worker, pool });
    }

    pub(super) fn worker_up(&mut self, worker: Worker, pid: u32) {
        let Some(state) = self.core.worker(worker) else { return };
        state.pid = pid;
        let pool = state.pool;
        if state.stage != Stage::Starting {
            return;
        }
        let shared = self.core.pool_of(pool).is_shared();
        if shared && self.core.pool_of(pool).is_acp() {
            self.greet(worker);
        } else {
            self.make_ready(worker);
        }
    }

    /// A worker can be used from now on.
    pub(super) fn make_ready(&mut self, worker: Worker) {
        let Some(state) = self.core.worker(worker) else { return };
        state.stage = Stage::Ready;
        let pool = state.pool;
        self.tell(Note::Ready(worker));
        self.serve_revivals(pool);
        self.serve_waiting(pool);
    }

    /// A worker of the pool has shown that it works.
    pub(super) fn healthy(&mut self, pool: PoolId) {
        let now = self.now;
        let state = self.core.pool_mut(pool);
        state.failures = 0;
        // One that does well does not speak for those that were lost just now.
        if state.open_until.is_some_and(|until| until <= now) {
            state.open_until = None;
            state.losses.clear();
            self.tell(Note::CircuitClosed(pool));
            self.fill(pool);
        }
    }

    pub(super) fn worker_stuck(&mut self, worker: Worker, why: Stuck) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == Stage::Stopping {
            return;
        }
        match why {
            Stuck::InputClosed { taken } => self.deafened(worker, taken),
            Stuck::OutputClosed => {
                state.fault = Some("closed its output");
                self.out.act(Action::Stop { worker, kill: true });
            }
            Stuck::Stopped | Stuck::Undrained => {
                let what = if why == Stuck::Stopped { "was stopped" } else { "takes nothing any more" };
                self.useless(worker, what);
            }
        }
    }

    /// A worker hears nothing any more: what it has not read it never will. What it has, it may still answer.
    fn deafened(&mut self, worker: Worker, taken: u64) {
        let Some(state) = self.core.worker(worker) else { return };
        state.deaf = true;
        let mut unread: Vec<(u64, Pending)> =
            state.pending.extract_if(|_, pending| pending.start >= taken).collect();
        unread.sort_unstable_by_key(|(number, _)| *number);
        for (number, pending) in &unread {
            self.forget_pending(worker, pending, *number);
        }
        // First, or what comes next in an array would be sent there.
        self.retire(worker, "closed its input");
        for (_, pending) in unread {
            self.fail(worker, pending, &deaf());
        }
    }

    /// Ends a worker at once that does not do what it must in time.
    pub(super) fn useless(&mut self, worker: Worker, what: &'static str) {
        if let Some(state) = self.core.worker(worker) {
            state.fault = Some(what);
        }
        let error = RpcError::new(Code::Deadline, format!("the agent's process {what}"));
        self.fail_all(worker, &error.effects(Effects::Possible));
        self.lose_sessions(worker, &Arc::from(format!("its agent's process {what}")));
        self.stop_worker(worker, true);
    }

    /// Fails every request that a worker owes.
    pub(super) fn fail_all(&mut self, worker: Worker, error: &RpcError) {
        for (number, pending) in self.take_pending(worker) {
            self.forget_pending(worker, &pending, number);
            self.fail(worker, pending, error);
        }
    }

    /// What a worker owes, in the order in which it was asked.
    fn take_pending(&mut self, worker: Worker) -> Vec<(u64, Pending)> {
        let Some(state) = self.core.worker(worker) else { return Vec::new() };
        state.creating = 0;
        let mut pending: Vec<_> = std::mem::take(&mut state.pending).into_iter().collect();
        pending.sort_unstable_by_key(|(number, _)| *number);
        pending
    }

    /// Takes a request that was not answered out of what its session knows.
    pub(super) fn forget_pending(&mut self, worker: Worker, pending: &Pending, number: u64) {
        if pending.what.creates()
            && let Some(state) = self.core.worker(worker)
        {
            state.creating = state.creating.saturating_sub(1);
        }
        if let Some(opening) = &pending.opening {
            self.leave_servers(worker, View::parse(&opening.line).params().unwrap_or_default());
        }
        let Some(key) = pending.session else { return };
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.prompts.retain(|prompt| *prompt != number);
        if session.provisional {
            self.drop_session(key);
        }
    }

    /// A worker takes no new sessions, and goes when its turns end.
    pub(super) fn retire(&mut self, worker: Worker, why: &'static str) {
        let at = self.now + self.core.limits.drain_timeout;
        let Some(state) = self.core.worker(worker) else { return };
        if matches!(state.stage, Stage::Retiring | Stage::Stopping) {
            return;
        }
        state.stage = Stage::Retiring;
        state.fault = Some(why);
        let (serial, pool) = (state.serial, state.pool);
        self.core.timers.set(at, Timer::Retired(worker, serial));
        self.refresh_answer(worker);
        self.fill(pool);
        self.if_retired(worker);
    }

    /// Ends a worker that is to go and owes nothing more.
    pub(super) fn if_retired(&mut self, worker: Worker) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == Stage::Retiring && state.pending.is_empty() && state.backlog.is_empty() {
            let sessions: Vec<SessionKey> = state.sessions.iter().copied().collect();
            let busy = sessions.iter().any(|key| self.core.sessions.get(*key).is_some_and(Session::is_busy));
            if !busy {
                self.end_retired(worker);
            }
        } else if self.core.draining {
            self.if_drained();
        }
    }

    /// Ends a worker that is to go, whatever it still owes.
    pub(super) fn end_retired(&mut self, worker: Worker) {
        let why = self.core.worker(worker).and_then(|state| state.fault).unwrap_or("was exchanged");
        let error = RpcError::new(Code::WorkerLost, format!("the agent {why} and was exchanged"));
        self.fail_all(worker, &error.effects(Effects::Possible));
        self.lose_sessions(worker, &Arc::from(format!("its agent {why} and was exchanged")));
        self.stop_worker(worker, false);
    }

    pub(super) fn stop_worker(&mut self, worker: Worker, kill: bool) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == Stage::Stopping {
            return;
        }
        state.stage = Stage::Stopping;
        self.refresh_answer(worker);
        self.out.act(Action::Stop { worker, kill });
    }

    /// Ends workers that were one client's and are nobody's any more.
    pub(super) fn stop_idle(&mut self) {
        let idle: Vec<Worker> = self
            .core
            .workers
            .iter()
            .filter(|(key, state)| {
                state.claimed
                    && state.sessions.is_empty()
                    && state.pending.is_empty()
                    && matches!(state.stage, Stage::Ready | Stage::Greeting)
                    && !self.core.pool_of(state.pool).is_shared()
                    && match state.client.and_then(|client| self.core.clients.get(client.0 as usize)) {
                        None => true,
                        // Of a client that has others, or one for each session, which is over.
                        Some(client) => {
                            let per_session = self.core.pool_of(state.pool).settings.share == Share::Session;
                            let is_first = client.worker == Some(Worker(*key as u32));
                            state.used && (per_session || client.worker.is_some() && !is_first)
                        }
                    }
            })
            .map(|(key, _)| Worker(key as u32))
            .collect();
        for worker in idle {
            self.stop_worker(worker, false);
        }
    }

    pub(super) fn worker_gone(&mut self, worker: Worker, end: &End) {
        let Some(state) = self.core.worker(worker) else { return };
        let (pool, stage, fault) = (state.pool, state.stage, state.fault);
        state.stage = Stage::Stopping;
        let written = state.queued.saturating_sub(end.unsent.len() as u64);
        let reason: Arc<str> = match fault {
            Some(fault) => format!("it {fault}; {}", end.reason).into(),
            None => end.reason.as_str().into(),
        };
        let pending = self.take_pending(worker);
        let asking: Vec<_> =
            self.core.worker(worker).map(|state| std::mem::take(&mut state.asking)).into_iter().collect();
        let sessions = self.core.worker(worker).map_or(0, |state| state.sessions.len());
        self.withdraw(asking.into_iter().flatten().map(|(_, asked)| asked));
        // Those that are provisional are not lost: nobody has them yet.
        for (number, pending) in &pending {
            self.forget_pending(worker, pending, *number);
        }
        let stopped: Vec<u64> = pending
            .iter()
            .filter(|(_, pending)| pending.what == What::Prompt)
            .filter(|(number, pending)| {
                pending
                    .session
                    .and_then(|key| self.core.sessions.get(key))
                    .is_some_and(|session| session.stopped >= *number)
            })
            .map(|(number, _)| *number)
            .collect();
        self.lose_sessions(worker, &reason);
        let requests = pending.len();
        let mut again = Vec::new();
        for (number, pending) in pending {
            if pending.start >= written && matches!(pending.asker, Asker::Client { .. }) {
                // A turn that is to stop already is not begun elsewhere.
                match stopped.contains(&number) {
                    true => self.say_cancelled(pending.asker, pending.tag.as_deref()),
                    false => again.push(pending),
                }
                continue;
            }
            let effects = if pending.start >= end.taken { Effects::None } else { Effects::Possible };
            let mut error = RpcError::new(Code::WorkerLost, format!("the agent's process ended: {reason}"));
            if end.oom {
                error = error.with("oom", json!(true));
            }
            self.fail(worker, pending, &error.effects(effects).with("worker", json!(worker.0)));
        }
        let Some(state) = self.core.workers.try_remove(worker.0 as usize) else { return };
        self.core.batches.forget(Sender::Worker(worker));
        self.forget_worker(worker, &state);
        if stage != Stage::Stopping || fault.is_some() {
            self.tell(Note::Lost { worker, reason: reason.to_string(), requests, sessions });
            match end.ours {
                true => self.rest_for_lack(pool, state.since, reason),
                false => self.count_loss(pool, state.since, reason),
            }
        }
        let mut lines: Vec<Waiting> = again
            .iter()
            .filter_map(|pending| self.unsent(pending, &end.unsent[(pending.start - written) as usize..]))
            .collect();
        for waiting in &state.backlog {
            self.forget_elsewhere(waiting.client, &waiting.line);
        }
        lines.extend(state.backlog);
        self.take_again(lines);
        self.fill(pool);
        if !self.core.pool_of(pool).waiting.is_empty() {
            self.spawn_on_demand(pool);
        }
        self.if_drained();
    }

    /// Takes a worker that is gone out of what is known of clients and its pool.
    fn forget_worker(&mut self, worker: Worker, state: &WorkerState) {
        for client in &state.pausing {
            self.resume_client(*client);
        }
        for (_, client) in &mut self.core.clients {
            client.pausing.retain(|paused| *paused != worker);
            if client.worker == Some(worker) {
                client.worker = None;
            }
        }
        let pool = self.core.pool_mut(state.pool);
        pool.workers.retain(|other| *other != worker);
        pool.answers.remove(&worker);
        self.refresh_pool(state.pool);
        for key in &state.revivals {
            if let Some(session) = self.core.sessions.get_mut(*key) {
                session.place = Place::Lost("its agent's process ended".into());
                self.start_revival(*key);
            }
        }
    }

    /// Counts a lost worker, and rests before the next: longer each time if one was started after the last loss and is
    /// lost too, but not because several that were there together are lost together.
    fn count_loss(&mut self, pool: PoolId, since: Time, reason: Arc<str>) {
        self.core.counters.lost += 1;
        let (now, limits) = (self.now, &self.core.limits);
        let (window, budget) = (limits.restart_window, limits.restart_budget as usize);
        let state = &mut self.core.pools[pool.0 as usize];
        state.last_loss = Some(reason);
        let in_a_row = state.losses.back().is_none_or(|last| since >= *last);
        state.losses.retain(|at| now.saturating_sub(*at) < window);
        // Several that did well for long and are lost together are one misfortune and no loop.
        if in_a_row || now.saturating_sub(since) < window || state.losses.is_empty() {
            state.losses.push_back(now);
        }
        if in_a_row {
            let longest = RESTS.0.saturating_mul(1 << state.failures.min(20)).min(RESTS.1);
            state.failures += 1;
            let rest = longest.mul_f64(self.core.random.f64());
            state.rest_until = now + rest;
        }
        let mut next = state.rest_until;
        let opens = state.losses.len() >= budget.max(1);
        if opens {
            let was_open = state.open_until.is_some();
            // The window has passed by then, or it is tried with one at a time.
            let until = now + window.min(RESTS.1);
            state.open_until = Some(until);
            next = until;
            if !was_open {
                self.tell(Note::CircuitOpened(pool));
            }
            self.refuse_waiting(pool);
        }
        self.core.timers.set(next, Timer::Respawn(pool));
    }

    /// Rests after a worker could not be started for lack of something, longer each time. That is not counted as a loss,
    /// and whoever waits is told.
    fn rest_for_lack(&mut self, pool: PoolId, since: Time, reason: Arc<str>) {
        let state = &mut self.core.pools[pool.0 as usize];
        state.last_loss = Some(reason);
        // Those that were started together fail together, and are one.
        if since >= state.rest_until {
            let longest = RESTS.0.saturating_mul(1 << state.failures.min(20)).min(LACK);
            state.failures += 1;
            state.rest_until = self.now + longest.mul_f64(self.core.random.f64());
        }
        let next = state.rest_until;
        self.refuse_waiting(pool);
        self.core.timers.set(next, Timer::Respawn(pool));
    }

    /// Tells whoever waits for a worker of `pool` that there will be none soon, if there is none left.
    fn refuse_waiting(&mut self, pool: PoolId) {
        let shared = self.core.pool_of(pool).is_shared();
        if self.core.pool_of(pool).workers.iter().any(|worker| {
            // What somebody has for himself is no hope for others.
            let hope = |state: &WorkerState| state.stage != Stage::Stopping && (shared || !state.claimed);
            self.core.workers.get(worker.0 as usize).is_some_and(hope)
        }) {
            return;
        }
        let error = self.no_worker(pool, Code::Backpressure);
        let waiting: Vec<Client> = self.core.pool_mut(pool).waiting.drain(..).collect();
        for client in waiting {
            self.refuse_held(client, &error);
        }
        for key in std::mem::take(&mut self.core.pool_mut(pool).revivals) {
            self.fail_revival(key, &error);
        }
    }

    /// A worker's sessions live nowhere from now on; their clients are told if they can be.
    pub(super) fn lose_sessions(&mut self, worker: Worker, reason: &Arc<str>) {
        let Some(state) = self.core.worker(worker) else { return };
        let mut sessions: Vec<SessionKey> = state.sessions.iter().copied().collect();
        sessions.sort_unstable();
        for key in sessions {
            self.lose_session(worker, key, reason);
        }
    }

    /// The same of one session.
    pub(super) fn lose_session(&mut self, worker: Worker, key: SessionKey, reason: &Arc<str>) {
        if let Some(state) = self.core.worker(worker) {
            state.sessions.remove(&key);
            state.aliases.retain(|_, other| *other != key);
        }
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        session.prompts.clear();
        let was_running = std::mem::take(&mut session.running);
        session.cancelling = None;
        session.stopped = 0;
        if matches!(session.place, Place::Reviving(_)) {
            return;
        }
        session.place = Place::Lost(reason.clone());
        let name = session.name.clone();
        if let Some(owner) = session.owner {
            self.notify(owner, key, reason);
            if was_running {
                let error = RpcError::new(Code::WorkerLost, format!("the turn was cut short: {reason}"));
                self.say_failed(owner, &name, &error.effects(Effects::Possible));
            }
        }
    }

    /// Tells a client that takes notices what happened to its session.
    fn notify(&mut self, client: Client, key: SessionKey, reason: &str) {
        if !self.core.client(client).is_some_and(|state| state.notices) {
            return;
        }
        let Some(session) = self.core.sessions.get(key) else { return };
        let abilities = self.core.pool_of(session.pool).abilities;
        let description = if abilities.load || abilities.resume {
            format!("{reason}. The session is taken up again with the next prompt.")
        } else {
            format!("{reason}. The agent cannot take the session up again.")
        };
        let params = json!({"sessionId": session.name, "update": {"sessionUpdate": "notice", "severity": "warning",
            "title": "The agent's process has ended", "description": description}});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.write_client(client, &[&line]);
        }
    }

    /// Tells clients that a worker no longer wants what it asked them for.
    fn withdraw(&mut self, asked: impl Iterator<Item = (Client, u64)>) {
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

/// What is said of a request that a worker with closed input never read.
pub(super) fn deaf() -> RpcError {
    RpcError::new(Code::WorkerLost, "the agent has closed its input").effects(Effects::None)
}
