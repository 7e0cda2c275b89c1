//! What goes into the core and what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A moment, as the time since the driver started: the core has no clock.
pub type Time = Duration;

/// A client's connection. The number is used again once [`Core::client_gone`](super::Core::client_gone) was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// A worker. The number is used again once [`Core::worker_gone`](super::Core::worker_gone) was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// A pool; numbers are not used again, a reload gives a changed pool a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// The identity of whoever is on this machine, where nobody is asked who he is.
pub const ANYONE: &str = "anyone";

/// How a client came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo<'a> {
    /// Which of the configured listeners it came through.
    pub listener: usize,
    /// Who it is. What it opens is seen by nobody with another identity.
    pub identity: &'a str,
    /// What its proof of that narrows it to, where something is served that has scopes.
    pub scopes: Option<&'a [String]>,
    /// Whether the limits of an identity hold for it: where clients are asked who they are.
    pub metered: bool,
    /// Whether the bus ends when this client's input does, as on stdio.
    pub ends_bus: bool,
    /// The only pools that its proof of identity permits; `None`: all.
    pub pools: Option<&'a [String]>,
    /// Whether it is the user that the bus runs as, by the credentials of a unix socket or on stdio.
    pub is_owner: bool,
}

impl<'a> ClientInfo<'a> {
    /// A client without scopes, limits of an identity, or a restriction to pools.
    #[must_use]
    pub fn new(listener: usize, identity: &'a str) -> Self {
        Self {
            listener,
            identity,
            scopes: None,
            metered: false,
            ends_bus: false,
            pools: None,
            is_owner: false,
        }
    }
}

/// Where lines and orders go.
pub trait CoreOutput {
    /// Puts one line, the parts in a row and a line end, into the queue of a client. Tells how many bytes wait there now.
    fn to_client(&mut self, client: ClientId, parts: &[&[u8]]) -> usize;
    /// The same for a worker.
    fn to_worker(&mut self, worker: WorkerId, parts: &[&[u8]]) -> usize;
    /// Carries out an order.
    fn act(&mut self, action: Action);
}

/// An order of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a process.
    Spawn {
        /// What it will be called.
        worker: WorkerId,
        /// Which one.
        pool: PoolId,
    },
    /// End a worker and its tree.
    Stop {
        /// Which one.
        worker: WorkerId,
        /// At once, instead of end of input, SIGTERM, SIGKILL.
        kill: bool,
    },
    /// Read nothing from a worker for now.
    PauseWorker(WorkerId),
    /// Read from it again.
    ResumeWorker(WorkerId),
    /// Read nothing from a client for now.
    PauseClient(ClientId),
    /// Read from it again.
    ResumeClient(ClientId),
    /// Hang up on a client once it has what waits for it, or when it does not take it.
    Close {
        /// Which one.
        client: ClientId,
        /// Why.
        reason: Reason,
    },
    /// Write down whose a session is.
    Own {
        /// Who is told nothing more before that is done.
        client: Option<ClientId>,
        /// The session, under one of its names.
        session: OwnedName,
        /// Whose it is.
        identity: Arc<str>,
    },
    /// Write down that a session is no more.
    Disown {
        /// The session, under one of its names.
        session: OwnedName,
    },
    /// Something worth a line in the log or a count.
    Tell(Note),
    /// Nothing is left to do: the bus was told to stop, and has.
    Finished,
}

/// A session name with an owner.
///
/// Clients and agents may choose any text as a name. A name that the agents of a pool use is therefore never
/// joined with the pool's name into one text: such a text could also be a name that a client chose.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedName {
    /// `None`: the name that clients use, in all pools. Otherwise the name that the agents of this pool use.
    pub pool: Option<Box<str>>,
    /// The session's name.
    pub name: Box<str>,
}

impl OwnedName {
    /// Returns the number of bytes of both names.
    pub(crate) fn bytes(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.len()) + self.name.len()
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

/// Why a client is hung up on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It reads too slowly for a worker that others use too.
    SlowReader,
    /// The bus stops.
    Draining,
    /// All it was owed has been sent, and its input had ended.
    Served,
}

/// Why a worker is of no more use though its process may still be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// It is stopped (SIGSTOP).
    Stopped,
    /// It takes nothing of what waits for it.
    Undrained,
    /// It has closed its stdin.
    InputClosed {
        /// How many bytes of all that was put into its queue it may have read.
        taken: u64,
    },
    /// It has closed its stdout.
    OutputClosed,
}

/// How a worker ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerExit {
    /// The class of its exit and the end of its stderr, escaped.
    pub reason: String,
    /// How many bytes of all that was put into its queue it may have read.
    pub taken: u64,
    /// What was put into its queue and never written to it: whole lines, but for the first if that was written in part.
    pub unsent: Vec<u8>,
    /// Whether it was killed for using too much memory.
    pub oom: bool,
    /// Whether it never ran because we lacked descriptors, processes or memory, which is no fault of its own.
    pub ours: bool,
}

/// Something worth a line in the log or a count. Never holds what people said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A worker can be used.
    Ready(WorkerId),
    /// A worker is gone.
    Lost {
        /// Which one.
        worker: WorkerId,
        /// How it ended.
        reason: String,
        /// How many requests were told.
        requests: usize,
        /// How many sessions it had.
        sessions: usize,
    },
    /// A worker sent something that is no message, or that it had no right to send.
    Strike {
        /// Which one.
        worker: WorkerId,
        /// What.
        what: &'static str,
    },
    /// Something of a worker's could be delivered to nobody.
    Dropped {
        /// Whose.
        worker: WorkerId,
        /// Why.
        why: &'static str,
    },
    /// A pool's workers were lost too often: no more for now.
    CircuitOpened(PoolId),
    /// A pool works again.
    CircuitClosed(PoolId),
    /// A client named an MCP server that its pool does not permit.
    McpRefused {
        /// The client, unless a session was to be restored that has none.
        client: Option<ClientId>,
        /// The pool.
        pool: PoolId,
    },
    /// A client sent a member of `_meta` that its pool does not permit.
    MetaRefused {
        /// The client.
        client: ClientId,
        /// The pool.
        pool: PoolId,
    },
    /// A client asked for a pool that it may not use.
    PoolRefused(ClientId),
}
