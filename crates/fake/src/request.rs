//! Requests other than prompts: initialize, authentication, and sessions.

use std::pin::Pin;
use std::sync::Arc;

use narrows_acp::agree::{Agreed, Refusal};
use narrows_acp::method::{self, Side};
use narrows_acp::{Version, v1, v2};
use narrows_wire::{Code, Frame, RpcError};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::encode;
use crate::script::step::Event;
use crate::scripted_response::ScriptedResponse;
use crate::session::Session;
use crate::step_runner::{RunEnd, StepRunner};
use crate::turn;

/// The slow part of handling a request.
pub(crate) type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Plan for a request: its result, the script steps to run, and the updates to send.
struct Plan {
    result: Value,
    event: Option<Event>,
    session: Option<Arc<Session>>,
    /// Updates sent in `session` before the response.
    updates: Vec<Value>,
    /// `true` if the running turn of `session` must be cancelled first.
    closes: bool,
}

impl Plan {
    fn new(result: Value, event: Event) -> Self {
        Self { result, event: Some(event), session: None, updates: Vec::new(), closes: false }
    }

    fn in_session(self, session: Arc<Session>) -> Self {
        Self { session: Some(session), ..self }
    }

    fn with_updates(self, updates: Vec<Value>) -> Self {
        Self { updates, ..self }
    }
}

/// Handles a request at once, or returns a future if handling takes time.
pub(crate) fn handle(
    agent: &Arc<Agent>,
    frame: &Frame,
    method: &str,
    response: ScriptedResponse,
) -> Option<RequestFuture> {
    let planned = if method == method::INITIALIZE {
        initialize(agent, frame)
    } else {
        plan_request(agent, frame, method)
    };
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            response.fail(&error);
            return None;
        }
    };
    let steps = plan.event.is_some_and(|event| !agent.script.on(event).is_empty());
    if steps || plan.closes || !plan.updates.is_empty() {
        return Some(Box::pin(run_plan(Arc::clone(agent), plan, response)));
    }
    response.respond(&plan.result);
    None
}

/// Runs the script's steps, performs the request, and then responds.
async fn run_plan(agent: Arc<Agent>, plan: Plan, response: ScriptedResponse) {
    let mut runner =
        StepRunner::new(Arc::clone(&agent), plan.session.clone()).with_response(response, plan.result);
    let steps = plan.event.map_or(&[][..], |event| agent.script.on(event));
    let mut end = runner.run_steps(steps).await.err();
    if end.is_none() {
        for update in plan.updates {
            if runner.replay(update).await.is_err() {
                end = Some(RunEnd::Silent);
                break;
            }
        }
    }
    if let Some(session) = plan.session
        && plan.closes
    {
        turn::cancel(&agent, &session);
        session.idle().await;
    }
    runner.finish(end.unwrap_or(RunEnd::Done)).await;
}

fn initialize(agent: &Agent, frame: &Frame) -> Result<Plan, RpcError> {
    let params: Option<&RawValue> = frame.params().and_then(|params| serde_json::from_slice(params).ok());
    let mut connection = agent.connection();
    let agreed = connection.handshake.initialize(params).map_err(|refusal| handshake_error(&refusal))?;
    connection.client = match &agreed {
        Agreed::V1(request) => (&request.client_capabilities).into(),
        Agreed::V2(request) => (&request.capabilities).into(),
    };
    let answer = encode::initialize_result(agreed.version(), &agent.script);
    Ok(Plan::new(answer, Event::Initialize))
}

fn handshake_error(refusal: &Refusal) -> RpcError {
    RpcError { code: refusal.code().into(), message: refusal.to_string().into(), data: refusal.data() }
}

/// Returns the version of the connection if `method` is allowed in the current state.
pub(crate) fn check_request(agent: &Agent, method: &str) -> Result<Version, RpcError> {
    let version =
        agent.connection().handshake.other_request().map_err(|refusal| handshake_error(&refusal))?;
    let can = &agent.script.capabilities;
    let offered = match (method, version) {
        (method::SESSION_LOAD, _) => can.load,
        (method::SESSION_DELETE, _) => can.delete,
        // In version 2, the session capability includes the methods that are optional in version 1.
        (method::SESSION_RESUME, Version::V1) => can.resume,
        (method::SESSION_LIST, Version::V1) => can.list,
        (method::SESSION_CLOSE, Version::V1) => can.close,
        _ => true,
    };
    if offered && method::knows(Side::Agent, version, method) {
        return Ok(version);
    }
    let named = Value::from(method);
    Err(RpcError::new(Code::MethodNotFound, "method not found").with("method", named))
}

