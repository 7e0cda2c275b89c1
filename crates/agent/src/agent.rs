//! The agent as a whole: what it knows of its client, its sessions, and the loop that takes what comes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_acp::agree::{Agreed, Handshake, Refusal};
use narrows_acp::capability::ClientCan;
use narrows_acp::method::{self, Side};
use narrows_acp::{Version, Versions};
use narrows_base::sync::lock;
use narrows_model::EndpointError;
use narrows_rpc::{Inbox, Item, Options, Peer, Request};
use narrows_store::Store;
use narrows_wire::{Code, Frame, RpcError};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::catalog::Catalog;
use crate::gate::ToolGate;
use crate::memory::Memory;
use crate::read::invalid;
use crate::request::{self, Work};
use crate::session::Session;
use crate::settings::{Errors, Limits, Settings};
use crate::stop::Stop;

/// The methods the agent serves, in one version or the other.
const SERVED: &[&str] = &[
    method::INITIALIZE,
    method::AUTHENTICATE,
    method::SESSION_NEW,
    method::SESSION_LOAD,
    method::SESSION_RESUME,
    method::SESSION_FORK,
    method::SESSION_LIST,
    method::SESSION_CLOSE,
    method::SESSION_DELETE,
    method::SESSION_SET_MODEL,
    method::SESSION_SET_CONFIG_OPTION,
    method::SESSION_PROMPT,
    method::SESSION_CANCEL,
    method::TOOL_CALL_CANCEL,
    method::MCP_MESSAGE,
];

/// How long turns may take to end when the client has gone.
const FAREWELL: Duration = Duration::from_millis(250);

/// How long turns that could not be stored before may take at the end.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a client that has just opened a session may take to begin a turn.
const MOMENT: Duration = Duration::from_millis(50);

/// How long what can wait does.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// How the agent's end of a conversation behaves.
#[must_use]
pub fn options() -> Options {
    Options::agent(|method| SERVED.contains(&method))
}

/// Serves a conversation that was started with [`options`], until the client has gone.
///
/// # Errors
/// When an endpoint of the settings cannot be used, before anything is read.
pub async fn run(peer: Peer, mut inbox: Inbox, settings: Settings) -> Result<(), EndpointError> {
    let agent = Arc::new(Agent::new(peer, settings)?);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            item = inbox.recv() => match item {
                Some(item) => {
                    if let Some(work) = agent.accept(item) {
                        tasks.spawn(work);
                    }
                }
                None => break,
            },
            Some(outcome) = tasks.join_next() => report(outcome),
        }
    }
    agent.gone.stop();
    let sessions = agent.take_sessions();
    for session in &sessions {
        session.cancel();
    }
    // Nobody reads what they still have to say; what they have done is to be stored.
    let farewell = async {
        while let Some(outcome) = tasks.join_next().await {
            report(outcome);
        }
    };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
    let rest = async {
        for session in sessions {
            session.store_rest().await;
        }
    };
    let _ = tokio::time::timeout(STORE_TIMEOUT, rest).await;
    Ok(())
}

/// A panic costs the request it happened in, which is answered when its responder is dropped, and nothing else.
fn report(outcome: Result<(), tokio::task::JoinError>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "a task has failed");
    }
}

/// What all sessions share.
pub(crate) struct Agent {
    pub(crate) peer: Peer,
    pub(crate) catalog: Catalog,
    pub(crate) store: Store,
    pub(crate) system: Option<String>,
    pub(crate) errors: Errors,
    pub(crate) limits: Limits,
    pub(crate) gate: Arc<dyn ToolGate>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) server_env: narrows_process::Environment,
    /// Whether the servers that a client names are started.
    pub(crate) accepts_servers: bool,
    pub(crate) server_confinement: Option<narrows_mcp::Confinement>,
    /// Our own working directory.
    pub(crate) here: PathBuf,
    /// Says that the client has gone.
    gone: Stop,
    connection: Mutex<Connection>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Sessions that were closed and are not stored as a whole: their tasks go on trying.
    unstored: Mutex<HashMap<String, Arc<Session>>>,
    /// The sessions that are being opened or closed.
    passages: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// What is known of the client.
struct Connection {
    handshake: Handshake,
    client: Client,
}

/// What the client is and can do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Client {
    pub(crate) can: ClientCan,
    /// It has said who it is. Clients that do not are known to fail on updates they do not expect.
    pub(crate) introduced: bool,
}

