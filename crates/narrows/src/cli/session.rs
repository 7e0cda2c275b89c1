//! The arguments about a session: permissions, settings, and the session to continue.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use narrows_policy::Access;

use super::value;

/// The help heading of permissions.
const RULES: &str = "Permissions of the agent";

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

    /// Deny everything that uses the network
    ///
    /// Without this option, a sandboxed command reaches every host and every TCP and UDP port of this machine.
    #[arg(long, help_heading = RULES)]
    pub(crate) no_network: bool,

    /// Deny web searches
    #[arg(long, help_heading = RULES)]
    pub(crate) no_web_search: bool,

    /// Rule file; see `narrows policy --help`
    #[arg(long, value_name = "FILE", help_heading = RULES)]
    pub(crate) policy: Option<PathBuf>,

    /// Run commands without a sandbox; with medium access, each command then needs permission
    #[arg(long, help_heading = RULES)]
    pub(crate) no_sandbox: bool,

    /// Deny a permission request after this long without an answer [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = RULES)]
    pub(crate) permission_timeout: Option<Duration>,

    /// Additional directory that the agent may use
    #[arg(long, value_name = "DIR")]
    pub(crate) add_dir: Vec<PathBuf>,

    /// JSON file with the MCP servers for the agent, in `mcpServers`
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,

    /// Mode of the agent, by id or name
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,

    /// Fail if the agent does not offer the model of --model
    #[arg(long)]
    pub(crate) require_model: bool,

    /// Continue this session
    #[arg(long, value_name = "ID", conflicts_with_all = ["fork", "continue"])]
    pub(crate) resume: Option<String>,

    /// Start a new session with the history of this one
    #[arg(long, value_name = "ID", conflicts_with = "continue")]
    pub(crate) fork: Option<String>,

    /// Continue the last session in this directory
    #[arg(long = "continue")]
    pub(crate) r#continue: bool,
}
