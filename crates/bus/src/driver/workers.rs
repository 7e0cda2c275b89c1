//! Connections to workers: their pipes, the start of their processes, and the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mio::Interest;
use narrows_wire::Splitter;
use rustix::io::Errno;

use crate::core::{CoreAction, CoreOutput, PoolId, StuckReason, Time, WorkerExit, WorkerId};
use crate::spawner::{self, Order, WorkerEnd, WorkerEvent};

use super::connections::{DeferredAction, Ending};
use super::periodic::is_dead;
use super::stream::Stream;
use super::{About, Driver, LoopError, PollToken, READ_BYTES, Router};

/// Time to read the rest of the output of a worker that has exited.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time between the end of a worker's pipe and the report that the process has exited.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of workers whose pipes are enlarged. The pipe memory of a user is limited. When that is
/// used up, new pipes hold very little.
const MAX_WIDE_PIPES: usize = 32;

impl<B: Router> Driver<B> {
    pub(super) fn perform_actions(&mut self, now: Time) {
        while !self.conns.actions.is_empty() {
            for action in std::mem::take(&mut self.conns.actions) {
                match action {
                    DeferredAction::Spawn(worker, serial, pool) => self.spawn(now, worker, serial, pool),
                    DeferredAction::Stop(worker, serial, kill) => self.stop(worker, serial, kill),
                }
            }
        }
        if self.orders.is_closed() {
            self.failed.get_or_insert(LoopError::Spawner);
        }
        if !self.orders.send_waiting() {
            self.check_by(now + Duration::from_millis(10));
        }
    }

    fn spawn(&mut self, now: Time, worker: WorkerId, serial: u64, pool: PoolId) {
        let slot = worker.0 as usize;
        while self.worker_lines.len() <= slot {
            self.worker_lines.push(Splitter::new(self.limits.max_line));
        }
        self.worker_lines[slot] = Splitter::new(self.limits.max_line);
        let (environment, names) = (&self.environment, &mut self.conns.names);
        let spec = catch_unwind(AssertUnwindSafe(|| {
            let settings = self.router.pool(pool)?;
            names.learn(worker.0, pool, settings);
            Some((settings.name.clone(), spawner::spec(settings, environment)))
        }));
        let Ok(Some((pool, spec))) = spec else {
            let how = WorkerEnd { reason: "pool was removed".into(), ..WorkerEnd::default() };
            return self.worker_ended(now, worker.0, serial, how);
        };
        self.orders.queue(Order::Spawn { slot: worker.0, serial, pool, spec: Box::new(spec) });
    }

    fn stop(&mut self, worker: WorkerId, serial: u64, kill: bool) {
        let Some(conn) = self.conns.worker(worker.0).filter(|conn| conn.serial == serial) else {
            return;
        };
        conn.stopping = true;
        if !kill {
            self.close_stdin(worker.0);
        }
        self.orders.queue(Order::Stop { serial, kill });
    }

    /// Writes the rest of a worker's queue once and closes its stdin.
    fn close_stdin(&mut self, slot: u32) {
        self.conns.unblock_worker(slot);
        self.conns.flush(self.poll.registry(), &mut self.outcome);
        if let Some(stdin) = self.conns.worker(slot).and_then(|conn| conn.stdin.take()) {
            stdin.deregister(self.poll.registry());
        }
    }

