//! What a bus is told: where to listen, which workers to keep, and what nobody may exceed.

mod address;
mod here;
mod mcp;
mod program;
mod read;
mod settings;
pub mod shown;
mod stdio_bus;
#[cfg(test)]
mod tests;
mod web;

pub use address::expand_home;
pub use here::Here;
pub use mcp::{McpAccess, McpServer, McpTarget};
pub use read::{Inspected, inspect, read};
pub use web::{Auth, MAKES_TOKENS, TAKES_PEM, Tls, Web, host, origin};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use here::Spots;
use read::Placed;
use serde_json::Value;

/// How long the end of a bus may take beyond what running turns are given: agents are told to end, and then made to.
pub const LADDER: Duration = Duration::from_secs(10);

/// The most bytes that are kept to be sent again.
const MAX_REPLAY_MEMORY: usize = 256 << 20;

/// How many bytes of the params of all sessions are kept to restore them, without a memory budget.
const MAX_SESSION_PARAMS: usize = 256 << 20;

/// How many bytes the records of session owners may take, without a memory budget.
const MAX_OWNER_BYTES: usize = 256 << 20;

/// Everything a bus is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where clients come in.
    pub listen: Vec<Listen>,
    /// The workers; the first pool serves whoever names none.
    pub pools: Vec<Pool>,
    /// What nobody may exceed.
    pub limits: Limits,
    /// Where operators come in.
    pub admin: Admin,
}

impl Config {
    /// Whether clients come over a network, or may.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.listen.iter().any(|listen| matches!(listen.at, Door::Web(_)))
    }

    /// Whether clients are asked who they are, so that it is written down whose each session is.
    #[must_use]
    pub fn keeps_owners(&self) -> bool {
        self.listen.iter().any(|listen| matches!(&listen.at, Door::Web(web) if web.auth.names_clients()))
    }

    /// Whether some come in as a user and others as anyone, so that they are told apart though nobody is asked.
    #[must_use]
    pub fn tells_apart(&self) -> bool {
        let is_user = |listen: &Listen| matches!(listen.at, Door::Stdio | Door::Unix(_));
        self.listen.iter().any(is_user) && !self.listen.iter().all(is_user)
    }
}

/// One place where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The place.
    pub at: Door,
    /// The pool of whoever comes in there and names none. Without `pools` it is the only one that can be used there.
    pub pool: Option<String>,
    /// The pools that can be used there; `None`: only `pool`, or all if that is `None` too.
    pub pools: Option<Vec<String>>,
    /// Who is admitted on TCP: [`Auth::User`] or [`Auth::None`]. For HTTP and WebSocket see [`Web::auth`].
    pub auth: Auth,
}

impl Listen {
    /// A listener without any restriction but the default `auth`.
    #[must_use]
    pub fn new(at: Door) -> Self {
        Self { at, pool: None, pools: None, auth: Auth::User }
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

    /// The names of its pools, the default one first. Empty if it permits all.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.pool.iter().chain(self.pools.iter().flatten()).map(String::as_str)
    }
}

/// A place where clients can come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// Our own stdin and stdout, for one client.
    Stdio,
    /// A host and a port.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
    /// HTTP and WebSocket.
    Web(Box<Web>),
}

/// Who shares a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Nobody: each connection has its own.
    Connection,
    /// Nobody: each session has its own.
    Session,
    /// Everybody.
    All,
}

/// What the workers of a pool speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// ACP version 1.
    V1,
    /// ACP version 2.
    V2,
    /// Any JSON-RPC in lines, of which nothing but `sessionId` is known.
    JsonRpc,
}

/// Workers of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// How it is called.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The manifest by which its workers are governed, each by a gate of its own that is told who its client is.
    pub manifest: Option<PathBuf>,
    /// Who may come in there, and what they may cause.
    pub identities: Option<PathBuf>,
    /// Where it runs; here if `None`.
    pub cwd: Option<PathBuf>,
    /// How many are kept ready.
    pub instances: u32,
    /// How many there may be at once.
    pub max_instances: u32,
    /// Who shares one.
    pub share: Share,
    /// What they speak.
    pub protocol: Protocol,
    /// Variables added to their environment.
    pub env: BTreeMap<String, String>,
    /// Patterns of variables that are passed on to them.
    pub pass_env: Vec<String>,
    /// Whether they get our whole environment.
    pub whole_env: bool,
    /// What workers shared by all are told that clients can do.
    pub client_capabilities: Value,
    /// Whether different users may share a worker.
    pub mix_identities: bool,
    /// The most memory a worker's tree may use, in bytes.
    pub memory: Option<u64>,
    /// The most processes a worker's tree may have.
    pub pids: Option<u64>,
    /// Which MCP servers clients may name. `None`: any for the user of the bus on stdio and unix sockets, none for others.
    pub mcp: Option<McpAccess>,
    /// The servers that clients select by name with [`McpAccess::Listed`].
    pub mcp_servers: Vec<McpServer>,
    /// Members of `_meta` that clients may send which may not name any MCP server.
    pub client_meta: Vec<String>,
}

impl Pool {
    /// Makes it one whose workers serve a manifest, with an agent behind a gate for each client.
    #[must_use]
    pub fn governed(self, manifest: PathBuf, identities: Option<PathBuf>) -> Self {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut command = vec!["narrows".to_owned(), "serve".to_owned(), "--for-bus".to_owned()];
        command.extend(identities.iter().map(|file| format!("--identities={}", path(file))));
        command.extend([path(&manifest)]);
        Self { command, manifest: Some(manifest), identities, ..self }
    }

