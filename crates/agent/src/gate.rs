//! Who is asked before a tool is announced or run.

use std::fmt::Debug;
use std::pin::Pin;

use serde_json::Value;

/// A call of a tool that the model wants.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    /// The session.
    pub session: String,
    /// The id by which the call is announced, if it is.
    pub id: String,
    /// The MCP server, or nothing for a tool of the client's own files and terminals.
    pub server: Option<String>,
    /// The tool, as its server calls it.
    pub tool: String,
    /// The tool, as the model and the client know it.
    pub name: String,
    /// What it is called with.
    pub arguments: Value,
}

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on; the user may still be asked.
    Allow,
    /// The call does not happen and is not announced; the model is told why.
    Deny(String),
}

/// What comes back from [`ToolGate::check`].
pub type Checking<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Decides about every call of a tool before it is announced or run.
pub trait ToolGate: Debug + Send + Sync {
    /// Whether the call may go on.
    fn check<'a>(&'a self, request: &'a ToolRequest) -> Checking<'a>;
}

/// Lets everything pass: the user is asked about what matters all the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl ToolGate for Open {
    fn check<'a>(&'a self, _: &'a ToolRequest) -> Checking<'a> {
        Box::pin(std::future::ready(Verdict::Allow))
    }
}
