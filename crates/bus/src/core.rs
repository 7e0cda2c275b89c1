//! The router and supervisor as a pure state machine.
//!
//! Lines and events enter through the methods of [`Core`]. Lines and [`CoreAction`]s leave through a
//! [`CoreOutput`]. The core has no clock, no socket and no task, and its randomness is fixed by a seed, so
//! that the driver and the simulator run the same code.
//!
//! The path of a request: `from_client` decides on the destination (`route`). `forward` gives the request a
//! new id and records the client that waits for the answer. `from_worker` finds the record by the id and
//! restores the client's own bytes. A request of a worker to a client takes the same path in the other
//! direction.
//!
//! `supervisor` starts and replaces workers. `worker_lost` answers the pending requests of a lost worker,
//! `restore` opens its sessions in another worker, and `timer` runs what is due.

mod access;
mod api;
mod batch;
mod cancel_request;
mod cancellation;
mod capacity;
mod children;
mod deliver;
mod drain;
mod errors;
mod fan_out;
mod foreign_names;
mod former_names;
mod forward;
mod from_client;
mod from_worker;
mod identity;
mod initialize;
mod kept;
mod mcp_access;
mod mcp_server_table;
mod mcp_servers;
mod memory;
mod name_conflict;
mod observers;
mod open_order;
mod open_timeout;
mod owners;
mod pending;
mod pool_route;
mod progress;
mod reload;
mod request_id;
mod restore;
mod route;
mod scopes;
mod session;
mod session_keys;
mod session_list;
mod session_open;
mod splice;
mod state;
mod status;
mod supervisor;
mod table;
#[cfg(test)]
mod tests;
mod timer;
mod turn_end;
mod wait_queue;
mod worker_lost;

use std::time::Duration;

use narrows_wire::{LineRef, View};

use crate::config::{BusLimits, Config, ListenerSettings};

pub use api::{
    ANYONE, ClientCloseReason, ClientId, ClientInfo, CoreAction, CoreOutput, LogEvent, OwnedName, PoolId,
    StuckReason, Time, WorkerExit, WorkerId,
};
pub(crate) use memory::unfinished_error;
pub use status::{Counters, IdentityStatus, PoolStatus, Status, WorkerStatus};

use batch::Batches;
use children::Children;
use fan_out::FanOut;
use identity::Identities;
use memory::Memory;
use open_order::AwaitedCreations;
use owners::Owners;
use session::Sessions;
use state::{ClientState, PoolState, WorkerState};
use table::Table;
use timer::Timers;

/// The whole state of a bus: clients, sessions, pools and workers.
#[derive(Debug)]
pub struct Core {
    limits: BusLimits,
    /// Pools, indexed by [`PoolId`]. Removed pools stay, so that their successors can be found.
    pools: Vec<PoolState>,
    /// The configured pools in order. The first one serves clients that name no pool.
    order: Vec<PoolId>,
    listeners: Vec<ListenerSettings>,
    clients: Table<ClientState>,
    workers: Table<WorkerState>,
    sessions: Sessions,
    children: Children,
    identities: Identities,
    owners: Owners,
    is_observable: bool,
    kept_replay_bytes: usize,
    memory: Memory,
    batches: Batches,
    fans: Table<FanOut>,
    timers: Timers,
    awaited_creations: AwaitedCreations,
    random: fastrand::Rng,
    serial: u64,
    servers_made: u64,
    draining: bool,
    finished: bool,
    /// `true` while memory or file descriptors are short. New sessions are refused then.
    pressure: bool,
    /// `true` while new sessions are refused to clients without an identity.
    anonymous_pressure: bool,
    counters: Counters,
}

struct Ctx<'a, O> {
    core: &'a mut Core,
    now: Time,
    out: &'a mut O,
}

impl Core {
    /// Returns a core that has started no workers yet. The seed fixes all its random choices.
    #[must_use]
    pub fn new(config: &Config, seed: u64) -> Self {
        Self {
            limits: config.limits.clone(),
            pools: config.pools.iter().cloned().map(PoolState::new).collect(),
            order: (0..config.pools.len() as u32).map(PoolId).collect(),
            listeners: config.listen.clone(),
            clients: Table::default(),
            workers: Table::default(),
            sessions: Sessions::default(),
            children: Children::default(),
            identities: Identities::default(),
            owners: Owners::new(config),
            is_observable: config.is_remote() && config.limits.replay_bytes > 0,
            kept_replay_bytes: 0,
            memory: Memory::default(),
            batches: Batches::default(),
            fans: Table::default(),
            timers: Timers::default(),
            awaited_creations: AwaitedCreations::default(),
            random: fastrand::Rng::with_seed(seed),
            serial: 0,
            servers_made: 0,
            draining: false,
            finished: false,
            pressure: false,
            anonymous_pressure: false,
            counters: Counters::default(),
        }
    }

