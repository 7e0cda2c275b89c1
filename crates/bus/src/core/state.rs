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
use super::memory::{Charge, LINE_BYTES};
use super::observers::Shared;
use super::session::{SessionKey, Waiting};
use super::splice::KeptLine;
use super::table::{ClientKey, WorkerKey};

/// Raw JSON that waits in a table: an id, a tag.
pub(super) type Raw = Box<[u8]>;

/// How many lines of a peer may wait for something, and how many of its requests for an answer.
pub(super) const MAX_OPEN_REQUESTS: usize = 16_384;

/// How many requests of a client may wait for an answer whose ids are long, and which are.
pub(super) const MAX_LONG_IDS: usize = 1_024;
pub(super) const LONG_ID_BYTES: usize = 256;

/// What a request is, as far as the bus must know.
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
    /// The history of a session, for one who came to watch.
    Tell,
    /// To stop a turn, as a notification.
    Cancel,
    /// Whatever is asked in a child session.
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

    /// Whether it opens a session that is stored.
    pub(super) fn reopens(self) -> bool {
        matches!(self, Self::Load | Self::Resume)
    }

    /// Whether its answer names a session that was not there before.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::New | Self::Fork)
    }
}

/// Who gets an answer.
#[derive(Debug)]
pub(super) enum RequestOrigin {
    /// A client, by its own id.
    Client { client: ClientKey, id: Raw, batch: Option<BatchKey> },
    /// The bus itself.
    Internal(InternalRequest),
    /// A part of an answer that several workers give.
    Fan(FanKey),
    /// Nobody any more.
    Gone,
}

/// What the bus itself asks a worker for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InternalRequest {
    /// To be greeted.
    Initialize,
    /// To log in as the client did elsewhere.
    Authenticate,
    /// To take up a session.
    Revive(SessionKey),
    /// To close a session that nobody came back for.
    Close,
    /// The same, to make room for another.
    Evict,
}

/// A request that a worker has not answered.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) asker: RequestOrigin,
    pub(super) what: RequestKind,
    pub(super) session: Option<SessionKey>,
    /// Where it begins in all that was ever queued for this worker.
    pub(super) start: u64,
    /// The `sessionId` at the top level, which comes back on the answer.
    pub(super) tag: Option<Raw>,
    /// The client's own token for its progress, if the worker was given another.
    pub(super) progress: Option<Raw>,
    /// Of a request that opens a session.
    pub(super) opening: Option<Box<Opening>>,
    /// For this and what is kept in it, of a request that a client made.
    pub(super) charge: Option<Charge>,
}

impl Pending {
    /// Returns the client that asked, if one did and is still connected.
    pub(super) fn client(&self) -> Option<ClientKey> {
        match &self.asker {
            RequestOrigin::Client { client, .. } => Some(*client),
            _ => None,
        }
    }

    /// Returns the client's batch that the answer belongs to.
    pub(super) fn batch(&self) -> Option<BatchKey> {
        match &self.asker {
            RequestOrigin::Client { batch, .. } => *batch,
            _ => None,
        }
    }
}

/// More about a request that opens a session.
#[derive(Debug)]
pub(super) struct Opening {
    /// The request as the client sent it.
    pub(super) line: Raw,
    /// Who that is, who may be gone by the time it is answered.
    pub(super) identity: Identity,
    /// The workers that do not know the session.
    pub(super) tried: Vec<WorkerKey>,
    /// It was refused once for lack of room, and is asked for again.
    pub(super) again: bool,
    /// Its client was told that the worker did not answer in time.
    pub(super) is_overdue: bool,
    /// The MCP servers of the client that it names, until the session keeps them.
    pub(super) servers: ServerUse,
    /// For `line`.
    pub(super) charge: Charge,
}

/// A request of a worker that a client has not answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) worker: WorkerKey,
    pub(super) id: Raw,
    pub(super) batch: Option<BatchKey>,
    pub(super) is_permission: bool,
    /// The session that it is about; of a child, the session that the child belongs to.
    pub(super) session: Option<SessionKey>,
    /// Of a request to an MCP server that lives in the client.
    pub(super) server: Option<Box<AskedServer>>,
}

/// Where a client's request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestLocation {
    /// Sent to a worker under this id.
    At(WorkerKey, u64),
    /// Sent to several workers, whose answers are put together.
    Fanned(FanKey),
    /// Not sent yet, or answered in an array that is not complete.
    Elsewhere,
}

/// A line of a client that waits for a worker.
#[derive(Debug)]
pub(super) struct HeldLine {
    pub(super) line: KeptLine,
    pub(super) batch: Option<BatchKey>,
    /// `true` if it was acted on and then had to wait. `false` if it only waits behind another line.
    pub(super) accepted: bool,
}

/// Lines of a client that wait for a worker.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The client is not read from because of it.
    pub(super) paused: bool,
    pub(super) serial: u64,
    /// Those that were accepted come first.
    pub(super) lines: VecDeque<HeldLine>,
    pub(super) bytes: usize,
    /// Hashes of the ids of requests among the lines, also of some that have gone.
    pub(super) ids: FxHashSet<u64>,
    /// For the lines.
    pub(super) charge: Option<Charge>,
    /// There is an array among them, for whatever sessions.
    pub(super) has_batch: bool,
}

