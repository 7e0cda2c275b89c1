//! The state of each client, each worker and each pool.

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

pub(super) type Raw = Box<[u8]>;

/// Maximum number of lines of a peer that wait, and maximum number of its pending requests.
pub(super) const MAX_OPEN_REQUESTS: usize = 16_384;

/// Maximum number of pending requests of a client whose ids have `LONG_ID_BYTES` or more.
pub(super) const MAX_LONG_IDS: usize = 1_024;
pub(super) const LONG_ID_BYTES: usize = 256;

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
    /// A `session/load` that replays the history of a session to a new observer.
    Replay,
    Cancel,
    /// Any request that names a child session.
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

    pub(super) fn reopens(self) -> bool {
        matches!(self, Self::Load | Self::Resume)
    }

    /// Returns `true` if the response to the request names a new session.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::New | Self::Fork)
    }
}

#[derive(Debug)]
pub(super) enum RequestOrigin {
    Client {
        client: ClientKey,
        id: Raw,
        batch: Option<BatchKey>,
    },
    Internal(InternalRequest),
    /// The request is one of several that a client's request to several workers has caused.
    Fan(FanKey),
    /// The client has disconnected, or has already got a response.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InternalRequest {
    Initialize,
    /// A client's login that is sent to a further worker of the client.
    Authenticate,
    Restore(SessionKey),
    Close,
    /// A `session/close` that makes room for another session.
    Evict,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) asker: RequestOrigin,
    pub(super) what: RequestKind,
    /// The session that the request is about. It counts only while `session_removals` is unchanged.
    pub(super) session: Option<SessionKey>,
    /// The value of the session's `removals` when the request was sent.
    pub(super) session_removals: u64,
    /// Number of bytes that were ever queued for this worker before the request.
    pub(super) start: u64,
    /// The top-level `sessionId` of the request, which is returned with the response.
    pub(super) tag: Option<Raw>,
    /// The client's progress token, if the worker got another one in its place.
    pub(super) progress: Option<Raw>,
    pub(super) opening: Option<Box<Opening>>,
    pub(super) charge: Option<Charge>,
}

impl Pending {
    /// Returns the client that sent the request. `None`: no client sent it, or that client has disconnected.
    pub(super) fn client(&self) -> Option<ClientKey> {
        match &self.asker {
            RequestOrigin::Client { client, .. } => Some(*client),
            _ => None,
        }
    }

