//! The arguments about agents that are somewhere else.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use narrows_remote::client::{Target, TargetError};

use super::{help, value};

/// The heading of what is said about agents that are somewhere else.
const REMOTE: &str = "Remote agents";

/// Be an agent on stdin and stdout that is really a remote one
///
/// For editors, which start it by themselves and talk to it as to any other agent. URL says where the agent is: ws://, wss://,
/// http:// and https:// with the path of its endpoint, which is /acp if there is none, tcp://HOST:PORT, or unix:PATH.
///
/// A connection that breaks is made again, and what was on the way is sent again, each message once, if the server can do that;
/// `narrows bus` can. The editor notices nothing but time. If it cannot be done, or not within --grace, every open request is
/// answered with an error, and this ends.
///
/// Messages pass as they are; one of more than 16 MiB is refused.
#[derive(Args, Debug)]
#[command(
    after_help = help::examples(help::CONNECT),
    after_long_help = help::short_reference(help::CONNECT, help::CONNECT_CODES, help::CONNECT_VARIABLES)
)]
pub(crate) struct Connect {
    /// Where the agent is
    #[arg(value_name = "URL", value_parser = target)]
    pub(crate) url: Target,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

/// How a remote agent is reached.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteArgs {
    /// The file that has the token for a remote agent in it
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub(crate) token_file: Option<PathBuf>,

    /// What has named that file.
    #[arg(skip)]
    pub(crate) token_by: NamedBy,

    /// A file of certificate authorities to trust beside the system's
    #[arg(long, value_name = "FILE", help_heading = REMOTE)]
    pub(crate) ca: Option<PathBuf>,

    /// The certificate that shows who we are, for a remote agent that asks for one
    #[arg(long, value_name = "FILE", requires = "key", help_heading = REMOTE)]
    pub(crate) cert: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = REMOTE)]
    pub(crate) key: Option<PathBuf>,

    /// How long it is tried to have a lost connection again [default: 300s]
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = REMOTE)]
    pub(crate) grace: Option<Duration>,
}

/// What has named a file, for whoever has to mend it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NamedBy {
    #[default]
    Flag,
    Variable,
    Setting,
}

/// Reads where a remote agent is.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    text.parse().map_err(|error: TargetError| match intended_url(text, &error) {
        Some(meant) => format!("{error}; did you mean {meant}?"),
        None => error.to_string(),
    })
}

/// The URL that is probably meant by one that is none.
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
