//! State of each client, each worker and each pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::config;

use super::api::{PoolId, Time};
use super::batch::BatchKey;
use super::children::ChildKey;
use super::fan_out::FanKey;
use super::former_names::FormerNames;
use super::identity::Identity;
use super::mcp_server_table::{ServerTable, ServerUse};
use super::mcp_servers::AskedServer;
use super::memory::{Account, Charge, LINE_BYTES};
use super::observers::SharedRequest;
use super::pending::PendingTable;
use super::session::{SessionKey, Waiting};
use super::splice::KeptLine;
use super::table::{ClientKey, WorkerKey};

/// Raw JSON that is stored: an id or a tag.
pub(super) type Raw = Box<[u8]>;

/// Lines of a peer that may wait, and pending requests of a peer.
pub(super) const MAX_OPEN_REQUESTS: usize = 16_384;

/// Pending requests of a client with long ids, and the size from which an id is long.
pub(super) const MAX_LONG_IDS: usize = 1_024;
pub(super) const LONG_ID_BYTES: usize = 256;

/// The kind of a request, as far as the bus distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Initialize,
    Authenticate,
    Logout,
    New,
    Load,
    Resume,
    Fork,
    List,
    Close,
    Delete,
    Prompt,
    /// A load that replays the history of a session to a new observer.
    Replay,
    /// The cancellation of a turn.
    Cancel,
    /// Any request to a child session.
    Child,
    Other,
}

impl RequestKind {
    pub(super) fn from_method(method: &str) -> Self {
        use narrows_acp::method;
        match method {
            method::SESSION_PROMPT => Self::Prompt,
            method::INITIALIZE => Self::Initialize,
            method::AUTHENTICATE | method::AUTH_LOGIN => Self::Authenticate,
            method::LOGOUT | method::AUTH_LOGOUT => Self::Logout,
            method::SESSION_NEW => Self::New,
            method::SESSION_LOAD => Self::Load,
            method::SESSION_RESUME => Self::Resume,
            method::SESSION_FORK => Self::Fork,
            method::SESSION_LIST => Self::List,
            method::SESSION_CLOSE => Self::Close,
            method::SESSION_DELETE => Self::Delete,
            _ => Self::Other,
        }
    }

    /// Returns `true` if it opens a stored session.
    pub(super) fn reopens(self) -> bool {
        matches!(self, Self::Load | Self::Resume)
    }

    /// Returns `true` if its response names a new session.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::New | Self::Fork)
    }
}

/// The origin of a request, which gets the response.
#[derive(Debug)]
pub(super) enum RequestOrigin {
    /// A client, with its own id.
    Client { client: ClientKey, id: Raw, batch: Option<BatchKey> },
    /// The bus itself.
    Internal(InternalRequest),
    /// A fan-out, of which this is one part.
    Fan(FanKey),
    /// The client is gone or has got an answer.
    Gone,
}

/// A request of the bus itself to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InternalRequest {
    /// `initialize`.
    Initialize,
    /// The replay of the client's login.
    Authenticate,
    /// The restore of a session.
    Restore(SessionKey),
    /// The close of a session to which no client returned.
    Close,
    /// The close of a session to make room for another.
    Evict,
}

/// A request that a worker has not answered.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) asker: RequestOrigin,
    pub(super) what: RequestKind,
    /// What it is about, as long as that session is in the same place.
    pub(super) session: Option<SessionKey>,
    /// How often that session had been moved.
    pub(super) moves: u64,
    /// Its offset in all that was ever queued for this worker.
    pub(super) start: u64,
    /// The top-level `sessionId`, which is returned with the response.
    pub(super) tag: Option<Raw>,
    /// The client's progress token, if the worker got another.
    pub(super) progress: Option<Raw>,
    /// Only for a request that opens a session.
    pub(super) opening: Option<Box<Opening>>,
    /// Memory charge for a client's request and what is kept for it.
    pub(super) charge: Option<Charge>,
}

impl Pending {
    /// Returns the client that sent the request, if one did and is still connected.
    pub(super) fn client(&self) -> Option<ClientKey> {
        match &self.asker {
            RequestOrigin::Client { client, .. } => Some(*client),
            _ => None,
        }
    }

    /// Returns the client's batch that the response belongs to.
    pub(super) fn batch(&self) -> Option<BatchKey> {
        match &self.asker {
            RequestOrigin::Client { batch, .. } => *batch,
            _ => None,
        }
    }
}

