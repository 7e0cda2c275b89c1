//! What is to happen later, in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::api::{Client, PoolId, Time, Worker};
use super::session::SessionKey;

/// What is to happen. The number behind each is the serial of whom it concerns: slots are used again, serials are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A worker has had its time to answer `initialize`.
    Greeted(Worker, u64),
    /// The same, where a client asked for it by itself, with the number of its request.
    Unanswered(Worker, u64, u64),
    /// A worker that is to go has had its time to finish.
    Retired(Worker, u64),
    /// A session that was told to stop has had its time.
    Cancelled(SessionKey, u64),
    /// The client of a session has been gone for long enough for its turn to end.
    Abandoned(SessionKey, u64),
    /// A session has been without a client for long enough.
    Expired(SessionKey, u64),
    /// A session has waited for a worker for long enough.
    Unrevived(SessionKey, u64),
    /// A client has waited for a worker for long enough.
    Held(Client, u64),
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
