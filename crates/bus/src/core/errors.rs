//! Errors for requests about sessions.

use narrows_wire::{Code, RpcError};
use serde_json::json;

pub(super) fn unknown_session() -> RpcError {
    RpcError::new(Code::NotFound, "session not found")
}

pub(super) fn misnamed() -> RpcError {
    RpcError::new(Code::InvalidParams, "session id must be the string params.sessionId")
}

pub(super) fn uninitialized() -> RpcError {
    RpcError::new(Code::InvalidParams, "initialize must come before any other request")
}

pub(super) fn session_in_use() -> RpcError {
    RpcError::new(Code::InvalidParams, "session in use by another connection")
        .with("condition", json!("session_in_use"))
        .with("retryable", json!(true))
}

/// Returns the error for an MCP server id that the session does not have. Such an id is not forwarded,
/// because it may be the id of another client's server.
pub(super) fn unknown_server() -> RpcError {
    RpcError::new(Code::InvalidParams, "not an MCP server of this session")
}