/// Details of a request that opens a session.
#[derive(Debug)]
pub(super) struct Opening {
    /// The request as the client sent it.
    pub(super) line: Raw,
    /// The client's identity. The client may be gone when the response arrives.
    pub(super) identity: Identity,
    /// The workers that do not know the session.
    pub(super) tried: Vec<WorkerKey>,
    /// It was refused once for lack of room and is repeated.
    pub(super) is_repeat: bool,
    /// Its client got an error because the worker did not answer in time.
    pub(super) is_overdue: bool,
    /// The MCP servers of the client that it names, until the session holds them.
    pub(super) servers: ServerUse,
    /// Memory charge for `line`.
    pub(super) charge: Charge,
}

/// A request of a worker that a client has not answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) worker: WorkerKey,
    pub(super) id: Raw,
    pub(super) batch: Option<BatchKey>,
    pub(super) is_permission: bool,
    /// Its session; of a child session, the session that the child belongs to.
    pub(super) session: Option<SessionKey>,
    /// Only for a request to an MCP server in the client.
    pub(super) server: Option<Box<AskedServer>>,
    /// For this, as long as it is in a table.
    pub(super) charge: Option<Charge>,
}

/// The location of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestLocation {
    /// Sent to a worker under this id.
    At(WorkerKey, u64),
    /// Sent to several workers, whose responses are merged.
    Fanned(FanKey),
    /// Not sent yet: it waits until a session is restored.
    AtSession(SessionKey),
    /// Not sent yet: it waits until a worker is initialized.
    InBacklog(WorkerKey),
    /// Refused by a worker for lack of room, and to be sent again.
    Refused(WorkerKey),
    /// Not sent yet: it waits for the sessions that a worker creates.
    BehindCreations,
    /// In a batch that is not complete, behind another request or answered there. It cannot be cancelled.
    InBatch,
}

/// A line of a client that waits for a worker.
#[derive(Debug)]
pub(super) struct HeldLine {
    pub(super) line: KeptLine,
    pub(super) batch: Option<BatchKey>,
    /// `true` if it was handled and then had to wait. `false` if it only waits behind another line.
    pub(super) accepted: bool,
}

/// Lines of a client that wait for a worker.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Reading from the client is paused because of them.
    pub(super) paused: bool,
    pub(super) serial: u64,
    /// The accepted ones come first.
    pub(super) lines: VecDeque<HeldLine>,
    pub(super) bytes: usize,
    /// Hashes of the ids of requests among the lines. Some may be outdated.
    pub(super) ids: FxHashSet<u64>,
    /// Memory charge for the lines.
    pub(super) charge: Option<Charge>,
    /// The lines contain a batch, which may concern any session.
    pub(super) has_batch: bool,
}

impl Held {
    /// Updates the charge to what is held.
    pub(super) fn recharge(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.set(self.bytes + self.lines.len() * LINE_BYTES);
        }
    }
}

/// State of a client.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) identity: Identity,
    /// What is held for that identity.
    pub(super) account: Arc<Account>,
    /// The scopes of its token.
    pub(super) scopes: Option<Box<[String]>>,
    /// `true` if the limits of an identity apply.
    pub(super) metered: bool,
    /// Reading is paused because its identity has exceeded its rate limit.
    pub(super) rate_limited: bool,
    pub(super) listener: usize,
    pub(super) ends_bus: bool,
    /// The only pools that its proof of identity permits; `None`: all.
    pub(super) pools: Option<Box<[String]>>,
    /// It is the user that the bus runs as, by the credentials of a unix socket or on stdio.
    pub(super) is_owner: bool,
    pub(super) pool: Option<PoolId>,
    /// It asked for a pool that does not exist, and for no other since.
    pub(super) pool_missing: bool,
    /// Its own worker, the first of them, or the one for messages without a session.
    pub(super) worker: Option<WorkerKey>,
    /// The params of its `initialize`, to be replayed to further workers.
    pub(super) initialize: Option<Raw>,
    /// Its notification that it has received the result of `initialize`, to be replayed (MCP).
    pub(super) initialized: Option<Raw>,
    /// The method and params of its login.
    pub(super) authenticate: Option<(Box<str>, Raw)>,
    /// Memory charges for `initialize` and `authenticate`.
    pub(super) charges: [Option<Charge>; 2],
    /// `true` if it shows notices.
    pub(super) notices: bool,
    pub(super) inflight: HashMap<Raw, RequestLocation>,
    /// The id of a request that was refused once for lack of room and is repeated.
    pub(super) repeated: Option<Raw>,
    pub(super) asked: FxHashMap<u64, Asked>,
    pub(super) next_ask: u64,
    pub(super) sessions: FxHashSet<SessionKey>,
    /// Sessions of other clients that it observes.
    pub(super) observing: FxHashSet<SessionKey>,
    pub(super) held: Option<Box<Held>>,
    /// Its held lines are being handled, so not all its pending requests are known yet.
    pub(super) catching_up: bool,
    /// Its input has ended.
    pub(super) eof: bool,
    /// It is being closed.
    pub(super) closing: bool,
    /// Its queue is full.
    pub(super) full: bool,
    /// Bytes of a message over the limit that was queued while the queue was empty, until that has drained.
    pub(super) oversize: usize,
    /// Reading is paused because it does not drain its own queue.
    pub(super) self_paused: bool,
    /// The workers that are paused because of it.
    pub(super) pausing: Vec<WorkerKey>,
    /// Number of reasons why reading from it is paused.
    pub(super) paused: u32,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerLifecycle {
    /// Its process is being started.
    Starting,
    /// `initialize` is pending.
    Initializing,
    Ready,
    /// It gets no new sessions and is stopped when its turns have ended.
    Retiring,
    /// It is being stopped.
    Stopping,
}