impl Held {
    /// Charges what is held now.
    pub(super) fn recharge(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.set(self.bytes + self.lines.len() * LINE_BYTES);
        }
    }
}

/// What is known of a client.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) identity: Identity,
    /// What it is narrowed to.
    pub(super) scopes: Option<Box<[String]>>,
    /// The limits of an identity hold for it.
    pub(super) metered: bool,
    /// It is not read from because its identity has sent too much.
    pub(super) rate_limited: bool,
    pub(super) listener: usize,
    pub(super) ends_bus: bool,
    /// The only pools that its proof of identity permits; `None`: all.
    pub(super) pools: Option<Box<[String]>>,
    /// It is the user that the bus runs as, by the credentials of a unix socket or on stdio.
    pub(super) is_owner: bool,
    pub(super) pool: Option<PoolId>,
    /// It asked for a pool that is not there, and for none since.
    pub(super) pool_missing: bool,
    /// Its own worker, its first, or the one for what belongs to no session.
    pub(super) worker: Option<WorkerKey>,
    /// The params of its `initialize`, to be said again to further workers.
    pub(super) initialize: Option<Raw>,
    /// How it has said that it knows the answer to that, where agents have to be told (MCP).
    pub(super) initialized: Option<Raw>,
    /// The method and the params by which it logged in.
    pub(super) authenticate: Option<(Box<str>, Raw)>,
    /// For `initialize` and `authenticate`.
    pub(super) charges: [Option<Charge>; 2],
    /// Whether it shows notices.
    pub(super) notices: bool,
    pub(super) inflight: HashMap<Raw, RequestLocation>,
    /// The id of a request that was refused once for lack of room, and is acted on again.
    pub(super) again: Option<Raw>,
    pub(super) asked: FxHashMap<u64, Asked>,
    pub(super) next_ask: u64,
    pub(super) sessions: FxHashSet<SessionKey>,
    /// Sessions of others that it watches.
    pub(super) watching: FxHashSet<SessionKey>,
    pub(super) held: Option<Box<Held>>,
    /// Lines of it that waited are being acted on: not all it is owed is known yet.
    pub(super) catching_up: bool,
    /// Its input has ended.
    pub(super) eof: bool,
    /// It is being hung up on.
    pub(super) closing: bool,
    /// More waits for it than may.
    pub(super) full: bool,
    /// The length of a message beyond every limit that was let into its empty queue, until that has drained.
    pub(super) oversize: usize,
    /// It is not read from because it does not read what it is told.
    pub(super) self_paused: bool,
    /// The workers that are not read from because of it.
    pub(super) pausing: Vec<WorkerKey>,
    /// How many full queues keep it from being read.
    pub(super) paused: u32,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerLifecycle {
    /// Its process is being started.
    Starting,
    /// It is being greeted.
    Greeting,
    /// It can be used.
    Ready,
    /// It takes no new sessions and goes when its turns end.
    Retiring,
    /// It was told to end.
    Stopping,
}

/// The identities that a worker has served since it was started.
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

/// What a worker said about a session that is not known yet.
#[derive(Debug)]
pub(super) struct EarlyMessage {
    pub(super) name: Box<str>,
    pub(super) line: Box<[u8]>,
    pub(super) batch: Option<BatchKey>,
    pub(super) since: Time,
}

