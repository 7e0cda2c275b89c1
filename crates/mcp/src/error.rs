//! Failures of servers and of calls.

use std::fmt;
use std::time::Duration;

/// A server that could not be started, or has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFailure {
    pub server: String,
    /// Reason in one line. For a process, the reason includes the last lines of stderr.
    pub reason: String,
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MCP server {:?}: {}", self.server, self.reason)
    }
}

/// Error of a call that has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("unknown MCP server")]
    NoServer,
    /// The server did not start, or has ended. If it has ended during the call, the tool may have had
    /// effects.
    #[error("the MCP server is not running: {0}")]
    NotRunning(String),
    /// The call was cancelled at its deadline. The tool may have had effects.
    #[error("the MCP server did not answer within {0:?}")]
    Deadline(Duration),
    /// The call or its answer was lost, but the server may still be running. The tool may have had effects.
    #[error("the call to the MCP server was lost: {0}")]
    Lost(String),
    #[error("the MCP server returned an error: {message} ({code})")]
    Refused {
        code: i64,
        /// Message of the server, in one line.
        message: String,
    },
    /// The server requires a feature that is not supported, namely user input or running the call as a task.
    #[error("the MCP server requires {0}, which is not supported")]
    Unsupported(&'static str),
    /// The answer is not a valid result of a call.
    #[error("the MCP server's response is invalid: {0}")]
    InvalidResult(String),
}
