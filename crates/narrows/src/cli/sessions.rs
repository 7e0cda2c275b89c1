//! The arguments of `narrows sessions`.

use clap::{Args, Subcommand};

use super::{AgentArgs, help};

/// List the sessions of an agent, most recent first
///
/// To continue a session, use `narrows run --resume ID`, or `--continue` for the first one of its directory. `narrows
/// chat` accepts the same options.
///
/// Sessions without messages, recognized by their missing title, are hidden, and their number is printed to stderr.
/// Agents store their sessions themselves, so the agent is started for this, and stopped afterwards.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = help::examples(help::SESSIONS),
    after_long_help = help::reference(help::SESSIONS)
)]
pub(crate) struct Sessions {
    #[command(flatten)]
    pub(crate) list: SessionsList,

    #[command(subcommand)]
    pub(crate) command: Option<SessionsCommand>,
}

/// The flags of the list.
#[derive(Args, Debug)]
pub(crate) struct SessionsList {
    /// Include sessions of all directories, and sessions without messages
    #[arg(long, conflicts_with = "cwd")]
    pub(crate) all: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List sessions, which is the default
    #[command(after_help = help::examples(help::SESSIONS))]
    List(Box<SessionsList>),
    Delete(Box<Delete>),
}

/// Delete a session of an agent
///
/// A deleted session cannot be continued. Not every agent supports this.
#[derive(Args, Debug)]
pub(crate) struct Delete {
    /// Session id
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}
