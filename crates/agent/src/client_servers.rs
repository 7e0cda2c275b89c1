//! MCP servers that the client provides. Their messages are sent as `mcp/message`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use narrows_acp::method::MCP_MESSAGE;
use narrows_mcp::{Bridge, BridgeError, BridgeFuture};
use narrows_rpc::CallError;
use narrows_wire::Frame;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::agent::Agent;

/// Upper bound for a client's answer. Each caller has its own, shorter timeout.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(3600);

pub(crate) struct ClientServers {
    /// A strong reference would be a cycle: the agent owns the session, which owns these servers.
    agent: Weak<Agent>,
    session: String,
}

impl ClientServers {
    pub(crate) fn new(agent: &Arc<Agent>, session: &str) -> Self {
        Self { agent: Arc::downgrade(agent), session: session.to_owned() }
    }
}

impl Bridge for ClientServers {
    fn message(&self, server: String, request: String, method: String, params: Value) -> BridgeFuture {
        let agent = self.agent.upgrade();
        let session = self.session.clone();
        Box::pin(async move {
            let Some(agent) = agent else { return Err(disconnected_error()) };
            // Servers are contacted while a session is being opened, so the agent may not know the session
            // yet.
            let tag = agent.session(&session).and_then(|session| session.state().router_tag.clone());
            let mut message = Map::new();
            message.insert("serverId".to_owned(), server.into());
            message.insert("requestId".to_owned(), request.into());
            message.insert("method".to_owned(), method.into());
            if params.is_object() {
                message.insert("params".to_owned(), params);
            }
            let asked =
                agent.peer.with_tag(tag.as_deref()).request(MCP_MESSAGE, &message, MESSAGE_TIMEOUT).await;
            asked.map_err(|error| match error {
                CallError::Refused(error) => {
                    BridgeError { code: error.code, message: error.message.into_owned() }
                }
                CallError::Lost { .. } => disconnected_error(),
                error => BridgeError { code: -33001, message: error.to_string() },
            })
        })
    }
}

fn disconnected_error() -> BridgeError {
    BridgeError { code: -33001, message: "the client has gone".to_owned() }
}

/// Forwards a notification of a client's MCP server to the request that it belongs to.
pub(crate) fn handle_message(agent: &Agent, frame: &Frame) {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Message {
        server_id: String,
        request_id: String,
        method: String,
        params: Option<Value>,
    }
    let Ok(Message { server_id, request_id, method, params }) = frame.read_params() else { return };
    let params = params.unwrap_or_else(|| json!({}));
    // The message names no session, only its request. Only one session has sent that request.
    for session in agent.open_sessions() {
        let servers = Arc::clone(&session.state().servers);
        servers.handle_notification(&server_id, &request_id, &method, &params);
    }
}
