//! The command-line arguments and their help.

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
mod listener;
mod model;
mod policy;
mod serve;
mod session;
mod sessions;
mod token;
pub(crate) mod value;

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
pub(crate) use listener::ListenerArgs;
pub(crate) use model::ModelArgs;
pub(crate) use policy::{Check, Circumstances, Explain, Policy, PolicyCommand, Test, Wanted};
pub(crate) use serve::{Approve, Serve};
pub(crate) use session::SessionArgs;
pub(crate) use sessions::{Delete, Sessions, SessionsCommand, SessionsList};
pub(crate) use token::{Token, TokenCommand, TokenList, TokenNew, TokenRevoke};
pub(crate) use value::Variable;

static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\nprotocol: ACP versions {}\nplatform: {} {}",
        env!("CARGO_PKG_VERSION"),
        Versions::Both,
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
});

/// Run, drive, route and govern agents that speak the Agent Client Protocol (ACP).
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
    /// Log filter for stderr, such as `debug` or `narrows_rpc=trace` [default: warn]
    #[arg(long, global = true, value_name = "FILTER", env = environment::LOG, hide_env = true, display_order = 900)]
    pub(crate) log: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Returns the whole command, with the arguments of every subcommand.
    pub(crate) fn full_command() -> clap::Command {
        let mut command = Self::command();
        command.build();
        command
    }

    /// Parses the arguments. The first argument is the name of the program.
    pub(crate) fn parse_args(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        // The arguments of other subcommands are built only if an error may name them: building all of them takes
        // most of the start-up time.
        let named = words.get(1).and_then(|word| word.to_str());
        if named.is_none_or(|name| command.find_subcommand(name).is_none()) {
            command.build();
        }
        let (words, ignored) = ignored_args::split_known(&command, words)?;
        let named = words.iter().find_map(|word| ["bus", "run"].into_iter().find(|name| word == name));
        let matches = command.try_get_matches_from(words).map_err(|error| with_hint(error, named))?;
        let mut cli = Self::from_arg_matches(&matches)?;
        match &mut cli.command {
            Command::Acp(acp) => acp.ignored = ignored,
            Command::Run(run) if run.json => run.output = Output::Json,
            Command::Serve(serve) if serve.json => serve.format = CheckFormat::Json,
            Command::Audit(Audit { command: AuditCommand::Show(show) }) if show.json => {
                show.format = AuditFormat::Json;
            }
            _ => {}
        }
        Ok(cli)
    }
}

/// Adds a hint that clap cannot derive: `narrows bus status` shows a bus, and a prompt of several words needs quotes.
/// `subcommand` is the named one, if it is `bus` or `run`.
fn with_hint(mut error: clap::Error, subcommand: Option<&str>) -> clap::Error {
    let text = |context| match error.get(context) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (name, argument) = (text(ContextKind::InvalidSubcommand), text(ContextKind::InvalidArg));
    let tip = if name == "status"
        || (subcommand == Some("bus") && ["--watch", "--json", "--socket"].contains(&argument))
    {
        "`narrows bus status` shows a running bus"
    } else if subcommand == Some("run") && !argument.is_empty() && !argument.starts_with(['-', '<']) {
        "quote a prompt of several words: narrows run \"one two\""
    } else {
        return error;
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

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
/// Starts the agent, sends the prompt, streams the answer to stdout, and stops the agent with every process that it
/// started. Ctrl-C cancels the turn; a second Ctrl-C exits immediately.
///
/// Without --agent, the built-in agent runs. Its model comes from the options below, the OPENAI_ environment
/// variables or narrows.toml. If none of them names one, the built-in demo model answers.
///
/// The agent reads and writes files through this program and runs commands in a sandbox, within the limits of
/// --access and --policy. If they do not decide a request, you are asked in a terminal; without a terminal the
/// request is denied.
///
/// --timeout limits the whole run, from the start of the agent to the end of the turn. A turn that takes longer is
/// cancelled and has --cancel-grace (2s) to stop. Then the agent's commands are killed, its input is closed, and it
/// gets SIGTERM and SIGKILL, 500 ms apart. With --timeout 2s, the command exits within 3 s if the agent stops when
/// asked, and within 7 s if it ignores everything.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::RUN), after_long_help = help::reference(help::RUN))]
pub(crate) struct Run {
    /// Prompt; `@FILE` reads it from a file, `-` or no value from stdin
    ///
    /// If stdin is piped and a prompt is given, stdin is appended to the prompt.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,

    /// Image to send with the prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,

    /// With --output events, add the agent's own message to every event
    #[arg(long)]
    pub(crate) raw: bool,

    /// Format of messages on stdin during the turn
    #[arg(long, value_enum, value_name = "FORMAT", requires = "prompt")]
    pub(crate) input: Option<InputFormat>,

    /// JSON Schema that the answer must match; the answer is printed as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,

    /// Time limit for the whole run, such as `90s`, `5m` or `1h` [default: none]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Deadlines")]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) agent: AgentArgs,

    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text, streamed
    Text,
    /// All events, one JSON object per line
    Events,
    /// One JSON object at the end: text, stopReason, sessionId, agent, protocol, usage, and error if it failed
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Permission answers and cancellations, one JSON object per line
    Events,
}

/// Run a scripted agent on stdio, for tests
///
/// A script defines what the agent answers and how it misbehaves.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::FAKE_AGENT))]
pub(crate) struct FakeAgent {
    /// TOML file, or name of a built-in script
    #[arg(value_name = "SCRIPT", required_unless_present_any = ["list", "print"])]
    pub(crate) script: Option<String>,

    /// List the built-in scripts
    #[arg(long, conflicts_with_all = ["script", "print"])]
    pub(crate) list: bool,

    /// Print a built-in script, as a starting point for your own
    #[arg(long, value_name = "NAME", conflicts_with = "script")]
    pub(crate) print: Option<String>,

    /// With --list, print a JSON object
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
}

/// Print a completion script for a shell
///
/// It completes commands, options, fixed values and files. It does not complete names of agents, endpoints, sessions
/// and scripts.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::COMPLETIONS))]
pub(crate) struct Completions {
    /// Shell
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
            let error = Cli::parse_args(words).expect_err("invalid arguments").to_string();
            assert_eq!(error.contains("`narrows bus status`"), is_told, "{error}");
        }
    }

    #[test]
    fn a_prompt_without_quotes_has_a_hint() {
        for (words, has_hint) in
            [("run hello world", true), ("run hello --wrld", false), ("agents list x", false)]
        {
            let words = std::iter::once("narrows").chain(words.split(' ')).map(OsString::from).collect();
            let error = Cli::parse_args(words).expect_err("it is wrong").to_string();
            assert_eq!(error.contains("quote a prompt"), has_hint, "{error}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
