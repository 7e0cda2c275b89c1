//! The arguments of `narrows chat`.

use clap::Args;

use super::{AgentArgs, SessionArgs, help};

/// Talk with an agent in the terminal
///
/// Starts the agent and sends it what you type, one message after the other, in one session. The answer appears as it
/// comes, with what the agent thinks and does beside it.
///
/// A line that ends with a backslash goes on in the next one, and text of several lines that is pasted is one message.
/// Tab completes the commands of the agent and of this program; `/help` lists both. Ctrl-C cancels the turn that runs,
/// and at the prompt it clears the line; twice on an empty line leaves, as Ctrl-D does.
///
/// If stdin is no terminal, each line of it is a message. Then the exit code is that of the last turn.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::CHAT), after_long_help = help::reference(help::CHAT))]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) agent: AgentArgs,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}