/// The identities that a worker has served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tenants {
    #[default]
    None,
    One(Identity),
    Several,
}

impl Tenants {
    pub(super) fn add(&mut self, identity: Identity) {
        *self = match *self {
            Self::None => Self::One(identity),
            Self::One(only) if only == identity => Self::One(only),
            Self::One(_) | Self::Several => Self::Several,
        };
    }
}

/// A worker's message about a session that is not known yet.
#[derive(Debug)]
pub(super) struct EarlyMessage {
    pub(super) name: Box<str>,
    pub(super) line: Box<[u8]>,
    pub(super) batch: Option<BatchKey>,
    pub(super) since: Time,
}

/// State of a worker.
#[derive(Debug)]
pub(super) struct WorkerState {
    /// Its name in the cursors of session lists.
    pub(super) serial: u64,
    pub(super) pool: PoolId,
    pub(super) stage: WorkerLifecycle,
    pub(super) pid: u32,
    /// The client that uses it exclusively.
    pub(super) client: Option<ClientKey>,
    /// `true` if that client took it over from one that is gone.
    pub(super) inherited: bool,
    /// `true` if a client has ever used it.
    pub(super) claimed: bool,
    /// `true` if a request to open a session was sent to it.
    pub(super) used: bool,
    /// `true` if it speaks version 2, in which a state update ends a turn.
    pub(super) is_v2: bool,
    /// Its session capabilities, in a pool that is not shared.
    pub(super) abilities: Option<Abilities>,
    /// `true` if it may announce child sessions: in version 2, or if its client shows them.
    pub(super) announces: bool,
    pub(super) identity: Option<Identity>,
    /// The scopes that were sent to its gate.
    pub(super) scopes: Option<Box<[String]>>,
    pub(super) pending: PendingTable,
    pub(super) next_id: u64,
    /// Bytes that were ever queued for it.
    pub(super) queued: u64,
    /// Its requests that clients have not answered.
    pub(super) asking: HashMap<Raw, (ClientKey, u64)>,
    /// Those of them that observers are asked too.
    pub(super) shared: HashMap<Raw, SharedRequest>,
    pub(super) sessions: FxHashSet<SessionKey>,
    /// Sessions whose name here differs from the one for clients.
    pub(super) aliases: HashMap<Box<str>, SessionKey>,
    /// Child sessions, by their names here.
    pub(super) children: HashMap<Box<str>, ChildKey>,
    /// It had a session that has ended.
    pub(super) had_session: bool,
    pub(super) former: FormerNames,
    /// The identities that it has served, if it is shared.
    pub(super) tenants: Tenants,
    /// The session of its last message.
    pub(super) recent: Option<SessionKey>,
    /// Its last line, to recognize similar ones without a scan.
    pub(super) alike: narrows_wire::ScanCache,
    /// Sessions with a cancelled turn whose client's time to answer the worker's requests is over. Some of the turns may have
    /// ended.
    pub(super) overdue_turns: Vec<SessionKey>,
    /// Messages about sessions that are not known yet.
    pub(super) early_messages: Vec<EarlyMessage>,
    pub(super) early_bytes: usize,
    /// The number of sessions at which it was full, and until when that is assumed.
    pub(super) capacity: Option<(usize, Time)>,
    /// Requests that it refused for lack of room, until it has made some.
    pub(super) refused: Vec<Waiting>,
    /// Lines that wait until it is initialized.
    pub(super) backlog: Vec<Waiting>,
    /// Sessions to restore once it is initialized.
    pub(super) restores: Vec<SessionKey>,
    /// The MCP servers in clients.
    pub(super) servers: ServerTable,
    pub(super) strikes: Vec<Time>,
    /// Its last chance to answer requests without a client is running.
    pub(super) abandoned: bool,
    /// It is retired by a reload, not for a fault.
    pub(super) unwanted: bool,
    /// It is stopped as soon as no turn runs in it, even if it has sessions.
    pub(super) overdue: bool,
    /// It has closed its input and can receive nothing.
    pub(super) input_closed: bool,
    /// Its fault, if it is retired for one.
    pub(super) fault: Option<&'static str>,
    pub(super) full: bool,
    /// Reading is paused because it does not drain its own queue.
    pub(super) self_paused: bool,
    pub(super) pausing: Vec<ClientKey>,
    /// Memory charges for lines of clients in its full queue.
    pub(super) charges: Vec<Charge>,
    /// Number of reasons why reading from it is paused.
    pub(super) paused: u32,
    pub(super) since: Time,
}

