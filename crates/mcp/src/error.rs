//! What goes wrong with a server, and with a call.

use std::fmt;
use std::time::Duration;

/// A server that could not be started, or has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The server's name.
    pub server: String,
    /// Why, in one line, with the last of its stderr if it is a process.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MCP server {:?}: {}", self.server, self.reason)
    }
}

/// Why a call has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The session has no server of this name.
    #[error("there is no MCP server of this name")]
    NoServer,
    /// The server never came up, or has ended. If it ended during the call, the tool may have had effects.
    #[error("the MCP server is gone: {0}")]
    Gone(String),
    /// It did not answer in time. It was told to stop, but the tool may have had effects.
    #[error("the MCP server did not answer within {0:?}")]
    Deadline(Duration),
    /// The call or its answer got lost on the way, but the server may still be there. The tool may have had effects.
    #[error("the call to the MCP server got lost: {0}")]
    Lost(String),
    /// It answered with an error.
    #[error("the MCP server refused: {message} ({code})")]
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// What the server says, in one line.
        message: String,
    },
    /// It wants something before it goes on that we do not give: input from the user, or time as a task.
    #[error("the MCP server wants {0}, which is not supported")]
    Unsupported(&'static str),
    /// What it answered is not the result of a call.
    #[error("the MCP server's answer makes no sense: {0}")]
    Nonsense(String),
}
