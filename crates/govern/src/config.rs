//! What a manifest comes to: as whom an agent acts, what it may use, and how long anything may take.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use narrows_manifest::types::acp::{Kind, McpTransport};
use narrows_manifest::types::governance::Approver;
use narrows_manifest::types::operator::Scope;
use narrows_manifest::{Bundle, Capabilities, McpBinding, ToolSet};
use narrows_policy::{Access, Narrowing, Policy};
use serde_json::{Value, json};

use crate::scope;
use crate::timeouts::GateTimeouts;

/// As whom an agent acts, and within which bounds.
#[derive(Clone, Debug, Default)]
pub struct GateConfig {
    /// The id of the operator.
    pub operator: String,
    /// The name of the tier.
    pub tier: String,
    /// The revision of the protocol that the manifest tracks.
    pub revision: String,
    /// What either side may offer.
    pub capabilities: Capabilities,
    /// The tools the operator may use, those of a kind as `kind:read`. `None`: whatever the policy allows.
    pub tools: Option<ToolSet>,
    /// What single tools may touch, by their ids. A call must be within one of them.
    pub scopes: BTreeMap<String, Vec<Scope>>,
    /// The MCP servers that a client may name. `None`: any.
    pub servers: Option<Vec<String>>,
    /// MCP servers that every session gets, as `session/new` takes them. They stand in for those of the same name that a
    /// client describes.
    pub provided_servers: Vec<Value>,
    /// The directories in which everything happens, without links in them.
    pub roots: Vec<PathBuf>,
    /// Those of them in which nothing is changed.
    pub read_only: Vec<PathBuf>,
    /// What is not changed whatever a policy says, because it decides about the agent: files, and directories with all that is
    /// in them.
    pub protected: Vec<PathBuf>,
    /// Who may approve what, where a policy does not say. Nobody: whoever is asked.
    pub approvers: Vec<Approver>,
    /// How much is done unasked.
    pub autonomy: Autonomy,
    /// How long anything may take.
    pub timeouts: GateTimeouts,
    /// The agent is ours, and asks before it does anything.
    pub asks_first: bool,
    /// Methods beyond those the gate decides about that the client may send.
    pub client_methods: Vec<String>,
    /// The same for the agent.
    pub agent_methods: Vec<String>,
    /// Members of `_meta` that the client may send.
    pub client_meta: Vec<String>,
    /// What a client is told when it introduces itself, if anything.
    pub notice: Option<String>,
}

/// How much is done unasked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autonomy {
    /// What the policy allows.
    #[default]
    Autonomous,
    /// What changes nothing; all else is asked for.
    Supervised,
    /// Nothing: every turn is asked for.
    Gated,
}

impl GateConfig {
    /// What a manifest and all it leads to come to, for work in `roots`.
    #[must_use]
    pub fn from_bundle(bundle: &Bundle, roots: Vec<PathBuf>) -> Self {
        let acp = &bundle.acp.front;
        let operator = bundle.operator.as_ref().map(|operator| &operator.front);
        let governance = operator.and_then(|operator| operator.governance.as_ref());
        let autonomy = match governance.map(|binding| binding.autonomy) {
            Some(narrows_manifest::types::operator::Autonomy::Gated) => Autonomy::Gated,
            Some(narrows_manifest::types::operator::Autonomy::Supervised) => Autonomy::Supervised,
            _ if bundle.per_turn_approval => Autonomy::Gated,
            _ => Autonomy::Autonomous,
        };
        let listed = acp.metadata.narrows.clone().unwrap_or_default();
        Self {
            operator: operator.map_or_else(|| acp.id.clone(), |operator| operator.id.clone()),
            tier: acp.metadata.aip44.tier.name().to_owned(),
            revision: acp.metadata.aip44.acp_rev.clone(),
            capabilities: bundle.capabilities,
            tools: operator.map(|_| bundle.tools.clone()),
            scopes: operator.map(scope::tool_scopes).unwrap_or_default(),
            servers: Some(bundle.mcp_servers.iter().map(|binding| binding.server.name.clone()).collect()),
            provided_servers: bundle.mcp_servers.iter().filter_map(mcp_server_config).collect(),
            roots,
            approvers: bundle.governance.as_ref().map(|it| it.config.approvers.clone()).unwrap_or_default(),
            read_only: Vec::new(),
            protected: Vec::new(),
            autonomy,
            timeouts: GateTimeouts::default(),
            asks_first: bundle.role == Kind::Server,
            client_methods: listed.client_methods,
            agent_methods: listed.agent_methods,
            client_meta: listed.client_meta,
            notice: None,
        }
    }
}

impl GateConfig {
    /// Whether nothing may be changed at a path, which has no links in it: the innermost of the roots decides.
    pub(crate) fn is_read_only(&self, path: &Path) -> bool {
        let depth = |root: &&PathBuf| root.components().count();
        let innermost = self.roots.iter().filter(|root| path.starts_with(root)).max_by_key(depth);
        innermost.is_some_and(|root| self.read_only.contains(root))
    }
}

/// How a session gets an MCP server, if its description says how it is started or reached.
#[must_use]
pub fn mcp_server_config(binding: &McpBinding) -> Option<Value> {
    let description = binding.description.as_ref()?;
    let name = &binding.server.name;
    let pairs = |key: &str| -> Vec<Value> {
        let members = description[key].as_object().into_iter().flatten();
        members
            .filter(|(_, value)| value.is_string())
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect()
    };
    let remote = |kind: &str| {
        let url = description["url"].as_str()?;
        Some(json!({"type": kind, "name": name, "url": url, "headers": pairs("headers")}))
    };
    match binding.server.transport {
        McpTransport::Http => remote("http"),
        McpTransport::Sse => remote("sse"),
        McpTransport::Stdio => {
            let command = description["command"].as_str()?;
            let args = description["args"].as_array().cloned().unwrap_or_default();
            Some(json!({"name": name, "command": command, "args": args, "env": pairs("env")}))
        }
    }
}

/// The policy of a manifest: what its governance says, and where it has none, nothing that changes anything.
#[must_use]
pub fn bundle_policy(bundle: &Bundle) -> Policy {
    match &bundle.governance {
        Some(_) => Policy::new(Access::High, Narrowing::default()).with_charter(bundle.charter().clone()),
        None => Policy::new(Access::Low, Narrowing::default()),
    }
}
