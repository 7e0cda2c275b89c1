//! Opens, lists, closes and deletes sessions.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_mcp::{Options, Server, Servers};
use narrows_model::Message;
use narrows_store::{Change, Claim, NewSession, Record, Store, StoreError, Turn};
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{Agent, ClientRequest};
use crate::client_servers::ClientServers;
use crate::params::{self, Params, invalid, session_not_found};
use crate::prompt::stored_bytes;
use crate::request::{FollowUp, Response, record_router_tag, send_updates};
use crate::session::{PastTurn, Session, SessionDirs, State};
use crate::transcript::TranscriptItem;
use crate::update_writer::new_id;
use crate::{config_options, encode_update, slash_command};

/// Maximum number of open sessions per connection. Each session needs a file descriptor for its lock, and a
/// process often has only 1024.
const MAX_OPEN_SESSIONS: usize = 512;

const LIST_PAGE_SIZE: usize = 50;

pub(crate) async fn new(
    agent: &Arc<Agent>,
    request: &ClientRequest,
    params: &Params<'_>,
) -> Result<Response, RpcError> {
    let setup = check_session_limit(agent).and_then(|()| session_setup(agent, params))?;
    let background = recall_background(agent).await?;
    let new = NewSession {
        id: new_id(),
        cwd: setup.cwd.clone(),
        roots: setup.roots.clone(),
        settings: config_options::serialize_choice(
            &agent.catalog,
            agent.catalog.default_choice().as_ref(),
            false,
        ),
    };
    let (mut warning, mut later) = (None, None);
    let (store, claim) = match agent.store.create(new.clone()).await {
        Ok(claim) => (agent.store.clone(), claim),
        // A full or read-only disk must not prevent a new session.
        Err(error) => {
            tracing::error!(%error, "session not stored");
            let memory = Store::in_memory();
            let claim = memory.create(new.clone()).await.map_err(|error| store_error(&error, None))?;
            // If the store cannot even be read, the session is not written to it later.
            if error.may_pass() && agent.store.record(&new.id).await.is_ok() {
                let when = "storing is retried after every turn and every few seconds";
                warning = Some(format!("This session could not be stored yet ({error}); {when}"));
                later = Some(new);
                (agent.store.clone(), claim)
            } else {
                warning = Some(format!("This session will not be kept: {error}"));
                (memory, claim)
            }
        }
    };
    let id = claim.id().to_owned();
    let session = Arc::new(Session::new(&id, store, new_state(agent, &id, claim, setup)));
    session.state().choice = agent.catalog.default_choice();
    session.state().background = background;
    session.state().warnings.extend(warning);
    if let Some(record) = later {
        session.store_later(record).await;
    }
    Ok(opened_response(agent, request, session).await)
}

fn session_setup(agent: &Agent, params: &Params<'_>) -> Result<params::SessionSetup, RpcError> {
    let setup = params.session_setup(&agent.working_dir)?;
    let is_started = |server: &Server| !matches!(server, Server::Acp { .. });
    if !agent.accepts_servers && (setup.servers.iter().any(is_started) || !setup.unusable.is_empty()) {
        return Err(RpcError::new(Code::PolicyDenied, "MCP servers of clients are disabled"));
    }
    Ok(setup)
}

/// Handles `session/load`: replays the whole history, then responds.
pub(crate) async fn load(
    agent: &Arc<Agent>,
    request: &ClientRequest,
    params: &Params<'_>,
) -> Result<Response, RpcError> {
    let (session, history) = reopen(agent, request, params).await?;
    send_replay(agent, request.version, &session, &history).await;
    let mut answer = opened_response(agent, request, session).await;
    // In version 1 this response has no session id, but one client requires it.
    answer.result["sessionId"] = params.required_text("sessionId")?.into();
    Ok(answer)
}

