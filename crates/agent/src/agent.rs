//! The agent's state, shared by all sessions, and the loop that handles what the client sends.

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
use crate::params::invalid;
use crate::request::{self, RequestFuture};
use crate::session::Session;
use crate::settings::{FailureFormat, Limits, Settings};
use crate::stop_signal::StopSignal;

/// Methods that the agent serves, in version 1 or version 2.
const SERVED_METHODS: &[&str] = &[
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

/// Time for running turns to end after the client disconnects.
const TURN_END_TIMEOUT: Duration = Duration::from_millis(250);

/// Time to retry storing turns when the agent ends.
const FINAL_STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before the check for idleness, so that a client can start a turn right after it has opened a
/// session.
const IDLE_DELAY: Duration = Duration::from_millis(50);

/// Maximum time for which a deferred update waits until no turn runs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the RPC options of the agent's end of a conversation.
#[must_use]
pub fn options() -> Options {
    Options::agent(|method| SERVED_METHODS.contains(&method))
}

/// Serves a conversation that was started with [`options`] until the client disconnects.
///
/// # Errors
/// Returns an error if an endpoint of the settings is unusable, before anything is read.
pub async fn run(peer: Peer, mut inbox: Inbox, settings: Settings) -> Result<(), EndpointError> {
    let agent = Arc::new(Agent::new(peer, settings)?);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            item = inbox.recv() => match item {
                Some(item) => {
                    if let Some(work) = agent.handle_item(item) {
                        tasks.spawn(work);
                    }
                }
                None => break,
            },
            Some(outcome) = tasks.join_next() => log_task_failure(outcome),
        }
    }
    agent.disconnected.stop();
    let sessions = agent.take_sessions();
    for session in &sessions {
        session.cancel();
    }
    // The client is gone, so running turns cannot send anything. Their results are still stored.
    let turn_ends = async {
        while let Some(outcome) = tasks.join_next().await {
            log_task_failure(outcome);
        }
    };
    let _ = tokio::time::timeout(TURN_END_TIMEOUT, turn_ends).await;
    let rest = async {
        for session in sessions {
            session.store_rest().await;
        }
    };
    let _ = tokio::time::timeout(FINAL_STORE_TIMEOUT, rest).await;
    Ok(())
}

/// Logs the panic of a request's task. Only that request fails: dropping its responder answers it with an
/// error.
fn log_task_failure(outcome: Result<(), tokio::task::JoinError>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "request task failed");
    }
}

pub(crate) struct Agent {
    pub(crate) peer: Peer,
    pub(crate) catalog: Catalog,
    pub(crate) store: Store,
    pub(crate) system: Option<String>,
    pub(crate) errors: FailureFormat,
    pub(crate) limits: Limits,
    pub(crate) gate: Arc<dyn ToolGate>,
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) server_env: narrows_process::Environment,
    /// `true` if the agent starts the MCP servers that a client names.
    pub(crate) accepts_servers: bool,
    pub(crate) server_confinement: Option<narrows_mcp::Confinement>,
    pub(crate) working_dir: PathBuf,
    disconnected: StopSignal,
    connection: Mutex<Connection>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Closed sessions of which some turns are not stored yet. A background task of each session keeps
    /// retrying.
    unstored: Mutex<HashMap<String, Arc<Session>>>,
    /// One lock for each session that is being opened or closed.
    session_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// State of the connection, set by `initialize`.
