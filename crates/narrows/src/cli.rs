//! The arguments, and the help that explains them.

mod acp;
mod agent;
mod agents;
mod audit;
mod bus;
mod chat;
mod check;
mod connect;
mod help;
mod ignored_args;
mod model;
mod policy;
mod serve;
mod session;
mod sessions;
mod token;
pub(crate) mod value;
mod web;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use narrows_acp::Versions;

use crate::environment;
pub(crate) use acp::{Acp, Errors, McpChoice};
pub(crate) use agent::{AgentArgs, Protocol};
pub(crate) use agents::{Agents, AgentsCommand, AgentsList};
pub(crate) use audit::{Audit, AuditCommand, AuditFormat, AuditHead, AuditKeygen, AuditShow, AuditVerify};
pub(crate) use bus::{Bus, BusCommand, BusStatus, LogFormat};
pub(crate) use chat::Chat;
pub(crate) use check::{CheckFiles, CheckFormat};
pub(crate) use connect::{Connect, NamedBy, RemoteArgs, intended_url, target};
pub(crate) use model::ModelArgs;
pub(crate) use policy::{Check, Circumstances, Explain, Policy, PolicyCommand, Test, Wanted};
pub(crate) use serve::{Approve, Serve};
pub(crate) use session::SessionArgs;
pub(crate) use sessions::{Delete, Sessions, SessionsCommand, SessionsList};
pub(crate) use token::{Token, TokenCommand, TokenList, TokenNew, TokenRevoke};
pub(crate) use value::Variable;
pub(crate) use web::WebArgs;

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
    /// All of the arguments, those of every subcommand with them.
    pub(crate) fn full_command() -> clap::Command {
        let mut command = Self::command();
        command.build();
        command
    }

    /// Reads the arguments, the name of the program first.
    pub(crate) fn parse_args(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        // The arguments of other subcommands are built only if an error may name them: building all is most of the start.
        let named = words.get(1).and_then(|word| word.to_str());
        if named.is_none_or(|name| command.find_subcommand(name).is_none()) {
            command.build();
        }
        let (words, ignored) = ignored_args::split_known(&command, words)?;
        let is_bus = words.iter().any(|word| word == "bus");
        let matches = command.try_get_matches_from(words).map_err(|error| with_hint(error, is_bus))?;
        let mut cli = Self::from_arg_matches(&matches)?;
        match &mut cli.command {
            Command::Acp(acp) => acp.ignored = ignored,
            Command::Run(run) if run.json => run.output = Output::Json,
            Command::Serve(serve) if serve.json => serve.format = CheckFormat::Json,
            Command::Audit(Audit { command: AuditCommand::Show(show) }) if show.json => {
                show.format = AuditFormat::Json
            }
            _ => {}
        }
        Ok(cli)
    }
}

/// The same with what was probably meant, where clap does not know: how a bus is shown by a command of the bus.
fn with_hint(mut error: clap::Error, is_bus: bool) -> clap::Error {
    let is = |context, known: &[&str]| matches!(error.get(context), Some(ContextValue::String(text)) if known.contains(&text.as_str()));
    let shown = is(ContextKind::InvalidSubcommand, &["status"])
        || (is_bus && is(ContextKind::InvalidArg, &["--watch", "--json", "--socket"]));
    if shown {
        let tip = "a bus that runs is shown by `narrows bus status`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// What to do.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    Run(Box<Run>),
    Chat(Box<Chat>),
    Agents(Agents),
    Sessions(Box<Sessions>),
    Policy(Policy),
    Bus(Box<Bus>),
    Token(Token),
    Check(CheckFiles),
    Audit(Audit),
    Serve(Box<Serve>),
    Approve(Approve),
    Acp(Box<Acp>),
    Connect(Box<Connect>),
    FakeAgent(FakeAgent),
    Completions(Completions),
}

/// Send one prompt to an agent and print its answer
///
/// Starts the agent, sends the prompt, prints the answer to stdout as it comes, and ends the agent again with
/// everything it started. Ctrl-C cancels the turn; a second Ctrl-C leaves at once.
///
/// Without --agent it is the agent that is built in, with the model that narrows.toml, the OPENAI_ variables or the
/// flags below name, or with the built-in demo model if none of them does.
///
/// The agent reads and changes files through this program, and runs commands in a sandbox, as far as --access and the
/// rules of --policy let it. What they leave open is asked if there is a terminal to ask in, and refused otherwise.
///
/// --timeout limits the whole run, from the start of the agent to the end of the turn. A turn that takes longer is
/// cancelled and has --cancel-grace (2s) to stop. Then the agent's commands are killed, its input is closed, and it gets
/// SIGTERM and SIGKILL, 500 ms apart. So with --timeout 2s the command ends within 3 s if the agent stops when asked, and
/// within 7 s if it ignores everything.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::RUN), after_long_help = help::reference(help::RUN))]
pub(crate) struct Run {
    /// The prompt; `@FILE` reads it from a file, `-`, or none, from stdin
    ///
    /// What comes through stdin beside a prompt is put behind it.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,

    /// An image to send with the prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,

    /// How to print the answer
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,

    /// With --output events, add the agent's own message to every event
    #[arg(long)]
    pub(crate) raw: bool,

    /// What is read from stdin while the turn runs
    #[arg(long, value_enum, value_name = "FORMAT", requires = "prompt")]
    pub(crate) input: Option<InputFormat>,

    /// The JSON Schema that the answer is to follow; it is printed as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,

    /// How long the run may take, such as `90s`, `5m` or `1h` [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The text, as it comes
    Text,
    /// Everything that happens, one JSON object per line
    Events,
    /// One JSON object at the end: text, stopReason, sessionId, agent, protocol, usage, and error if there was one
    Json,
}

/// What is read from stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Answers to questions and cancellations, one JSON object per line
    Events,
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

    /// With --list, print a JSON object
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

/// Print a completion script for a shell
///
/// It completes commands, flags, values that are fixed, and files. Names of agents, endpoints, sessions and scripts are not
/// completed.
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
    fn an_unknown_bus_subcommand_has_a_hint() {
        for (words, is_told) in [
            ("status", true),
            ("bus --watch", true),
            ("--log debug bus --json", true),
            ("stats", false),
            ("bus --wach", false),
            ("run --watch", false),
        ] {
            let words = std::iter::once("narrows").chain(words.split(' ')).map(OsString::from).collect();
            let error = Cli::parse_args(words).expect_err("it is wrong").to_string();
            assert_eq!(error.contains("`narrows bus status`"), is_told, "{error}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
