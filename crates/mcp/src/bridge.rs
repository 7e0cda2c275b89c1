//! MCP over ACP: the interface to a server that the ACP client provides.

use std::pin::Pin;

use serde_json::Value;

/// Future that [`Bridge::message`] returns.
pub type BridgeFuture = Pin<Box<dyn Future<Output = Result<Value, BridgeError>> + Send>>;

/// Carries MCP requests to the ACP client.
pub trait Bridge: Send + Sync + 'static {
    /// Sends the request `mcp/message` with the arguments as its `serverId`, `requestId`, `method` and
    /// `params`. Returns the result unchanged: an object with `result` or `error`, which the caller parses.
    ///
    /// `request` is unique per message. Dropping the future must cancel the request.
    fn message(&self, server: String, request: String, method: String, params: Value) -> BridgeFuture;
}

/// Error: a message did not reach the server, or the server's answer did not come back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct BridgeError {
    /// JSON-RPC error code of the answer to `mcp/message`.
    pub code: i64,
    pub message: String,
}
