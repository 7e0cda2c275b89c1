//! Gate settings that follow from a manifest: the operator, its tools and scopes, and timeouts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use narrows_audit::is_log_file;
use narrows_manifest::types::acp::{McpTransport, Role};
use narrows_manifest::types::governance::Approver;
use narrows_manifest::types::operator::Scope;
use narrows_manifest::{Bundle, Capabilities, McpBinding, ToolSet};
use narrows_policy::{Access, Narrowing, Policy};
use serde_json::{Value, json};

use crate::recovery::GatePresence;
use crate::scope;
use crate::timeouts::GateTimeouts;

/// Settings of a gate: the operator that the agent acts as, and its limits.
#[derive(Clone, Debug, Default)]
pub struct GateConfig {
    pub operator: String,
    pub tier: String,
    /// Protocol revision that the manifest tracks.
    pub revision: String,
    /// Capabilities that the client and the agent may offer.
    pub capabilities: Capabilities,
    /// Tools that the operator may use; `kind:read` grants all tools of a kind. `None`: every tool that the
    /// policy allows.
    pub tools: Option<ToolSet>,
    /// Scopes of single tools, by tool id. A call must be within one of them.
    pub scopes: BTreeMap<String, Vec<Scope>>,
    /// Names of MCP servers that a client may use. `None`: any.
    pub servers: Option<Vec<String>>,
    /// MCP servers that every session gets, in the form of `session/new`. They replace servers of the same
    /// name that a client describes.
    pub provided_servers: Vec<Value>,
    /// Directories to which all sessions are confined. Their paths have no symbolic links.
    pub roots: Vec<PathBuf>,
    /// Subset of `roots` in which files must not be changed.
    pub read_only: Vec<PathBuf>,
    /// Files and directories that control the agent, such as manifests. No policy can allow to change them.
    pub protected: Vec<PathBuf>,
    /// Active file of the audit log, without symbolic links. All files of the log are protected by their
    /// names, because a rotation adds files.
    pub log: Option<PathBuf>,
    /// Approvers for actions whose policy names none. If empty, the client is asked.
    pub approvers: Vec<Approver>,
    /// Actions that need no approval.
    pub autonomy: Autonomy,
    pub timeouts: GateTimeouts,
    /// `true` for the built-in agent. It checks each tool call with the gate before it acts.
    pub asks_first: bool,
    /// Further methods that the client may send, beside those with a rule of their own.
    pub client_methods: Vec<String>,
    /// Further methods that the agent may send, beside those with a rule of their own.
    pub agent_methods: Vec<String>,
    pub client_meta: Vec<String>,
    /// Notice for the client, sent with the answer to `initialize`.
    pub notice: Option<String>,
}

/// Actions that an operator may take without an approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autonomy {
    #[default]
    Autonomous,
    /// Read-only actions. All others need an approval.
    Supervised,
    /// No action. Every turn needs an approval.
    Gated,
}

impl GateConfig {
    /// Derives the settings from a resolved manifest, for work in `roots`.
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
            log: None,
            autonomy,
            timeouts: GateTimeouts::default(),
            asks_first: bundle.role == Role::Server,
            client_methods: listed.client_methods,
            agent_methods: listed.agent_methods,
            client_meta: listed.client_meta,
            notice: None,
        }
    }
}

impl GateConfig {
    /// Returns `true` if `path`, which must have no symbolic links, is read-only. The innermost root decides.
    pub(crate) fn is_read_only(&self, path: &Path) -> bool {
        let depth = |root: &&PathBuf| root.components().count();
        let innermost = self.roots.iter().filter(|root| path.starts_with(root)).max_by_key(depth);
        innermost.is_some_and(|root| self.read_only.contains(root))
    }

    /// Returns `true` if `path` is, or will be, a file of the audit log.
    pub(crate) fn is_of_log(&self, path: &Path) -> bool {
        let Some(log) = &self.log else { return false };
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        path.parent() == log.parent() && (is_log_file(log, name) || path == GatePresence::path(log))
    }
}

/// Returns the description of an MCP server for `session/new`. `None` if the manifest does not say how to
/// start or reach it.
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

/// Returns the policy of a manifest. Without a governance, only read-only actions are allowed.
#[must_use]
pub fn bundle_policy(bundle: &Bundle) -> Policy {
    match &bundle.governance {
        Some(_) => Policy::new(Access::High, Narrowing::default()).with_ruleset(bundle.ruleset().clone()),
        None => Policy::new(Access::Low, Narrowing::default()),
    }
}
