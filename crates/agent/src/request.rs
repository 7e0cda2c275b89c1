//! What is done about each request, and the answer to it.

use std::pin::Pin;
use std::sync::Arc;

use narrows_acp::method::{self, SESSION_UPDATE};
use narrows_acp::{Version, v2};
use narrows_rpc::Responder;
use narrows_store::Change;
use narrows_wire::{Code, RpcError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::agent::{Agent, Call};
use crate::config::{self, MODEL};
use crate::read::{Params, invalid, no_session};
use crate::session::Session;
use crate::{open, prompt};

/// Something that takes time.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer, and what is said behind it.
pub(crate) struct Answer {
    pub(crate) result: Value,
    pub(crate) after: Option<After>,
}

/// What is said in a session behind an answer.
pub(crate) struct After {
    pub(crate) session: Arc<Session>,
    pub(crate) updates: Vec<Value>,
    /// It can wait until no turn goes on: there are clients that take every update during a turn for one of it.
    pub(crate) at_leisure: bool,
}

impl From<Value> for Answer {
    fn from(result: Value) -> Self {
        Self { result, after: None }
    }
}

/// Takes a request; what needs time is returned.
pub(crate) fn accept(agent: &Arc<Agent>, call: Call, responder: Responder) -> Option<Work> {
    if call.method == method::SESSION_PROMPT {
        return prompt::accept(agent, call, responder);
    }
    if let Some(outcome) = at_once(agent, &call) {
        match outcome {
            Ok(result) => responder.respond(&result),
            Err(error) => responder.fail(&error),
        }
        return None;
    }
    let agent = Arc::clone(agent);
    Some(Box::pin(async move {
        match later(&agent, &call).await {
            Ok(Answer { result, after }) => {
                responder.respond(&result);
                if let Some(After { session, updates, at_leisure }) = after {
                    if at_leisure {
                        agent.leisure().await;
                    }
                    if !agent.is_open(&session) {
                        return;
                    }
                    tell(&agent, &session, updates).await;
                }
            }
            Err(error) => responder.fail(&error),
        }
    }))
}

/// The answer to what needs no time.
fn at_once(agent: &Agent, call: &Call) -> Option<Result<Value, RpcError>> {
    let params = Params::new(&call.params, call.version);
    Some(match call.method.as_str() {
        // There is nothing to log in to, and whoever insists may go on.
        method::AUTHENTICATE => Ok(json!({})),
        // Some clients send it with an id, and want an answer.
        method::SESSION_CANCEL => params.text("sessionId").map(|id| {
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
    let session = find(agent, params)?;
    let call = params.text("toolCallId")?;
    if session.cancel_call(call) {
        return Ok(json!({}));
    }
    Err(invalid("toolCallId", "names no call that can be cancelled"))
}

async fn later(agent: &Arc<Agent>, call: &Call) -> Result<Answer, RpcError> {
    let params = Params::new(&call.params, call.version);
    let _passage = match call.method.as_str() {
        method::SESSION_LOAD | method::SESSION_RESUME | method::SESSION_CLOSE | method::SESSION_DELETE => {
            Some(agent.passage(params.text("sessionId")?).await)
        }
        _ => None,
    };
    match call.method.as_str() {
        method::SESSION_NEW => {
            strictly::<v2::NewSessionRequest>(call)?;
            open::new(agent, call, &params).await
        }
        method::SESSION_LOAD => open::load(agent, call, &params).await,
        method::SESSION_RESUME => {
            strictly::<v2::ResumeSessionRequest>(call)?;
            open::resume(agent, call, &params).await
        }
        method::SESSION_FORK => {
            strictly::<v2::ForkSessionRequest>(call)?;
            open::fork(agent, call, &params).await
        }
        method::SESSION_LIST => open::list(agent, &params).await.map(Answer::from),
        method::SESSION_CLOSE => open::close(agent, &params).await.map(Answer::from),
        method::SESSION_DELETE => open::delete(agent, &params).await.map(Answer::from),
        method::SESSION_SET_CONFIG_OPTION => {
            strictly::<v2::SetSessionConfigOptionRequest>(call)?;
            let id = params.text("configId")?;
            let value = params.get("value").ok_or_else(|| invalid("value", "is missing"))?;
            let (_, options) = choose(agent, call, &params, id, value, "value").await?;
            Ok(json!({"configOptions": options}).into())
        }
        method::SESSION_SET_MODEL => {
            let value = params.get("modelId").ok_or_else(|| invalid("modelId", "is missing"))?;
            let (session, options) = choose(agent, call, &params, MODEL, value, "modelId").await?;
            let update = json!({"sessionUpdate": "config_option_update", "configOptions": options});
            let after = After { session, updates: vec![update], at_leisure: false };
            Ok(Answer { result: json!({}), after: Some(after) })
        }
        _ => Err(RpcError::new(Code::MethodNotFound, "there is no such method here")
            .with("method", Value::from(call.method.as_str()))),
    }
}

/// Sets an option, and returns all of them as they stand now.
async fn choose(
    agent: &Agent,
    call: &Call,
    params: &Params<'_>,
    id: &str,
    value: &Value,
    field: &str,
) -> Result<(Arc<Session>, Vec<Value>), RpcError> {
    let session = find(agent, params)?;
    note_tag(&session, call);
    let Some(current) = session.state().choice.clone() else {
        return Err(invalid(field, "cannot be chosen: no model endpoint is configured"));
    };
    let offers = agent.catalog.offers(&current).await;
    let chosen = config::set(&agent.catalog, &current, &offers, id, value, field)?;
    let stored = config::store(&agent.catalog, Some(&chosen), true);
    let options = config::options(call.version, &agent.catalog, &chosen, &offers);
    session.state().choice = Some(chosen);
    if let Err(error) = session.change(Change::Settings(stored)).await {
        // It is in force all the same, until the session is closed.
        tracing::warn!(%error, "a choice could not be stored");
    }
    Ok((session, options))
}

/// In version 2 the schema's own type decides whether the params are in order.
pub(crate) fn strictly<T: DeserializeOwned>(call: &Call) -> Result<(), RpcError> {
    if call.version == Version::V1 {
        return Ok(());
    }
    let read = serde_json::from_value::<T>(Value::Object(call.params.clone()));
    read.map(drop).map_err(|error| {
        let field = named_in(&error.to_string());
        let refused =
            RpcError::new(Code::InvalidParams, format!("the params are not those of the schema: {error}"));
        match field {
            Some(field) => refused.with("field", Value::from(field)),
            None => refused,
        }
    })
}

/// The field that the message of a reader names, as in "missing field `cwd`".
fn named_in(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("field `")?;
    rest.split_once('`').map(|(field, _)| field.to_owned())
}

/// The open session that the params name.
pub(crate) fn find(agent: &Agent, params: &Params<'_>) -> Result<Arc<Session>, RpcError> {
    let id = params.text("sessionId")?;
    agent.session(id).ok_or_else(|| no_session(id))
}

/// What the router wants to find on what is said in this session from now on.
pub(crate) fn note_tag(session: &Session, call: &Call) {
    if call.tag.is_some() {
        session.state().tag.clone_from(&call.tag);
    }
}

/// Says `updates` in a session.
pub(crate) async fn tell(agent: &Agent, session: &Session, updates: Vec<Value>) {
    let peer = agent.peer.with_tag(session.state().tag.as_deref());
    for update in updates {
        let mut params = Map::new();
        params.insert("sessionId".to_owned(), Value::from(&*session.id));
        params.insert("update".to_owned(), update);
        if peer.notify(SESSION_UPDATE, &params).await.is_err() {
            // The client has gone.
            return;
        }
    }
}
