//! The gate that checks each tool call before it is announced or run.

use std::fmt::Debug;
use std::pin::Pin;

use serde_json::Value;

/// A tool call that the model requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    pub session: String,
    /// Id under which an allowed call is announced.
    pub id: String,
    /// Name of the MCP server; `None` for files and terminals of the client.
    pub server: Option<String>,
    pub tool: String,
    /// Name of the tool, as the model and the client see it.
    pub name: String,
    pub arguments: Value,
}

/// Decision of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolDecision {
    /// The call may continue. The user may still be asked for permission.
    Allow,
    /// The call is neither announced nor run. The model gets the reason.
    Deny(String),
}

/// Future that [`ToolGate::check`] returns.
pub type ToolDecisionFuture<'a> = Pin<Box<dyn Future<Output = ToolDecision> + Send + 'a>>;

/// Decides about every tool call before it is announced or run.
pub trait ToolGate: Debug + Send + Sync {
    /// Decides if the call may continue.
    fn check<'a>(&'a self, request: &'a ToolRequest) -> ToolDecisionFuture<'a>;
}

/// A gate that allows every call. The user is still asked where permission is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl ToolGate for AllowAll {
    fn check<'a>(&'a self, _: &'a ToolRequest) -> ToolDecisionFuture<'a> {
        Box::pin(std::future::ready(ToolDecision::Allow))
    }
}