    pub(super) fn handle_worker_events(&mut self, now: Time) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                WorkerEvent::Up { slot, serial, pid, stdin, stdout } => {
                    let (stdin, stdout) = (Stream::pipe(stdin), Stream::pipe(stdout));
                    self.worker_up(now, slot, serial, pid, stdin, stdout);
                }
                WorkerEvent::Gone { slot, serial, mut how } => {
                    how.reason = self.conns.names.end(slot, how.reason, &how.stderr);
                    self.worker_ended(now, slot, serial, how);
                }
            }
        }
    }

    fn worker_up(&mut self, now: Time, slot: u32, serial: u64, pid: u32, stdin: Stream, stdout: Stream) {
        let wide = self.conns.workers.len() <= MAX_WIDE_PIPES;
        let Some(conn) = self.conns.worker(slot).filter(|conn| conn.serial == serial) else {
            return;
        };
        if wide {
            stdin.widen(READ_BYTES);
            stdout.widen(READ_BYTES);
        }
        let registry = self.poll.registry();
        let registered = stdin
            .register(registry, PollToken::Stdin(slot).token(), Interest::WRITABLE)
            .and_then(|()| stdout.register(registry, PollToken::Stdout(slot).token(), Interest::READABLE));
        conn.pid = pid;
        conn.stdin = Some(stdin);
        conn.stdout = Some(stdout);
        conn.outflow.progress = now;
        let stopping = conn.stopping;
        if let Err(error) = registered {
            tracing::warn!(%error, "cannot register worker pipes");
            self.conns.perform(CoreAction::Stop { worker: WorkerId(slot), kill: true });
            return;
        }
        if stopping {
            return self.close_stdin(slot);
        }
        self.conns.unblock_worker(slot);
        self.start_checks(now);
        self.call_router(About::Worker(slot), |router, conns| {
            router.worker_up(now, WorkerId(slot), pid, conns);
        });
    }

    /// Handles that the process of a worker has exited or could not be started.
    fn worker_ended(&mut self, now: Time, slot: u32, serial: u64, how: WorkerEnd) {
        let Some(conn) = self.conns.worker(slot).filter(|conn| conn.serial == serial) else {
            return;
        };
        conn.ending = Some(Ending { by: now + LAST_OUTPUT_TIMEOUT, how });
        if conn.stdout.is_none() || conn.intake.ended {
            return self.finish_worker(now, slot);
        }
        // A paused worker is read to the end too. A pipe holds little.
        conn.intake.paused = false;
        conn.intake.readable = true;
        conn.intake.hung_up = true;
        self.conns.list_worker(slot);
        self.check_by(now + LAST_OUTPUT_TIMEOUT);
    }

    /// Removes a worker whose output is read completely, and reports its exit to the core.
    pub(super) fn finish_worker(&mut self, now: Time, slot: u32) {
        let Some(mut conn) = self.conns.workers.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        let mut bytes_read = conn.written;
        if let Some(stdin) = conn.stdin.take() {
            bytes_read = bytes_read.saturating_sub(stdin.unread());
            stdin.deregister(self.poll.registry());
        }
        if let Some(stdout) = conn.stdout.take() {
            stdout.deregister(self.poll.registry());
        }
        if let Some(lines) = self.worker_lines.get_mut(slot as usize) {
            if lines.partial() > 0 {
                let pool = self.conns.names.pool_name(slot);
                tracing::debug!(
                    pool,
                    worker = slot,
                    bytes = lines.partial(),
                    "worker output ended within a line"
                );
            }
            *lines = Splitter::new(self.limits.max_line);
        }
        let WorkerEnd { reason, oom, lacked_resources, .. } =
            conn.ending.map(|ending| ending.how).unwrap_or_default();
        let end = WorkerExit {
            reason,
            bytes_read,
            unsent: conn.outflow.outbox.into_unsent(),
            oom,
            lacked_resources,
        };
        self.call_router(About::Worker(slot), |router, conns| {
            router.worker_gone(now, WorkerId(slot), &end, conns);
        });
        self.resume_accepting(now);
    }

    pub(super) fn read_worker(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.worker(slot) else { return };
        conn.intake.listed = false;
        let Some(stdout) = &conn.stdout else { return };
        if conn.intake.paused || conn.intake.ended {
            return;
        }
        let read = match stdout.read(&mut self.scratch) {
            Ok(0) => return self.stdout_closed(now, slot),
            Ok(read) => read,
            Err(Errno::AGAIN) => {
                conn.intake.readable = false;
                conn.intake.hung_up = false;
                return;
            }
            Err(error) => {
                tracing::warn!(pool = self.conns.names.pool_name(slot), worker = slot, %error, "worker read failed");
                return self.stdout_closed(now, slot);
            }
        };
        conn.intake.readable = read == self.scratch.len() || conn.intake.hung_up;
        let (router, conns) = (&mut self.router, &mut self.conns);
        let (lines, scratch) = (&mut self.worker_lines[slot as usize], &self.scratch[..read]);
        let handled = catch_unwind(AssertUnwindSafe(|| {
            lines.feed(scratch, |piece| router.worker_line(now, WorkerId(slot), piece, conns));
        }));
        if handled.is_err() {
            self.on_panic(About::Worker(slot));
        }
        self.conns.list_worker(slot);
    }

    fn stdout_closed(&mut self, now: Time, slot: u32) {
        let Some(conn) = self.conns.worker(slot) else { return };
        conn.intake.ended = true;
        if conn.ending.is_some() {
            return self.finish_worker(now, slot);
        }
        conn.stdout_closed_at.get_or_insert(now);
        self.check_by(now + EXIT_REPORT_TIMEOUT);
    }

    pub(super) fn stdin_closed(&mut self, slot: u32) {
        let now = self.conns.now;
        let Some(conn) = self.conns.worker(slot) else { return };
        if conn.stdin.is_some() {
            conn.stdin_closed_at.get_or_insert(now);
            self.check_by(now + EXIT_REPORT_TIMEOUT);
        }
    }

    /// Reports a worker that has closed a pipe to the core if its process has not exited. Returns the time of
    /// the next check.
    pub(super) fn check_pipes(&mut self, now: Time, slot: u32) -> Option<Time> {
        let conn = self.conns.worker(slot)?;
        if let Some(ending) = &conn.ending {
            let by = ending.by;
            if by <= now {
                self.finish_worker(now, slot);
                return None;
            }
            return Some(by);
        }
        let (since, why) = match (conn.stdout_closed_at, conn.stdin_closed_at) {
            (Some(since), _) => (since, StuckReason::OutputClosed),
            (None, Some(since)) => {
                let unread = conn.stdin.as_ref().map_or(0, Stream::unread);
                (since, StuckReason::InputClosed { bytes_read: conn.written.saturating_sub(unread) })
            }
            (None, None) => return None,
        };
        if now < since + EXIT_REPORT_TIMEOUT {
            return Some(since + EXIT_REPORT_TIMEOUT);
        }
        if is_dead(conn.pid) {
            // The spawner is about to report that the process has exited, and why.
            return Some(now + EXIT_REPORT_TIMEOUT);
        }
        // A worker is reported once, and not at all if it is being stopped.
        let is_reported = std::mem::replace(&mut conn.stopping, true);
        if !is_reported {
            self.call_router(About::Worker(slot), |router, conns| {
                router.worker_stuck(now, WorkerId(slot), why, conns);
            });
        }
        None
    }
}
