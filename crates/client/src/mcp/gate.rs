//! Interface of the gate, which decides if a message may reach a server.

use serde_json::{Map, Value};

use super::Pending;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerRequest {
    pub(crate) server: String,
    pub(crate) method: String,
    /// Tool to call; `None` for other methods.
    pub(crate) tool: Option<String>,
    /// Arguments of the tool or prompt, or else the parameters of the request.
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Decides about MCP requests that have effects or read contents. Requests for lists need no decision,
/// because a list only describes the server.
pub(crate) trait Gate: Send + Sync + 'static {
    /// Decides if a request may be forwarded. May wait for a person. The future is dropped when the agent
    /// cancels the request and when the session ends.
    fn authorize(&self, asked: ServerRequest) -> Pending<'_, Result<(), Refusal>>;
}
