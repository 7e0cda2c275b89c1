//! The configuration of a bus: listeners, pools of workers, limits and the admin API.

mod address;
mod machine;
mod mcp;
mod program;
mod read;
pub mod render;
mod settings;
mod stdio_bus;
#[cfg(test)]
mod tests;
mod web;

pub use address::expand_home;
pub use machine::Machine;
pub use mcp::{McpAccess, McpTarget, PoolMcpServer};
pub use read::{InspectedConfig, inspect, read};
pub use web::{ListenerAuth, PEM_HINT, TOKENS_HINT, Tls, Web, host, origin};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use machine::PoolPositions;
use read::ParsedConfig;
use serde_json::Value;

/// Time to stop the workers after `drain_timeout`. Workers are first asked to exit, then killed.
pub const WORKER_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes of output kept for reconnecting clients, for all connections together.
const MAX_REPLAY_BYTES: usize = 256 << 20;

/// Maximum number of bytes of session params that are kept to restore sessions, if there is no memory budget.
const MAX_SESSION_PARAMS_BYTES: usize = 256 << 20;

/// Maximum number of bytes for the records of session owners, if there is no memory budget.
const MAX_OWNER_BYTES: usize = 256 << 20;

/// The configuration of a bus.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: Vec<ListenerSettings>,
    /// The pools of workers. The first one serves clients that name no pool.
    pub pools: Vec<Pool>,
    pub limits: BusLimits,
    pub admin: AdminConfig,
}

impl Config {
    /// Returns `true` if there is an HTTP or WebSocket listener, so that clients may connect over a network.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.listen.iter().any(|listen| matches!(listen.addr, ListenAddr::Web(_)))
    }

    /// Returns `true` if a listener identifies its clients, so that session owners are recorded.
    #[must_use]
    pub fn keeps_owners(&self) -> bool {
        self.listen
            .iter()
            .any(|listen| matches!(&listen.addr, ListenAddr::Web(web) if web.auth.names_clients()))
    }

    /// Returns `true` if some listeners admit only one user of this machine and others do not. Sessions then
    /// have different owners, even if no client is identified.
    #[must_use]
    pub fn separates_users(&self) -> bool {
        let is_user =
            |listen: &ListenerSettings| matches!(listen.addr, ListenAddr::Stdio | ListenAddr::Unix(_));
        self.listen.iter().any(is_user) && !self.listen.iter().all(is_user)
    }
}

/// A listener for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    pub addr: ListenAddr,
    /// The pool of clients that name no pool. Without `pools`, clients may use only this pool.
    pub pool: Option<String>,
    /// The pools that clients may use. `None`: only `pool`, or all pools if `pool` is `None` too.
    pub pools: Option<Vec<String>>,
    /// The proof of identity required on TCP: [`ListenerAuth::User`] or [`ListenerAuth::None`]. HTTP and
    /// WebSocket use [`Web::auth`].
    pub auth: ListenerAuth,
}

impl ListenerSettings {
    /// Returns a listener that permits all pools, with the default `auth`.
    #[must_use]
    pub fn new(at: ListenAddr) -> Self {
        Self { addr: at, pool: None, pools: None, auth: ListenerAuth::User }
    }

    /// Returns `true` if clients of this listener may use every pool.
    #[must_use]
    pub fn permits_all(&self) -> bool {
        self.pool.is_none() && self.pools.is_none()
    }

    /// Returns `true` if clients of this listener may use the pool of this name.
    #[must_use]
    pub fn permits(&self, pool: &str) -> bool {
        match &self.pools {
            Some(pools) => pools.iter().any(|name| name == pool),
            None => self.pool.as_deref().is_none_or(|name| name == pool),
        }
    }

    /// Returns the names of the pools that clients may use, the default one first. Empty: all pools.
    pub fn pool_names(&self) -> impl Iterator<Item = &str> {
        self.pool.iter().chain(self.pools.iter().flatten()).map(String::as_str)
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    Stdio,
    Tcp(String),
    Unix(PathBuf),
    Web(Box<Web>),
}

/// The clients that may share a worker of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareMode {
    /// Connections do not share: each connection has its own worker.
    Connection,
    /// Sessions do not share: each session has its own worker.
    Session,
    All,
}

/// The protocol of the workers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolProtocol {
    V1,
    V2,
    /// Any JSON-RPC messages, one per line. The bus interprets only `sessionId`.
    JsonRpc,
}

