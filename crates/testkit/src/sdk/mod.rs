//! The official Rust SDK as a peer, in both roles and versions.
//!
//! Written from the SDK's documentation, not from this project's code.

mod agent;
mod agent_v2;
mod client;
mod client_v2;
mod sessions;

use agent_client_protocol::{AcpAgent, Agent, ByteStreams, Client, ConnectTo, Error, Stdio};
use narrows_link::Link;
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

/// Runs an agent for v1 and v2 on stdin and stdout until its input ends.
///
/// It sends a greeting and repeats the prompt in pieces. If the prompt contains `permission`, it requests
/// permission first. With `read PATH` it reads that file through the client (v1 only). With `wait` it waits
/// for a cancellation.
pub async fn agent_on_stdio() {
    let _ = agent_on(Stdio::new()).await;
}

/// Runs the agent on any transport.
///
/// # Errors
/// When the connection fails.
pub async fn agent_on(transport: impl ConnectTo<Agent> + 'static) -> Result<(), Error> {
    let router = Agent.protocol_router().with_v1(agent::v1()).with_v2(agent_v2::v2());
    ConnectTo::<Client>::connect_to(router, transport).await
}

/// Runs the agent at the other end of a link. Must be called inside a runtime. The agent ends with the
/// link.
#[must_use]
pub fn agent_on_link() -> Link {
    let (ours, theirs) = tokio::io::duplex(256 << 10);
    tokio::spawn(async { agent_on(streams(theirs)).await.ok() });
    let (reader, writer) = tokio::io::split(ours);
    narrows_link::stream(reader, writer, &narrows_link::Options::default())
}

/// One end of an in-memory stream, in the form that the SDK needs.
pub type Streams = ByteStreams<Compat<WriteHalf<DuplexStream>>, Compat<ReadHalf<DuplexStream>>>;

/// Converts `end` to the form that the SDK needs.
#[must_use]
pub fn streams(end: DuplexStream) -> Streams {
    let (reader, writer) = tokio::io::split(end);
    ByteStreams::new(writer.compat_write(), reader.compat())
}

/// The client's record of one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    pub text: String,
    pub updates: usize,
    /// Titles of the agent's permission requests, all of which were granted.
    pub permissions: Vec<String>,
    /// The stop reason, by its name in the protocol.
    pub stop_reason: Option<String>,
    pub error: Option<String>,
}

/// Starts `command`, runs one v1 turn, and stops it.
pub async fn drive(command: Vec<String>, prompt: &str) -> Transcript {
    match AcpAgent::from_args(command) {
        Ok(agent) => drive_on(agent, prompt).await,
        Err(error) => Transcript { error: Some(error.to_string()), ..Transcript::default() },
    }
}

/// Starts `command`, runs one v2 turn, and stops it.
pub async fn drive_v2(command: Vec<String>, prompt: &str) -> Transcript {
    match AcpAgent::from_args(command) {
        Ok(agent) => drive_v2_on(agent, prompt).await,
        Err(error) => Transcript { error: Some(error.to_string()), ..Transcript::default() },
    }
}

/// Runs one v1 turn with the agent at the other end of `transport`.
pub async fn drive_on(transport: impl ConnectTo<Client> + 'static, prompt: &str) -> Transcript {
    client::drive(transport, prompt.to_owned()).await
}

/// Runs one v2 turn with the agent at the other end of `transport`.
pub async fn drive_v2_on(transport: impl ConnectTo<Client> + 'static, prompt: &str) -> Transcript {
    client_v2::drive(transport, prompt.to_owned()).await
}

fn word(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// Splits `text` into pieces that keep its spaces.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}
