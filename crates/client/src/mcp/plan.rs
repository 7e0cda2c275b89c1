//! Decides which servers the agent gets, and which ones the client hosts.

use narrows_acp::Version;
use narrows_acp::capability::{AUTHORIZES, AgentCan};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{HostServer, ServerConfig, Transport, host_server};

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Entries of `mcpServers`, in the given order.
    pub(crate) descriptors: Vec<Value>,
    /// Servers that the client must host with [`Hosted::host`](super::Hosted::host) before the agent reads
    /// the descriptors.
    pub(crate) hosted: Vec<HostedServer>,
}

#[derive(Debug, Clone)]
pub(crate) struct HostedServer {
    /// Id under which the agent addresses the server, unique across all sessions.
    pub(crate) id: String,
    pub(crate) kind: HostedServerKind,
}

#[derive(Debug, Clone)]
pub(crate) enum HostedServerKind {
    Server(ServerConfig),
    Host(HostServer),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("the agent does not support MCP servers over {transport}: {server:?}")]
    Unreachable {
        server: String,
        /// `stdio`, `HTTP` or `SSE`.
        transport: &'static str,
    },
    /// A user's server has the name of the built-in server.
    #[error("the MCP server name {:?} is reserved", host_server::NAME)]
    NameTaken,
}

/// Assigns the session's MCP servers. An agent that speaks MCP over ACP gets all of them over ACP, so that
/// the policy sees every call. Any other agent gets the configurations. `host` is the built-in server, which
/// is reachable only over ACP.
///
/// # Errors
/// Returns an error if the agent cannot use one of the servers.
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
        // The client does not support SSE, so it cannot host such a server.
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
            // The field `id` has the server's id in the older form, which agents of version 1 use.
            descriptor["id"] = id.clone().into();
        }
        // Built-in tools do not get this mark: a permission request for them shows more than their MCP call.
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