    fn context<'a, O: CoreOutput>(&'a mut self, now: Time, out: &'a mut O) -> Ctx<'a, O> {
        Ctx { core: self, now, out }
    }

    /// Starts the workers that pools keep ready.
    pub fn start<O: CoreOutput>(&mut self, now: Time, out: &mut O) {
        self.context(now, out).fill_all();
    }

    /// Records that a session that is not open belongs to this identity. Does nothing if owners are not kept.
    pub fn load_owner(&mut self, session: &OwnedName, identity: &str) {
        let identity = self.identities.number(identity);
        self.owners.know(session, identity);
    }

    /// Forgets the recorded owner of a session.
    pub fn forget_owner(&mut self, session: &OwnedName) {
        self.owners.forget(session);
    }

    /// Admits a client. Returns `None` if a limit of connections is reached.
    pub fn client_open<O: CoreOutput>(
        &mut self,
        now: Time,
        from: ClientInfo<'_>,
        out: &mut O,
    ) -> Option<ClientId> {
        self.context(now, out).client_open(from).map(Into::into)
    }

    /// Counts a connection that was refused because its user may not connect.
    pub fn count_refused_user(&mut self) {
        self.counters.refused_users += 1;
    }

    /// Handles a line from a client.
    pub fn client_line<O: CoreOutput>(
        &mut self,
        now: Time,
        client: ClientId,
        message: View<'_>,
        out: &mut O,
    ) {
        if let Some(client) = self.clients.key_at(client.0) {
            self.context(now, out).client_line(client, message);
        }
    }

    /// Refuses a client's incomplete message that begins with `head`, because too much incomplete input is
    /// buffered.
    pub fn refuse_unfinished<O: CoreOutput>(
        &mut self,
        now: Time,
        client: ClientId,
        head: &[u8],
        out: &mut O,
    ) {
        if let Some(client) = self.clients.key_at(client.0) {
            self.context(now, out).refuse_unfinished(client, View::too_long(head));
        }
    }

    /// Handles the end of a client's input. The client may still read.
    pub fn client_eof<O: CoreOutput>(&mut self, now: Time, client: ClientId, out: &mut O) {
        if let Some(client) = self.clients.key_at(client.0) {
            self.context(now, out).client_eof(client);
        }
    }

    /// Removes a client whose connection is closed. The number of the client may be used again.
    pub fn client_gone<O: CoreOutput>(&mut self, now: Time, client: ClientId, out: &mut O) {
        if let Some(client) = self.clients.key_at(client.0) {
            self.context(now, out).client_gone(client);
        }
    }

    /// Handles that the output queue of a client, which was full, is now less than half full.
    pub fn client_drained<O: CoreOutput>(&mut self, now: Time, client: ClientId, out: &mut O) {
        if let Some(client) = self.clients.key_at(client.0) {
            self.context(now, out).client_drained(client);
        }
    }

    /// Handles that the process of a worker has started.
    pub fn worker_up<O: CoreOutput>(&mut self, now: Time, worker: WorkerId, pid: u32, out: &mut O) {
        if let Some(worker) = self.workers.key_at(worker.0) {
            self.context(now, out).worker_up(worker, pid);
        }
    }

    /// Handles a message from a worker.
    pub fn worker_line<O: CoreOutput>(
        &mut self,
        now: Time,
        worker: WorkerId,
        message: View<'_>,
        out: &mut O,
    ) {
        if let Some(worker) = self.workers.key_at(worker.0) {
            self.context(now, out).worker_line(worker, message);
        }
    }

