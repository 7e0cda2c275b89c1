//! What the host does for agents that can only ask through MCP.

use std::path::PathBuf;
use std::time::Duration;

use super::Pending;

/// Why the host did not do it: words that the model reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ServiceError(pub(crate) String);

/// Files within the reach of the session, by paths that are absolute or begin in its directory. Who implements it decides by the policy, too: no gate is asked before.
pub(crate) trait FileService: Send + Sync + 'static {
    /// The text of a file from the 1-based `line` on, at most `limit` lines of it.
    fn read(
        &self,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Pending<'_, Result<String, ServiceError>>;

    /// Replaces a file, or makes it.
    fn write(&self, path: PathBuf, text: String) -> Pending<'_, Result<(), ServiceError>>;
}

/// A command as the agent wants it. No shell is involved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// The program.
    pub(crate) program: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Variables on top of the session's.
    pub(crate) env: Vec<(String, String)>,
    /// Where, from the session's directory on; that itself if not said.
    pub(crate) cwd: Option<PathBuf>,
    /// How long it may take; then it is to be killed and told with [`Ran::timed_out`].
    pub(crate) time_limit: Duration,
    /// How many bytes of output are wanted: the last ones.
    pub(crate) output_limit: usize,
}

/// What became of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    /// What it wrote, stdout and stderr in order.
    pub(crate) output: String,
    /// The beginning of the output is missing.
    pub(crate) truncated: bool,
    /// How it exited, if it did.
    pub(crate) code: Option<u32>,
    /// The signal that ended it, if one did.
    pub(crate) signal: Option<String>,
    /// It was killed because it took too long.
    pub(crate) timed_out: bool,
}

/// Commands in the session's directories. Who implements it decides by the policy, too: no gate is asked before.
pub(crate) trait CommandService: Send + Sync + 'static {
    /// Runs it to its end. Dropping the future must kill it.
    fn run(&self, run: Run) -> Pending<'_, Result<Ran, ServiceError>>;
}
