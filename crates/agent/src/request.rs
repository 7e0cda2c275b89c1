//! Dispatches requests and sends their responses.

use std::pin::Pin;
use std::sync::Arc;

use narrows_acp::method::{self, SESSION_UPDATE};
use narrows_acp::{Version, v2};
use narrows_rpc::Responder;
use narrows_store::Change;
use narrows_wire::{Code, RpcError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::agent::{Agent, ClientRequest};
use crate::config_options::{self, MODEL_OPTION};
use crate::params::{Params, invalid, session_not_found};
use crate::session::Session;
use crate::{prompt, session_lifecycle};

/// The slow part of handling a request.
pub(crate) type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Response {
    pub(crate) result: Value,
    pub(crate) after: Option<FollowUp>,
}

pub(crate) struct FollowUp {
    pub(crate) session: Arc<Session>,
    pub(crate) updates: Vec<Value>,
    /// `true` to send the updates only when no turn runs. Some clients attribute every update during a turn
    /// to that turn.
    pub(crate) when_idle: bool,
}

impl From<Value> for Response {
    fn from(result: Value) -> Self {
        Self { result, after: None }
    }
}

/// Handles a request at once, or returns a future if handling takes time.
pub(crate) fn handle(
    agent: &Arc<Agent>,
    request: ClientRequest,
    responder: Responder,
) -> Option<RequestFuture> {
    if request.method == method::SESSION_PROMPT {
        return prompt::handle(agent, request, responder);
    }
    if let Some(outcome) = handle_now(agent, &request) {
        match outcome {
            Ok(result) => responder.respond(&result),
            Err(error) => responder.fail(&error),
        }
        return None;
    }
    let agent = Arc::clone(agent);
    Some(Box::pin(async move {
        match handle_async(&agent, &request).await {
            Ok(Response { result, after }) => {
                responder.respond(&result);
                if let Some(FollowUp { session, updates, when_idle }) = after {
                    if when_idle {
                        agent.wait_until_idle().await;
                    }
                    if !agent.is_open(&session) {
                        return;
                    }
                    send_updates(&agent, &session, updates).await;
                }
            }
            Err(error) => responder.fail(&error),
        }
    }))
}

/// Answers a request that is handled without waiting. Returns `None` for any other request.
fn handle_now(agent: &Agent, request: &ClientRequest) -> Option<Result<Value, RpcError>> {
    let params = Params::new(&request.params, request.version);
    Some(match request.method.as_str() {
        // No login is needed, so every attempt succeeds.
        method::AUTHENTICATE => Ok(json!({})),
        // Some clients send `session/cancel` as a request, so it gets a response.
        method::SESSION_CANCEL => params.required_text("sessionId").map(|id| {
            if let Some(session) = agent.session(id) {
                session.cancel();
            }
            json!({})
        }),
        method::TOOL_CALL_CANCEL => cancel_call(agent, &params),
        _ => return None,
    })
}

fn cancel_call(agent: &Agent, params: &Params<'_>) -> Result<Value, RpcError> {
    let session = find_session(agent, params)?;
    let tool_call_id = params.required_text("toolCallId")?;
    if session.cancel_call(tool_call_id) {
        return Ok(json!({}));
    }
    Err(invalid("toolCallId", "is not a call that can be cancelled"))
}

async fn handle_async(agent: &Arc<Agent>, request: &ClientRequest) -> Result<Response, RpcError> {
    let params = Params::new(&request.params, request.version);
    let _lock = match request.method.as_str() {
        method::SESSION_LOAD | method::SESSION_RESUME | method::SESSION_CLOSE | method::SESSION_DELETE => {
            Some(agent.lock_session(params.required_text("sessionId")?).await)
        }
        _ => None,
    };
    match request.method.as_str() {
        method::SESSION_NEW => {
            check_schema::<v2::NewSessionRequest>(request)?;
            session_lifecycle::new(agent, request, &params).await
        }
        method::SESSION_LOAD => session_lifecycle::load(agent, request, &params).await,
        method::SESSION_RESUME => {
            check_schema::<v2::ResumeSessionRequest>(request)?;
            session_lifecycle::resume(agent, request, &params).await
        }
        method::SESSION_FORK => {
            check_schema::<v2::ForkSessionRequest>(request)?;
            session_lifecycle::fork(agent, request, &params).await
        }
        method::SESSION_LIST => session_lifecycle::list(agent, &params).await.map(Response::from),
        method::SESSION_CLOSE => session_lifecycle::close(agent, &params).await.map(Response::from),
        method::SESSION_DELETE => session_lifecycle::delete(agent, &params).await.map(Response::from),
        method::SESSION_SET_CONFIG_OPTION => {
            check_schema::<v2::SetSessionConfigOptionRequest>(request)?;
            let id = params.required_text("configId")?;
            let value = params.get("value").ok_or_else(|| invalid("value", "is missing"))?;
            let (_, options) = set_option(agent, request, &params, id, value, "value").await?;
            Ok(json!({"configOptions": options}).into())
        }
        method::SESSION_SET_MODEL => {
            let value = params.get("modelId").ok_or_else(|| invalid("modelId", "is missing"))?;
            let (session, options) =
                set_option(agent, request, &params, MODEL_OPTION, value, "modelId").await?;
            let update = json!({"sessionUpdate": "config_option_update", "configOptions": options});
            let after = FollowUp { session, updates: vec![update], when_idle: false };
            Ok(Response { result: json!({}), after: Some(after) })
        }
        _ => Err(RpcError::new(Code::MethodNotFound, "method not found")
            .with("method", Value::from(request.method.as_str()))),
    }
}

async fn set_option(
    agent: &Agent,
    request: &ClientRequest,
    params: &Params<'_>,
    id: &str,
    value: &Value,
    field: &str,
) -> Result<(Arc<Session>, Vec<Value>), RpcError> {
    let session = find_session(agent, params)?;
    record_router_tag(&session, request);
    let Some(current) = session.state().choice.clone() else {
        return Err(invalid(field, "cannot be set: no model endpoint is configured"));
    };
    let offers = agent.catalog.offers(&current).await;
    let chosen = config_options::set(&agent.catalog, &current, &offers, id, value, field)?;
    let stored = config_options::serialize_choice(&agent.catalog, Some(&chosen), true);
    let options = config_options::options(request.version, &agent.catalog, &chosen, &offers);
    session.state().choice = Some(chosen);
    if let Err(error) = session.change(Change::Settings(stored)).await {
        // A choice that cannot be stored still applies until the session is closed.
        tracing::warn!(%error, "model choice not stored");
    }
    Ok((session, options))
}

/// Checks the params of version 2 against the official type.
pub(crate) fn check_schema<T: DeserializeOwned>(request: &ClientRequest) -> Result<(), RpcError> {
    if request.version == Version::V1 {
        return Ok(());
    }
    let parsed = serde_json::from_value::<T>(Value::Object(request.params.clone()));
    parsed.map(drop).map_err(|error| {
        let field = field_in_error(&error.to_string());
        let refused =
            RpcError::new(Code::InvalidParams, format!("the params do not match the schema: {error}"));
        match field {
            Some(field) => refused.with("field", Value::from(field)),
            None => refused,
        }
    })
}

/// Returns the field named in an error message of serde, such as "missing field `cwd`".
fn field_in_error(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("field `")?;
    rest.split_once('`').map(|(field, _)| field.to_owned())
}

pub(crate) fn find_session(agent: &Agent, params: &Params<'_>) -> Result<Arc<Session>, RpcError> {
    let id = params.required_text("sessionId")?;
    agent.session(id).ok_or_else(|| session_not_found(id))
}

/// Records the `sessionId` at the top level of the message (not the one in params), which a router expects on
/// later messages of the session.
pub(crate) fn record_router_tag(session: &Session, request: &ClientRequest) {
    if request.router_tag.is_some() {
        session.state().router_tag.clone_from(&request.router_tag);
    }
}

pub(crate) async fn send_updates(agent: &Agent, session: &Session, updates: Vec<Value>) {
    let peer = agent.peer.with_tag(session.state().router_tag.as_deref());
    for update in updates {
        let mut params = Map::new();
        params.insert("sessionId".to_owned(), Value::from(&*session.id));
        params.insert("update".to_owned(), update);
        if peer.notify(SESSION_UPDATE, &params).await.is_err() {
            return;
        }
    }
}
