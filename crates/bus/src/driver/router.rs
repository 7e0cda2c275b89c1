//! Who decides: the core of a bus, or something simpler in its place.

use narrows_wire::{LineRef, View};

use crate::config::{Config, Pool};
use crate::core::{
    ClientId, ClientInfo, Core, CoreOutput, OwnedName, PoolId, Status, Stuck, Time, WorkerExit, WorkerId,
};

/// What the driver asks. The methods are those of the core, and so is their meaning.
pub trait Router: Send + 'static {
    /// What it tells about itself.
    type Status: Send + 'static;

    /// The driver is ready.
    fn start(&mut self, now: Time, out: &mut impl CoreOutput);
    /// Somebody has come in; `None` refuses.
    fn client_open(&mut self, now: Time, from: ClientInfo<'_>, out: &mut impl CoreOutput)
    -> Option<ClientId>;
    /// Counts a connection that was refused because its user may not connect.
    fn count_refused_user(&mut self) {}
    /// A client sent a line, which nobody has looked into: a router that only copies need not.
    fn client_line(&mut self, now: Time, client: ClientId, line: LineRef<'_>, out: &mut impl CoreOutput);
    /// Refuses a message that begins with `head` and is not finished, because too much input of clients is not.
    fn refuse_unfinished(&mut self, now: Time, client: ClientId, head: &[u8], out: &mut impl CoreOutput) {
        self.client_line(now, client, LineRef::TooLong(head), out);
    }
    /// A client sends no more, but may still read.
    fn client_eof(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// A client's connection is closed.
    fn client_gone(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// There is room again in a queue that was full.
    fn client_drained(&mut self, now: Time, client: ClientId, out: &mut impl CoreOutput);
    /// A worker's process runs.
    fn worker_up(&mut self, now: Time, worker: WorkerId, pid: u32, out: &mut impl CoreOutput);
    /// A worker sent a line.
    fn worker_line(&mut self, now: Time, worker: WorkerId, line: LineRef<'_>, out: &mut impl CoreOutput);
    /// There is room again in a queue that was full.
    fn worker_drained(&mut self, now: Time, worker: WorkerId, out: &mut impl CoreOutput);
    /// A worker is of no more use.
    fn worker_stuck(&mut self, now: Time, worker: WorkerId, why: Stuck, out: &mut impl CoreOutput);
    /// A worker's process has ended, or was never there.
    fn worker_gone(&mut self, now: Time, worker: WorkerId, end: &WorkerExit, out: &mut impl CoreOutput);
    /// The deadline has passed.
    fn tick(&mut self, now: Time, out: &mut impl CoreOutput);
    /// When it wants to be asked again.
    fn deadline(&self) -> Option<Time>;
    /// Stop, gently.
    fn drain(&mut self, now: Time, out: &mut impl CoreOutput);
    /// Other settings.
    fn reload(&mut self, now: Time, config: &Config, out: &mut impl CoreOutput);
    /// Memory or descriptors are short, or no longer.
    fn set_pressure(&mut self, on: bool);
    /// The same for clients that nothing is known of.
    fn set_anonymous_pressure(&mut self, _on: bool) {}
    /// What it tells about itself.
    fn status(&self, now: Time) -> Self::Status;
    /// The settings of a pool it wants a worker of.
    fn pool(&self, pool: PoolId) -> Option<&Pool>;
    /// Whose a session is that is not open, as was written down before.
    fn know_owner(&mut self, session: &OwnedName, identity: &str) {
        let _ = (session, identity);
    }
    /// What was written down about a session is no longer kept.
    fn forget_owner(&mut self, session: &OwnedName) {
        let _ = session;
    }
    /// Whether a worker has something to answer, so that one that is stopped matters.
    fn has_pending_work(&self, worker: WorkerId) -> bool {
        let _ = worker;
        true
    }
    /// Whether a worker is not read from because a client does not read.
    fn is_held_up(&self, worker: WorkerId) -> bool {
        let _ = worker;
        false
    }
}

/// A line as the core sees it.
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
        self.worker_piece(now, worker, line, out);
    }

    fn worker_drained(&mut self, now: Time, worker: WorkerId, out: &mut impl CoreOutput) {
        self.worker_drained(now, worker, out);
    }

    fn worker_stuck(&mut self, now: Time, worker: WorkerId, why: Stuck, out: &mut impl CoreOutput) {
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
        self.know_owner(session, identity);
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
