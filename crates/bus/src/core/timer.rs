//! What is to happen later, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Pass;
use super::api::{Client, Outlet, PoolId, Time, Worker};
use super::session::SessionKey;
use super::state::Stage;

/// What is to happen. The number behind each is the serial of whom it concerns: slots are used again, serials are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A worker has had its time to answer `initialize`.
    Greeted(Worker, u64),
    /// The same, where a client asked for it by itself, with the number of its request.
    Unanswered(Worker, u64, u64),
    /// A worker that is to go has had its time to finish.
    Retired(Worker, u64),
    /// A worker that owes nothing to anybody who is there has had its time.
    Forsaken(Worker, u64),
    /// A session that was told to stop has had its time.
    Cancelled(SessionKey, u64),
    /// The client of a session has been gone for long enough for its turn to end.
    Abandoned(SessionKey, u64),
    /// A session has been without a client for long enough.
    Expired(SessionKey, u64),
    /// A session has waited for a worker for long enough.
    Unrevived(SessionKey, u64),
    /// The workers that are all asked have had their time.
    Fanned(u32, u64),
    /// A client has waited for a worker for long enough.
    Held(Client, u64),
    /// A client that had sent too much has rested.
    Rested(Client, u64),
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

impl<O: Outlet> Pass<'_, O> {
    /// Does what is due.
    pub(super) fn happen(&mut self, timer: Timer) {
        match timer {
            Timer::Greeted(worker, serial) => {
                if self
                    .core
                    .worker(worker)
                    .is_some_and(|state| state.serial == serial && state.stage == Stage::Greeting)
                {
                    self.ungreeted(worker, "did not answer initialize in time");
                }
            }
            Timer::Unanswered(worker, serial, number) => {
                if self
                    .core
                    .worker(worker)
                    .is_some_and(|state| state.serial == serial && state.pending.contains_key(&number))
                {
                    self.useless(worker, "did not answer initialize in time");
                }
            }
            Timer::Retired(worker, serial) => {
                if self
                    .core
                    .worker(worker)
                    .is_some_and(|state| state.serial == serial && state.stage == Stage::Retiring)
                {
                    self.time_is_up(worker);
                }
            }
            Timer::Forsaken(worker, serial) => {
                if self.core.worker(worker).is_some_and(|state| state.serial == serial) {
                    self.end_forsaken(worker);
                }
            }
            Timer::Cancelled(key, serial) => {
                if self.core.sessions.same(key, serial).is_some() {
                    self.cancel_ignored(key);
                }
            }
            Timer::Abandoned(key, serial) => {
                if self.core.sessions.same(key, serial).is_some() {
                    self.abandon(key);
                }
            }
            Timer::Expired(key, serial) => {
                if self.core.sessions.same(key, serial).is_some() {
                    self.expire(key);
                }
            }
            Timer::Unrevived(key, serial) => {
                if self.core.sessions.same(key, serial).is_some() {
                    self.revival_overdue(key);
                }
            }
            Timer::Fanned(fan, serial) => self.fan_overdue(fan, serial),
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
            Timer::Rested(client, serial) => self.rested(client, serial),
            Timer::Respawn(pool) => self.fill(pool),
            Timer::Drained => self.stop_waiting(),
        }
    }
}
