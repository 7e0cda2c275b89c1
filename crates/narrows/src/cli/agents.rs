//! `narrows agents`: which there are, and what one of them can do.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Protocol, help, value};

/// List the agents of narrows.toml, or ask one what it can do
///
/// An agent of narrows.toml is a table: [agents.NAME] with `command`, and whatever else it needs.
///
/// With --probe the agent is started, asked to introduce itself, and asked for a session in an empty directory, which
/// tells what models, modes and commands it has. No prompt is sent, nothing of this machine is offered to it, and
/// nobody is logged in. An agent that keeps its sessions may keep that one, too.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = help::examples(help::AGENTS),
    after_long_help = help::reference(help::AGENTS)
)]
pub(crate) struct Agents {
    /// Start this agent and show what it can do: a name of narrows.toml, or a program and its arguments; without a
    /// value it is the built-in one
    #[arg(long, value_name = "AGENT", num_args = 0..=1, default_missing_value = "")]
    pub(crate) probe: Option<String>,

    /// How long the agent may take for each of its answers [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, requires = "probe")]
    pub(crate) timeout: Option<Duration>,

    /// The version of the protocol to offer [default: what narrows.toml says, or 1]
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
    /// The configuration file [default: narrows/narrows.toml in your configuration directory]
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
