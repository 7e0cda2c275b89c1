//! The arguments about an agent: command or URL, directory, environment, timeouts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use narrows_acp::Version;

use super::value::{self, Variable};
use super::{ModelArgs, RemoteArgs};

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AgentArgs {
    /// Agent: a name in narrows.toml, a command, or the URL of a remote agent [default: the built-in agent]
    ///
    /// A command is split like in a shell, but no shell runs it. The program `narrows` is always this executable. A
    /// URL starts with ws://, wss://, http://, https://, tcp:// or unix:. A remote agent is not started but connected
    /// to, and works on its own host.
    #[arg(long, short, value_name = "AGENT")]
    pub(crate) agent: Option<String>,

    /// Working directory of the agent; for a remote agent, on its host [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Environment variable for the agent; without a value, passes on the current one
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = value::variable, help_heading = "Environment of the agent")]
    pub(crate) env: Vec<Variable>,

    /// Pass only the ordinary environment variables to the agent, and no keys
    #[arg(long, help_heading = "Environment of the agent")]
    pub(crate) clean_env: bool,

    /// With --clean-env, also pass variables with this name; `AWS_*` matches a prefix
    #[arg(long, value_name = "PATTERN", value_parser = value::pattern, help_heading = "Environment of the agent")]
    pub(crate) pass_env: Vec<String>,

    /// Protocol version to offer; with 2, an agent that only knows 1 is restarted with 1 [default: 1]
    #[arg(long, value_enum, value_name = "VERSION")]
    pub(crate) protocol: Option<Protocol>,

    /// Time limit for the agent's answer to `initialize` [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) initialize_timeout: Option<Duration>,

    /// Time limit for opening a session [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) session_timeout: Option<Duration>,

    /// Time limit for a cancelled turn to end [default: 10s, or 2s after the --timeout of `narrows run`]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) cancel_grace: Option<Duration>,

    /// Cancel the turn after this long without output; `0` disables [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = value::pace, help_heading = "Deadlines")]
    pub(crate) silence_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// Spoken by nearly every agent
    #[value(name = "1")]
    One,
    /// Draft
    #[value(name = "2")]
    Two,
}

impl From<Protocol> for Version {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::One => Self::V1,
            Protocol::Two => Self::V2,
        }
    }
}
