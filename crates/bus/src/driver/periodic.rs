//! Periodic checks of conditions that no event reports.

use std::time::Duration;

use narrows_wire::{Code, RpcError};

use crate::core::{StuckReason, Time, WorkerId};

use super::{About, Driver, Router};

const WORKER_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a worker process that was found stopped is checked again.
const STOPPED_CHECK_DELAY: Duration = Duration::from_secs(1);
/// Timeout for a worker to read from its full stdin pipe.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause of accepting connections when file descriptors run out. It ends early if a descriptor is closed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(250);
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Memory is checked at once if more than the budget divided by this number was queued since the last check.
const QUEUED_DIVISOR: usize = 32;
/// Minimum interval between releases of free heap memory while the memory budget is nearly used up.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct PeriodicChecks {
    /// The time before which no connection is accepted. `None`: accepting is not paused.
    accept_after: Option<Time>,
    short_of_descriptors: bool,
    short_of_memory: bool,
    /// `true` if the whole memory budget is used, not only the part for clients without an identity.
    out_of_memory: bool,
    /// `true` if owners of sessions are recorded faster than they are written to disk.
    owners_behind: bool,
    workers_at: Option<Time>,
    memory_at: Option<Time>,
    release_after: Time,
    framed_at: Option<Time>,
}

impl PeriodicChecks {
    pub(super) fn is_accept_paused(&self) -> bool {
        self.accept_after.is_some()
    }

    pub(super) fn is_short_of_memory(&self, is_anonymous: bool) -> bool {
        self.out_of_memory || self.short_of_memory && is_anonymous
    }

    /// Lets the next memory check release free heap memory, because much was freed.
    pub(super) fn release_heap_at_next_check(&mut self) {
        self.release_after = Time::ZERO;
    }

    pub(super) fn schedule_websocket_check(&mut self, by: Time) {
        self.framed_at = Some(self.framed_at.map_or(by, |at| at.min(by)));
    }
}

impl<B: Router> Driver<B> {
    pub(super) fn start_checks(&mut self, now: Time) {
        if self.limits.memory > 0 && self.checks.memory_at.is_none() {
            self.checks.memory_at = Some(now);
            self.check_by(now);
        }
        if self.checks.workers_at.is_none() && self.conns.workers.iter().flatten().any(|conn| conn.pid != 0) {
            self.checks.workers_at = Some(now + WORKER_CHECK_INTERVAL);
            self.check_by(now + WORKER_CHECK_INTERVAL);
        }
    }

    pub(super) fn check(&mut self, now: Time) {
        self.next_check = Time::MAX;
        if let Some(after) = self.checks.accept_after {
            if after <= now {
                self.accept_now();
            } else {
                self.check_by(after);
            }
        }
        if self.draining && self.drain_by > now {
            self.check_by(self.drain_by);
        } else if self.draining && self.panics > 0 {
            self.conns.finished = true;
        }
        self.check_memory(now);
        self.check_silent(now);
        self.check_workers(now);
        self.check_readers(now);
        if self.checks.framed_at.is_some_and(|at| at <= now) {
            self.checks.framed_at = self.check_framed(now);
        }
        if let Some(at) = self.checks.framed_at {
            self.check_by(at);
        }
        // No event reports that a client that is being closed has a little room, so a write is tried.
        for slot in self.conns.closing.clone() {
            self.conns.unblock_client(slot);
        }
    }

    pub(super) fn watch_queues(&mut self) {
        let now = self.conns.now;
        // The time of the next check is never too late: progress of a queue can only postpone the timeout.
        if !self.conns.full.is_empty() {
            self.check_by(now + self.limits.stall_timeout);
        }
        self.check_by(now + DRAIN_TIMEOUT);
        if self.conns.workers.iter().flatten().any(|conn| conn.stdin_closed_at.is_some()) {
            self.check_by(now + Duration::from_millis(500));
        }
    }

