//! MCP over ACP: the way to a server that the ACP client provides.

use std::pin::Pin;

use serde_json::Value;

/// What comes back from [`Bridge::message`].
pub type Answer = Pin<Box<dyn Future<Output = Result<Value, BridgeError>> + Send>>;

/// Carries MCP requests to the ACP client.
pub trait Bridge: Send + Sync + 'static {
    /// Sends the request `mcp/message` with these members as `serverId`, `requestId`, `method` and `params`, and
    /// returns the result as it came: an object with `result` or `error`. Taking it apart is not the bridge's
    /// business.
    ///
    /// `request` is new for every message. Dropping the answer must cancel the request.
    fn message(&self, server: String, request: String, method: String, params: Value) -> Answer;
}

/// Why a message did not reach a server or its answer did not come back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct BridgeError {
    /// The JSON-RPC code of the outer answer.
    pub code: i64,
    /// What it says.
    pub message: String,
}
