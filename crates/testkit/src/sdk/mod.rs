//! The official Rust SDK as the counterpart, in both roles and both versions.
//!
//! Everything here is written against its documentation and not against our code.

mod agent;
mod agent_v2;
mod client;
mod client_v2;
mod sessions;

use agent_client_protocol::{AcpAgent, Agent, ByteStreams, Client, ConnectTo, Error, Stdio};
use narrows_link::Link;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

/// An agent on stdin and stdout that speaks v1 and v2, until its input ends.
///
/// It says hello and repeats the prompt in pieces. If the prompt has `permission` in it, it asks for one first; if it
/// has `read PATH` in it, it reads that file through the client (v1 only); if it has `wait` in it, it waits to be
/// cancelled.
pub async fn agent_on_stdio() {
    // How the connection ends is the client's business.
    let _ = agent_on(Stdio::new()).await;
}

/// The same agent on any transport.
///
/// # Errors
/// When the connection fails.
pub async fn agent_on(transport: impl ConnectTo<Agent> + 'static) -> Result<(), Error> {
    let router = Agent.protocol_router().with_v1(agent::v1()).with_v2(agent_v2::v2());
    ConnectTo::<Client>::connect_to(router, transport).await
}

/// The same agent at the other end of a link. Must be called inside a runtime; it ends with the link.
#[must_use]
pub fn agent_on_link() -> Link {
    let (ours, theirs) = tokio::io::duplex(256 << 10);
    // How the connection ends is the client's business.
    tokio::spawn(async { agent_on(streams(theirs)).await.ok() });
    let (reader, writer) = tokio::io::split(ours);
    narrows_link::stream(reader, writer, &narrows_link::Options::default())
}

/// One end of a stream in memory, as the SDK takes it.
pub type Streams = ByteStreams<Compat<WriteHalf<DuplexStream>>, Compat<ReadHalf<DuplexStream>>>;

/// `end` as the SDK takes it.
#[must_use]
pub fn streams(end: DuplexStream) -> Streams {
    let (reader, writer) = tokio::io::split(end);
    ByteStreams::new(writer.compat_write(), reader.compat())
}

/// What a client has seen of one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// What the agent said.
    pub text: String,
    /// How many updates it sent.
    pub updates: usize,
    /// The titles of what it asked permission for. All of it was granted.
    pub permissions: Vec<String>,
    /// Why the turn ended, by its name on the wire.
    pub stop_reason: Option<String>,
    /// What went wrong, in the SDK's words.
    pub error: Option<String>,
}

/// Starts `command`, takes one turn with it in v1, and stops it.
pub async fn drive(command: Vec<String>, prompt: &str) -> Transcript {
    match AcpAgent::from_args(command) {
        Ok(agent) => drive_on(agent, prompt).await,
        Err(error) => Transcript { error: Some(error.to_string()), ..Transcript::default() },
    }
}

/// Starts `command`, takes one turn with it in v2, and stops it.
pub async fn drive_v2(command: Vec<String>, prompt: &str) -> Transcript {
    match AcpAgent::from_args(command) {
        Ok(agent) => drive_v2_on(agent, prompt).await,
        Err(error) => Transcript { error: Some(error.to_string()), ..Transcript::default() },
    }
}

/// Takes one turn in v1 with the agent behind `transport`.
pub async fn drive_on(transport: impl ConnectTo<Client> + 'static, prompt: &str) -> Transcript {
    client::drive(transport, prompt.to_owned()).await
}

/// Takes one turn in v2 with the agent behind `transport`.
pub async fn drive_v2_on(transport: impl ConnectTo<Client> + 'static, prompt: &str) -> Transcript {
    client_v2::drive(transport, prompt.to_owned()).await
}

/// A word of the protocol, as the schema's types write it.
fn word(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// `text` in pieces that keep its spaces.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}
