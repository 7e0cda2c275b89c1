//! The state of a bus as plain data, for administrators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Core;
use super::api::Time;
use super::state::WorkerLifecycle;

/// What has happened since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections that came in.
    pub connections: u64,
    /// Lines from clients.
    pub from_clients: u64,
    /// Lines to clients that came from workers.
    pub to_clients: u64,
    /// Lines from workers.
    pub from_workers: u64,
    /// Lines to workers.
    pub to_workers: u64,
    /// Sessions that were opened.
    pub sessions: u64,
    /// Sessions that were taken up again after a loss.
    pub revived: u64,
    /// Requests that the bus answered with an error.
    pub refused: u64,
    /// Messages that could be delivered to nobody.
    pub dropped: u64,
    /// Updates of sessions whose client has gone.
    pub unseen: u64,
    /// Misdeeds of workers.
    pub strikes: u64,
    /// Workers that were started.
    pub spawned: u64,
    /// Workers that were lost.
    pub lost: u64,
    /// Requests that named an MCP server that the pool does not permit.
    pub refused_mcp: u64,
    /// Requests for a pool that the client may not use.
    pub refused_pools: u64,
    /// Connections of users that may not connect.
    pub refused_users: u64,
}

/// What an identity has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdentityStatus {
    /// How many connections.
    pub clients: usize,
    /// How many sessions.
    pub sessions: usize,
    /// How many of either it was refused because it had too many.
    pub refused: u64,
}

/// The state of a bus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// How long it has run, in seconds.
    pub uptime: f64,
    /// Whether it is stopping.
    pub draining: bool,
    /// How many clients are connected.
    pub clients: usize,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many clients are connected through each listener.
    pub listeners: Vec<usize>,
    /// What each identity has that has something.
    pub identities: BTreeMap<String, IdentityStatus>,
    /// Requests that no worker has answered yet.
    pub pending: usize,
    /// The pools, in the order of the settings, and then those that are leaving.
    pub pools: Vec<PoolStatus>,
    /// What has happened.
    pub counters: Counters,
}

/// The state of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// The manifest by which its workers are governed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// `ready`, `starting`, `tripped` (its circuit is open) or `leaving`.
    pub state: &'static str,
    /// When it is tried again, in milliseconds, if its circuit is open.
    pub retry_after_ms: Option<u64>,
    /// Why the last worker was lost.
    pub last_loss: Option<String>,
    /// Clients that wait for a worker.
    pub waiting: usize,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
}

/// The state of a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u32,
    /// Its process, 0 while it is being started.
    pub pid: u32,
    /// `starting`, `greeting`, `ready`, `busy`, `retiring` or `stopping`.
    pub state: &'static str,
    /// How long it has been there, in seconds.
    pub age: f64,
    /// Its sessions.
    pub sessions: usize,
    /// Requests that it has not answered.
    pub pending: usize,
    /// Requests of its that clients have not answered.
    pub asking: usize,
    /// Its misdeeds within the last window.
    pub strikes: usize,
    /// Whether it is not read from because a client reads slowly.
    pub paused: bool,
}

impl Core {
    /// How it is.
    #[must_use]
    pub fn status(&self, now: Time) -> Status {
        let there = self.order.iter().map(|pool| self.pool_of(*pool));
        let leaving = self.pools.iter().filter(|pool| pool.is_leaving() && !pool.workers.is_empty());
        Status {
            uptime: now.as_secs_f64(),
            draining: self.draining,
            clients: self.clients.len(),
            sessions: self.sessions.len(),
            listeners: self.clients_by_listener(),
            identities: self.identity_status(),
            pending: self.workers.iter().map(|(_, worker)| worker.pending.len()).sum(),
            pools: there.chain(leaving).map(|pool| self.pool_status(pool, now)).collect(),
            counters: self.counters.clone(),
        }
    }

    fn clients_by_listener(&self) -> Vec<usize> {
        let mut counts = vec![0; self.listeners.len()];
        for (_, client) in self.clients.iter() {
            if let Some(count) = counts.get_mut(client.listener) {
                *count += 1;
            }
        }
        counts
    }

    fn identity_status(&self) -> BTreeMap<String, IdentityStatus> {
        let status = self.identities.iter().map(|(identity, known)| {
            let sessions = self.sessions.of_identity(identity);
            let has = IdentityStatus { clients: known.clients, sessions, refused: known.refused };
            (known.name.to_string(), has)
        });
        status.filter(|(_, has)| *has != IdentityStatus::default()).collect()
    }

    fn pool_status(&self, pool: &super::PoolState, now: Time) -> PoolStatus {
        let open = pool.open_until.filter(|until| *until > now);
        let workers: Vec<WorkerStatus> = pool
            .workers
            .iter()
            .filter_map(|worker| {
                let state = self.workers.get(*worker)?;
                Some(WorkerStatus {
                    worker: worker.slot(),
                    pid: state.pid,
                    state: match state.stage {
                        WorkerLifecycle::Starting => "starting",
                        WorkerLifecycle::Greeting => "greeting",
                        WorkerLifecycle::Ready if state.pending.is_empty() => "ready",
                        WorkerLifecycle::Ready => "busy",
                        WorkerLifecycle::Retiring => "retiring",
                        WorkerLifecycle::Stopping => "stopping",
                    },
                    age: now.saturating_sub(state.since).as_secs_f64(),
                    sessions: state.sessions.len(),
                    pending: state.pending.len(),
                    asking: state.asking.len(),
                    strikes: state.strikes.len(),
                    paused: state.paused > 0,
                })
            })
            .collect();
        // Where workers are for one client each, one that is somebody's is of no use to the next.
        let any_ready = pool.workers.iter().any(|worker| {
            self.workers.get(*worker).is_some_and(|state| {
                state.stage == WorkerLifecycle::Ready && (pool.is_shared() || !state.claimed)
            })
        });
        PoolStatus {
            name: pool.settings.name.clone(),
            manifest: pool.settings.manifest.as_ref().map(|path| path.display().to_string()),
            state: match () {
                () if pool.is_leaving() => "leaving",
                () if open.is_some() && !any_ready => "tripped",
                () if any_ready => "ready",
                () => "starting",
            },
            retry_after_ms: open.map(|until| super::millis(until - now)),
            last_loss: pool.last_loss.as_ref().map(ToString::to_string),
            waiting: pool.waiting.len(),
            workers,
        }
    }
}
