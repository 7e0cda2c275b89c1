//! The universal agent: sessions, the turn loop, and tools of MCP servers and of the client.

mod settings;

pub use narrows_model::EndpointError;
pub use settings::{Errors, Limits, Route, Settings};

use narrows_rpc::{Inbox, Options, Peer};

/// How the agent's end of a conversation behaves.
#[must_use]
pub fn options() -> Options {
    Options::agent(|_| false)
}

/// Serves a conversation that was started with [`options`], until the client has gone and every session is closed.
///
/// # Errors
/// When an endpoint of the settings cannot be used, before anything is read.
pub async fn run(peer: Peer, mut inbox: Inbox, settings: Settings) -> Result<(), EndpointError> {
    drop((peer, settings));
    while inbox.recv().await.is_some() {}
    Ok(())
}