impl Agent {
    fn new(peer: Peer, settings: Settings) -> Result<Self, EndpointError> {
        let connection = Connection { handshake: Handshake::new(Versions::Both), client: Client::default() };
        Ok(Self {
            peer,
            catalog: Catalog::new(settings.routes)?,
            store: settings.data_dir.map_or_else(Store::in_memory, Store::new),
            system: settings.system.filter(|system| !system.is_empty()),
            errors: settings.errors,
            limits: settings.limits,
            gate: settings.gate,
            memory: settings.memory,
            server_env: settings.server_env,
            accepts_servers: settings.accepts_servers,
            server_confinement: settings.server_confinement,
            here: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            gone: Stop::new(),
            connection: Mutex::new(connection),
            sessions: Mutex::default(),
            unstored: Mutex::default(),
            passages: Mutex::default(),
        })
    }

    /// Takes what has come; what needs time is returned, to be done beside the rest.
    fn accept(self: &Arc<Self>, item: Item) -> Option<Work> {
        match item {
            Item::Request(Request { frame, responder }) => {
                let answer = match self.admit(&frame) {
                    Ok(Admitted::Answer(result)) => Ok(result),
                    Ok(Admitted::Call(call)) => return request::accept(self, call, responder),
                    Err(error) => Err(error),
                };
                match answer {
                    Ok(result) => responder.respond(&result),
                    Err(error) => responder.fail(&error),
                }
                None
            }
            Item::Notification(frame) => {
                self.notified(&frame);
                None
            }
            Item::Answer(_) => None,
        }
    }

    fn admit(&self, frame: &Frame) -> Result<Admitted, RpcError> {
        let method = frame.method().unwrap_or_default();
        if method == method::INITIALIZE {
            return self.initialize(frame).map(Admitted::Answer);
        }
        let version = self.connection().handshake.other_request().map_err(|refusal| refused(&refusal))?;
        // A client in the field sends `session/cancel` with an id.
        if !method::knows(Side::Agent, version, &method) {
            let named = Value::from(&*method);
            return Err(
                RpcError::new(Code::MethodNotFound, "there is no such method here").with("method", named)
            );
        }
        let params: Map<String, Value> = frame.read_params().map_err(|error| {
            RpcError::new(Code::InvalidParams, format!("the params cannot be read: {error}"))
        })?;
        let tag = frame.tag().map(<[u8]>::to_vec);
        Ok(Admitted::Call(Call { method: method.into_owned(), version, params, tag }))
    }

    fn initialize(&self, frame: &Frame) -> Result<Value, RpcError> {
        let params: Option<&RawValue> = frame.params().and_then(|params| serde_json::from_slice(params).ok());
        let mut connection = self.connection();
        let agreed = connection.handshake.initialize(params).map_err(|refusal| match refusal {
            // The one field that must be there, and the one that is wrong in the field.
            Refusal::Params(_) if !has_version(frame) => {
                invalid("protocolVersion", "must be a whole number from 0 to 65535")
            }
            refusal => refused(&refusal),
        })?;
        connection.client = match &agreed {
            Agreed::V1(request) => Client {
                can: (&request.client_capabilities).into(),
                introduced: request.client_info.is_some(),
            },
            Agreed::V2(request) => Client { can: (&request.capabilities).into(), introduced: true },
        };
        Ok(introduction(agreed.version()))
    }

    fn notified(&self, frame: &Frame) {
        match frame.method().as_deref() {
            Some(method::SESSION_CANCEL) => {
                if let Some(session) = frame.session().and_then(|id| self.session(&id)) {
                    session.cancel();
                }
            }
            Some(method::MCP_MESSAGE) => crate::bridge::notified(self, frame),
            _ => {}
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // No code panics while it holds the lock; were it so, the values would still be consistent.
        lock(&self.connection)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        // As above.
        lock(&self.sessions)
    }

    /// What the client is and can do.
    pub(crate) fn client(&self) -> Client {
        self.connection().client
    }

    /// The open session of this id.
    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    /// All open sessions.
    pub(crate) fn open_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions().values().cloned().collect()
    }

