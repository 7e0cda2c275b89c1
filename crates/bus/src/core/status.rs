//! The status of a bus as plain data, for administrators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Core;
use super::api::Time;
use super::state::WorkerLifecycle;

/// Counters since the start of the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    pub connections: u64,
    pub from_clients: u64,
    pub to_clients: u64,
    pub from_workers: u64,
    pub to_workers: u64,
    pub sessions: u64,
    /// Number of sessions that were restored after their worker was lost.
    pub revived: u64,
    pub refused: u64,
    /// Number of messages that were dropped because they have no recipient.
    pub dropped: u64,
    /// Number of session updates whose client had disconnected.
    pub unseen: u64,
    pub strikes: u64,
    pub spawned: u64,
    pub lost: u64,
    /// Number of requests refused because they name an MCP server that the pool does not permit.
    pub refused_mcp: u64,
    /// Number of requests refused because they name a pool that the client may not use.
    pub refused_pools: u64,
    /// Number of connections refused because their user may not connect.
    pub refused_users: u64,
}

/// The connections and sessions of an identity, and the number that its limits refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdentityStatus {
    pub clients: usize,
    pub sessions: usize,
    /// Number of connections and sessions refused because of a limit of the identity.
    pub refused: u64,
}

/// The status of a bus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    pub uptime: f64,
    pub draining: bool,
    pub clients: usize,
    pub sessions: usize,
    pub listeners: Vec<usize>,
    pub identities: BTreeMap<String, IdentityStatus>,
    pub pending: usize,
    /// The configured pools in order, then the replaced and removed pools that still have workers.
    pub pools: Vec<PoolStatus>,
    pub counters: Counters,
}

/// The status of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolStatus {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// `ready`, `starting`, `tripped` (the circuit breaker is open) or `leaving`.
    pub state: &'static str,
    /// Time until the next start, in milliseconds, while the circuit breaker is open.
    pub retry_after_ms: Option<u64>,
    pub last_loss: Option<String>,
    pub waiting: usize,
    pub workers: Vec<WorkerStatus>,
}

/// The status of a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerStatus {
    pub worker: u32,
    /// The process id. 0 while the process is being started.
    pub pid: u32,
    /// `starting`, `greeting`, `ready`, `busy`, `retiring` or `stopping`.
    pub state: &'static str,
    pub age: f64,
    pub sessions: usize,
    pub pending: usize,
    /// Number of requests of the worker that clients have not answered.
    pub asking: usize,
    pub strikes: usize,
    pub paused: bool,
}

impl Core {
    /// Returns the status of the bus.
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
                        WorkerLifecycle::Initializing => "greeting",
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
        // In a pool that is not shared, a worker that a client has claimed serves no other client.
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
