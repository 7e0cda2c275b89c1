//! `narrows bus`: many clients, many agents, and how they are.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use narrows_bus::config::{self, Door, Listen, expand_home};

use super::{help, value};
use crate::environment;

/// The heading of what is said about the workers of a command.
const WORKERS: &str = "Workers";

/// Route many clients to pools of supervised agents
///
/// Clients connect to sockets of this machine, over a network by https:// and wss://, or one of them is on stdin and
/// stdout. Agents are processes that speak the protocol on theirs: they are kept running, started again when they die, and
/// end with the bus.
///
/// SIGTERM and Ctrl-C let running turns end first; a second Ctrl-C leaves at once. SIGHUP reads the file again: pools and
/// limits change without a failed request, places to listen stay as they are, and a file with mistakes changes nothing.
///
/// `narrows check FILE` says what is wrong with a file.
#[derive(Args, Debug)]
#[command(
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    override_usage = "narrows bus --config <FILE> [OPTIONS]\n       narrows bus --listen <URL> [OPTIONS] -- <COMMAND>...\n       narrows bus status [OPTIONS]",
    after_help = help::examples(help::BUS),
    after_long_help = help::short_reference(help::BUS, help::BUS_CODES, help::BUS_VARIABLES)
)]
pub(crate) struct Bus {
    #[command(subcommand)]
    pub(crate) subcommand: Option<BusCommand>,

    /// The configuration: a bus.toml, or the JSON of stdio Bus
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) config: Option<PathBuf>,

    /// Where clients come in: tcp://127.0.0.1:9000, unix:PATH, stdio: or http://127.0.0.1:8787/acp; wins over the file
    ///
    /// In PATH, `~/` is your home directory. Missing directories are created, for this user alone.
    #[arg(long, value_name = "URL", value_parser = listen)]
    pub(crate) listen: Vec<Listen>,

    /// The same as --listen tcp://HOST:PORT
    #[arg(long, value_name = "HOST:PORT", value_parser = Door::tcp)]
    pub(crate) tcp: Vec<Door>,

    /// The same as --listen unix:PATH
    #[arg(long, value_name = "PATH", value_parser = Door::unix)]
    pub(crate) unix: Vec<Door>,

    /// The same as --listen stdio:
    #[arg(long)]
    pub(crate) stdio: bool,

    /// How to write the log to stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,

    /// How many workers are kept ready [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) instances: Option<u32>,

    /// Who shares a worker [default: connection]
    #[arg(long, value_enum, value_name = "WHO", conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) share: Option<Share>,

    /// What workers speak: version 1 or 2 of the protocol, or any JSON-RPC [default: 1]
    #[arg(long, value_enum, value_name = "PROTOCOL", conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) protocol: Option<BusProtocol>,

    /// What their pool is called [default: default]
    #[arg(long, value_name = "NAME", value_parser = pool_name, conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) name: Option<String>,

    /// Words that stand before `--`, where no agent is looked for; taken so that this can be said
    #[arg(hide = true)]
    pub(crate) stray: Vec<String>,

    /// An agent and its arguments; it gets the whole environment
    ///
    /// It stands behind `--`, a word for each argument. `narrows` is this very program, wherever it lies.
    #[arg(last = true, value_name = "COMMAND", help_heading = WORKERS)]
    pub(crate) command: Vec<String>,
}

/// What else can be done about a bus.
#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    Status(BusStatus),
}

/// Show the pools, workers and sessions of a bus that runs
///
/// It is asked through its admin socket. The bus of this user is found by itself if there is only one; if not, --socket
/// says which.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::BUS_STATUS),
    after_long_help = help::short_reference(help::BUS_STATUS, help::BUS_STATUS_CODES, help::BUS_VARIABLES)
)]
pub(crate) struct BusStatus {
    /// The admin socket of the bus, as it names it when it starts: unix:PATH, or PATH alone
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().try_map(socket))]
    pub(crate) socket: Option<PathBuf>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Show it again and again: every 2s, or as often as this says, such as 500ms, 10s or 1m
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = value::duration)]
    pub(crate) watch: Option<Duration>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Who shares a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Share {
    /// Nobody: each connection has its own
    Connection,
    /// Nobody: each session has its own
    Session,
    /// Everybody
    All,
}

impl From<Share> for config::Share {
    fn from(share: Share) -> Self {
        match share {
            Share::Connection => Self::Connection,
            Share::Session => Self::Session,
            Share::All => Self::All,
        }
    }
}

/// What workers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BusProtocol {
    /// Version 1 of the protocol
    #[value(name = "1")]
    V1,
    /// Version 2 of the protocol
    #[value(name = "2")]
    V2,
    /// Any JSON-RPC in lines
    Jsonrpc,
}

impl From<BusProtocol> for config::Protocol {
    fn from(protocol: BusProtocol) -> Self {
        match protocol {
            BusProtocol::V1 => Self::V1,
            BusProtocol::V2 => Self::V2,
            BusProtocol::Jsonrpc => Self::JsonRpc,
        }
    }
}

/// Reads where the admin socket is.
fn socket(text: OsString) -> Result<PathBuf, &'static str> {
    match text.to_str() {
        Some(text) if text.starts_with("tcp:") || text.starts_with("http:") => {
            Err("it is asked through its unix socket; a port answers `curl` and Prometheus")
        }
        Some(text) => {
            let path = text.strip_prefix("unix:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
            Ok(path.unwrap_or(text).into())
        }
        None => Ok(text.into()),
    }
}

/// Reads where to listen.
pub(super) fn parse_listener(url: &str) -> Result<Listen, String> {
    let expanded = expand_home(url, environment::home().as_deref());
    Listen::parse(&expanded).map_err(|reason| match value::bare_address(url) {
        Some(meant) => format!("{reason}; did you mean {meant}?"),
        None => reason.to_owned(),
    })
}

/// The same where nothing more can be said of it.
fn listen(url: &str) -> Result<Listen, String> {
    let listen = parse_listener(url)?;
    let problem = match &listen.at {
        Door::Web(web) => web.problem(),
        _ => None,
    };
    problem
        .map_or(Ok(listen), |_| Err("tokens and certificates stand in a file: --config bus.toml".to_owned()))
}

/// Reads the name of a pool.
fn pool_name(text: &str) -> Result<String, &'static str> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(known) {
        true => Ok(text.to_owned()),
        false => Err("it must be letters, digits, `.`, `_` and `-`, at most 64"),
    }
}
