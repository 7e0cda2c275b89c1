//! A link to a remote agent, by its URL.
//!
//! Over WebSocket, TCP and unix sockets, a lost socket is replaced if the server can resume connections (see
//! [`crate::resume`]). Over Streamable HTTP, lost event streams are reopened. The user of the link notices
//! only a delay. If reconnecting is impossible or takes too long, each pending request is answered with an
//! error, and the link ends.

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
pub use tls_roots::ClientCertificateFiles;

use crate::resume::Keep;

/// Options for connecting to a remote agent.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A bearer token. It is never sent over a network without encryption.
    pub token: Option<Secret>,
    /// A file of certificate authorities to trust besides those of the system.
    pub ca: Option<PathBuf>,
    /// A client certificate, for servers that require one.
    pub client_certificate: Option<ClientCertificateFiles>,
    pub connect_timeout: Duration,
    /// Timeout for the response to `initialize` over HTTP. Should be longer than the server waits for its
    /// agent.
    pub initialize_timeout: Duration,
    /// Time to keep reconnecting after a loss.
    pub grace_period: Duration,
    /// Longest time without any input before the connection counts as lost.
    pub silence_timeout: Duration,
    pub keep: Keep,
    pub link: narrows_link::Options,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            ca: None,
            client_certificate: None,
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(150),
            grace_period: Duration::from_secs(300),
            silence_timeout: Duration::from_secs(45),
            keep: Keep::default(),
            link: narrows_link::Options::default(),
        }
    }
}

/// An established link to a remote agent, and a handle to observe the connection behind the link.
#[derive(Debug)]
pub struct Connected {
    pub link: Link,
    pub outcome: ConnectionOutcome,
}

/// Reports how a connection ended: with the reason for its loss, or without an error if the user of the link
/// ended it.
#[derive(Debug)]
pub struct ConnectionOutcome {
    lost: oneshot::Receiver<ConnectionLost>,
    state: ConnectionState,
}

impl ConnectionOutcome {
    /// Returns a handle that shows whether the connection is up.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.state.clone()
    }

    /// Waits for the end of the connection, including its closing messages.
    ///
    /// # Errors
    /// If the connection was lost.
    pub async fn wait(self) -> Result<(), ConnectionLost> {
        self.lost.await.map_or(Ok(()), Err)
    }
}

/// Connects to `target`. Must be called inside a runtime.
///
/// # Errors
/// If the server cannot be reached or refuses the client. Over HTTP most errors appear only at the first message.
pub async fn connect(target: &Target, options: ClientOptions) -> Result<Connected, DialError> {
    let (sender, lost) = oneshot::channel();
    let outages = state::OutageTracker::new();
    let state = outages.state();
    let (link, outgoing, incoming) = narrows_link::external_link(&options.link);
    match target {
        Target::Http(url) => {
            let http = http::HttpClient::new(url, &options, outages)?;
            tokio::spawn(async move { report(sender, http.run(outgoing, incoming).await) });
        }
        Target::WebSocket(_) | Target::Lines(_) => {
            let connector = connect::Connector::new(target, options)?;
            let first = match connector.dial().await {
                Ok(socket) => Ok(socket),
                // The server exists, so the client reconnects as it does after the loss of an established
                // connection.
                Err(DialError::ConnectionCut(why)) => Err(why),
                Err(error @ DialError::Unanswered(_)) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            let client = reconnect::ReconnectingClient::new(connector, outgoing, incoming, outages);
            tokio::spawn(async move { report(sender, client.run(first).await) });
        }
    }
    Ok(Connected { link, outcome: ConnectionOutcome { lost, state } })
}

fn report(sender: oneshot::Sender<ConnectionLost>, outcome: Result<(), ConnectionLost>) {
    if let Err(lost) = outcome {
        // Sending fails if the caller has dropped its `ConnectionOutcome`.
        let _ = sender.send(lost);
    }
}
