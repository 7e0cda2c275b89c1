//! Services of the client for agents that can only use MCP.

use std::path::PathBuf;
use std::time::Duration;

use super::Pending;

/// Reason of a failure, as a text for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ServiceError(pub(crate) String);

/// Files of the session, by absolute path or relative to the session's directory. The implementation itself
/// must ask the policy, because these requests pass no gate.
pub(crate) trait FileService: Send + Sync + 'static {
    /// Returns at most `limit` lines of a file, starting at the 1-based `line`.
    fn read(
        &self,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Pending<'_, Result<String, ServiceError>>;

    fn write(&self, path: PathBuf, text: String) -> Pending<'_, Result<(), ServiceError>>;
}

/// A command of the agent, without a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    /// Environment variables in addition to those of the session.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<PathBuf>,
    /// Time after which the command is killed and reported with [`Ran::timed_out`].
    pub(crate) time_limit: Duration,
    /// Maximum number of output bytes. The end of longer output is kept.
    pub(crate) output_limit: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    /// Output of stdout and stderr, in the order of writing.
    pub(crate) output: String,
    /// `true` if the beginning of the output was dropped.
    pub(crate) truncated: bool,
    /// Exit code; `None` if the command did not exit by itself.
    pub(crate) code: Option<u32>,
    pub(crate) signal: Option<String>,
    /// `true` if the command was killed at the time limit.
    pub(crate) timed_out: bool,
}

/// Commands in the session's directories. The implementation itself must ask the policy, because these
/// requests pass no gate.
pub(crate) trait CommandService: Send + Sync + 'static {
    /// Runs a command until it ends. Dropping the future must kill the command.
    fn run(&self, run: Run) -> Pending<'_, Result<Ran, ServiceError>>;
}
