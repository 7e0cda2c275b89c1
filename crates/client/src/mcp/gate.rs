//! The interface that decides whether a message may reach a server.

use serde_json::{Map, Value};

use super::Pending;

/// A request of an agent to a hosted server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerRequest {
    /// Name of the server, as given by the user.
    pub(crate) server: String,
    /// `tools/call`, `resources/read` or `prompts/get`.
    pub(crate) method: String,
    /// Tool to call, if any.
    pub(crate) tool: Option<String>,
    /// Arguments of the tool or prompt, or else the parameters of the request.
    pub(crate) arguments: Map<String, Value>,
}

/// Why the request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Decides about requests that have effects or read contents. Lists are not decided about, because they come
/// from the server itself.
pub(crate) trait Gate: Send + Sync + 'static {
    /// Decides whether a request may be forwarded. May wait for a user; dropped when the agent cancels the
    /// request, and at the end of the session.
    fn authorize(&self, asked: ServerRequest) -> Pending<'_, Result<(), Refusal>>;
}