struct Connection {
    handshake: Handshake,
    client: ClientInfo,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientInfo {
    pub(crate) can: ClientCan,
    /// `true` if the client has sent `clientInfo`. Clients without it are known to fail on unexpected
    /// updates.
    pub(crate) has_info: bool,
}

impl Agent {
    fn new(peer: Peer, settings: Settings) -> Result<Self, EndpointError> {
        let connection =
            Connection { handshake: Handshake::new(Versions::Both), client: ClientInfo::default() };
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
            working_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            disconnected: StopSignal::new(),
            connection: Mutex::new(connection),
            sessions: Mutex::default(),
            unstored: Mutex::default(),
            session_locks: Mutex::default(),
        })
    }

    /// Handles a message at once, or returns a future if that takes time.
    fn handle_item(self: &Arc<Self>, item: Item) -> Option<RequestFuture> {
        match item {
            Item::Request(Request { frame, responder }) => {
                let answer = match self.check_request(&frame) {
                    Ok(CheckedRequest::Respond(result)) => Ok(result),
                    Ok(CheckedRequest::Handle(request)) => {
                        return request::handle(self, request, responder);
                    }
                    Err(error) => Err(error),
                };
                match answer {
                    Ok(result) => responder.respond(&result),
                    Err(error) => responder.fail(&error),
                }
                None
            }
            Item::Notification(frame) => {
                self.handle_notification(&frame);
                None
            }
            Item::Answer(_) => None,
        }
    }

    fn check_request(&self, frame: &Frame) -> Result<CheckedRequest, RpcError> {
        let method = frame.method().unwrap_or_default();
        if method == method::INITIALIZE {
            return self.initialize(frame).map(CheckedRequest::Respond);
        }
        let version =
            self.connection().handshake.other_request().map_err(|refusal| handshake_error(&refusal))?;
        // Some clients send `session/cancel` with an id.
        if !method::knows(Side::Agent, version, &method) {
            let named = Value::from(&*method);
            return Err(RpcError::new(Code::MethodNotFound, "method not found").with("method", named));
        }
        let params: Map<String, Value> = frame
            .read_params()
            .map_err(|error| RpcError::new(Code::InvalidParams, format!("invalid params: {error}")))?;
        let tag = frame.tag().map(<[u8]>::to_vec);
        Ok(CheckedRequest::Handle(ClientRequest {
            method: method.into_owned(),
            version,
            params,
            router_tag: tag,
        }))
    }

    fn initialize(&self, frame: &Frame) -> Result<Value, RpcError> {
        let params: Option<&RawValue> = frame.params().and_then(|params| serde_json::from_slice(params).ok());
        let mut connection = self.connection();
        let agreed = connection.handshake.initialize(params).map_err(|refusal| match refusal {
            // Clients often send a wrong `protocolVersion`, the only required field, so the error names it.
            Refusal::Params(_) if !has_valid_version(frame) => {
                invalid("protocolVersion", "must be an integer from 0 to 65535")
            }
            refusal => handshake_error(&refusal),
        })?;
        connection.client = match &agreed {
            Agreed::V1(request) => ClientInfo {
                can: (&request.client_capabilities).into(),
                has_info: request.client_info.is_some(),
            },
            Agreed::V2(request) => ClientInfo { can: (&request.capabilities).into(), has_info: true },
        };
        Ok(initialize_result(agreed.version()))
    }

    fn handle_notification(&self, frame: &Frame) {
        match frame.method().as_deref() {
            Some(method::SESSION_CANCEL) => {
                if let Some(session) = frame.session().and_then(|id| self.session(&id)) {
                    session.cancel();
                }
            }
            Some(method::MCP_MESSAGE) => crate::client_servers::handle_message(self, frame),
            _ => {}
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // No code panics while it holds this lock. Even after a panic, the values would be consistent.
        lock(&self.connection)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        lock(&self.sessions)
    }

    pub(crate) fn client(&self) -> ClientInfo {
        self.connection().client
    }

    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    pub(crate) fn open_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions().values().cloned().collect()
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions().len() + self.unstored().len()
    }

    /// Returns the closed sessions of which some turns are not stored yet. Removes sessions that are stored
    /// now.
    fn unstored(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        let mut unstored = lock(&self.unstored);
        unstored.retain(|_, session| session.claim().is_some());
        unstored
    }

    /// Keeps a closed session until all its turns are stored.
    pub(crate) fn keep_unstored(&self, session: Arc<Session>) {
        self.unstored().insert(session.id.to_string(), session);
    }

    /// Reopens a closed session of which some turns are not stored yet.
    pub(crate) fn reopen_unstored(&self, id: &str) -> Option<Arc<Session>> {
        let session = self.take_unstored(id)?;
        session.state().is_closed = false;
        self.add_session(&session);
        Some(session)
    }

    /// Removes and returns a closed session of which some turns are not stored yet.
    pub(crate) fn take_unstored(&self, id: &str) -> Option<Arc<Session>> {
        self.unstored().remove(id)
    }

    /// Waits [`IDLE_DELAY`], and then until no turn runs.
    pub(crate) async fn wait_until_idle(&self) {
        // A disconnect ends this delay early, so that deferred updates do not delay the shutdown.
        let _ = tokio::time::timeout(IDLE_DELAY, self.disconnected.stopped()).await;
        let quiet = async {
            loop {
                let running = self.sessions().values().find_map(|session| session.turn_end());
                match running {
                    Some(ended) => ended.await,
                    None => return,
                }
            }
        };
        // If some turn runs at every moment, the wait ends at this timeout.
        let _ = tokio::time::timeout(IDLE_TIMEOUT, quiet).await;
    }

    /// Locks the session `id` until the guard is dropped. Requests that open or close the same session
    /// therefore run one after another, and each sees the result of the one before.
    pub(crate) async fn lock_session(&self, id: &str) -> OwnedMutexGuard<()> {
        let session_lock = {
            let mut session_locks = lock(&self.session_locks);
            session_locks.retain(|_, session_lock| Arc::strong_count(session_lock) > 1);
            Arc::clone(session_locks.entry(id.to_owned()).or_default())
        };
        session_lock.lock_owned().await
    }

    pub(crate) fn is_open(&self, session: &Arc<Session>) -> bool {
        self.session(&session.id).is_some_and(|open| Arc::ptr_eq(&open, session))
    }

    pub(crate) fn add_session(&self, session: &Arc<Session>) {
        self.sessions().insert(session.id.to_string(), Arc::clone(session));
    }

    pub(crate) fn remove_session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().remove(id)
    }

    fn take_sessions(&self) -> Vec<Arc<Session>> {
        let open = std::mem::take(&mut *self.sessions());
        let closed = std::mem::take(&mut *self.unstored());
        open.into_values().chain(closed.into_values()).collect()
    }
}

/// A request other than `initialize` that is valid in the current state.
pub(crate) struct ClientRequest {
    pub(crate) method: String,
    pub(crate) version: Version,
    pub(crate) params: Map<String, Value>,
    /// The `sessionId` at the top level of the message (not the one in params), as JSON text. A router
    /// expects it on later messages of the session.
    pub(crate) router_tag: Option<Vec<u8>>,
}

enum CheckedRequest {
    Respond(Value),
    Handle(ClientRequest),
}

fn handshake_error(refusal: &Refusal) -> RpcError {
    if *refusal == Refusal::Early {
        // A request before `initialize` is answered with the same error as a missing field.
        return invalid("initialize", "must come before any other request");
    }
    if let Refusal::Params(_) = refusal {
        return RpcError::new(Code::InvalidParams, refusal.to_string());
    }
    RpcError { code: refusal.code().into(), message: refusal.to_string().into(), data: refusal.data() }
}

fn has_valid_version(frame: &Frame) -> bool {
    let params: Map<String, Value> = frame.read_params().unwrap_or_default();
    params
        .get("protocolVersion")
        .and_then(Value::as_u64)
        .is_some_and(|version| u16::try_from(version).is_ok())
}

fn initialize_result(version: Version) -> Value {
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