/// Handles `session/resume`. In version 2, replays the history on request, and sends the session's state.
pub(crate) async fn resume(
    agent: &Arc<Agent>,
    request: &ClientRequest,
    params: &Params<'_>,
) -> Result<Response, RpcError> {
    let from = if request.version == Version::V2 { params.get("replayFrom") } else { None };
    match from.map(|from| from["type"].as_str()) {
        None | Some(Some("start")) => {}
        Some(_) => return Err(invalid("replayFrom", "is an unknown position")),
    }
    let (session, history) = reopen(agent, request, params).await?;
    if from.is_some() {
        send_replay(agent, request.version, &session, &history).await;
    }
    if request.version == Version::V2 {
        let state = if session.is_running() { "running" } else { "idle" };
        send_updates(agent, &session, vec![json!({"sessionUpdate": "state_update", "state": state})]).await;
    }
    Ok(opened_response(agent, request, session).await)
}

/// Handles `session/fork`: opens a new session with the history of another.
pub(crate) async fn fork(
    agent: &Arc<Agent>,
    request: &ClientRequest,
    params: &Params<'_>,
) -> Result<Response, RpcError> {
    let from = params.required_text("sessionId")?;
    let setup = check_session_limit(agent).and_then(|()| session_setup(agent, params))?;
    let source = agent.store.record(from).await.map_err(|error| store_error(&error, Some(from)))?;
    let source = source.ok_or_else(|| session_not_found(from))?;
    let new = NewSession {
        id: new_id(),
        cwd: setup.cwd.clone(),
        roots: setup.roots.clone(),
        settings: source.settings.clone(),
    };
    let background = recall_background(agent).await?;
    let claim = agent.store.fork(from, new).await.map_err(|error| store_error(&error, Some(from)))?;
    let id = claim.id().to_owned();
    let history = agent.store.history(&id).await.map_err(|error| store_error(&error, Some(&id)))?;
    let session = Arc::new(Session::new(&id, agent.store.clone(), new_state(agent, &id, claim, setup)));
    session.state().background = background;
    restore_state(agent, &session, &source, &history);
    Ok(opened_response(agent, request, session).await)
}

pub(crate) async fn list(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    let cwd = params.optional_text("cwd")?;
    let cursor = params.optional_text("cursor")?.filter(|cursor| !cursor.is_empty());
    let page = agent.store.list(cwd, cursor, LIST_PAGE_SIZE).await.map_err(|error| match error {
        StoreError::BadCursor => invalid("cursor", "is invalid"),
        error => store_error(&error, None),
    })?;
    let sessions: Vec<Value> = page
        .sessions
        .iter()
        .map(|record| {
            let mut info =
                json!({"sessionId": record.id, "cwd": record.cwd, "updatedAt": record.updated_at()});
            // The title of a session without stored turns is omitted: earlier versions stored it even if
            // every turn failed.
            if let Some(title) = record.title.as_ref().filter(|_| record.turns > 0) {
                info["title"] = title.as_str().into();
            }
            if !record.roots.is_empty() {
                info["additionalDirectories"] = record.roots.clone().into();
            }
            info
        })
        .collect();
    let mut result = json!({"sessions": sessions});
    if let Some(next) = page.next {
        result["nextCursor"] = next.into();
    }
    Ok(result)
}

/// Handles `session/close`. Succeeds even if the session is not open.
pub(crate) async fn close(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    close_session(agent, params.required_text("sessionId")?).await;
    Ok(json!({}))
}

/// Handles `session/delete`. Succeeds even if no such session exists.
pub(crate) async fn delete(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    let id = params.required_text("sessionId")?;
    close_session(agent, id).await;
    // Turns that are not stored yet are discarded.
    if let Some(session) = agent.take_unstored(id) {
        session.release_claim();
    }
    match agent.store.delete(id).await {
        Ok(_) | Err(StoreError::BadId | StoreError::NotFound) => Ok(json!({})),
        Err(error) => Err(store_error(&error, Some(id))),
    }
}

/// Cancels the turn of a session, stores its remaining turns, and ends its MCP servers.
async fn close_session(agent: &Agent, id: &str) {
    let Some(session) = agent.remove_session(id) else { return };
    if !session.close().await {
        agent.keep_unstored(Arc::clone(&session));
    }
    agent.memory.close_session(id).await;
    let servers = std::mem::replace(&mut session.state().servers, Arc::new(no_servers()));
    if let Some(servers) = Arc::into_inner(servers) {
        servers.close().await;
    }
}