/// A pool: workers that run the same command.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    pub name: String,
    pub command: Vec<String>,
    /// The manifest that governs the workers. Each worker has its own gate, which gets the identity of the
    /// client.
    pub manifest: Option<PathBuf>,
    /// The file with the identities that the gates of the workers admit.
    pub identities: Option<PathBuf>,
    /// The working directory of the workers. `None`: the current directory of the bus.
    pub cwd: Option<PathBuf>,
    pub instances: u32,
    /// The maximum number of workers of the pool.
    pub max_instances: u32,
    pub share: ShareMode,
    pub protocol: PoolProtocol,
    /// Variables added to the environment of the workers.
    pub env: BTreeMap<String, String>,
    pub pass_env: Vec<String>,
    pub whole_env: bool,
    /// The client capabilities that are announced to workers with [`ShareMode::All`].
    pub client_capabilities: Value,
    /// `true` if different identities may share a worker.
    pub mix_identities: bool,
    /// The maximum memory of a worker and its descendants, in bytes.
    pub memory: Option<u64>,
    /// The maximum number of processes of a worker, its descendants included.
    pub pids: Option<u64>,
    /// The MCP servers that clients may name. `None`: any server for the user of the bus on stdio and unix
    /// sockets, and no server for all other clients.
    pub mcp: Option<McpAccess>,
    pub mcp_servers: Vec<PoolMcpServer>,
    /// The members of `_meta` that clients may send even if they may not name any MCP server.
    pub client_meta: Vec<String>,
}

impl Pool {
    /// Returns the pool with workers that serve a manifest. Each client gets an agent behind a gate of its
    /// own.
    #[must_use]
    pub fn with_manifest(self, manifest: PathBuf, identities: Option<PathBuf>) -> Self {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut command = vec!["narrows".to_owned(), "serve".to_owned(), "--for-bus".to_owned()];
        command.extend(identities.iter().map(|file| format!("--identities={}", path(file))));
        command.extend([path(&manifest)]);
        Self { command, manifest: Some(manifest), identities, ..self }
    }

    /// Returns a pool of this name and command, with the default of every other setting.
    #[must_use]
    pub fn new(name: impl Into<String>, command: Vec<String>) -> Self {
        Self {
            name: name.into(),
            command,
            manifest: None,
            identities: None,
            cwd: None,
            instances: 1,
            max_instances: 256,
            share: ShareMode::Connection,
            protocol: PoolProtocol::V1,
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            whole_env: false,
            client_capabilities: Value::Object(serde_json::Map::new()),
            mix_identities: false,
            memory: None,
            pids: None,
            mcp: None,
            mcp_servers: Vec::new(),
            client_meta: Vec::new(),
        }
    }
}

/// Limits of sizes, counts and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusLimits {
    /// The maximum length of a line, in bytes.
    pub max_line: usize,
    /// The maximum number of entries in a batch.
    pub max_batch: usize,
    /// The maximum number of connections.
    pub max_connections: usize,
    /// The maximum number of connections of one identity, on listeners that identify clients.
    pub max_connections_per_identity: usize,
    /// The maximum number of connections of clients that have no identity and are not known as a user of this
    /// machine.
    pub max_anonymous_connections: usize,
    /// The maximum number of open sessions of one identity, in all pools.
    pub max_sessions_per_identity: usize,
    /// The maximum number of sessions of one identity in a worker that different identities share.
    pub max_sessions_per_worker: usize,
    /// The maximum rate of one identity, in messages per second. 0: unlimited. Above it, input is read
    /// slowly.
    pub max_rate_per_identity: u64,
    /// The capacity of the output queue of one peer, in bytes. An empty queue also accepts one longer
    /// message.
    pub queue_bytes: usize,
    /// The maximum number of bytes of incomplete messages, for all clients together.
    pub unfinished_input: usize,
    /// The maximum number of bytes of incomplete messages of one identity.
    pub unfinished_input_per_identity: usize,
    /// A peer whose full queue makes no progress for this long is disconnected.
    pub stall_timeout: Duration,
    /// Timeout for a worker to answer `initialize`.
    pub initialize_timeout: Duration,
    /// Timeout for a worker to answer `session/new` and `session/fork`.
    pub open_timeout: Duration,
    /// Timeout for a worker to end a canceled turn.
    pub cancel_grace: Duration,
    /// Timeout for active turns to end during a shutdown.
    pub drain_timeout: Duration,
    /// Time for which a session without a client is kept.
    pub session_grace: Duration,
    /// Time for which a turn continues after its client has disconnected.
    pub disconnect_grace: Duration,
    /// Number of worker losses within `restart_window` that opens the circuit breaker of the pool.
    pub restart_budget: u32,
    /// The time window in which worker losses count towards `restart_budget`.
    pub restart_window: Duration,
    /// The memory budget of the bus itself, in bytes. 0: none.
    pub memory: u64,
    /// The maximum number of bytes of output kept for a reconnect, per resumable connection or session.
    pub replay_bytes: usize,
    /// Time within which a client can resume a lost connection. The output for the client is kept that long.
    pub replay_time: Duration,
    /// Timeout for a new client to send the head of an HTTP request, a handshake, or the first message on
    /// TCP.
    pub header_timeout: Duration,
    /// Timeout after which a silent network peer is considered lost. A ping counts as input.
    pub idle_timeout: Duration,
    /// Time for which the owner of an unused session is kept.
    pub owner_expiry: Duration,
}

