//! What an agent is told of the servers, and which of them run here.

use narrows_acp::Version;
use narrows_acp::capability::{AUTHORIZES, AgentCan};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{HostServer, ServerConfig, Transport, host_server};

/// The servers of a session, distributed.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The entries of `mcpServers`, in the order in which they were given.
    pub(crate) descriptors: Vec<Value>,
    /// What is to be running here, see [`Hosted::host`](super::Hosted::host), before the agent reads the descriptors.
    pub(crate) hosted: Vec<HostedServer>,
}

/// A server that runs here.
#[derive(Debug, Clone)]
pub(crate) struct HostedServer {
    /// The agent's name for it; no other has it, in any session.
    pub(crate) id: String,
    /// What it is.
    pub(crate) kind: HostedServerKind,
}

/// What can run here.
#[derive(Debug, Clone)]
pub(crate) enum HostedServerKind {
    /// A server of the user's.
    Server(ServerConfig),
    /// Our own.
    Host(HostServer),
}

/// Why the agent cannot have a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// It takes no server of this kind.
    #[error("the agent takes no MCP servers over {transport}, so it cannot have {server:?}")]
    Unreachable {
        /// The server's name.
        server: String,
        /// `stdio`, `HTTP` or `SSE`.
        transport: &'static str,
    },
    /// Our own server has this name.
    #[error("no MCP server can have the name {:?}: it is that of the host's own", host_server::NAME)]
    NameTaken,
}

/// Distributes the servers: an agent that speaks MCP over ACP gets all of them that way, so that the policy sees every
/// call; another gets them as they are. `host` is for an agent that speaks it; another has no way to it.
///
/// # Errors
/// When the agent cannot have one of them.
pub(crate) fn plan(
    version: Version,
    can: &AgentCan,
    servers: &[ServerConfig],
    host: Option<HostServer>,
) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    if let Some(host) = host.filter(|_| can.mcp_acp) {
        if servers.iter().any(|server| server.name == host_server::NAME) {
            return Err(PlanError::NameTaken);
        }
        plan.host_entry(version, host_server::NAME, HostedServerKind::Host(host));
    }
    for server in servers {
        // This client does not speak SSE.
        if can.mcp_acp && !matches!(server.transport, Transport::Sse { .. }) {
            plan.host_entry(version, &server.name, HostedServerKind::Server(server.clone()));
        } else {
            plan.descriptors.push(descriptor(version, can, server)?);
        }
    }
    Ok(plan)
}

impl Plan {
    fn host_entry(&mut self, version: Version, name: &str, kind: HostedServerKind) {
        let id = Uuid::now_v7().to_string();
        let mut descriptor = json!({"type": "acp", "name": name, "serverId": id});
        if version == Version::V1 {
            // What the older form calls it. Its agents are of version 1.
            descriptor["id"] = id.clone().into();
        }
        // Of our own tools an agent that asks shows more than their call does.
        if matches!(kind, HostedServerKind::Server(_)) {
            descriptor["_meta"] = json!({AUTHORIZES: true});
        }
        self.descriptors.push(descriptor);
        self.hosted.push(HostedServer { id, kind });
    }
}

fn descriptor(version: Version, can: &AgentCan, server: &ServerConfig) -> Result<Value, PlanError> {
    let name = &server.name;
    let (taken, transport) = match server.transport {
        Transport::Stdio { .. } => (can.mcp_stdio, "stdio"),
        Transport::Http { .. } => (can.mcp_http, "HTTP"),
        Transport::Sse { .. } => (can.mcp_sse && version == Version::V1, "SSE"),
    };
    if !taken {
        return Err(PlanError::Unreachable { server: name.clone(), transport });
    }
    Ok(match &server.transport {
        Transport::Stdio { command, args, env } => {
            let mut stdio = json!({"name": name, "command": command, "args": args, "env": pairs(env)});
            if version == Version::V2 {
                stdio["type"] = "stdio".into();
            }
            stdio
        }
        Transport::Http { url, headers } => {
            json!({"type": "http", "name": name, "url": url, "headers": pairs(headers)})
        }
        Transport::Sse { url, headers } => {
            json!({"type": "sse", "name": name, "url": url, "headers": pairs(headers)})
        }
    })
}

fn pairs(pairs: &[(String, String)]) -> Vec<Value> {
    pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

#[cfg(test)]
mod tests;
