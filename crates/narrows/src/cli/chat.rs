//! The arguments of `narrows chat`.

use clap::Args;

use super::{AgentArgs, SessionArgs, help};

/// Chat with an agent in the terminal
///
/// Starts the agent and sends it what you type, in one session. The answer is streamed, together with the agent's
/// thoughts and tool calls.
///
/// A line that ends with a backslash continues on the next line. Pasted text with several lines is one message. Tab
/// completes the commands of the agent and of this program; `/help` lists both. Ctrl-C cancels the active turn, and
/// clears the line at the prompt. Ctrl-C twice on an empty line exits, and so does Ctrl-D.
///
/// If stdin is not a terminal, each line is a message, and the exit code is that of the last turn.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::CHAT), after_long_help = help::reference(help::CHAT))]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) agent: AgentArgs,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}