impl Default for BusLimits {
    fn default() -> Self {
        Self {
            max_line: narrows_wire::DEFAULT_MAX_LINE_BYTES,
            max_batch: narrows_wire::DEFAULT_MAX_BATCH_ENTRIES,
            max_connections: 20_000,
            max_connections_per_identity: 1_000,
            max_anonymous_connections: 18_000,
            max_sessions_per_identity: 10_000,
            max_sessions_per_worker: 256,
            max_rate_per_identity: 100_000,
            queue_bytes: 8 << 20,
            unfinished_input: 256 << 20,
            unfinished_input_per_identity: 64 << 20,
            stall_timeout: Duration::from_secs(30),
            initialize_timeout: Duration::from_secs(30),
            open_timeout: Duration::from_secs(300),
            cancel_grace: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            session_grace: Duration::from_secs(300),
            disconnect_grace: Duration::ZERO,
            restart_budget: 5,
            restart_window: Duration::from_secs(60),
            memory: 0,
            replay_bytes: 4 << 20,
            replay_time: Duration::from_secs(300),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(45),
            owner_expiry: Duration::from_secs(90 * 24 * 3600),
        }
    }
}

impl BusLimits {
    /// Returns the maximum number of bytes of incomplete messages: of all clients, and of one identity. With
    /// a memory budget, neither exceeds half of the budget.
    #[must_use]
    pub fn unfinished(&self) -> (usize, usize) {
        let all = match self.memory {
            0 => self.unfinished_input,
            memory => self.unfinished_input.min(usize::try_from(memory / 2).unwrap_or(usize::MAX)),
        };
        (all, all.min(self.unfinished_input_per_identity))
    }

    /// Returns the maximum number of bytes of complete messages that wait until a worker reads or answers
    /// them: of all clients, and of one identity. Equal to [`BusLimits::unfinished`]; with a memory budget,
    /// half and a quarter of the first value there.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        match (self.memory, self.unfinished()) {
            (0, limits) => limits,
            (_, (all, _)) => (all / 2, all / 4),
        }
    }

    /// Returns the maximum number of bytes of output kept for reconnecting clients: of all identities, and of
    /// one. With a memory budget, at most an eighth and a sixteenth of the budget.
    #[must_use]
    pub fn replay_memory(&self) -> (usize, usize) {
        let (all, one) = (MAX_REPLAY_BYTES, MAX_REPLAY_BYTES / 4);
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (all, one),
            memory => (all.min(memory / 8), one.min(memory / 16)),
        }
    }

    /// Returns the maximum number of bytes of session params kept to restore sessions: of all identities, and
    /// of one. With a memory budget, at most an eighth and a sixteenth of the budget.
    #[must_use]
    pub fn session_params(&self) -> (usize, usize) {
        let (all, one) = (MAX_SESSION_PARAMS_BYTES, MAX_SESSION_PARAMS_BYTES / 4);
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (all, one),
            memory => (all.min(memory / 8), one.min(memory / 16)),
        }
    }

    /// Returns the maximum number of bytes for the records of session owners: of all identities, and of one.
    /// With a memory budget, an eighth and a sixteenth of the budget.
    #[must_use]
    pub(crate) fn owner_memory(&self) -> (usize, usize) {
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (MAX_OWNER_BYTES, MAX_OWNER_BYTES),
            memory => (MAX_OWNER_BYTES.min(memory / 8), MAX_OWNER_BYTES.min(memory / 16)),
        }
    }

    /// Returns how old the recorded last use of a session must be before a new use is recorded.
    #[must_use]
    pub(crate) fn owner_refresh(expiry: Duration) -> Duration {
        Duration::from_secs(24 * 3600).min(expiry / 2)
    }
}

/// The listeners of the admin API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminConfig {
    pub socket: Option<PathBuf>,
    pub port: Option<String>,
    /// `true` if every user of this machine may connect to the admin port. `false`: only the user of the bus.
    pub is_open: bool,
}
