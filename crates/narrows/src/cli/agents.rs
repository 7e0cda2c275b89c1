//! The arguments of `narrows agents`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Protocol, help, value};

/// List the agents of narrows.toml, or probe one
///
/// An agent in narrows.toml is a table [agents.NAME] with `command` or `url` and its settings.
///
/// With --probe, the agent is started, initialized, and asked for a session in an empty directory, to find its
/// models, modes and commands. No prompt is sent, no files or commands are offered to it, and no login is attempted.
/// An agent that stores its sessions may store this one too.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = help::examples(help::AGENTS),
    after_long_help = help::reference(help::AGENTS)
)]
pub(crate) struct Agents {
    /// Start this agent and show what it can do: a name in narrows.toml or a command [default: the built-in agent]
    #[arg(long, value_name = "AGENT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) probe: Option<String>,

    /// Time limit for each answer of the agent [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, requires = "probe")]
    pub(crate) timeout: Option<Duration>,

    /// Protocol version to offer [default: from narrows.toml, or 1]
    #[arg(long, value_enum, value_name = "VERSION", requires = "probe")]
    pub(crate) protocol: Option<Protocol>,

    #[command(flatten)]
    pub(crate) list: AgentsList,

    #[command(subcommand)]
    pub(crate) command: Option<AgentsCommand>,
}

/// The flags of the list.
#[derive(Args, Debug)]
pub(crate) struct AgentsList {
    /// Configuration file [default: narrows/narrows.toml in your configuration directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentsCommand {
    /// List the configured agents, which is the default
    #[command(after_help = help::examples(help::AGENTS))]
    List(AgentsList),
}
