//! `narrows sessions`: what an agent remembers.

use clap::{Args, Subcommand};

use super::{AgentArgs, help};

/// List the sessions that an agent keeps, the one used last first
///
/// Each can be gone on with: `narrows run --resume ID`, or `--continue` for the first of its directory; `narrows chat`
/// takes the same flags.
///
/// Those in which nothing was said are left out, as far as they can be told by having no title, and a line on stderr says
/// how many they are. An agent keeps its sessions itself, so it is started for this, and ended again.
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
    /// Those of all directories, not only of this one, and those in which nothing was said
    #[arg(long, conflicts_with = "cwd")]
    pub(crate) all: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// What else can be done with sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionsCommand {
    /// List sessions, which is the default
    #[command(after_help = help::examples(help::SESSIONS))]
    List(Box<SessionsList>),
    Delete(Box<Delete>),
}

/// Make an agent forget a session
///
/// It cannot be gone on with any more. Not every agent can do that.
#[derive(Args, Debug)]
pub(crate) struct Delete {
    /// The session
    #[arg(value_name = "ID")]
    pub(crate) id: String,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}
