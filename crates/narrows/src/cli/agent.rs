//! The arguments about an agent that is driven: which, where, with what environment, for how long.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use narrows_acp::Version;

use super::value::{self, Variable};
use super::{ModelArgs, RemoteArgs};

/// The arguments about an agent.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AgentArgs {
    /// The agent: the name of one in narrows.toml, a program and its arguments, or the URL of a remote one
    ///
    /// The arguments stand in the quotes of a shell, but no shell runs them. A program called `narrows` is this one,
    /// installed or not. A URL is ws://, wss://, http://, https://, tcp:// or unix:PATH; such an agent is not started but
    /// connected to, and works where it is. Without this it is the agent that is built in.
    #[arg(long, short, value_name = "AGENT")]
    pub(crate) agent: Option<String>,

    /// Where the agent works, as it is called there [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Hand the agent a variable, with this value or with the one it has here
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = value::variable, help_heading = "Environment of the agent")]
    pub(crate) env: Vec<Variable>,

    /// Let the agent see only the ordinary variables, and no keys
    #[arg(long, help_heading = "Environment of the agent")]
    pub(crate) clean_env: bool,

    /// With --clean-env, let variables of this name pass; `AWS_*` means all that begin with it
    #[arg(long, value_name = "PATTERN", value_parser = value::pattern, help_heading = "Environment of the agent")]
    pub(crate) pass_env: Vec<String>,

    /// The version of the protocol to offer; with 2, an agent that only knows 1 is started again with 1 [default: 1]
    #[arg(long, value_enum, value_name = "VERSION")]
    pub(crate) protocol: Option<Protocol>,

    /// How long the agent may take to answer the first message [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) initialize_timeout: Option<Duration>,

    /// How long the agent may take to open a session [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) session_timeout: Option<Duration>,

    /// How long a cancelled turn may take to end [default: 10s, or 2s after the --timeout of `narrows run`]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) cancel_grace: Option<Duration>,

    /// How long the agent may say nothing at all during a turn; `0` is for ever [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = value::pace, help_heading = "Deadlines")]
    pub(crate) silence_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// What nearly every agent speaks
    #[value(name = "1")]
    One,
    /// The draft
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
