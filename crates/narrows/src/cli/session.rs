//! The arguments about a session: what it may do, what it has, and where it goes on.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use narrows_policy::Access;

use super::value;

/// The heading under which the rules stand.
const RULES: &str = "What the agent may do";

/// The arguments about a session.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    /// Access preset: low, medium or high [default: medium]
    ///
    /// `low` is read-only. `medium` also edits files in the session's directories and runs sandboxed commands. `high` allows
    /// everything but changes to protected files. The files that the client itself reads and writes for the agent are in the
    /// session's directories, whatever the preset.
    #[arg(long, value_name = "low|medium|high", value_parser = value::access(), hide_possible_values = true, help_heading = RULES)]
    pub(crate) access: Option<Access>,

    /// Refuse whatever uses the network
    ///
    /// Without it, a command in the sandbox reaches every host and every TCP and UDP port of this machine.
    #[arg(long, help_heading = RULES)]
    pub(crate) no_network: bool,

    /// Refuse searches of the web
    #[arg(long, help_heading = RULES)]
    pub(crate) no_web_search: bool,

    /// A file with rules; see `narrows policy --help`
    #[arg(long, value_name = "FILE", help_heading = RULES)]
    pub(crate) policy: Option<PathBuf>,

    /// Run commands without a sandbox, even if this machine has one; under medium access each is then asked about
    #[arg(long, help_heading = RULES)]
    pub(crate) no_sandbox: bool,

    /// How long a question may wait for its answer; then it is refused [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = RULES)]
    pub(crate) permission_timeout: Option<Duration>,

    /// Another directory that the agent may use
    #[arg(long, value_name = "DIR")]
    pub(crate) add_dir: Vec<PathBuf>,

    /// MCP servers for the agent: a JSON file with `mcpServers`
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,

    /// The mode of the agent, by id or name
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,

    /// Fail if the agent does not have the model of --model
    #[arg(long)]
    pub(crate) require_model: bool,

    /// Go on with this session
    #[arg(long, value_name = "ID", conflicts_with_all = ["fork", "continue"])]
    pub(crate) resume: Option<String>,

    /// Begin with the history of this session
    #[arg(long, value_name = "ID", conflicts_with = "continue")]
    pub(crate) fork: Option<String>,

    /// Go on with the last session in this directory
    #[arg(long = "continue")]
    pub(crate) r#continue: bool,
}