    pub(super) fn batch(&self) -> Option<BatchKey> {
        match &self.asker {
            RequestOrigin::Client { batch, .. } => *batch,
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Opening {
    pub(super) line: Raw,
    /// The identity of the client, which may have disconnected when the response arrives.
    pub(super) identity: Identity,
    /// The workers that have answered that they do not know the session.
    pub(super) tried: Vec<WorkerKey>,
    /// `true` if the request was refused once for lack of room and was sent again.
    pub(super) is_repeat: bool,
    /// `true` if the client already got an error because the worker did not answer in time.
    pub(super) is_overdue: bool,
    /// The MCP servers of the client that the request names, until the session holds them.
    pub(super) servers: ServerUse,
    pub(super) charge: Charge,
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) worker: WorkerKey,
    pub(super) id: Raw,
    pub(super) batch: Option<BatchKey>,
    pub(super) is_permission: bool,
    /// The session of the request. For a request in a child session, the session to which the child belongs.
    pub(super) session: Option<SessionKey>,
    pub(super) server: Option<Box<AskedServer>>,
    pub(super) charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestLocation {
    /// The request was sent to a worker under this id.
    At(WorkerKey, u64),
    /// The request was sent to several workers, whose responses are merged.
    Fanned(FanKey),
    /// The request waits until a session is restored.
    AtSession(SessionKey),
    /// The request waits until a worker is initialized.
    InBacklog(WorkerKey),
    /// A worker has refused the request for lack of room. The request is sent again.
    Refused(WorkerKey),
    /// The request waits until a worker has answered the requests for new sessions.
    BehindCreations,
    /// The request is in a batch, where it waits behind another request or is already answered. It cannot be
    /// cancelled.
    InBatch,
}

#[derive(Debug)]
pub(super) struct HeldLine {
    pub(super) line: KeptLine,
    pub(super) batch: Option<BatchKey>,
    /// `true` if the bus has handled the line and found that it has to wait. `false` if the line only waits
    /// behind another one.
    pub(super) accepted: bool,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    /// `true` while reading from the client is paused because of the held lines.
    pub(super) paused: bool,
    pub(super) serial: u64,
    /// The held lines. Accepted ones come first.
    pub(super) lines: VecDeque<HeldLine>,
    pub(super) bytes: usize,
    /// Hashes of the ids of held requests. Some of the requests may no longer be held.
    pub(super) ids: FxHashSet<u64>,
    pub(super) charge: Option<Charge>,
    /// `true` if a held line is a batch, which may concern any session.
    pub(super) has_batch: bool,
}

impl Held {
    pub(super) fn recharge(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.set(self.bytes + self.lines.len() * LINE_BYTES);
        }
    }
}

#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) identity: Identity,
    pub(super) account: Arc<Account>,
    pub(super) scopes: Option<Box<[String]>>,
    /// `true` if the client has proved its identity, so that the limits of an identity apply.
    pub(super) is_authenticated: bool,
    /// `true` while reading from the client is paused because its identity has exceeded its rate limit.
    pub(super) rate_limited: bool,
    pub(super) listener: usize,
    pub(super) ends_bus: bool,
    /// The pools to which the client's proof of identity restricts it. `None`: all pools.
    pub(super) pools: Option<Box<[String]>>,
    /// `true` if the client is the user that the bus runs as, by the credentials of a unix socket or on
    /// stdio.
    pub(super) is_owner: bool,
    pub(super) pool: Option<PoolId>,
    /// `true` if the client asked for a pool that does not exist, and has not chosen another one since.
    pub(super) pool_missing: bool,
    /// The client's only or first worker, or the one that gets its messages without a session.
    pub(super) worker: Option<WorkerKey>,
    pub(super) initialize: Option<Raw>,
    /// The client's MCP notification that it has received the result of `initialize`. It is kept for further
    /// workers.
    pub(super) initialized: Option<Raw>,
    /// The method and params of the client's login. They are kept for further workers.
    pub(super) authenticate: Option<(Box<str>, Raw)>,
    pub(super) charges: [Option<Charge>; 2],
    pub(super) notices: bool,
    pub(super) inflight: HashMap<Raw, RequestLocation>,
    /// The id of a request that was refused once for lack of room and is sent again.
    pub(super) repeated: Option<Raw>,
    pub(super) asked: FxHashMap<u64, Asked>,
    pub(super) next_ask: u64,
    pub(super) sessions: FxHashSet<SessionKey>,
    pub(super) observing: FxHashSet<SessionKey>,
    pub(super) held: Option<Box<Held>>,
    /// `true` while the held lines of the client are being handled, so that some of its requests are not
    /// known as pending yet.
    pub(super) catching_up: bool,
    pub(super) eof: bool,
    pub(super) closing: bool,
    pub(super) full: bool,
    /// Bytes of a line over the limit that was accepted into a queue that was not full. 0 once the queue has
    /// drained.
    pub(super) oversize: usize,
    /// `true` while reading from the client is paused because it does not drain its own queue.
    pub(super) self_paused: bool,
    /// The workers that are not read because this client does not drain its queue.
    pub(super) pausing: Vec<WorkerKey>,
    pub(super) paused: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerLifecycle {
    Starting,
    Initializing,
    Ready,
    /// The worker gets no new sessions and is stopped when its turns have ended.
    Retiring,
    Stopping,
}

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

#[derive(Debug)]
pub(super) struct EarlyMessage {
    pub(super) name: Box<str>,
    pub(super) line: Box<[u8]>,
    pub(super) batch: Option<BatchKey>,
    pub(super) since: Time,
}

#[derive(Debug)]
pub(super) struct WorkerState {
    /// A number that identifies the worker in cursors of session lists.
    pub(super) serial: u64,
    pub(super) pool: PoolId,
    pub(super) stage: WorkerLifecycle,
    pub(super) pid: u32,
    pub(super) client: Option<ClientKey>,
    /// `true` if the present client took the worker over from one that has disconnected.
    pub(super) inherited: bool,
    pub(super) claimed: bool,
    /// `true` if the worker was sent a request to open a session.
    pub(super) used: bool,
    /// `true` if the worker speaks version 2, in which a state update ends a turn.
    pub(super) is_v2: bool,
    /// Session capabilities of the worker. `None` in a shared pool.
    pub(super) abilities: Option<Abilities>,
    /// `true` if the worker may announce child sessions: always in version 2, otherwise if its client shows
    /// them.
    pub(super) announces: bool,
    pub(super) identity: Option<Identity>,
    pub(super) scopes: Option<Box<[String]>>,
    pub(super) pending: PendingTable,
    pub(super) next_id: u64,
    /// Number of bytes that were ever queued for the worker.
    pub(super) queued: u64,
    /// Requests of the worker that clients have not answered, by the worker's id.
    pub(super) asking: HashMap<Raw, (ClientKey, u64)>,
    /// Those requests in `asking` that observers got too.
    pub(super) shared: HashMap<Raw, SharedRequest>,
    pub(super) sessions: FxHashSet<SessionKey>,
    /// Sessions that clients know by another name than the worker, by the worker's name.
    pub(super) aliases: HashMap<Box<str>, SessionKey>,
    /// Child sessions, by the names that the worker uses.
    pub(super) children: HashMap<Box<str>, ChildKey>,
    /// `true` if the worker had a session that has ended.
    pub(super) had_session: bool,
    pub(super) former: FormerNames,
    pub(super) tenants: Tenants,
    pub(super) recent: Option<SessionKey>,
    /// The layout of the worker's last line, to recognize lines of the same layout without a scan.
    pub(super) alike: narrows_wire::ScanCache,
    /// Sessions whose turn was cancelled and whose client has not answered the worker's requests in time.
    /// Some of the turns may have ended.
    pub(super) overdue_turns: Vec<SessionKey>,
    pub(super) early_messages: Vec<EarlyMessage>,
    pub(super) early_bytes: usize,
    /// The number of sessions at which the worker said that it was full, and the time until which that
    /// counts.
    pub(super) capacity: Option<(usize, Time)>,
    /// Requests that the worker refused for lack of room. They are sent again when it has room.
    pub(super) refused: Vec<Waiting>,
    pub(super) backlog: Vec<Waiting>,
    pub(super) restores: Vec<SessionKey>,
    pub(super) servers: ServerTable,
    pub(super) strikes: Vec<Time>,
    /// `true` while the timeout runs after which the worker is stopped because its requests have no client.
    pub(super) abandoned: bool,
    /// `true` if a reload has retired the worker, so that it is not at fault.
    pub(super) unwanted: bool,
    /// `true` if the worker is stopped as soon as no turn runs in it, even if it has sessions.
    pub(super) overdue: bool,
    pub(super) input_closed: bool,
    pub(super) fault: Option<&'static str>,
    pub(super) full: bool,
    /// `true` while reading from the worker is paused because it does not drain its own queue.
    pub(super) self_paused: bool,
    pub(super) pausing: Vec<ClientKey>,
    pub(super) charges: Vec<Charge>,
    pub(super) paused: u32,
    pub(super) since: Time,
}

impl WorkerState {
    /// Returns `true` if the worker has no client and no session left, but still pending requests.
    pub(super) fn is_abandoned(&self) -> bool {
        self.claimed
            && self.client.is_none()
            && self.sessions.is_empty()
            && !self.pending.is_empty()
            && matches!(self.stage, WorkerLifecycle::Initializing | WorkerLifecycle::Ready)
    }

    /// Forgets the name that the worker uses for a session, if clients use another.
    pub(super) fn forget_alias(&mut self, key: SessionKey, name: &str) {
        if self.aliases.get(name) == Some(&key) {
            self.aliases.remove(name);
        }
    }

    pub(super) fn accepts_input(&self) -> bool {
        !self.input_closed && !matches!(self.stage, WorkerLifecycle::Starting | WorkerLifecycle::Stopping)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) load: bool,
    pub(super) resume: bool,
    pub(super) close: bool,
}

#[derive(Debug)]
pub(super) struct PoolState {
    pub(super) settings: config::Pool,
    pub(super) workers: Vec<WorkerKey>,
    pub(super) successor: Option<PoolId>,
    pub(super) removed: bool,
    pub(super) failures: u32,
    pub(super) losses: VecDeque<Time>,
    /// While the circuit breaker is open, no worker is started before this time.
    pub(super) open_until: Option<Time>,
    /// After a loss, no worker is started before this time.
    pub(super) delayed_until: Time,
    pub(super) last_loss: Option<Arc<str>>,
    pub(super) waiting: VecDeque<ClientKey>,
    pub(super) restores: VecDeque<SessionKey>,
    pub(super) abilities: Abilities,
    /// Results of `initialize` of each worker, in a shared pool. They are merged into `answer`.
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

    pub(super) fn is_leaving(&self) -> bool {
        self.removed || self.successor.is_some()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.settings.share == config::ShareMode::All
    }

    pub(super) fn is_acp(&self) -> bool {
        self.settings.protocol != config::PoolProtocol::JsonRpc
    }
}