impl WorkerState {
    /// Returns `true` if it has no client and no session left, only pending requests whose clients are gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.claimed
            && self.client.is_none()
            && self.sessions.is_empty()
            && !self.pending.is_empty()
            && matches!(self.stage, WorkerLifecycle::Initializing | WorkerLifecycle::Ready)
    }

    /// Forgets the name that it has for a session, where that is not the one clients use.
    pub(super) fn forget_alias(&mut self, key: SessionKey, name: &str) {
        if self.aliases.get(name) == Some(&key) {
            self.aliases.remove(name);
        }
    }

    /// Returns `true` if lines can be sent to it.
    pub(super) fn accepts_input(&self) -> bool {
        !self.input_closed && !matches!(self.stage, WorkerLifecycle::Starting | WorkerLifecycle::Stopping)
    }
}

/// The session capabilities of an agent that the bus uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) load: bool,
    pub(super) resume: bool,
    pub(super) close: bool,
}

/// State of a pool.
#[derive(Debug)]
pub(super) struct PoolState {
    pub(super) settings: config::Pool,
    pub(super) workers: Vec<WorkerKey>,
    /// The pool that a reload replaced it with.
    pub(super) successor: Option<PoolId>,
    /// A reload removed it.
    pub(super) removed: bool,
    /// Number of consecutive losses of workers.
    pub(super) failures: u32,
    pub(super) losses: VecDeque<Time>,
    /// While the circuit breaker is open, no worker is started before this time.
    pub(super) open_until: Option<Time>,
    /// After a loss, no worker is started before this time.
    pub(super) delayed_until: Time,
    /// The reason of the last loss.
    pub(super) last_loss: Option<Arc<str>>,
    /// Clients that wait for a worker.
    pub(super) waiting: VecDeque<ClientKey>,
    /// Sessions that wait for a worker to be restored in.
    pub(super) restores: VecDeque<SessionKey>,
    /// The common session capabilities of its workers, if they are shared.
    pub(super) abilities: Abilities,
    /// The workers' results of `initialize`, and the merged one, if they are shared.
    pub(super) answers: FxHashMap<WorkerKey, serde_json::Value>,
    pub(super) answer: Option<Raw>,
}

impl PoolState {
    pub(super) fn new(settings: config::Pool) -> Self {
        Self {
            settings,
            workers: Vec::new(),
            successor: None,
            removed: false,
            failures: 0,
            losses: VecDeque::new(),
            open_until: None,
            delayed_until: Time::ZERO,
            last_loss: None,
            waiting: VecDeque::new(),
            restores: VecDeque::new(),
            abilities: Abilities::default(),
            answers: FxHashMap::default(),
            answer: None,
        }
    }

    /// Returns `true` if a reload has replaced or removed it.
    pub(super) fn is_leaving(&self) -> bool {
        self.removed || self.successor.is_some()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.settings.share == config::Share::All
    }

    pub(super) fn is_acp(&self) -> bool {
        self.settings.protocol != config::Protocol::JsonRpc
    }
}
