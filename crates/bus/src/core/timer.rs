//! Timers, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Ctx;
use super::api::{CoreOutput, PoolId, Time};
use super::fan_out::FanKey;
use super::session::SessionKey;
use super::state::WorkerLifecycle;
use super::table::{ClientKey, WorkerKey};

/// What is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A worker has had its time to answer `initialize`.
    Greeted(WorkerKey),
    /// The same, where a client asked for it by itself, with the number of its request.
    Unanswered(WorkerKey, u64),
    /// A worker has had its time to open a session, with the number of the request.
    Unopened(WorkerKey, u64),
    /// A worker has answered a request for a new session, for which others waited.
    CreationSettled,
    /// What a worker asks in a session that is not known yet has waited for long enough.
    EarlyRequest(WorkerKey),
    /// A worker that is to go has had its time to finish.
    Retired(WorkerKey),
    /// A worker that owes nothing to anybody who is there has had its time.
    Forsaken(WorkerKey),
    /// A session that was told to stop has had its time.
    Cancelled(SessionKey),
    /// The client of a session that was told to stop has had its time to answer what the agent asked in it.
    CancelAsked(SessionKey),
    /// The client of a session has been gone for long enough for its turn to end.
    Abandoned(SessionKey),
    /// A session has been without a client for long enough.
    Expired(SessionKey),
    /// A session has waited for a worker for long enough.
    Unrevived(SessionKey),
    /// The workers that are all asked have had their time.
    Fanned(FanKey),
    /// A client has waited for a worker for long enough, with the serial of its wait.
    Held(ClientKey, u64),
    /// A client that had sent too much has rested.
    Rested(ClientKey),
    /// A pool may start workers again.
    Respawn(PoolId),
    /// The bus is to stop whatever still runs.
    Drained,
}

/// What is to happen, the next first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Timer)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Time, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next that is due, if any.
    pub(super) fn due(&mut self, now: Time) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Does what is due.
    pub(super) fn run_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Greeted(worker) => {
                if self.core.worker(worker).is_some_and(|state| state.stage == WorkerLifecycle::Greeting) {
                    self.fail_initialize(worker, "did not answer initialize in time");
                }
            }
            Timer::Unanswered(worker, number) => {
                if self.core.worker(worker).is_some_and(|state| state.pending.contains_key(&number)) {
                    self.useless(worker, "did not answer initialize in time");
                }
            }
            Timer::Unopened(worker, number) => self.open_overdue(worker, number),
            Timer::CreationSettled => self.retry_openings(),
            Timer::EarlyRequest(worker) => self.fail_early_requests(worker),
            Timer::Retired(worker) => {
                if self.core.worker(worker).is_some_and(|state| state.stage == WorkerLifecycle::Retiring) {
                    self.time_is_up(worker);
                }
            }
            Timer::Forsaken(worker) => self.end_forsaken(worker),
            Timer::Cancelled(key) => self.cancel_ignored(key),
            Timer::CancelAsked(key) => self.cancel_asked(key),
            Timer::Abandoned(key) => self.abandon(key),
            Timer::Expired(key) => self.expire(key),
            Timer::Unrevived(key) => self.revival_overdue(key),
            Timer::Fanned(fan) => self.expire_fan_out(fan),
            Timer::Held(client, serial) => {
                if self
                    .core
                    .client(client)
                    .and_then(|state| state.held.as_ref())
                    .is_some_and(|held| held.serial == serial)
                {
                    self.give_up_waiting(client);
                }
            }
            Timer::Rested(client) => self.end_rate_limit(client),
            Timer::Respawn(pool) => self.fill(pool),
            Timer::Drained => self.stop_waiting(),
        }
    }
}