/// What is known of a worker.
#[derive(Debug)]
pub(super) struct WorkerState {
    /// By which lists of sessions name it to clients.
    pub(super) serial: u64,
    pub(super) pool: PoolId,
    pub(super) stage: WorkerLifecycle,
    pub(super) pid: u32,
    /// The client that has it for itself.
    pub(super) client: Option<ClientKey>,
    /// Whether that client has it from another that is gone.
    pub(super) inherited: bool,
    /// Whether a client has ever had it.
    pub(super) claimed: bool,
    /// Whether a session was ever opened in it.
    pub(super) used: bool,
    /// Whether it speaks version 2, in which a turn is over when its session says so.
    pub(super) is_v2: bool,
    /// What it has said that it can do, where it was its client that asked.
    pub(super) abilities: Option<Abilities>,
    /// Whether it may announce child sessions: in version 2, or where its client has said that it shows them.
    pub(super) announces: bool,
    pub(super) identity: Option<Identity>,
    /// What its gate was told that its client is narrowed to.
    pub(super) scopes: Option<Box<[String]>>,
    pub(super) pending: FxHashMap<u64, Pending>,
    pub(super) next_id: u64,
    /// How many bytes were ever queued for it.
    pub(super) queued: u64,
    /// Its requests that clients have not answered.
    pub(super) asking: HashMap<Raw, (ClientKey, u64)>,
    /// Those of them that others are asked too.
    pub(super) shared: HashMap<Raw, Shared>,
    pub(super) sessions: FxHashSet<SessionKey>,
    /// Sessions whose name here is not the one clients use.
    pub(super) aliases: HashMap<Box<str>, SessionKey>,
    /// Child sessions of those, as it calls them.
    pub(super) children: HashMap<Box<str>, ChildKey>,
    /// It had a session that is no more.
    pub(super) had: bool,
    pub(super) former: FormerNames,
    /// The identities that it has served, where all share it.
    pub(super) tenants: Tenants,
    /// The session it spoke of last.
    pub(super) recent: Option<SessionKey>,
    /// Its last line, to know lines like it by.
    pub(super) alike: narrows_wire::ScanCache,
    /// Sessions with a cancelled turn whose client has had its time to answer what the worker asks. Some of the turns may be over.
    pub(super) overdue_turns: Vec<SessionKey>,
    /// How many requests that create sessions it has not answered.
    pub(super) creating: u32,
    /// What it said about sessions that are not known yet.
    pub(super) strangers: Vec<EarlyMessage>,
    pub(super) strangers_bytes: usize,
    /// How many sessions were too many for it, and until when that is believed.
    pub(super) capacity: Option<(usize, Time)>,
    /// Requests that it refused for lack of room and that wait until it has made some.
    pub(super) refused: Vec<Waiting>,
    /// Lines that wait until it was greeted.
    pub(super) backlog: Vec<Waiting>,
    /// Sessions to be taken up once it was greeted.
    pub(super) revivals: Vec<SessionKey>,
    /// The MCP servers that live in clients.
    pub(super) servers: ServerTable,
    pub(super) strikes: Vec<Time>,
    /// It is being given its time to answer what nobody waits for.
    pub(super) forsaken: bool,
    /// It goes because it is not wanted any more, and not for anything it did.
    pub(super) unwanted: bool,
    /// It goes as soon as no turn runs in it, whatever sessions it has.
    pub(super) overdue: bool,
    /// It has closed its input: nothing can be said to it any more.
    pub(super) input_closed: bool,
    /// Why it has to go, if that is its own fault.
    pub(super) fault: Option<&'static str>,
    pub(super) full: bool,
    /// It is not read from because it does not read what it is told.
    pub(super) self_paused: bool,
    pub(super) pausing: Vec<ClientKey>,
    /// For what clients have sent it while more waits for it than may.
    pub(super) charges: Vec<Charge>,
    /// How many full queues keep it from being read.
    pub(super) paused: u32,
    pub(super) since: Time,
}

impl WorkerState {
    /// Whether it was somebody's, and has nothing left but what it owes nobody.
    pub(super) fn is_forsaken(&self) -> bool {
        self.claimed
            && self.client.is_none()
            && self.sessions.is_empty()
            && !self.pending.is_empty()
            && matches!(self.stage, WorkerLifecycle::Greeting | WorkerLifecycle::Ready)
    }

    /// How many sessions it was asked to create for an identity and has not yet.
    pub(super) fn openings_of(&self, identity: Identity) -> usize {
        if self.creating == 0 {
            return 0;
        }
        let creates = |pending: &&Pending| {
            let opening = pending.opening.as_ref().filter(|_| pending.what.creates());
            opening.is_some_and(|opening| opening.identity == identity)
        };
        self.pending.values().filter(creates).count()
    }

    /// Whether anything can be said to it.
    pub(super) fn accepts_input(&self) -> bool {
        !self.input_closed && !matches!(self.stage, WorkerLifecycle::Starting | WorkerLifecycle::Stopping)
    }
}

/// What an agent can do with a session, as far as the bus uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) load: bool,
    pub(super) resume: bool,
    pub(super) close: bool,
}

/// What is known of a pool.
#[derive(Debug)]
pub(super) struct PoolState {
    pub(super) settings: config::Pool,
    pub(super) workers: Vec<WorkerKey>,
    /// The pool that a reload put in its place; itself gone if there is none.
    pub(super) successor: Option<PoolId>,
    /// A reload took it away.
    pub(super) removed: bool,
    /// How many workers were lost in a row.
    pub(super) failures: u32,
    pub(super) losses: VecDeque<Time>,
    /// Until when nothing is started because too many were lost.
    pub(super) open_until: Option<Time>,
    /// Until when nothing is started after a loss.
    pub(super) rest_until: Time,
    /// Why the last worker was lost.
    pub(super) last_loss: Option<Arc<str>>,
    /// Clients that wait for a worker.
    pub(super) waiting: VecDeque<ClientKey>,
    /// Sessions that wait for a worker to be taken up in.
    pub(super) revivals: VecDeque<SessionKey>,
    /// What all workers can do, where they are shared by all.
    pub(super) abilities: Abilities,
    /// The answers of the workers to `initialize`, and what is true for each (shared by all).
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
            rest_until: Time::ZERO,
            last_loss: None,
            waiting: VecDeque::new(),
            revivals: VecDeque::new(),
            abilities: Abilities::default(),
            answers: FxHashMap::default(),
            answer: None,
        }
    }

    /// Whether a reload has replaced it or taken it away.
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
