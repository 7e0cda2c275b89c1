//! `narrows policy`: what rules say, before an agent finds out.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use narrows_policy::{Access, Kind};

use super::{help, value};

/// Check rules, and see what they say about a request
///
/// The rules are those of `narrows run --policy FILE`: what an agent may do, must ask for, or may not do.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY))]
pub(crate) struct Policy {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

/// What to do with rules.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    Explain(Box<Explain>),
    Check(Check),
    Test(Box<Test>),
}

/// Say whether a request is allowed, and why
///
/// The request is the command behind `--`. Several words are a program and its arguments, and no shell sees them; one
/// word with spaces in it is a line for a shell. Any other request is made of the flags below.
///
/// It is judged as `narrows run` would judge it here, with the same flags and in the same sandbox, if this machine has
/// one. Without a FILE there are no rules, and the access decides. A permission request of an agent that may run the
/// command itself is judged without a sandbox: use --no-sandbox, unless narrows.toml has `commands_run_by = "client"`.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_EXPLAIN))]
pub(crate) struct Explain {
    /// The file with the rules
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) circumstances: Circumstances,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// The command
    #[arg(last = true, value_name = "REQUEST", required_unless_present_any = ["kind", "tool", "path", "url", "server"])]
    pub(crate) request: Vec<String>,
}

/// What is wanted, if it is no command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The request")]
pub(crate) struct Wanted {
    /// What it does [default: what the rest of it shows]
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    pub(crate) kind: Option<Kind>,

    /// The tool that is used
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Option<String>,

    /// The MCP server that the tool belongs to
    #[arg(long, value_name = "NAME")]
    pub(crate) server: Option<String>,

    /// A file that is concerned; a relative path is meant from where the agent works
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,

    /// An address that is visited
    #[arg(long, value_name = "URL")]
    pub(crate) url: Vec<String>,
}

/// Say whether a file of rules can be used, and whether its examples hold
///
/// Every rule may have examples, `match` and `not_match`, which are tried here and whenever the file is used.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_CHECK))]
pub(crate) struct Check {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Judge what was asked in a recorded run once more, by other rules
///
/// The run was recorded with `narrows run --output events`. Every request for permission in it is judged by FILE, and
/// shown if the verdict is another than it was; then the exit code is 1. What a person answered is not looked at, only
/// what the rules said.
///
/// A record does not say where the agent worked, nor in what sandbox: --cwd, --add-dir, --sandboxed and --no-sandbox
/// do, or else it is judged as if it had been here.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::POLICY_TEST))]
pub(crate) struct Test {
    /// The file with the rules
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The record; `-` is stdin
    #[arg(long, value_name = "LOG")]
    pub(crate) events: PathBuf,

    /// End with 0 even if verdicts differ
    #[arg(long)]
    pub(crate) allow_changes: bool,

    #[command(flatten)]
    pub(crate) circumstances: Circumstances,
}

/// Where a request is judged, and what beside the rules.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Access preset: low, medium or high [default: what the file says, or medium]
    #[arg(long, value_name = "low|medium|high", value_parser = value::access(), hide_possible_values = true)]
    pub(crate) access: Option<Access>,

    /// Refuse whatever uses the network
    ///
    /// Without it, a command in the sandbox reaches every host and every TCP and UDP port of this machine.
    #[arg(long)]
    pub(crate) no_network: bool,

    /// Refuse searches of the web
    #[arg(long)]
    pub(crate) no_web_search: bool,

    /// Where the agent works [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Another directory that the agent may use
    #[arg(long, value_name = "DIR")]
    pub(crate) add_dir: Vec<PathBuf>,

    /// As on a machine whose sandbox keeps commands from everything [default: what the sandbox of this one does]
    #[arg(long, conflicts_with = "no_sandbox")]
    pub(crate) sandboxed: bool,

    /// As if commands ran without a sandbox
    #[arg(long)]
    pub(crate) no_sandbox: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::name)).map(|name| Kind::named(&name))
}
