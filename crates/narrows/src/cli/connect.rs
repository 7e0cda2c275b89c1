//! The arguments about remote agents.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use narrows_remote::client::{Target, TargetError};

use super::{help, value};

/// The help heading of options about remote agents.
const REMOTE: &str = "Remote agents";

/// Bridge stdio to a remote agent
///
/// Editors start this command themselves and use it like any other agent. URL is the address of the remote agent:
/// ws://, wss://, http:// or https:// with the path of its endpoint (default /acp), tcp://HOST:PORT, or unix:PATH.
///
/// If the connection breaks, it is re-established, and messages in transit are sent again, each exactly once, if the
/// server supports that; `narrows bus` does. The editor only sees a delay. If this fails, or takes longer than
/// --grace, every open request gets an error, and this command exits.
///
/// Messages are passed on unchanged. Messages of more than 16 MiB are refused.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::CONNECT),
    after_long_help = help::short_reference(help::CONNECT, help::CONNECT_CODES, help::CONNECT_VARIABLES)
)]
pub(crate) struct Connect {
    /// Address of the agent
    #[arg(value_name = "URL", value_parser = target)]
    pub(crate) url: Target,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

/// Options to reach a remote agent.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteArgs {
    /// File with the token for a remote agent
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub(crate) token_file: Option<PathBuf>,

    /// The source of the path in `token_file`.
    #[arg(skip)]
    pub(crate) token_by: NamedBy,

    /// File with CA certificates to trust in addition to those of the system
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub(crate) ca: Option<PathBuf>,

    /// Client certificate for a remote agent that requires one
    #[arg(long, value_name = "FILE", requires = "key", help_heading = REMOTE)]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = REMOTE)]
    pub(crate) key: Option<PathBuf>,

    /// Keep reconnecting for this long after a connection is lost [default: 300s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = REMOTE)]
    pub(crate) grace: Option<Duration>,
}

/// The source of a path, for error messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NamedBy {
    #[default]
    Flag,
    Variable,
    Setting,
}

pub(crate) fn target(text: &str) -> Result<Target, String> {
    text.parse().map_err(|error: TargetError| match intended_url(text, &error) {
        Some(meant) => format!("{error}; did you mean {meant}?"),
        None => error.to_string(),
    })
}

/// Returns the URL that the user probably meant by the invalid text.
pub(crate) fn intended_url(text: &str, error: &TargetError) -> Option<String> {
    match error {
        TargetError::Lines(_) => {
            let (scheme, rest) = text.split_once("://")?;
            let address = rest.split(['/', '?', '#']).next()?;
            Some(format!("{scheme}://{address}"))
        }
        TargetError::Scheme(_) => value::bare_address(text),
        _ => None,
    }
}