    /// Handles a line from a worker that was not scanned yet. A line with the same layout as the worker's
    /// last one needs no scan.
    #[inline]
    pub fn worker_raw_line<O: CoreOutput>(
        &mut self,
        now: Time,
        worker: WorkerId,
        piece: LineRef<'_>,
        out: &mut O,
    ) {
        let state = self.workers.key_at(worker.0).and_then(|worker| self.worker(worker));
        let message = match (piece, state) {
            (LineRef::Whole(line), Some(state)) => state.alike.view(line),
            (LineRef::Whole(line), None) => View::parse(line),
            (LineRef::TooLong(head), _) => View::too_long(head),
        };
        self.worker_line(now, worker, message, out);
    }

    /// Handles that the input queue of a worker, which was full, is now less than half full.
    pub fn worker_drained<O: CoreOutput>(&mut self, now: Time, worker: WorkerId, out: &mut O) {
        if let Some(worker) = self.workers.key_at(worker.0) {
            self.context(now, out).worker_drained(worker);
        }
    }

    /// Handles a worker that can no longer be used although its process may still run.
    pub fn worker_stuck<O: CoreOutput>(
        &mut self,
        now: Time,
        worker: WorkerId,
        why: StuckReason,
        out: &mut O,
    ) {
        if let Some(worker) = self.workers.key_at(worker.0) {
            self.context(now, out).worker_stuck(worker, why);
        }
    }

    /// Removes a worker that has exited or could not be started. The number of the worker may be used again.
    pub fn worker_gone<O: CoreOutput>(&mut self, now: Time, worker: WorkerId, end: &WorkerExit, out: &mut O) {
        if let Some(worker) = self.workers.key_at(worker.0) {
            self.context(now, out).worker_gone(worker, end);
        }
    }

    /// Runs the timers that are due.
    pub fn tick<O: CoreOutput>(&mut self, now: Time, out: &mut O) {
        while let Some(timer) = self.timers.pop_due(now) {
            self.context(now, out).run_timer(timer);
        }
    }

    /// Returns the time at which the next timer is due. `None`: no timer is set.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.timers.next_deadline()
    }

    /// Starts to drain the bus: it accepts no new work, lets running turns end, and then ends all workers.
    pub fn drain<O: CoreOutput>(&mut self, now: Time, out: &mut O) {
        self.context(now, out).drain();
    }

    /// Applies another configuration.
    pub fn reload<O: CoreOutput>(&mut self, now: Time, config: &Config, out: &mut O) {
        self.context(now, out).reload(config);
    }

    /// Sets whether memory or file descriptors are short. While they are, new sessions are refused.
    pub fn set_pressure(&mut self, on: bool) {
        self.pressure = on;
    }

    /// Sets whether memory is so short that clients without an identity get no new sessions.
    pub fn set_anonymous_pressure(&mut self, on: bool) {
        self.anonymous_pressure = on;
    }

    /// Returns the settings of a pool.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> &crate::config::Pool {
        &self.pools[pool.0 as usize].settings
    }

    /// Returns `true` if a worker has unanswered requests, or does not read the bus's messages. Only then is
    /// it a problem if the process of the worker is stopped.
    #[must_use]
    pub fn has_pending_work(&self, worker: WorkerId) -> bool {
        let state = self.workers.key_at(worker.0).and_then(|worker| self.workers.get(worker));
        state.is_some_and(|state| !state.pending.is_empty() || state.self_paused)
    }

    /// Returns `true` if reading from a worker is paused because a client does not read its output.
    #[must_use]
    pub fn is_held_up(&self, worker: WorkerId) -> bool {
        let state = self.workers.key_at(worker.0).and_then(|worker| self.workers.get(worker));
        state.is_some_and(|state| state.paused > u32::from(state.self_paused))
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn client(&mut self, client: table::ClientKey) -> Option<&mut ClientState> {
        self.clients.get_mut(client)
    }

    fn worker(&mut self, worker: table::WorkerKey) -> Option<&mut WorkerState> {
        self.workers.get_mut(worker)
    }

    fn pool_mut(&mut self, pool: PoolId) -> &mut PoolState {
        &mut self.pools[pool.0 as usize]
    }

    fn pool_of(&self, pool: PoolId) -> &PoolState {
        &self.pools[pool.0 as usize]
    }

    fn current(&self, mut pool: PoolId) -> PoolId {
        while let Some(successor) = self.pool_of(pool).successor {
            pool = successor;
        }
        pool
    }

    fn is_exclusive(&self, worker: table::WorkerKey) -> bool {
        self.workers.get(worker).is_some_and(|worker| !self.pool_of(worker.pool).is_shared())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