fn check_session_limit(agent: &Agent) -> Result<(), RpcError> {
    if agent.session_count() < MAX_OPEN_SESSIONS {
        return Ok(());
    }
    Err(RpcError::new(Code::Backpressure, format!("{MAX_OPEN_SESSIONS} sessions are open, close some first")))
}

/// Returns the knowledge from earlier sessions. Fails if the memory cannot be trusted: the session is then
/// not opened.
async fn recall_background(agent: &Agent) -> Result<Option<Arc<str>>, RpcError> {
    match agent.memory.recall().await {
        Ok(background) => Ok(background.map(Arc::from)),
        Err(error) => {
            Err(RpcError::new(Code::Internal, error.to_string()).with("code", json!("memory-poisoned")))
        }
    }
}

fn no_servers() -> Servers {
    Servers::start(Vec::new(), Options::new("/", narrows_process::Environment::empty()), None)
}

fn new_state(agent: &Arc<Agent>, id: &str, claim: Claim, setup: params::SessionSetup) -> State {
    let (dirs, servers, warnings) = start_servers(agent, id, setup);
    State::new(claim, dirs, servers, warnings)
}

/// Replaces the directories and servers of an open session.
fn reconfigure(agent: &Arc<Agent>, session: &Session, setup: params::SessionSetup) {
    let (dirs, servers, warnings) = start_servers(agent, &session.id, setup);
    let mut state = session.state();
    state.dirs = dirs;
    // The previous MCP servers end when no turn uses them any more.
    state.servers = servers;
    state.servers_since = Instant::now();
    state.warnings.extend(warnings);
}

fn start_servers(
    agent: &Arc<Agent>,
    id: &str,
    setup: params::SessionSetup,
) -> (SessionDirs, Arc<Servers>, Vec<String>) {
    let params::SessionSetup { cwd, roots, servers, unusable } = setup;
    let mut options = Options::new(cwd.clone(), agent.server_env.clone());
    options.start_timeout = agent.limits.server_start_timeout;
    options.call_timeout = agent.limits.tool_timeout;
    options.confinement.clone_from(&agent.server_confinement);
    let bridge = ClientServers::new(agent, id);
    let servers = Servers::start(servers, options, Some(Arc::new(bridge)));
    (SessionDirs { cwd, roots }, Arc::new(servers), unusable)
}

/// Opens a stored session, or returns it if it is already open.
async fn reopen(
    agent: &Arc<Agent>,
    request: &ClientRequest,
    params: &Params<'_>,
) -> Result<(Arc<Session>, Vec<Turn>), RpcError> {
    let id = params.required_text("sessionId")?;
    let setup = session_setup(agent, params)?;
    if let Some(session) = agent.session(id).or_else(|| agent.reopen_unstored(id)) {
        let history = session.history().await.map_err(|error| store_error(&error, Some(id)))?;
        check_cwd(request.version, &session.state().dirs.cwd, &setup.cwd)?;
        record_router_tag(&session, request);
        if !session.is_running() {
            let was = session.state().dirs.clone();
            let now = SessionDirs { cwd: setup.cwd.clone(), roots: setup.roots.clone() };
            reconfigure(agent, &session, setup);
            store_dirs(&session, &was, now).await;
        }
        return Ok((session, history));
    }
    check_session_limit(agent)?;
    let background = recall_background(agent).await?;
    let (claim, record) = agent.store.claim(id).await.map_err(|error| store_error(&error, Some(id)))?;
    check_cwd(request.version, &record.cwd, &setup.cwd)?;
    let history = agent.store.history(id).await.map_err(|error| store_error(&error, Some(id)))?;
    let was = SessionDirs { cwd: record.cwd.clone(), roots: record.roots.clone() };
    let now = SessionDirs { cwd: setup.cwd.clone(), roots: setup.roots.clone() };
    let session = Arc::new(Session::new(id, agent.store.clone(), new_state(agent, id, claim, setup)));
    store_dirs(&session, &was, now).await;
    session.state().background = background;
    restore_state(agent, &session, &record, &history);
    record_router_tag(&session, request);
    Ok((session, history))
}

