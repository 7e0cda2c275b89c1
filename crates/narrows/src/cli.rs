//! The arguments, and the help that explains them.

mod acp;
mod help;
mod model;
mod tolerate;
pub(crate) mod value;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use narrows_acp::{Version, Versions};

use crate::environment;
pub(crate) use acp::{Acp, Errors};
pub(crate) use model::ModelArgs;
pub(crate) use value::{AgentCommand, Variable};

/// What `--version` says beside the number.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\nprotocol: ACP versions {}\nplatform: {} {}",
        env!("CARGO_PKG_VERSION"),
        Versions::Both,
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
});

/// Be, drive and test agents that speak the Agent Client Protocol (ACP).
#[derive(Debug, Parser)]
#[command(
    name = "narrows",
    version,
    long_version = LONG_VERSION.as_str(),
    arg_required_else_help = true,
    after_help = help::examples(help::MAIN),
    after_long_help = help::reference(help::MAIN)
)]
pub(crate) struct Cli {
    /// What to log to stderr, such as `debug` or `narrows_rpc=trace`; warnings by default
    #[arg(long, global = true, value_name = "FILTER", env = environment::LOG, hide_env = true, display_order = 900)]
    pub(crate) log: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the arguments, the name of the program first.
    pub(crate) fn read(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let command = Self::command();
        let (words, ignored) = tolerate::sift(&command, words);
        let mut cli = Self::from_arg_matches(&command.try_get_matches_from(words)?)?;
        if let Command::Acp(acp) = &mut cli.command {
            acp.ignored = ignored;
        }
        Ok(cli)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Acp(Box<Acp>),
    FakeAgent(FakeAgent),
    Completions(Completions),
}

/// Send one prompt to an agent and print its answer
///
/// Starts the agent, sends the prompt, prints the answer to stdout as it comes, and ends the agent again with
/// everything it started. Ctrl-C cancels the turn; a second Ctrl-C leaves at once.
///
/// Without --agent it is the agent that is built in, with the model that narrows.toml, the OPENAI_ variables or the
/// flags below name, or with the built-in demo model if none of them does. It keeps no session.
///
/// The agent gets no files and no terminals from here, its requests for permission are refused, and of your
/// environment it sees the ordinary variables only, no keys: see --env and --pass-env.
///
/// A turn that --timeout ends is cancelled first and has --cancel-grace to stop. Then the agent's input is closed, and
/// whatever of it is left is told to end, with SIGTERM and then with SIGKILL.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::RUN), after_long_help = help::reference(help::RUN))]
pub(crate) struct Run {
    /// The prompt; `-`, or none, reads it from stdin
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,

    /// The agent to start: a program and its arguments, in the quotes of a shell but run without one
    ///
    /// A program called `narrows` is this one, installed or not.
    #[arg(long, short, value_name = "COMMAND", value_parser = value::agent)]
    pub(crate) agent: Option<AgentCommand>,

    /// Where the agent works [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Hand the agent a variable, with this value or with the one it has here
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = value::variable, help_heading = "Environment of the agent")]
    pub(crate) env: Vec<Variable>,

    /// Let variables of this name pass to the agent; `AWS_*` means all that begin with it
    #[arg(long, value_name = "PATTERN", value_parser = value::pattern, help_heading = "Environment of the agent")]
    pub(crate) pass_env: Vec<String>,

    /// How to print the answer
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// The version of the protocol to offer; with 2, an agent that only knows 1 is started again with 1
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = Protocol::One)]
    pub(crate) protocol: Protocol,

    /// How long the turn may take, such as `90s`, `5m` or `1h` [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) timeout: Option<Duration>,

    /// How long the agent may take to answer the first message
    #[arg(long, value_name = "TIME", value_parser = value::duration, default_value = "30s", help_heading = "Deadlines")]
    pub(crate) initialize_timeout: Duration,

    /// How long the agent may take to open a session
    #[arg(long, value_name = "TIME", value_parser = value::duration, default_value = "60s", help_heading = "Deadlines")]
    pub(crate) session_timeout: Duration,

    /// How long a cancelled turn may take to end
    #[arg(long, value_name = "TIME", value_parser = value::duration, default_value = "10s", help_heading = "Deadlines")]
    pub(crate) cancel_grace: Duration,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The text, as it comes
    Text,
    /// One JSON object at the end: text, stopReason, sessionId, agent, protocol, and error if there was one
    Json,
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, ValueEnum)]
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

/// Be a scripted agent on stdin and stdout, faults included
///
/// For tests: of clients, of editors, of narrows itself. A script says what the agent answers, and how it misbehaves.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::FAKE_AGENT))]
pub(crate) struct FakeAgent {
    /// A TOML file, or the name of a built-in script
    #[arg(value_name = "SCRIPT", required_unless_present_any = ["list", "print"])]
    pub(crate) script: Option<String>,

    /// List the built-in scripts
    #[arg(long, conflicts_with_all = ["script", "print"])]
    pub(crate) list: bool,

    /// Print a built-in script, to start a script of your own from
    #[arg(long, value_name = "NAME", conflicts_with = "script")]
    pub(crate) print: Option<String>,
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::COMPLETIONS))]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
