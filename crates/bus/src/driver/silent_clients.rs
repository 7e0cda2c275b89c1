//! Connections that have sent no whole message yet: each has a deadline, and the oldest make room for new ones.

use std::collections::VecDeque;
use std::time::Duration;

use narrows_wire::{Code, RpcError};

use crate::core::{ANYONE, ClientInfo, Time};
use crate::listen::Family;

use super::clients::refuse;
use super::connections::ClientConn;
use super::{Driver, Router};

/// How much longer the first message may take while most places are free, and on a unix socket, where only users of this machine are: a
/// client may connect before it has anything to say.
const RELAXED_TIMEOUT_FACTOR: u32 = 30;
/// How many make room at once when descriptors are short.
const MAX_EVICTED_CLIENTS: usize = 16;
/// When to try again what memory is too short for.
const MEMORY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Those who have sent nothing yet, the oldest first. Whoever has since, or is gone, still stands there.
#[derive(Debug, Default)]
pub(super) struct Silent {
    tcp: VecDeque<Waiting>,
    unix: VecDeque<Waiting>,
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Time,
    slot: u32,
    number: u64,
}

impl<B: Router> Driver<B> {
    fn first_message_timeout(&self, family: Family) -> Duration {
        match family {
            Family::Tcp if self.is_crowded() => self.limits.header_timeout,
            Family::Tcp | Family::Unix => self.limits.header_timeout * RELAXED_TIMEOUT_FACTOR,
        }
    }

    /// Whether over half of the places for connections without identity, or of the descriptors, are taken.
    fn is_crowded(&self) -> bool {
        let accounts = &self.ports.accounts;
        accounts.anonymous() > self.limits.max_anonymous_connections / 2
            || accounts.descriptors > self.descriptors / 2
    }

    /// A connection that has just come has its time to say something.
    pub(super) fn await_first(&mut self, now: Time, slot: u32, family: Family) {
        self.silent.count += 1;
        let number = self.silent.count;
        if let Some(conn) = self.ports.client(slot) {
            conn.silent = Some(number);
        }
        let waiting = Waiting { since: now, slot, number };
        match family {
            Family::Tcp => self.silent.tcp.push_back(waiting),
            Family::Unix => self.silent.unix.push_back(waiting),
        }
        self.check_by(now + self.first_message_timeout(family));
    }

    fn is_silent(&self, waiting: Waiting) -> bool {
        matches!(self.ports.clients.get(waiting.slot as usize), Some(Some(conn)) if conn.silent == Some(waiting.number) && conn.hangup.is_none())
    }

    /// Disconnects those who have had their time.
    pub(super) fn check_silent(&mut self, now: Time) {
        for family in [Family::Tcp, Family::Unix] {
            let patience = self.first_message_timeout(family);
            loop {
                let queue = match family {
                    Family::Tcp => &mut self.silent.tcp,
                    Family::Unix => &mut self.silent.unix,
                };
                let Some(first) = queue.front().copied() else { break };
                if first.since + patience > now {
                    self.check_by(first.since + patience);
                    break;
                }
                queue.pop_front();
                if self.is_silent(first) {
                    tracing::debug!(client = first.slot, "no message in time");
                    self.ports.disconnect(first.slot, &RpcError::new(Code::Deadline, "no message in time"));
                }
            }
        }
    }

    /// Closes the oldest connection over TCP that has said nothing yet. Tells whether there was one.
    pub(super) fn evict_silent(&mut self, now: Time) -> bool {
        while let Some(first) = self.silent.tcp.pop_front() {
            if self.is_silent(first) {
                tracing::debug!(client = first.slot, "a silent connection makes room");
                if let Some(conn) = self.ports.client(first.slot) {
                    refuse(conn, &crowded_error());
                }
                self.drop_client(now, first.slot);
                return true;
            }
        }
        false
    }

    /// The same of some, because descriptors are short.
    pub(super) fn evict_some(&mut self, now: Time) -> bool {
        (0..MAX_EVICTED_CLIENTS).filter(|_| self.evict_silent(now)).count() > 0
    }

    /// Why there is no room for a connection, if even the silent ones leave none.
    pub(super) fn no_room(
        &mut self,
        now: Time,
        from: &ClientInfo<'_>,
        conn: &ClientConn,
    ) -> Option<RpcError> {
        if from.ends_bus {
            return None;
        }
        let is_anonymous = from.identity == ANYONE;
        if self.watch.is_short_of_memory(is_anonymous) {
            let wait = u64::try_from(MEMORY_RETRY_DELAY.as_millis()).unwrap_or_default();
            let error = RpcError::new(Code::Backpressure, "the bus is short of memory");
            return Some(error.with("retryAfterMs", wait.into()));
        }
        let most = self.limits.max_anonymous_connections;
        while self.ports.accounts.descriptors + conn.descriptors > self.descriptors
            || is_anonymous && self.ports.accounts.anonymous() >= most
        {
            if !self.evict_silent(now) {
                return Some(crowded_error());
            }
        }
        None
    }
}

/// What somebody is told for whom there is no room.
pub(super) fn crowded_error() -> RpcError {
    RpcError::new(Code::Backpressure, "there are too many connections")
}