fn plan_request(agent: &Arc<Agent>, frame: &Frame, method: &str) -> Result<Plan, RpcError> {
    let version = check_request(agent, method)?;
    let params: Value = read(frame)?;
    match method {
        method::AUTHENTICATE | method::AUTH_LOGIN => {
            let known = agent.script.auth.as_ref().is_some_and(|auth| params["methodId"] == *auth.id);
            if !known {
                return Err(invalid("unknown authentication method"));
            }
            agent.connection().logged_in = true;
            Ok(Plan::new(json!({}), Event::Authenticate))
        }
        method::LOGOUT | method::AUTH_LOGOUT => {
            agent.connection().logged_in = false;
            Ok(Plan { event: None, ..Plan::new(json!({}), Event::Authenticate) })
        }
        method::SESSION_NEW => {
            match version {
                Version::V1 => read::<v1::NewSessionRequest>(frame).map(drop)?,
                Version::V2 => read::<v2::NewSessionRequest>(frame).map(drop)?,
            }
            new_session(agent, version, &params)
        }
        method::SESSION_LIST => Ok(Plan::new(list(agent, &params), Event::SessionList)),
        method::SESSION_LOAD => {
            read::<v1::LoadSessionRequest>(frame)?;
            let session = reopen(agent, &params)?;
            let history = session.replay();
            let result = settings(agent, version, &session);
            Ok(Plan::new(result, Event::SessionLoad).in_session(session).with_updates(history))
        }
        method::SESSION_RESUME => resume(agent, version, frame, &params),
        // Closing or deleting a session that does not exist succeeds.
        method::SESSION_CLOSE => Ok(close_session(agent, &params, Event::SessionClose, false)),
        method::SESSION_DELETE => Ok(close_session(agent, &params, Event::SessionDelete, true)),
        method::SESSION_SET_MODE => {
            let session = open_session(agent, &params)?;
            let updates = set_mode(agent, version, &session, &params["modeId"])?;
            Ok(Plan::new(json!({}), Event::SessionSetMode).in_session(session).with_updates(updates))
        }
        method::SESSION_SET_CONFIG_OPTION => {
            let session = open_session(agent, &params)?;
            if params["configId"] != "mode" {
                return Err(invalid("unknown configuration option"));
            }
            let mut updates = set_mode(agent, version, &session, &params["value"])?;
            // The response already contains the options, so only version 1's update of the mode is sent.
            updates.retain(|update| update["sessionUpdate"] != "config_option_update");
            let result =
                json!({"configOptions": encode::options(version, &agent.script.modes, &session.mode())});
            Ok(Plan::new(result, Event::SessionSetConfigOption).in_session(session).with_updates(updates))
        }
        method::SESSION_CANCEL => {
            // The specification defines only a notification. A client that sends an id expects a response.
            let session = open_session(agent, &params)?;
            turn::cancel(agent, &session);
            Ok(Plan { event: None, ..Plan::new(json!({}), Event::SessionClose) })
        }
        _ => Err(invalid("this request cannot be cancelled")),
    }
}

fn new_session(agent: &Agent, version: Version, params: &Value) -> Result<Plan, RpcError> {
    let cwd = params["cwd"].as_str().unwrap_or_default();
    if !cwd.starts_with('/') {
        return Err(invalid("`cwd` must be an absolute path"));
    }
    let number = {
        let mut connection = agent.connection();
        if agent.script.auth.as_ref().is_some_and(|auth| auth.required) && !connection.logged_in {
            return Err(RpcError::new(Code::AuthRequired, "authentication required"));
        }
        connection.last_session += 1;
        connection.last_session
    };
    let pid = std::process::id().to_string();
    let id = agent.script.session_id.replace("{n}", &number.to_string()).replace("{pid}", &pid);
    let mode = agent.script.modes.first().cloned().unwrap_or_default();
    let session = Arc::new(Session::new(id.clone(), cwd.to_owned(), mode));
    agent.sessions().insert(id.clone(), Arc::clone(&session));
    let mut result = settings(agent, version, &session);
    result["sessionId"] = json!(id);
    Ok(Plan::new(result, Event::SessionNew).in_session(session))
}

