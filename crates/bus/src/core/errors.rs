//! Errors for requests about sessions.

use narrows_wire::{Code, RpcError};
use serde_json::json;

pub(super) fn unknown_session() -> RpcError {
    RpcError::new(Code::NotFound, "the bus knows no such session")
}

pub(super) fn misnamed() -> RpcError {
    RpcError::new(Code::InvalidParams, "a session is named by the string params.sessionId only")
}

pub(super) fn uninitialized() -> RpcError {
    RpcError::new(Code::InvalidParams, "initialize must come before any other request")
}

pub(super) fn session_in_use() -> RpcError {
    RpcError::new(Code::InvalidParams, "the session is in use by another connection")
        .with("condition", json!("session_in_use"))
        .with("retryable", json!(true))
}

/// Returns the error for an MCP server id that is not of this session. The id may be of another client's server and is not
/// forwarded.
pub(super) fn unknown_server() -> RpcError {
    RpcError::new(Code::InvalidParams, "not an MCP server of this session")
}
