//! The arguments of `narrows bus`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use narrows_bus::config::{self, ListenAddr, ListenerSettings, expand_home};

use super::{help, value};
use crate::environment;

/// The help heading of options about workers.
const WORKERS: &str = "Workers";

/// Route many clients to pools of supervised agents
///
/// Clients connect to local sockets, over the network with https:// and wss://, or one of them on stdio. Agents are
/// processes that speak ACP on stdio. The bus keeps them running, restarts them when they exit, and stops them when
/// it stops.
///
/// On SIGTERM and Ctrl-C, active turns may finish first; a second Ctrl-C exits immediately. SIGHUP reloads the
/// configuration: pools and limits change without failed requests, listeners stay as they are, and an invalid file
/// changes nothing.
///
/// `narrows check FILE` validates a configuration.
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

    /// Configuration: a bus.toml, or the JSON of stdio Bus
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(crate) config: Option<PathBuf>,

    /// Address to listen on: tcp://127.0.0.1:9000, unix:PATH, stdio: or http://127.0.0.1:8787/acp; overrides the file
    ///
    /// In PATH, `~/` is your home directory. Missing directories are created, for this user alone.
    #[arg(long, value_name = "URL", value_parser = listen)]
    pub(crate) listen: Vec<ListenerSettings>,

    /// Same as --listen tcp://HOST:PORT
    #[arg(long, value_name = "HOST:PORT", value_parser = ListenAddr::tcp)]
    pub(crate) tcp: Vec<ListenAddr>,

    /// Same as --listen unix:PATH
    #[arg(long, value_name = "PATH", value_parser = ListenAddr::unix)]
    pub(crate) unix: Vec<ListenAddr>,

    /// Same as --listen stdio:
    #[arg(long)]
    pub(crate) stdio: bool,

    /// Log format on stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,

    /// Number of workers to keep ready [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) instances: Option<u32>,

    /// Which clients share a worker [default: connection]
    #[arg(long, value_enum, value_name = "WHO", conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) share: Option<Share>,

    /// Protocol of the workers: ACP version 1 or 2, or any JSON-RPC [default: 1]
    #[arg(long, value_enum, value_name = "PROTOCOL", conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) protocol: Option<BusProtocol>,

    /// Name of the pool [default: default]
    #[arg(long, value_name = "NAME", value_parser = pool_name, conflicts_with = "config", help_heading = WORKERS)]
    pub(crate) name: Option<String>,

    /// Arguments before `--`, accepted only to report them with a hint.
    #[arg(hide = true)]
    pub(crate) stray: Vec<String>,

    /// Command of the agent; it gets the whole environment
    ///
    /// Put it after `--`, one argument per word. The program `narrows` is always this executable.
    #[arg(last = true, value_name = "COMMAND", help_heading = WORKERS)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BusCommand {
    Status(BusStatus),
}

/// Show the pools, workers and sessions of a running bus
///
/// The status is read from the admin socket of the bus. Without --socket, the only running bus of this user is used.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::BUS_STATUS),
    after_long_help = help::short_reference(help::BUS_STATUS, help::BUS_STATUS_CODES, help::BUS_VARIABLES)
)]
pub(crate) struct BusStatus {
    /// Admin socket, as printed when the bus starts: unix:PATH or PATH
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().try_map(socket))]
    pub(crate) socket: Option<PathBuf>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Refresh every 2s, or at this interval, such as 500ms, 10s or 1m
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = value::duration)]
    pub(crate) watch: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines of text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Share {
    /// None: each connection has its own worker
    Connection,
    /// None: each session has its own worker
    Session,
    /// All clients share the workers
    All,
}

impl From<Share> for config::ShareMode {
    fn from(share: Share) -> Self {
        match share {
            Share::Connection => Self::Connection,
            Share::Session => Self::Session,
            Share::All => Self::All,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BusProtocol {
    /// ACP version 1
    #[value(name = "1")]
    V1,
    /// ACP version 2
    #[value(name = "2")]
    V2,
    /// Any JSON-RPC, one message per line
    Jsonrpc,
}

impl From<BusProtocol> for config::PoolProtocol {
    fn from(protocol: BusProtocol) -> Self {
        match protocol {
            BusProtocol::V1 => Self::V1,
            BusProtocol::V2 => Self::V2,
            BusProtocol::Jsonrpc => Self::JsonRpc,
        }
    }
}

fn socket(text: OsString) -> Result<PathBuf, &'static str> {
    match text.to_str() {
        Some(text) if text.starts_with("tcp:") || text.starts_with("http:") => {
            Err("the status is read from the unix socket; a TCP port serves `curl` and Prometheus")
        }
        Some(text) => {
            let path = text.strip_prefix("unix:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
            Ok(path.unwrap_or(text).into())
        }
        None => Ok(text.into()),
    }
}

pub(super) fn parse_listener(url: &str) -> Result<ListenerSettings, String> {
    let expanded = expand_home(url, environment::home().as_deref());
    ListenerSettings::parse(&expanded).map_err(|reason| match value::bare_address(url) {
        Some(meant) => format!("{reason}; did you mean {meant}?"),
        None => reason.to_owned(),
    })
}

/// Parses a listener that needs no other settings.
fn listen(url: &str) -> Result<ListenerSettings, String> {
    let listen = parse_listener(url)?;
    let problem = match &listen.addr {
        ListenAddr::Web(web) => web.problem(),
        _ => None,
    };
    problem.map_or(Ok(listen), |_| {
        Err("tokens and certificates need a configuration file: --config bus.toml".to_owned())
    })
}

fn pool_name(text: &str) -> Result<String, &'static str> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(known) {
        true => Ok(text.to_owned()),
        false => Err("must consist of letters, digits, `.`, `_` and `-`, at most 64"),
    }
}
