//! Connections that have sent no complete message yet. Each has a deadline, and the oldest ones are closed to
//! make room for new connections.

use std::collections::VecDeque;
use std::time::Duration;

use narrows_wire::{Code, RpcError};

use crate::core::{ANYONE, ClientInfo, Time};
use crate::listen::Family;

use super::clients::refuse;
use super::connections::ClientConn;
use super::{Driver, Router};

/// Factor by which a client may be silent for longer while most slots are free, or on a unix socket. A client
/// may connect before it has a message, and only users of this machine can connect to a unix socket.
const RELAXED_TIMEOUT_FACTOR: u32 = 30;
/// Maximum number of silent connections that are closed at once when file descriptors are short.
const MAX_EVICTED_CLIENTS: usize = 16;
const MEMORY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Connections without a complete message, oldest first. Some of them may have sent a message or been closed
/// since.
#[derive(Debug, Default)]
pub(super) struct SilentClients {
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

    /// Returns `true` if more than half of the file descriptors, or of the connections without an identity,
    /// are in use.
    fn is_crowded(&self) -> bool {
        let accounts = &self.conns.accounts;
        accounts.anonymous() > self.limits.max_anonymous_connections / 2
            || accounts.descriptors > self.descriptors / 2
    }

    pub(super) fn await_first(&mut self, now: Time, slot: u32, family: Family) {
        self.silent.count += 1;
        let number = self.silent.count;
        if let Some(conn) = self.conns.client(slot) {
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
        matches!(self.conns.clients.get(waiting.slot as usize), Some(Some(conn)) if conn.silent == Some(waiting.number) && conn.close_state.is_none())
    }

    pub(super) fn check_silent(&mut self, now: Time) {
        for family in [Family::Tcp, Family::Unix] {
            let timeout = self.first_message_timeout(family);
            loop {
                let queue = match family {
                    Family::Tcp => &mut self.silent.tcp,
                    Family::Unix => &mut self.silent.unix,
                };
                let Some(first) = queue.front().copied() else { break };
                if first.since + timeout > now {
                    self.check_by(first.since + timeout);
                    break;
                }
                queue.pop_front();
                if self.is_silent(first) {
                    tracing::debug!(client = first.slot, "closing silent client");
                    self.conns.disconnect(first.slot, &RpcError::new(Code::Deadline, "no message in time"));
                }
            }
        }
    }

    /// Closes the oldest TCP connection that has sent no complete message. Returns `true` if there was one.
    pub(super) fn evict_silent(&mut self, now: Time) -> bool {
        while let Some(first) = self.silent.tcp.pop_front() {
            if self.is_silent(first) {
                tracing::debug!(client = first.slot, "closing silent client to make room");
                if let Some(conn) = self.conns.client(first.slot) {
                    refuse(conn, &crowded_error());
                }
                self.drop_client(now, first.slot);
                return true;
            }
        }
        false
    }

    /// Closes several of the oldest silent TCP connections, because file descriptors are short. Returns
    /// `true` if there were any.
    pub(super) fn evict_several(&mut self, now: Time) -> bool {
        (0..MAX_EVICTED_CLIENTS).filter(|_| self.evict_silent(now)).count() > 0
    }

    /// Returns the error for a new connection if there is no room for it, even after silent connections were
    /// closed.
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
        if self.checks.is_short_of_memory(is_anonymous) {
            let wait = u64::try_from(MEMORY_RETRY_DELAY.as_millis()).unwrap_or_default();
            let error = RpcError::new(Code::Backpressure, "bus is short of memory");
            return Some(error.with("retryAfterMs", wait.into()));
        }
        let most = self.limits.max_anonymous_connections;
        while self.conns.accounts.descriptors + conn.descriptors > self.descriptors
            || is_anonymous && self.conns.accounts.anonymous() >= most
        {
            if !self.evict_silent(now) {
                return Some(crowded_error());
            }
        }
        None
    }
}

pub(super) fn crowded_error() -> RpcError {
    RpcError::new(Code::Backpressure, "too many connections")
}