async fn store_dirs(session: &Session, was: &SessionDirs, now: SessionDirs) {
    if *was == now {
        return;
    }
    let SessionDirs { cwd, roots } = now;
    if let Err(error) = session.change(Change::Place { cwd, roots }).await {
        tracing::warn!(%error, "working directory not stored");
    }
}

/// Checks a requested working directory. In version 2, the directory of a session must not change.
fn check_cwd(version: Version, is: &str, wanted: &str) -> Result<(), RpcError> {
    if version == Version::V2 && is != wanted {
        return Err(invalid("cwd", "must equal the session's working directory"));
    }
    Ok(())
}

fn restore_state(agent: &Agent, session: &Session, record: &Record, history: &[Turn]) {
    let mut state = session.state();
    state.title.clone_from(&record.title);
    let (choice, warning) = config_options::restore_choice(&agent.catalog, &record.settings);
    state.choice = choice;
    state.warnings.extend(warning);
    state.last_turn = history.iter().map(|turn| turn.number).max().unwrap_or(0);
    state.stored_bytes = history.iter().map(stored_bytes).sum();
    state.past_turns = history
        .iter()
        .filter(|turn| !turn.messages.is_empty())
        .map(|turn| PastTurn { number: turn.number, messages: parse_messages(&turn.messages) })
        .collect();
}

fn parse_messages(texts: &[String]) -> Vec<Message> {
    let params = |text: &String| match serde_json::from_str(text) {
        Ok(message) => Some(message),
        Err(error) => {
            // The error message is not logged, because it quotes the conversation.
            tracing::error!(column = error.column(), "stored message unreadable, skipped");
            None
        }
    };
    texts.iter().filter_map(params).collect()
}

async fn send_replay(agent: &Agent, version: Version, session: &Session, history: &[Turn]) {
    for text in history.iter().flat_map(|turn| &turn.replay) {
        match serde_json::from_str::<TranscriptItem>(text) {
            Ok(shown) => send_updates(agent, session, encode_update::replay(version, &shown)).await,
            Err(error) => {
                tracing::error!(column = error.column(), "stored update unreadable, skipped");
            }
        }
    }
}

/// Adds an open session and returns the response with its options.
async fn opened_response(agent: &Agent, request: &ClientRequest, session: Arc<Session>) -> Response {
    record_router_tag(&session, request);
    agent.add_session(&session);
    let choice = session.state().choice.clone();
    let mut result = json!({"sessionId": &*session.id});
    if !matches!(request.method.as_str(), "session/new" | "session/fork") {
        result = json!({});
    }
    let commands = slash_command::available(request.version);
    if choice.is_none() {
        config_options::add_placeholder_options(request.version, &mut result);
    }
    if let Some(choice) = choice {
        let offers = agent.catalog.offers(&choice).await;
        result["configOptions"] =
            config_options::options(request.version, &agent.catalog, &choice, &offers).into();
        if request.version == Version::V1 {
            result["models"] = config_options::legacy_models(&agent.catalog, &choice, &offers);
        }
    }
    let mut updates = Vec::new();
    match request.version {
        Version::V1 => {
            updates
                .push(json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}));
        }
        Version::V2 => result["availableCommands"] = commands,
    }
    Response { result, after: Some(FollowUp { session, updates, when_idle: true }) }
}

fn store_error(error: &StoreError, id: Option<&str>) -> RpcError {
    match (error, id) {
        (StoreError::NotFound | StoreError::BadId, Some(id)) => session_not_found(id),
        (StoreError::InUse { .. }, _) => {
            RpcError::new(Code::InvalidParams, "the session is open in another process")
                .with("condition", "session_in_use".into())
                .with("field", "sessionId".into())
                .with("sessionId", id.unwrap_or_default().into())
        }
        (error, _) => {
            tracing::error!(%error, "session store unavailable");
            // `Busy` and `Full` are temporary: another process uses the file, or the disk is full.
            let passes = matches!(error, StoreError::Busy | StoreError::Full);
            RpcError::new(Code::Internal, format!("the session store is unavailable: {error}"))
                .with("condition", "store_unavailable".into())
                .with("retryable", passes.into())
        }
    }
}