    /// How many sessions are open, or held because they are not stored.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions().len() + self.unstored().len()
    }

    /// Closed sessions that are not stored as a whole. One that is, is given back.
    fn unstored(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        // As above.
        let mut unstored = lock(&self.unstored);
        unstored.retain(|_, session| session.claim().is_some());
        unstored
    }

    /// Holds a closed session until it is stored.
    pub(crate) fn keep_unstored(&self, session: Arc<Session>) {
        self.unstored().insert(session.id.to_string(), session);
    }

    /// Opens a closed session that is not stored.
    pub(crate) fn reopen_unstored(&self, id: &str) -> Option<Arc<Session>> {
        let session = self.take_unstored(id)?;
        session.state().is_closed = false;
        self.enter(&session);
        Some(session)
    }

    /// A closed session that is not stored, which is not held any more.
    pub(crate) fn take_unstored(&self, id: &str) -> Option<Arc<Session>> {
        self.unstored().remove(id)
    }

    /// Waits a moment, and then for the end of every turn that goes on.
    pub(crate) async fn leisure(&self) {
        // Whoever waits for our end does not wait for this.
        let _ = tokio::time::timeout(MOMENT, self.gone.stopped()).await;
        let quiet = async {
            loop {
                let running = self.sessions().values().find_map(|session| session.ended());
                match running {
                    Some(ended) => ended.await,
                    None => return,
                }
            }
        };
        // Where turns never cease there is no such moment.
        let _ = tokio::time::timeout(LONG_ENOUGH, quiet).await;
    }

    /// Waits until nobody else opens or closes this session, and keeps others waiting until the guard is dropped: who
    /// comes second finds what the first has left.
    pub(crate) async fn passage(&self, id: &str) -> OwnedMutexGuard<()> {
        let passage = {
            // As above.
            let mut passages = lock(&self.passages);
            passages.retain(|_, passage| Arc::strong_count(passage) > 1);
            Arc::clone(passages.entry(id.to_owned()).or_default())
        };
        passage.lock_owned().await
    }

    /// Whether this session is still open.
    pub(crate) fn is_open(&self, session: &Arc<Session>) -> bool {
        self.session(&session.id).is_some_and(|open| Arc::ptr_eq(&open, session))
    }

    /// Makes a session known.
    pub(crate) fn enter(&self, session: &Arc<Session>) {
        self.sessions().insert(session.id.to_string(), Arc::clone(session));
    }

    /// Takes a session out of reach.
    pub(crate) fn leave(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().remove(id)
    }

    fn take_sessions(&self) -> Vec<Arc<Session>> {
        let open = std::mem::take(&mut *self.sessions());
        let closed = std::mem::take(&mut *self.unstored());
        open.into_values().chain(closed.into_values()).collect()
    }
}

/// A request other than `initialize` that may come now.
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) version: Version,
    pub(crate) params: Map<String, Value>,
    /// `sessionId` at the top level, as JSON.
    pub(crate) tag: Option<Vec<u8>>,
}

enum Admitted {
    /// It has been answered already.
    Answer(Value),
    Call(Call),
}

fn refused(refusal: &Refusal) -> RpcError {
    if *refusal == Refusal::Early {
        // What is missing is named as any other thing that is.
        return invalid("initialize", "must come before any other request");
    }
    RpcError { code: refusal.code().into(), message: refusal.to_string().into(), data: refusal.data() }
}

/// Whether the params of `initialize` have a version that is one.
fn has_version(frame: &Frame) -> bool {
    let params: Map<String, Value> = frame.read_params().unwrap_or_default();
    params
        .get("protocolVersion")
        .and_then(Value::as_u64)
        .is_some_and(|version| u16::try_from(version).is_ok())
}

/// The answer to `initialize`.
fn introduction(version: Version) -> Value {
    let info = json!({"name": "narrows", "title": "Narrows", "version": env!("CARGO_PKG_VERSION")});
    let unstable = json!({"_meta": {"narrows/unstable": true}});
    match version {
        Version::V1 => json!({
            "protocolVersion": 1,
            "agentInfo": info,
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": {"image": true, "audio": true, "embeddedContext": true},
                "mcpCapabilities": {"http": true, "sse": false, "acp": true},
                "sessionCapabilities": {
                    "list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {},
                    "fork": unstable,
                },
            },
            "authMethods": [],
        }),
        Version::V2 => json!({
            "protocolVersion": 2,
            "info": info,
            "capabilities": {
                "session": {
                    "prompt": {"image": {}, "audio": {}, "embeddedContext": {}},
                    "mcp": {"stdio": {}, "http": {}, "acp": {}},
                    "delete": {}, "additionalDirectories": {},
                    "fork": unstable,
                },
            },
            "authMethods": [],
        }),
    }
}
