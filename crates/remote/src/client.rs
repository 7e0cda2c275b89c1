//! A link to an agent somewhere else, by its URL.
//!
//! Over WebSocket, TCP and unix sockets a lost socket is replaced by another as long as the server can do that (see
//! [`crate::resume`]); over Streamable HTTP the streams are. Whoever holds the link notices nothing but time. Where it
//! cannot be done, or not in time, each open request is answered with an error, and the link ends.

mod backoff;
mod connect;
mod cookies;
mod error;
mod http;
mod pending;
mod ping_filter;
mod pump;
mod reconnect;
mod secret;
mod socket;
mod state;
mod target;
mod tls_roots;

use std::path::PathBuf;
use std::time::Duration;

use narrows_link::Link;
use tokio::sync::oneshot;

pub use error::{ConnectionLost, DialError};
pub use narrows_base::Secret;
pub use state::{ConnectionState, Outage};
pub use target::{Target, TargetError};
pub use tls_roots::OwnFiles;

use crate::resume::Keep;

/// How a remote agent is reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who we are: sent as a bearer token, never over a network in clear.
    pub token: Option<Secret>,
    /// A file of certificate authorities to trust beside the system's.
    pub ca: Option<PathBuf>,
    /// Who we are, to a server that asks for certificates.
    pub own: Option<OwnFiles>,
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// How long the answer to `initialize` may take over HTTP, where no sign of life comes before: longer than a server waits for an
    /// agent.
    pub answer: Duration,
    /// How long it is tried to replace a lost connection.
    pub grace: Duration,
    /// How long nothing may be heard before a connection counts as lost.
    pub silence: Duration,
    /// What is kept to be sent again.
    pub keep: Keep,
    /// What the link may hold.
    pub link: narrows_link::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            ca: None,
            own: None,
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(150),
            grace: Duration::from_secs(300),
            silence: Duration::from_secs(45),
            keep: Keep::default(),
            link: narrows_link::Options::default(),
        }
    }
}

/// A link, and what comes of it.
#[derive(Debug)]
pub struct Connected {
    /// The link.
    pub link: Link,
    /// What comes of it.
    pub outcome: Outcome,
}

/// What comes of a link: why it was lost, or nothing if its holder has ended it.
#[derive(Debug)]
pub struct Outcome {
    lost: oneshot::Receiver<ConnectionLost>,
    standing: ConnectionState,
}

impl Outcome {
    /// Whether the connection stands meanwhile.
    #[must_use]
    pub fn standing(&self) -> ConnectionState {
        self.standing.clone()
    }

    /// Waits for the end of the connection, goodbyes included.
    ///
    /// # Errors
    /// When it was lost.
    pub async fn wait(self) -> Result<(), ConnectionLost> {
        self.lost.await.map_or(Ok(()), Err)
    }
}

/// Connects to `target`. Must be called inside a runtime.
///
/// # Errors
/// When nobody is there, or nobody that lets us in. Over HTTP most of that shows only at the first message.
pub async fn connect(target: &Target, options: Options) -> Result<Connected, DialError> {
    let (told, lost) = oneshot::channel();
    let watch = state::Watch::new();
    let standing = watch.standing();
    let (link, outgoing, incoming) = narrows_link::external_link(&options.link);
    match target {
        Target::Http(url) => {
            let http = http::Client::new(url, &options, watch)?;
            tokio::spawn(async move { tell(told, http.run(outgoing, incoming).await) });
        }
        Target::WebSocket(_) | Target::Lines(_) => {
            let dialler = connect::Connector::new(target, options)?;
            let first = match dialler.dial().await {
                Ok(socket) => Ok(socket),
                // Where something is there, a network that breaks now is as little noticed as one that breaks later.
                Err(DialError::Cut(why)) => Err(why),
                Err(error @ DialError::Unanswered(_)) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            let keeper = reconnect::ReconnectingClient::new(dialler, outgoing, incoming, watch);
            tokio::spawn(async move { tell(told, keeper.run(first).await) });
        }
    }
    Ok(Connected { link, outcome: Outcome { lost, standing } })
}

fn tell(told: oneshot::Sender<ConnectionLost>, outcome: Result<(), ConnectionLost>) {
    if let Err(lost) = outcome {
        // Whoever does not wait for it need not know.
        let _ = told.send(lost);
    }
}
