//! Opening, listing and closing sessions.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_mcp::{Options, Server, Servers};
use narrows_model::Message;
use narrows_store::{Change, Claim, NewSession, Record, Store, StoreError, Turn};
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{Agent, Call};
use crate::bridge::ClientServers;
use crate::prompt::stored_bytes;
use crate::read::{self, Params, invalid, no_session};
use crate::request::{After, Answer, note_tag, tell};
use crate::session::{Past, Place, Session, State};
use crate::shown::Shown;
use crate::voice::new_id;
use crate::{command, config, dialect};

/// How many sessions one connection may have open: each has a descriptor for its lock, of which a process often has no
/// more than 1024.
const MOST: usize = 512;

/// How many sessions a page of the list has.
const PAGE: usize = 50;

/// `session/new`.
pub(crate) async fn new(agent: &Arc<Agent>, call: &Call, params: &Params<'_>) -> Result<Answer, RpcError> {
    let place = room(agent).and_then(|()| place_of(agent, params))?;
    let background = recall(agent).await?;
    let new = NewSession {
        id: new_id(),
        cwd: place.cwd.clone(),
        roots: place.roots.clone(),
        settings: config::store(&agent.catalog, agent.catalog.default_choice().as_ref(), false),
    };
    let (mut trouble, mut later) = (None, None);
    let (store, claim) = match agent.store.create(new.clone()).await {
        Ok(claim) => (agent.store.clone(), claim),
        // A disk that is full or belongs to somebody else is no reason not to answer.
        Err(error) => {
            tracing::error!(%error, "session not stored");
            let memory = Store::in_memory();
            let claim = memory.create(new.clone()).await.map_err(|error| failed(&error, None))?;
            // Where not even reading works, there is nothing to be waited for.
            if error.may_pass() && agent.store.record(&new.id).await.is_ok() {
                let when = "it is tried again with every turn and every few seconds";
                trouble = Some(format!("This session could not be stored yet ({error}); {when}"));
                later = Some(new);
                (agent.store.clone(), claim)
            } else {
                trouble = Some(format!("This session will not be kept: {error}"));
                (memory, claim)
            }
        }
    };
    let id = claim.id().to_owned();
    let session = Arc::new(Session::new(&id, store, state(agent, &id, claim, place)));
    session.state().choice = agent.catalog.default_choice();
    session.state().background = background;
    session.state().troubles.extend(trouble);
    if let Some(record) = later {
        session.store_later(record).await;
    }
    Ok(entered(agent, call, session).await)
}

/// Where a session is to work and with which servers, if it may have them.
fn place_of(agent: &Agent, params: &Params<'_>) -> Result<read::Place, RpcError> {
    let place = params.place(&agent.here)?;
    let is_started = |server: &Server| !matches!(server, Server::Acp { .. });
    if !agent.accepts_servers && (place.servers.iter().any(is_started) || !place.unusable.is_empty()) {
        return Err(RpcError::new(Code::PolicyDenied, "MCP servers of clients are disabled"));
    }
    Ok(place)
}

/// `session/load`: everything that was shown is shown again, then comes the answer.
pub(crate) async fn load(agent: &Arc<Agent>, call: &Call, params: &Params<'_>) -> Result<Answer, RpcError> {
    let (session, history) = reopen(agent, call, params).await?;
    replay(agent, call.version, &session, &history).await;
    let mut answer = entered(agent, call, session).await;
    // Version 1 has it in the params only; a client in the field looks for it here.
    answer.result["sessionId"] = params.text("sessionId")?.into();
    Ok(answer)
}

/// `session/resume`: in version 2 with a replay if it is asked for, and with the state the session is in.
pub(crate) async fn resume(agent: &Arc<Agent>, call: &Call, params: &Params<'_>) -> Result<Answer, RpcError> {
    let from = if call.version == Version::V2 { params.get("replayFrom") } else { None };
    match from.map(|from| from["type"].as_str()) {
        None | Some(Some("start")) => {}
        Some(_) => return Err(invalid("replayFrom", "names a place that is not known")),
    }
    let (session, history) = reopen(agent, call, params).await?;
    if from.is_some() {
        replay(agent, call.version, &session, &history).await;
    }
    if call.version == Version::V2 {
        let state = if session.is_running() { "running" } else { "idle" };
        tell(agent, &session, vec![json!({"sessionUpdate": "state_update", "state": state})]).await;
    }
    Ok(entered(agent, call, session).await)
}

/// `session/fork`: a new session that begins with what was said in another.
pub(crate) async fn fork(agent: &Arc<Agent>, call: &Call, params: &Params<'_>) -> Result<Answer, RpcError> {
    let from = params.text("sessionId")?;
    let place = room(agent).and_then(|()| place_of(agent, params))?;
    let source = agent.store.record(from).await.map_err(|error| failed(&error, Some(from)))?;
    let source = source.ok_or_else(|| no_session(from))?;
    let new = NewSession {
        id: new_id(),
        cwd: place.cwd.clone(),
        roots: place.roots.clone(),
        settings: source.settings.clone(),
    };
    let background = recall(agent).await?;
    let claim = agent.store.fork(from, new).await.map_err(|error| failed(&error, Some(from)))?;
    let id = claim.id().to_owned();
    let history = agent.store.history(&id).await.map_err(|error| failed(&error, Some(&id)))?;
    let session = Arc::new(Session::new(&id, agent.store.clone(), state(agent, &id, claim, place)));
    session.state().background = background;
    remember(agent, &session, &source, &history);
    Ok(entered(agent, call, session).await)
}

