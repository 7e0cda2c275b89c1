//! Inputs and outputs of the core.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A point in time, as the duration since the driver started.
pub type Time = Duration;

/// A client's connection. The number may be reused after [`Core::client_gone`](super::Core::client_gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// A worker. The number may be reused after [`Core::worker_gone`](super::Core::worker_gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// A pool. Numbers are not reused: a reload gives a changed pool a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// The identity of all clients that need no proof of identity.
pub const ANYONE: &str = "anyone";

/// The properties of a new client that its listener knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo<'a> {
    /// The index of the listener that accepted the client.
    pub listener: usize,
    /// The name of the client's identity. Only clients of the same identity see its sessions.
    pub identity: &'a str,
    /// The scopes of the client's token, for pools with a gate.
    pub scopes: Option<&'a [String]>,
    /// `true` if the client has proved its identity, so that the limits of an identity apply.
    pub is_authenticated: bool,
    /// `true` if the bus ends when the input of this client ends, as on stdio.
    pub ends_bus: bool,
    /// The pools to which the client's proof of identity restricts it. `None`: all pools.
    pub pools: Option<&'a [String]>,
    /// `true` if the client is the user that the bus runs as, by the credentials of a unix socket or on
    /// stdio.
    pub is_owner: bool,
}

impl<'a> ClientInfo<'a> {
    /// Returns a client without scopes, without limits of an identity, and without a restriction to pools.
    #[must_use]
    pub fn new(listener: usize, identity: &'a str) -> Self {
        Self {
            listener,
            identity,
            scopes: None,
            is_authenticated: false,
            ends_bus: false,
            pools: None,
            is_owner: false,
        }
    }
}

/// Receives the lines and actions of the core.
pub trait CoreOutput {
    /// Appends one line, made of the parts and a line end, to the queue of a client. Returns the number of
    /// bytes in the queue.
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize;
    /// Appends one line to the queue of a worker. Returns the number of bytes in the queue.
    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize;
    /// Performs an action.
    fn perform(&mut self, action: CoreAction);
}

/// An action that the driver performs for the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreAction {
    Spawn {
        worker: WorkerId,
        pool: PoolId,
    },
    /// End a worker and its process tree.
    Stop {
        worker: WorkerId,
        /// `true`: kill the worker at once. `false`: close its stdin, then send SIGTERM, then SIGKILL.
        kill: bool,
    },
    PauseWorker(WorkerId),
    ResumeWorker(WorkerId),
    PauseClient(ClientId),
    ResumeClient(ClientId),
    /// Close a client after its queue is flushed or the linger timeout expires.
    Close {
        client: ClientId,
        reason: ClientCloseReason,
    },
    RecordOwner {
        /// The client that gets no more output before the session's owner is on disk.
        client: Option<ClientId>,
        /// A session, under one of its names.
        session: OwnedName,
        identity: Arc<str>,
    },
    DeleteOwner {
        /// A session, under one of its names.
        session: OwnedName,
    },
    Log(LogEvent),
    Finished,
}

/// Estimated bytes that the tables use for the owner of one session, without the session's names.
const OWNER_RECORD_BYTES: usize = 256;

/// A session name with an owner.
///
/// Clients and agents may choose any text as a name. A name that the agents of a pool use is therefore never
/// joined with the pool's name into one text: such a text could also be a name that a client chose.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedName {
    /// `None`: a name that clients use, in all pools. Otherwise, the pool whose agents use the name.
    pub pool: Option<Box<str>>,
    pub name: Box<str>,
}

impl OwnedName {
    /// Returns the estimated size of the record of the owner. The record is stored twice, each time with the
    /// names: in the tables of the core, and in those of the thread that writes the owners to disk.
    pub(crate) fn record_bytes(&self) -> usize {
        OWNER_RECORD_BYTES + 2 * (self.pool.as_ref().map_or(0, |pool| pool.len()) + self.name.len())
    }
}

impl From<&str> for OwnedName {
    fn from(name: &str) -> Self {
        Self { pool: None, name: name.into() }
    }
}

impl fmt::Debug for OwnedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pool) = &self.pool {
            write!(f, "{pool:?}/")?;
        }
        write!(f, "{:?}", self.name)
    }
}

/// The reason to close a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCloseReason {
    SlowReader,
    Draining,
    /// The input of the client has ended and all its requests are answered.
    Served,
}

/// The reason why a worker can no longer be used although its process may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StuckReason {
    Stopped,
    /// The worker does not read its stdin.
    Undrained,
    InputClosed {
        /// Number of queued bytes that the worker may have read.
        bytes_read: u64,
    },
    OutputClosed,
}

/// The end of a worker: the reason, and what the worker did not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerExit {
    /// The class of the exit and the last stderr lines, escaped.
    pub reason: String,
    /// Number of queued bytes that the worker may have read.
    pub bytes_read: u64,
    /// Queued bytes that were never written to the worker: whole lines, except the first if it was written in
    /// part.
    pub unsent: Vec<u8>,
    /// `true` if the worker was killed because it used too much memory.
    pub oom: bool,
    /// `true` if the process never ran because the bus lacked file descriptors, processes or memory.
    pub lacked_resources: bool,
}

/// An event for the log or a counter. Never contains message content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    Ready(WorkerId),
    Lost {
        worker: WorkerId,
        reason: String,
        /// Number of the worker's pending requests that were answered with an error.
        requests: usize,
        sessions: usize,
    },
    Strike {
        worker: WorkerId,
        what: &'static str,
    },
    /// A message of a worker was dropped because no client may get it.
    Dropped {
        worker: WorkerId,
        why: &'static str,
    },
    CircuitOpened(PoolId),
    CircuitClosed(PoolId),
    McpRefused {
        /// The client that named the server. `None` if a session without a client was to be restored.
        client: Option<ClientId>,
        pool: PoolId,
    },
    MetaRefused {
        client: ClientId,
        pool: PoolId,
    },
    PoolRefused(ClientId),
}
