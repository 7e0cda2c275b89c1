//! The timers of the core, ordered by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Ctx;
use super::api::{CoreOutput, PoolId, Time};
use super::fan_out::FanKey;
use super::session::SessionKey;
use super::state::WorkerLifecycle;
use super::table::{ClientKey, WorkerKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    InitializeTimeout(WorkerKey),
    /// Timeout for a worker to answer a client's `initialize`, which has this number.
    Unanswered(WorkerKey, u64),
    /// Timeout for a worker to answer a request for a new session, which has this number.
    Unopened(WorkerKey, u64),
    /// Routes the requests that waited until a worker had answered a request for a new session.
    RetryOpenings,
    /// Timeout for a worker's requests in sessions that are not known yet.
    EarlyRequest(WorkerKey),
    Retired(WorkerKey),
    /// Timeout for a worker whose pending requests are all of disconnected clients.
    AbandonedWorker(WorkerKey),
    /// Timeout for a worker to end a cancelled turn of this session.
    Cancelled(SessionKey),
    /// Timeout for a client to answer requests in a cancelled turn of this session.
    CancelAsked(SessionKey),
    /// End of the grace period after which a turn is cancelled because its client has disconnected.
    Abandoned(SessionKey),
    Expired(SessionKey),
    RestoreOverdue(SessionKey),
    Fanned(FanKey),
    /// Timeout for a client to get a worker, with the serial of its wait.
    Held(ClientKey, u64),
    /// End of the pause of a client that has exceeded its rate limit.
    Rested(ClientKey),
    /// End of the delay after which a pool may start workers again.
    Respawn(PoolId),
    Drained,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Timer)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Time, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        if self.next_deadline()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn run_timer(&mut self, timer: Timer) {
        match timer {
            Timer::InitializeTimeout(worker) => {
                if self.core.worker(worker).is_some_and(|state| state.stage == WorkerLifecycle::Initializing)
                {
                    self.fail_initialize(worker, "did not respond to initialize in time");
                }
            }
            Timer::Unanswered(worker, number) => {
                if self.core.worker(worker).is_some_and(|state| state.pending.contains_key(&number)) {
                    self.kill_stuck(worker, "did not respond to initialize in time");
                }
            }
            Timer::Unopened(worker, number) => self.open_overdue(worker, number),
            Timer::RetryOpenings => self.retry_openings(),
            Timer::EarlyRequest(worker) => self.fail_early_requests(worker),
            Timer::Retired(worker) => {
                if self.core.worker(worker).is_some_and(|state| state.stage == WorkerLifecycle::Retiring) {
                    self.handle_retire_timeout(worker);
                }
            }
            Timer::AbandonedWorker(worker) => self.stop_abandoned(worker),
            Timer::Cancelled(key) => self.cancel_ignored(key),
            Timer::CancelAsked(key) => self.answer_cancelled_requests(key),
            Timer::Abandoned(key) => self.abandon(key),
            Timer::Expired(key) => self.expire(key),
            Timer::RestoreOverdue(key) => self.handle_restore_timeout(key),
            Timer::Fanned(fan) => self.expire_fan_out(fan),
            Timer::Held(client, serial) => {
                if self
                    .core
                    .client(client)
                    .and_then(|state| state.held.as_ref())
                    .is_some_and(|held| held.serial == serial)
                {
                    self.expire_held(client);
                }
            }
            Timer::Rested(client) => self.end_rate_limit(client),
            Timer::Respawn(pool) => self.fill(pool),
            Timer::Drained => self.stop_waiting(),
        }
    }
}
