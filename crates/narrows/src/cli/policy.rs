//! The arguments of `narrows policy`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use narrows_policy::{Access, Kind};

use super::{help, value};

/// Check policy rules, and explain their decisions
///
/// The rules are those of `narrows run --policy FILE`. They allow actions of an agent, deny them, or ask for
/// permission.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY))]
pub(crate) struct Policy {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    Explain(Box<Explain>),
    Check(Check),
    Test(Box<Test>),
}

/// Explain the decision about a request
///
/// The request is the command after `--`. Several words are a program and its arguments, without a shell; a single
/// word with spaces is a shell command line. The options below describe any other request.
///
/// The decision is the one that `narrows run` would make here, with the same options and the same sandbox, if this
/// machine has one. Without FILE, only the access preset decides. If an agent asks about a command that it may run
/// itself, the sandbox does not count: add --no-sandbox, unless narrows.toml has `commands_run_by = "client"`.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_EXPLAIN))]
pub(crate) struct Explain {
    /// Rule file
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) circumstances: Circumstances,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// Command
    #[arg(last = true, value_name = "REQUEST", required_unless_present_any = ["kind", "tool", "path", "url", "server"])]
    pub(crate) request: Vec<String>,
}

/// A request other than a command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The request")]
pub(crate) struct Wanted {
    /// Kind of the action [default: derived from the other options]
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    pub(crate) kind: Option<Kind>,

    /// Name of the tool
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Option<String>,

    /// MCP server of the tool
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,

    /// Affected file; a relative path starts in the agent's working directory
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,

    /// URL that is accessed
    #[arg(long, value_name = "URL")]
    pub(crate) url: Vec<String>,
}

/// Validate a rule file and run its examples
///
/// Rules can have examples, `match` and `not_match`. They are tried here, and whenever the file is loaded.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_CHECK))]
pub(crate) struct Check {
    /// Rule file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Replay the permission requests of a recorded run against other rules
///
/// The run was recorded with `narrows run --output events`. Every permission request in it is decided by FILE, and
/// printed if the decision differs from the recorded one; then the exit code is 1. Only decisions by rules are
/// compared, not answers of a user.
///
/// A record does not contain the agent's directories or sandbox. Describe them with --cwd, --add-dir, --sandboxed and
/// --no-sandbox; otherwise those of this directory and machine are assumed.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_TEST))]
pub(crate) struct Test {
    /// Rule file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Recorded events; `-` reads stdin
    #[arg(long, value_name = "LOG")]
    pub(crate) events: PathBuf,

    /// Exit with 0 even if decisions differ
    #[arg(long)]
    pub(crate) allow_changes: bool,

    #[command(flatten)]
    pub(crate) circumstances: Circumstances,
}

/// The circumstances of a request besides the rules.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Access preset: low, medium or high [default: from the rule file, or medium]
    #[arg(long, value_name = "low|medium|high", value_parser = value::access(), hide_possible_values = true)]
    pub(crate) access: Option<Access>,

    /// Deny everything that uses the network
    ///
    /// Without this option, a sandboxed command reaches every host and every TCP and UDP port of this machine.
    #[arg(long)]
    pub(crate) no_network: bool,

    /// Deny web searches
    #[arg(long)]
    pub(crate) no_web_search: bool,

    /// Working directory of the agent [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Additional directory that the agent may use
    #[arg(long, value_name = "DIR")]
    pub(crate) add_dir: Vec<PathBuf>,

    /// Assume a sandbox that restricts commands fully [default: what the sandbox of this machine does]
    #[arg(long, conflicts_with = "no_sandbox")]
    pub(crate) sandboxed: bool,

    /// Assume that commands run without a sandbox
    #[arg(long)]
    pub(crate) no_sandbox: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::name)).map(|name| Kind::named(&name))
}
