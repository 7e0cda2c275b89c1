//! The MCP servers of a session.
//!
//! [`ServerConfig::read`] reads the user's servers. [`plan`] assigns them: the agent gets them in
//! `mcpServers`, or the client hosts them because the agent speaks MCP over ACP. [`Hosted`] runs the hosted
//! servers and answers the agent's messages. [`HostServer`] is the built-in server, which offers files and
//! commands of the client to agents of version 2.
//!
//! ```text
//! agent ── mcp/message ── Hosted ── Gate ── narrows_mcp::Servers ── the user's servers
//!                            └───── HostServer ── FileService, CommandService
//! ```

mod config;
#[cfg(test)]
mod fixture;
mod gate;
mod host_server;
mod hosted;
mod message;
mod plan;
mod relay;
mod service;

pub use config::{ConfigError, ServerConfig, Transport};
pub(crate) use gate::{Gate, Refusal, ServerRequest};
pub(crate) use host_server::{HostServer, Offer, ToolCall};
pub(crate) use hosted::{Hosted, Hosting, Limits};
pub(crate) use plan::{HostedServer, HostedServerKind, plan};
pub(crate) use service::{CommandService, FileService, Ran, Run, ServiceError};

pub(crate) type Pending<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