    /// Disconnects clients whose full queue makes no progress. The stall timeout does not apply to
    /// connections with a time limit of their own.
    fn check_readers(&mut self, now: Time) {
        let timeout = self.limits.stall_timeout;
        for slot in std::mem::take(&mut self.conns.full) {
            let Some(conn) = self.conns.client(slot).filter(|conn| conn.outflow.is_full) else { continue };
            let until = conn.outflow.progress + timeout;
            if conn.outflow.blocked && until <= now {
                tracing::warn!(client = slot, "closing stalled client");
                // If the client starts to read again, it gets this reason.
                let words = "client read nothing for too long";
                self.conns.disconnect(slot, &RpcError::new(Code::Backpressure, words));
                self.conns.skip_to_reason(slot);
            } else {
                self.conns.full.push(slot);
                self.check_by(until.max(now + Duration::from_millis(1)));
            }
        }
        self.conns.full.sort_unstable();
        self.conns.full.dedup();
    }

    fn check_workers(&mut self, now: Time) {
        let regular = self.checks.workers_at.is_some_and(|at| at <= now);
        let mut any = false;
        for slot in 0..u32::try_from(self.conns.workers.len()).unwrap_or(u32::MAX) {
            if let Some(again) = self.check_pipes(now, slot) {
                self.check_by(again);
            }
            let Some(conn) = self.conns.worker(slot).filter(|conn| conn.pid != 0) else {
                continue;
            };
            any = true;
            if conn.stopping || conn.ending.is_some() {
                continue;
            }
            let pid = conn.pid;
            let until = conn.outflow.progress + DRAIN_TIMEOUT;
            let is_blocked = conn.outflow.blocked && conn.stdin.is_some();
            // A worker that is paused for a client may be waiting for its output to be read before it reads,
            // so the timeout does not apply. The timeout applies to a worker that is paused because it does
            // not read.
            if is_blocked && !self.is_held_up(slot) {
                if until > now {
                    self.check_by(until);
                } else if self.has_pending_work(slot) {
                    if let Some(conn) = self.conns.worker(slot) {
                        conn.outflow.progress = now;
                    }
                    self.report_stuck(now, slot, StuckReason::Undrained);
                    continue;
                }
            }
            self.check_stopped(now, slot, pid, regular);
        }
        if regular {
            self.checks.workers_at = any.then(|| now + WORKER_CHECK_INTERVAL);
        }
        if let Some(at) = self.checks.workers_at {
            self.check_by(at);
        }
    }

    /// Reports a stopped worker process at the second check, because debuggers and freezers stop a process
    /// for a moment.
    fn check_stopped(&mut self, now: Time, slot: u32, pid: u32, regular: bool) {
        let since = self.conns.worker(slot).and_then(|conn| conn.stopped_since);
        let due = since.map_or(regular, |since| now >= since + STOPPED_CHECK_DELAY);
        if !due {
            return since.into_iter().for_each(|since| self.check_by(since + STOPPED_CHECK_DELAY));
        }
        let is_stopped = self.has_pending_work(slot) && is_stopped(pid);
        if let Some(conn) = self.conns.worker(slot) {
            conn.stopped_since = is_stopped.then_some(now);
        }
        if is_stopped && since.is_some() {
            self.report_stuck(now, slot, StuckReason::Stopped);
        } else if is_stopped {
            self.check_by(now + STOPPED_CHECK_DELAY);
        }
    }

    fn is_held_up(&mut self, slot: u32) -> bool {
        self.call_router(About::Worker(slot), |router, _| router.is_held_up(WorkerId(slot)))
            .unwrap_or_default()
    }

    fn has_pending_work(&mut self, slot: u32) -> bool {
        self.call_router(About::Worker(slot), |router, _| router.has_pending_work(WorkerId(slot)))
            .unwrap_or_default()
    }

    pub(super) fn report_stuck(&mut self, now: Time, slot: u32, why: StuckReason) {
        self.call_router(About::Worker(slot), |router, conns| {
            router.worker_stuck(now, WorkerId(slot), why, conns);
        });
    }

    /// Returns `true` if so much was queued for clients that memory has to be checked at once. Within a
    /// second, many workers can send more than the whole budget.
    pub(super) fn has_queued_much(&self) -> bool {
        let budget = usize::try_from(self.limits.memory).unwrap_or(usize::MAX);
        self.checks.memory_at.is_some() && budget > 0 && self.conns.queued > budget / QUEUED_DIVISOR
    }