/// `session/list`.
pub(crate) async fn list(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    let cwd = params.optional_text("cwd")?;
    let cursor = params.optional_text("cursor")?.filter(|cursor| !cursor.is_empty());
    let page = agent.store.list(cwd, cursor, PAGE).await.map_err(|error| match error {
        StoreError::BadCursor => invalid("cursor", "is none that was given out"),
        error => failed(&error, None),
    })?;
    let sessions: Vec<Value> = page
        .sessions
        .iter()
        .map(|record| {
            let mut info =
                json!({"sessionId": record.id, "cwd": record.cwd, "updatedAt": record.updated_at()});
            // Earlier versions also kept the titles of sessions in which every turn failed.
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

/// `session/close`. Whoever closes what is not open has what it wants.
pub(crate) async fn close(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    shut(agent, params.text("sessionId")?).await;
    Ok(json!({}))
}

/// `session/delete`. Whoever deletes what is not there has what it wants.
pub(crate) async fn delete(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    let id = params.text("sessionId")?;
    shut(agent, id).await;
    // What of it is not stored is not to be either.
    if let Some(session) = agent.take_unstored(id) {
        session.give_back();
    }
    match agent.store.delete(id).await {
        Ok(_) | Err(StoreError::BadId | StoreError::NotFound) => Ok(json!({})),
        Err(error) => Err(failed(&error, Some(id))),
    }
}

/// Ends a session with everything in it.
async fn shut(agent: &Agent, id: &str) {
    let Some(session) = agent.leave(id) else { return };
    if !session.close().await {
        agent.keep_unstored(Arc::clone(&session));
    }
    agent.memory.close(id).await;
    let servers = std::mem::replace(&mut session.state().servers, Arc::new(none()));
    if let Some(servers) = Arc::into_inner(servers) {
        servers.close().await;
    }
}

fn room(agent: &Agent) -> Result<(), RpcError> {
    if agent.session_count() < MOST {
        return Ok(());
    }
    Err(RpcError::new(Code::Backpressure, format!("{MOST} sessions are open; close some")))
}

/// What a session that is opened is to know of earlier ones. It is not opened with what cannot be trusted.
async fn recall(agent: &Agent) -> Result<Option<Arc<str>>, RpcError> {
    match agent.memory.recall().await {
        Ok(background) => Ok(background.map(Arc::from)),
        Err(error) => {
            Err(RpcError::new(Code::Internal, error.to_string()).with("code", json!("memory-poisoned")))
        }
    }
}

/// No servers at all.
fn none() -> Servers {
    Servers::start(Vec::new(), Options::new("/", narrows_process::Environment::empty()), None)
}

/// A fresh state with its servers starting.
fn state(agent: &Arc<Agent>, id: &str, claim: Claim, place: read::Place) -> State {
    let (place, servers, troubles) = start(agent, id, place);
    State::new(claim, place, servers, troubles)
}

/// Lets an open session work elsewhere or with other servers: what it is told is complete, nothing is inherited.
fn move_to(agent: &Arc<Agent>, session: &Session, place: read::Place) {
    let (place, servers, troubles) = start(agent, &session.id, place);
    let mut state = session.state();
    state.place = place;
    // The old ones end when nobody holds them any more.
    state.servers = servers;
    state.servers_since = Instant::now();
    state.troubles.extend(troubles);
}

/// Starts the servers of a session.
fn start(agent: &Arc<Agent>, id: &str, place: read::Place) -> (Place, Arc<Servers>, Vec<String>) {
    let read::Place { cwd, roots, servers, unusable } = place;
    let mut options = Options::new(cwd.clone(), agent.server_env.clone());
    options.start_limit = agent.limits.server_start;
    options.call_limit = agent.limits.tool;
    options.confinement.clone_from(&agent.server_confinement);
    let bridge = ClientServers::new(agent, id);
    let servers = Servers::start(servers, options, Some(Arc::new(bridge)));
    (Place { cwd, roots }, Arc::new(servers), unusable)
}

/// Opens a stored session, or takes up one that is open already.
async fn reopen(
    agent: &Arc<Agent>,
    call: &Call,
    params: &Params<'_>,
) -> Result<(Arc<Session>, Vec<Turn>), RpcError> {
    let id = params.text("sessionId")?;
    let place = place_of(agent, params)?;
    if let Some(session) = agent.session(id).or_else(|| agent.reopen_unstored(id)) {
        let history = session.history().await.map_err(|error| failed(&error, Some(id)))?;
        check_cwd(call.version, &session.state().place.cwd, &place.cwd)?;
        note_tag(&session, call);
        if !session.is_running() {
            let was = session.state().place.clone();
            let now = Place { cwd: place.cwd.clone(), roots: place.roots.clone() };
            move_to(agent, &session, place);
            store_place(&session, &was, now).await;
        }
        return Ok((session, history));
    }
    room(agent)?;
    let background = recall(agent).await?;
    let (claim, record) = agent.store.claim(id).await.map_err(|error| failed(&error, Some(id)))?;
    check_cwd(call.version, &record.cwd, &place.cwd)?;
    let history = agent.store.history(id).await.map_err(|error| failed(&error, Some(id)))?;
    let was = Place { cwd: record.cwd.clone(), roots: record.roots.clone() };
    let now = Place { cwd: place.cwd.clone(), roots: place.roots.clone() };
    let session = Arc::new(Session::new(id, agent.store.clone(), state(agent, id, claim, place)));
    store_place(&session, &was, now).await;
    session.state().background = background;
    remember(agent, &session, &record, &history);
    note_tag(&session, call);
    Ok((session, history))
}

/// Stores where a session works now, if that has changed.
async fn store_place(session: &Session, was: &Place, now: Place) {
    if *was == now {
        return;
    }
    let Place { cwd, roots } = now;
    if let Err(error) = session.change(Change::Place { cwd, roots }).await {
        tracing::warn!(%error, "where a session works could not be stored");
    }
}

/// Version 2 has a session stay where it is; in version 1 it may move.
fn check_cwd(version: Version, is: &str, wanted: &str) -> Result<(), RpcError> {
    if version == Version::V2 && is != wanted {
        return Err(invalid("cwd", "must be the one the session was created with"));
    }
    Ok(())
}

/// Puts into a session what was stored of it.
fn remember(agent: &Agent, session: &Session, record: &Record, history: &[Turn]) {
    let mut state = session.state();
    state.title.clone_from(&record.title);
    let (choice, told) = config::recall(&agent.catalog, &record.settings);
    state.choice = choice;
    state.troubles.extend(told);
    state.last_turn = history.iter().map(|turn| turn.number).max().unwrap_or(0);
    state.stored_bytes = history.iter().map(stored_bytes).sum();
    state.past = history
        .iter()
        .filter(|turn| !turn.messages.is_empty())
        .map(|turn| Past { number: turn.number, messages: messages(&turn.messages) })
        .collect();
}

fn messages(texts: &[String]) -> Vec<Message> {
    let read = |text: &String| match serde_json::from_str(text) {
        Ok(message) => Some(message),
        Err(error) => {
            // The words of the error would quote the message.
            tracing::error!(column = error.column(), "a stored message cannot be read and is left out");
            None
        }
    };
    texts.iter().filter_map(read).collect()
}

/// Shows again what was shown.
async fn replay(agent: &Agent, version: Version, session: &Session, history: &[Turn]) {
    for text in history.iter().flat_map(|turn| &turn.replay) {
        match serde_json::from_str::<Shown>(text) {
            Ok(shown) => tell(agent, session, dialect::replay(version, &shown)).await,
            Err(error) => {
                tracing::error!(column = error.column(), "something that was shown cannot be read");
            }
        }
    }
}

/// Makes an open session known, and answers with what can be chosen in it.
async fn entered(agent: &Agent, call: &Call, session: Arc<Session>) -> Answer {
    note_tag(&session, call);
    agent.enter(&session);
    let choice = session.state().choice.clone();
    let mut result = json!({"sessionId": &*session.id});
    if !matches!(call.method.as_str(), "session/new" | "session/fork") {
        result = json!({});
    }
    let commands = command::available(call.version);
    if choice.is_none() {
        config::unconfigured(call.version, &mut result);
    }
    if let Some(choice) = choice {
        let offers = agent.catalog.offers(&choice).await;
        result["configOptions"] = config::options(call.version, &agent.catalog, &choice, &offers).into();
        if call.version == Version::V1 {
            result["models"] = config::legacy_models(&agent.catalog, &choice, &offers);
        }
    }
    let mut updates = Vec::new();
    match call.version {
        Version::V1 => {
            updates
                .push(json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}));
        }
        Version::V2 => result["availableCommands"] = commands,
    }
    Answer { result, after: Some(After { session, updates, at_leisure: true }) }
}

/// What is wrong with the store, as the client is told.
fn failed(error: &StoreError, id: Option<&str>) -> RpcError {
    match (error, id) {
        (StoreError::NotFound | StoreError::BadId, Some(id)) => no_session(id),
        (StoreError::InUse { .. }, _) => RpcError::new(Code::InvalidParams, "the session is open elsewhere")
            .with("condition", "session_in_use".into())
            .with("field", "sessionId".into())
            .with("sessionId", id.unwrap_or_default().into()),
        (error, _) => {
            tracing::error!(%error, "the store of sessions cannot be used");
            // Somebody else has the file, or there is no room: both may pass.
            let passes = matches!(error, StoreError::Busy | StoreError::Full);
            RpcError::new(Code::Internal, format!("the store of sessions cannot be used: {error}"))
                .with("condition", "store_unavailable".into())
                .with("retryable", passes.into())
        }
    }
}
