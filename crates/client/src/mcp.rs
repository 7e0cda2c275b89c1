//! The MCP servers of a session, as its agent can take them.
//!
//! [`ServerConfig::read`] reads what a user has. [`plan`] makes of it what the agent is told in `mcpServers`, and what
//! is to be run here because the agent speaks MCP over ACP. [`Hosted`] runs that and answers the agent's messages to
//! it; the [`HostServer`] among it is our own: the services of the host for agents of version 2.
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

/// What a trait object promises to find out.
pub(crate) type Pending<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