    fn check_memory(&mut self, now: Time) {
        let Some(at) = self.checks.memory_at else { return };
        if at > now && !self.has_queued_much() {
            return self.check_by(at);
        }
        self.conns.queued = 0;
        let budget = self.limits.memory;
        let nearly_all = budget / 10 * 9;
        let mut used = resident().filter(|_| budget > 0);
        // Free heap memory still counts as used by the process. If it were not released, the bus would refuse
        // clients long after a burst.
        if used.is_some_and(|used| used >= nearly_all) && now >= self.checks.release_after {
            narrows_process::release_heap();
            self.checks.release_after = now + RELEASE_INTERVAL;
            used = resident();
        }
        let short = used.is_some_and(|used| used >= nearly_all);
        let full = used.is_some_and(|used| used >= budget);
        self.checks.memory_at = (budget > 0).then(|| now + MEMORY_CHECK_INTERVAL);
        if budget > 0 {
            self.check_by(now + MEMORY_CHECK_INTERVAL);
        }
        if (short, full) != (self.checks.short_of_memory, self.checks.out_of_memory) {
            tracing::warn!(short, full, budget, "memory pressure changed");
            (self.checks.short_of_memory, self.checks.out_of_memory) = (short, full);
            self.report_pressure();
        }
        if short {
            self.free_memory(now);
        }
    }

    pub(super) fn pause_accepting(&mut self, now: Time) {
        self.checks.accept_after = Some(now + ACCEPT_RETRY_DELAY);
        self.check_by(now + ACCEPT_RETRY_DELAY);
        if !self.checks.short_of_descriptors {
            tracing::warn!("file descriptor limit reached, not accepting connections");
            self.checks.short_of_descriptors = true;
            self.report_pressure();
        }
    }

    /// Handles an accepted connection: the shortage of file descriptors is over.
    pub(super) fn end_fd_shortage(&mut self) {
        if self.checks.short_of_descriptors {
            tracing::info!("file descriptors available, accepting connections");
            self.checks.short_of_descriptors = false;
            self.report_pressure();
        }
    }

    pub(super) fn resume_accepting(&mut self, now: Time) {
        if self.checks.is_accept_paused() {
            self.checks.accept_after = Some(now);
            self.check_by(now);
        }
    }

    fn accept_now(&mut self) {
        self.checks.accept_after = None;
        for slot in 0..u32::try_from(self.listeners.len()).unwrap_or(u32::MAX) {
            if self.listeners[slot as usize].readable {
                self.list_listener(slot);
            }
        }
        // No connection waits to be accepted, so the shortage of file descriptors is over.
        if self.listeners.iter().all(|listener_slot| !listener_slot.readable) {
            self.end_fd_shortage();
        }
    }

    /// Handles that the number of session owners to write to disk now exceeds its limit, or no longer does.
    pub(super) fn check_owner_backlog(&mut self, behind: bool) {
        if self.checks.owners_behind != behind {
            tracing::warn!(behind, "session owner backlog changed");
            self.checks.owners_behind = behind;
            self.report_pressure();
        }
    }

    fn report_pressure(&mut self) {
        let checks = &self.checks;
        let short = checks.short_of_descriptors || checks.out_of_memory || checks.owners_behind;
        let short_of_memory = checks.short_of_memory;
        self.call_router(About::All, |router, _| router.set_anonymous_pressure(short_of_memory));
        self.call_router(About::All, |router, _| router.set_pressure(short));
    }
}

fn is_stopped(pid: u32) -> bool {
    state_of(pid) == Some(b'T')
}

/// Returns `true` if a process has exited, also if it is a zombie.
pub(super) fn is_dead(pid: u32) -> bool {
    matches!(state_of(pid), None | Some(b'Z' | b'X'))
}

fn state_of(pid: u32) -> Option<u8> {
    state(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the process state from a line of `/proc/PID/stat`. The process name before the state can contain
/// any character, also brackets.
fn state(stat: &[u8]) -> Option<u8> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_state_is_found_after_any_process_name() {
        for (stat, expected) in [
            (b"7 (cat) T 1 2".as_slice(), Some(b'T')),
            (b"7 (a) S) R 1", Some(b'R')),
            (b"7 (cat)", None),
            (b"", None),
        ] {
            assert_eq!(state(stat), expected);
        }
        let own = std::process::id();
        assert!(!is_stopped(own) && !is_dead(own));
        assert!(is_dead(u32::MAX));
    }

    #[test]
    fn resident_memory_is_read() {
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
    }
}
