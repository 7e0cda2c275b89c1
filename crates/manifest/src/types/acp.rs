//! ACP.md: an agent, client or bridge, with its operator, governance and sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OneOrMany, OtherKeys};

/// The front matter of an ACP.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Acp {
    /// Display name: the name of its directory, up to 80 characters.
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    /// Id for references: 2 to 64 lower-case letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{1,63}$"))]
    pub id: String,
    /// Description of up to 2000 characters.
    #[schemars(length(min = 1, max = 2000))]
    pub description: String,
    /// Version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: String,
    /// Role in the protocol: client, server or bridge.
    pub kind: Role,
    /// Transport: stdio, websocket, or a list of both.
    #[schemars(with = "Transports")]
    pub transport: OneOrMany<Transport>,
    /// Extensions: `aip44` and `narrows` are defined here, other keys are free.
    pub metadata: Metadata,
    /// Tags: lower-case letters, digits and hyphens, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$")), extend("uniqueItems" = true))]
    pub tags: Vec<String>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// Role in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Kind")]
pub enum Role {
    /// Drives an agent.
    Client,
    /// Is an agent, run by an operator.
    Server,
    /// Connects a client with an agent.
    Bridge,
}

impl Role {
    /// Returns the name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Bridge => "bridge",
        }
    }
}

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A child process.
    Stdio,
    /// A network connection.
    Websocket,
}

/// The forms of `transport`, for the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Transports {
    One(Transport),
    #[schemars(extend("minItems" = 1, "uniqueItems" = true))]
    Many(Vec<Transport>),
}

/// Extensions of the protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// References to the operator, its governance and its sandbox.
    pub aip44: Aip44,
    /// Settings of Narrows that AIP-44 does not define.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrows: Option<Narrows>,
    /// Metadata of other programs.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// Settings of Narrows that AIP-44 does not define.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Narrows {
    /// Additional methods that the client may send: exact names, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = METHOD_NAME)), extend("uniqueItems" = true))]
    pub client_methods: Vec<String>,
    /// Additional methods that the agent may send: exact names, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = METHOD_NAME)), extend("uniqueItems" = true))]
    pub agent_methods: Vec<String>,
    /// Members of `_meta` that the client may send: exact names, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 128)), extend("uniqueItems" = true))]
    pub client_meta: Vec<String>,
}

/// An exact method name; patterns are not supported.
const METHOD_NAME: &str = r"^[A-Za-z0-9_$][A-Za-z0-9_$./:-]{0,127}$";

/// References to the operator, its governance and its sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("allOf" = [{
    "if": {"properties": {"tier": {"const": "sandboxed"}}, "required": ["tier"]},
    "then": {"required": ["sandbox"]},
}]))]
pub struct Aip44 {
    /// Revision of the protocol: 7 to 40 lower-case hexadecimal digits, in quotes.
    #[schemars(regex(pattern = r"^[a-f0-9]{7,40}$"))]
    pub acp_rev: String,
    /// Tier of the profile: basic, governance-aware or sandboxed.
    pub tier: Tier,
    /// Capabilities that differ from those of the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Path of the OPERATOR.md, such as ./OPERATOR.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Path of the GOVERNANCE.md, such as ./GOVERNANCE.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governance: Option<String>,
    /// Path of the SANDBOX.md, such as ./SANDBOX.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Audit log of decisions and calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// MCP servers of each session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// Tier of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Sessions and prompts.
    Basic,
    /// Also a governed operator, with recorded tool calls.
    GovernanceAware,
    /// Also a sandbox.
    Sandboxed,
}

impl Tier {
    /// Returns the name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::GovernanceAware => "governance-aware",
            Self::Sandboxed => "sandboxed",
        }
    }
}

/// Capabilities that differ from those of the tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Capabilities of the client.
    #[serde(default)]
    pub client: ClientCapabilities,
    /// Capabilities of the agent.
    #[serde(default)]
    pub agent: AgentCapabilities,
}

/// Capabilities of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientCapabilities {
    /// Files.
    #[serde(default)]
    pub fs: FsCapabilities,
    /// Terminals: true or false.
    #[serde(default)]
    pub terminal: Option<bool>,
}

/// File capabilities of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FsCapabilities {
    /// Reading: true or false.
    #[serde(default)]
    pub read_text_file: Option<bool>,
    /// Writing: true or false.
    #[serde(default)]
    pub write_text_file: Option<bool>,
}

/// Capabilities of the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentCapabilities {
    /// Loading of earlier sessions: true or false.
    #[serde(default)]
    pub load_session: Option<bool>,
    /// Content types of a prompt.
    #[serde(default)]
    pub prompt_capabilities: PromptCapabilities,
    /// Supported transports of MCP servers.
    #[serde(default)]
    pub mcp_capabilities: McpCapabilities,
}

/// Content types of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PromptCapabilities {
    /// Images: true or false.
    #[serde(default)]
    pub image: Option<bool>,
    /// Audio: true or false.
    #[serde(default)]
    pub audio: Option<bool>,
    /// Embedded files: true or false.
    #[serde(default)]
    pub embedded_context: Option<bool>,
}

/// Supported transports of MCP servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpCapabilities {
    /// Streamable HTTP: true or false.
    #[serde(default)]
    pub http: Option<bool>,
    /// Server-sent events (SSE): true or false.
    #[serde(default)]
    pub sse: Option<bool>,
}

/// Audit log of decisions and calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Path of the log, if it is not that of the governance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// Log that is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AuditKind>,
}

/// Log that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// The log of the governance.
    Governance,
    /// Another log.
    External,
    /// No log.
    Off,
}

/// An MCP server of each session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// Its transport.
    pub transport: McpTransport,
    /// Path of its description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
}

/// Transport of an MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpTransport {
    /// A child process.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// Server-sent events.
    Sse,
}
