//! The interface between the driver and the core of a bus, or a simpler router in its place.

use narrows_wire::{LineRef, View};

use crate::config::{Config, Pool};
use crate::core::{
    ClientId, ClientInfo, Core, CoreOutput, OwnedName, PoolId, Status, StuckReason, Time, WorkerExit,
    WorkerId,
};

/// Decides where the lines of clients and workers go. The methods have the same meaning as those of [`Core`].
pub trait Router: Send + 'static {
    /// The state of the router, as [`Router::status`] reports it.
    type Status: Send + 'static;

    /// Starts the workers that pools keep ready.
    fn start(&mut self, now: Time, out: &mut impl CoreOutput);
    /// Admits a client. Returns `None` if a limit of connections is reached.
    fn client_open(&mut self, now: Time, from: ClientInfo<'_>, out: &mut impl CoreOutput)
    -> Option<ClientId>;
    /// Counts a connection that was refused because its user may not connect.
    fn count_refused_user(&mut self) {}
    /// Handles a line from a client. The line was not scanned, because a router that only copies does not
    /// need that.
    fn client_line(&mut self, now: Time, client: ClientId, line: LineRef<'_>, out: &mut impl CoreOutput);
    /// Refuses a client's incomplete message that begins with `head`, because too much incomplete input is
    /// buffered.
    fn refuse_unfinished(&mut self, now: Time, client: ClientId, head: &[u8], out: &mut impl CoreOutput) {
        self.client_line(now, client, LineRef::TooLong(head), out);
    }
    /// Handles the end of a client's input. The client may still read.
    fn client_eof(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// Removes a client whose connection is closed.
    fn client_gone(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// Handles that the output queue of a client, which was full, has room again.
    fn client_drained(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// Handles that the process of a worker has started.
    fn worker_up(&mut self, now: Time, worker: WorkerId, pid: u32, out: &mut impl CoreOutput);
    /// Handles a line from a worker.
    fn worker_line(&mut self, now: Time, worker: WorkerId, line: LineRef<'_>, out: &mut impl CoreOutput);
    /// Handles that the input queue of a worker, which was full, has room again.
    fn worker_drained(&mut self, now: Time, worker: WorkerId, out: &mut impl CoreOutput);
    /// Handles a worker that can no longer be used although its process may still run.
    fn worker_stuck(&mut self, now: Time, worker: WorkerId, why: StuckReason, out: &mut impl CoreOutput);
    /// Removes a worker whose process has exited or could not be started.
    fn worker_gone(&mut self, now: Time, worker: WorkerId, end: &WorkerExit, out: &mut impl CoreOutput);
    /// Runs the timers that are due.
    fn tick(&mut self, now: Time, out: &mut impl CoreOutput);
    /// Returns the time at which the router's next timer is due. `None`: no timer is set.
    fn deadline(&self) -> Option<Time>;
    /// Starts to drain the router: it accepts no new work, lets running turns end, and then ends all workers.
    fn drain(&mut self, now: Time, out: &mut impl CoreOutput);
    /// Applies another configuration.
    fn reload(&mut self, now: Time, config: &Config, out: &mut impl CoreOutput);
    /// Sets whether memory or file descriptors are short.
    fn set_pressure(&mut self, on: bool);
    /// Sets whether memory is short for clients without an identity.
    fn set_anonymous_pressure(&mut self, _on: bool) {}
    /// Returns the status of the router, for administrators.
    fn status(&self, now: Time) -> Self::Status;
    /// Returns the settings of a pool.
    fn pool(&self, pool: PoolId) -> Option<&Pool>;
    /// Records the owner of a session that is not open.
    fn know_owner(&mut self, session: &OwnedName, identity: &str) {
        let _ = (session, identity);
    }
    /// Forgets the recorded owner of a session.
    fn forget_owner(&mut self, session: &OwnedName) {
        let _ = session;
    }
    /// Returns `true` if a worker has unanswered requests. Only then is a stopped worker a problem.
    fn has_pending_work(&self, worker: WorkerId) -> bool {
        let _ = worker;
        true
    }
    /// Returns `true` if reading from a worker is paused because a client does not read.
    fn is_held_up(&self, worker: WorkerId) -> bool {
        let _ = worker;
        false
    }
}

#[inline]
fn view(line: LineRef<'_>) -> View<'_> {
    match line {
        LineRef::Whole(line) => View::parse(line),
        LineRef::TooLong(head) => View::too_long(head),
    }
}

impl Router for Core {
    type Status = Status;

    fn start(&mut self, now: Time, out: &mut impl CoreOutput) {
        self.start(now, out);
    }

    fn client_open(
        &mut self,
        now: Time,
        from: ClientInfo<'_>,
        out: &mut impl CoreOutput,
    ) -> Option<ClientId> {
        self.client_open(now, from, out)
    }

    fn count_refused_user(&mut self) {
        self.count_refused_user();
    }

    #[inline]
    fn client_line(&mut self, now: Time, client: ClientId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        self.client_line(now, client, view(line), out);
    }

    fn refuse_unfinished(&mut self, now: Time, client: ClientId, head: &[u8], out: &mut impl CoreOutput) {
        self.refuse_unfinished(now, client, head, out);
    }

    fn client_eof(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput) {
        self.client_eof(now, client, out);
    }

    fn client_gone(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput) {
        self.client_gone(now, client, out);
    }

    fn client_drained(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput) {
        self.client_drained(now, client, out);
    }

    fn worker_up(&mut self, now: Time, worker: WorkerId, pid: u32, out: &mut impl CoreOutput) {
        self.worker_up(now, worker, pid, out);
    }

    #[inline]
    fn worker_line(&mut self, now: Time, worker: WorkerId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        self.worker_raw_line(now, worker, line, out);
    }

    fn worker_drained(&mut self, now: Time, worker: WorkerId, out: &mut impl CoreOutput) {
        self.worker_drained(now, worker, out);
    }

    fn worker_stuck(&mut self, now: Time, worker: WorkerId, why: StuckReason, out: &mut impl CoreOutput) {
        self.worker_stuck(now, worker, why, out);
    }

    fn worker_gone(&mut self, now: Time, worker: WorkerId, end: &WorkerExit, out: &mut impl CoreOutput) {
        self.worker_gone(now, worker, end, out);
    }

    fn tick(&mut self, now: Time, out: &mut impl CoreOutput) {
        self.tick(now, out);
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline()
    }

    fn drain(&mut self, now: Time, out: &mut impl CoreOutput) {
        self.drain(now, out);
    }

    fn reload(&mut self, now: Time, config: &Config, out: &mut impl CoreOutput) {
        self.reload(now, config, out);
    }

    fn set_pressure(&mut self, on: bool) {
        self.set_pressure(on);
    }

    fn set_anonymous_pressure(&mut self, on: bool) {
        self.set_anonymous_pressure(on);
    }

    fn status(&self, now: Time) -> Status {
        self.status(now)
    }

    fn pool(&self, pool: PoolId) -> Option<&Pool> {
        Some(self.pool(pool))
    }

    fn know_owner(&mut self, session: &OwnedName, identity: &str) {
        self.load_owner(session, identity);
    }

    fn forget_owner(&mut self, session: &OwnedName) {
        self.forget_owner(session);
    }

    fn has_pending_work(&self, worker: WorkerId) -> bool {
        self.has_pending_work(worker)
    }

    fn is_held_up(&self, worker: WorkerId) -> bool {
        self.is_held_up(worker)
    }
}
