//! Who decides whether a message may reach a server.

use serde_json::{Map, Value};

use super::Pending;

/// What an agent wants of a server that runs here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerRequest {
    /// The name of the server, as the user gave it.
    pub(crate) server: String,
    /// `tools/call`, `resources/read` or `prompts/get`.
    pub(crate) method: String,
    /// The tool that is to be called, if one is.
    pub(crate) tool: Option<String>,
    /// The arguments of the tool or prompt, or else the parameters of the request.
    pub(crate) arguments: Map<String, Value>,
}

/// Why it may not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Decides about what has effects or reads contents. Lists are shown without asking: they are the server's own.
pub(crate) trait Gate: Send + Sync + 'static {
    /// Whether it may be passed on. It takes as long as it takes, a user may be asked; it is dropped when the agent
    /// gives up, and at the end of the session.
    fn authorize(&self, asked: ServerRequest) -> Pending<'_, Result<(), Refusal>>;
}