/// Returns the session settings in the responses to new, load and resume.
fn settings(agent: &Agent, version: Version, session: &Session) -> Value {
    let modes = &agent.script.modes;
    let mut settings = json!({});
    if !modes.is_empty() {
        settings["configOptions"] = encode::options(version, modes, &session.mode());
        if version == Version::V1 {
            settings["modes"] = encode::modes(modes, &session.mode());
        }
    }
    settings
}

fn list(agent: &Agent, params: &Value) -> Value {
    let wanted = params["cwd"].as_str();
    let sessions: Vec<Value> = agent
        .sessions()
        .values()
        .filter(|session| wanted.is_none_or(|cwd| cwd == session.cwd))
        .map(|session| {
            let mut listed = json!({"sessionId": session.id, "cwd": session.cwd});
            if let Some(title) = session.title() {
                listed["title"] = json!(title);
            }
            listed
        })
        .collect();
    json!({"sessions": sessions})
}

fn resume(agent: &Arc<Agent>, version: Version, frame: &Frame, params: &Value) -> Result<Plan, RpcError> {
    let mut updates = Vec::new();
    let session = match version {
        Version::V1 => {
            read::<v1::ResumeSessionRequest>(frame)?;
            reopen(agent, params)?
        }
        Version::V2 => {
            let request: v2::ResumeSessionRequest = read(frame)?;
            let replay = match request.replay_from {
                None => false,
                Some(v2::ReplayFrom::Start(_)) => true,
                Some(_) => return Err(invalid("cannot replay from this position")),
            };
            let session = reopen(agent, params)?;
            if replay {
                updates.extend(session.replay());
            }
            updates.push(encode::state(if session.is_busy() { "running" } else { "idle" }));
            session
        }
    };
    let result = settings(agent, version, &session);
    Ok(Plan::new(result, Event::SessionResume).in_session(session).with_updates(updates))
}

fn close_session(agent: &Agent, params: &Value, event: Event, forever: bool) -> Plan {
    let id = params["sessionId"].as_str().unwrap_or_default();
    let session = if forever { agent.sessions().remove(id) } else { agent.session(id) };
    let plan = Plan::new(json!({}), event);
    match session {
        Some(session) => {
            session.set_closed(true);
            Plan { closes: true, ..plan.in_session(session) }
        }
        // Steps need a session, so without one none are run.
        None => Plan { event: None, ..plan },
    }
}

fn set_mode(
    agent: &Agent,
    version: Version,
    session: &Session,
    mode: &Value,
) -> Result<Vec<Value>, RpcError> {
    let modes = &agent.script.modes;
    let known = modes.iter().find(|known| *mode == **known).ok_or_else(|| invalid("unknown mode"))?;
    session.set_mode(known);
    Ok(encode::mode_changed(version, modes, known))
}

fn named_session(agent: &Agent, params: &Value) -> Result<Arc<Session>, RpcError> {
    let id = params["sessionId"].as_str().ok_or_else(|| invalid("`sessionId` must be a string"))?;
    agent.session(id).ok_or_else(|| session_not_found(id))
}

pub(crate) fn open_session(agent: &Agent, params: &Value) -> Result<Arc<Session>, RpcError> {
    let session = named_session(agent, params)?;
    if session.is_closed() { Err(session_not_found(&session.id)) } else { Ok(session) }
}

fn reopen(agent: &Agent, params: &Value) -> Result<Arc<Session>, RpcError> {
    let session = named_session(agent, params)?;
    if params["cwd"] != *session.cwd {
        return Err(invalid("the session has a different `cwd`"));
    }
    session.set_closed(false);
    Ok(session)
}

pub(crate) fn session_not_found(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, "session not found").with("sessionId", json!(id))
}

pub(crate) fn invalid(message: &'static str) -> RpcError {
    RpcError::new(Code::InvalidParams, message)
}

/// Parses the params of a request. Refuses params that violate the schema.
pub(crate) fn read<T: DeserializeOwned>(frame: &Frame) -> Result<T, RpcError> {
    frame.read_params().map_err(|error| RpcError::new(Code::InvalidParams, error.to_string()))
}
