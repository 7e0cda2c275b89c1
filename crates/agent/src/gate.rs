//! The check that runs before a tool call is announced or run.

use std::fmt::Debug;
use std::pin::Pin;

use serde_json::Value;

/// A tool call that the model requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    /// Session id.
    pub session: String,
    /// Id of the call, under which it is announced if it is allowed.
    pub id: String,
    /// Name of the MCP server; `None` for the client's files and terminals.
    pub server: Option<String>,
    /// Name of the tool at its server.
    pub tool: String,
    /// Name of the tool for the model and the client.
    pub name: String,
    /// Arguments of the call.
    pub arguments: Value,
}

/// Decision of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolDecision {
    /// Go on; the user may still be asked.
    Allow,
    /// Do not run or announce the call. The model gets the reason.
    Deny(String),
}

/// Future that [`ToolGate::check`] returns.
pub type ToolDecisionFuture<'a> = Pin<Box<dyn Future<Output = ToolDecision> + Send + 'a>>;

/// Decides about every tool call before it is announced or run.
pub trait ToolGate: Debug + Send + Sync {
    /// Decides whether the call may go on.
    fn check<'a>(&'a self, request: &'a ToolRequest) -> ToolDecisionFuture<'a>;
}

/// Allows every call. The user is still asked where permission is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl ToolGate for AllowAll {
    fn check<'a>(&'a self, _: &'a ToolRequest) -> ToolDecisionFuture<'a> {
        Box::pin(std::future::ready(ToolDecision::Allow))
    }
}