    /// One with the defaults of everything but its name and command.
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
            share: Share::Connection,
            protocol: Protocol::V1,
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

/// What nobody may exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest line, in bytes.
    pub max_line: usize,
    /// The most entries of a batch.
    pub max_batch: usize,
    /// The most connections at once.
    pub max_connections: usize,
    /// The most connections at once of an identity, where clients are asked who they are.
    pub max_connections_per_identity: usize,
    /// The most connections at once of clients that are not asked who they are and are no user of this machine.
    pub max_anonymous_connections: usize,
    /// The same for the sessions of an identity that are open.
    pub max_sessions_per_identity: usize,
    /// The most sessions of one identity at a worker that different identities share.
    pub max_sessions_per_worker: usize,
    /// The most messages a second of an identity; beyond that it is read more slowly. 0 means any number.
    pub max_rate_per_identity: u64,
    /// The most that waits for one peer, in bytes; one larger message is let into an empty queue.
    pub queue_bytes: usize,
    /// The most input of all clients that is no whole message yet, in bytes.
    pub unfinished_input: usize,
    /// The same of one identity.
    pub unfinished_input_per_identity: usize,
    /// How long a peer with a full queue may take nothing.
    pub stall_timeout: Duration,
    /// How long a worker may take to answer `initialize`.
    pub initialize_timeout: Duration,
    /// How long a worker may take to answer `session/new` and `session/fork`.
    pub open_timeout: Duration,
    /// How long a worker may take to end a turn that was cancelled.
    pub cancel_grace: Duration,
    /// How long running turns may take once the bus is to stop.
    pub drain_timeout: Duration,
    /// How long a session without a client is kept.
    pub session_grace: Duration,
    /// How long a turn without a client goes on.
    pub disconnect_grace: Duration,
    /// How many workers of a pool may be lost within `restart_window`.
    pub restart_budget: u32,
    /// See `restart_budget`.
    pub restart_window: Duration,
    /// The memory budget of the bus itself, in bytes; 0 means none.
    pub memory: u64,
    /// How much is kept of what was sent on a connection or a session that can be taken up again, in bytes.
    pub replay_bytes: usize,
    /// How long a connection that was cut off can be taken up again, and what was sent on it is kept.
    pub replay_time: Duration,
    /// How long a request may take to say what it wants: the head of an HTTP request, a handshake, the first message on TCP.
    pub header_timeout: Duration,
    /// How long a peer over the network may be silent, pings included, before it is taken to be gone.
    pub idle_timeout: Duration,
    /// How long it is kept whose a session is that nobody uses.
    pub owner_expiry: Duration,
}

impl Default for Limits {
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

impl Limits {
    /// How much input that is no whole message yet all clients may hold, and how much one identity. With a memory budget it is half of that
    /// at most.
    #[must_use]
    pub fn unfinished(&self) -> (usize, usize) {
        let all = match self.memory {
            0 => self.unfinished_input,
            memory => self.unfinished_input.min(usize::try_from(memory / 2).unwrap_or(usize::MAX)),
        };
        (all, all.min(self.unfinished_input_per_identity))
    }

    /// How many bytes of messages that are whole the bus may hold for all clients, and for one identity: until a worker reads or answers
    /// them. With a memory budget it is a quarter of that, and half of it for one.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        match (self.memory, self.unfinished()) {
            (0, limits) => limits,
            (_, (all, _)) => (all / 2, all / 4),
        }
    }

    /// How many bytes that were sent may be kept to be sent again: on all connections over the network, and on those of one
    /// identity. With a memory budget it is an eighth and a sixteenth of that.
    #[must_use]
    pub fn replay_memory(&self) -> (usize, usize) {
        let (all, one) = (MAX_REPLAY_MEMORY, MAX_REPLAY_MEMORY / 4);
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (all, one),
            memory => (all.min(memory / 8), one.min(memory / 16)),
        }
    }

    /// How many bytes of the params with which sessions were opened may be kept to restore them: of all sessions, and of those of one
    /// identity. With a memory budget it is an eighth and a sixteenth of that.
    #[must_use]
    pub fn session_params(&self) -> (usize, usize) {
        let (all, one) = (MAX_SESSION_PARAMS, MAX_SESSION_PARAMS / 4);
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (all, one),
            memory => (all.min(memory / 8), one.min(memory / 16)),
        }
    }

    /// How many bytes the records of session owners may take: of all sessions, and of those of one identity. With a memory budget it is an
    /// eighth and a sixteenth of that.
    #[must_use]
    pub(crate) fn owner_memory(&self) -> (usize, usize) {
        match usize::try_from(self.memory).unwrap_or(usize::MAX) {
            0 => (MAX_OWNER_BYTES, MAX_OWNER_BYTES),
            memory => (MAX_OWNER_BYTES.min(memory / 8), MAX_OWNER_BYTES.min(memory / 16)),
        }
    }

    /// How old it may be that a session was last known to be used, before its next use is written down.
    #[must_use]
    pub(crate) fn owner_refresh(expiry: Duration) -> Duration {
        Duration::from_secs(24 * 3600).min(expiry / 2)
    }
}

/// Where operators come in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// A unix socket.
    pub socket: Option<PathBuf>,
    /// A loopback host and port.
    pub port: Option<String>,
    /// Whether every user of this machine may use the port; else only the user of the bus.
    pub is_open: bool,
}
