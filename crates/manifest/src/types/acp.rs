//! ACP.md: who speaks the protocol, on which side, and with what around it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OneOrMany, Open};

/// The front matter of an ACP.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Acp {
    /// What it is called: the name of its directory, up to 80 characters.
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    /// What others refer to it by: 2 to 64 small letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{1,63}$"))]
    pub id: String,
    /// What it is for, in up to 2000 characters.
    #[schemars(length(min = 1, max = 2000))]
    pub description: String,
    /// The version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: String,
    /// Which side it is on.
    pub kind: Kind,
    /// How it is reached: stdio, websocket, or a list of both.
    #[schemars(with = "Transports")]
    pub transport: OneOrMany<Transport>,
    /// What goes beyond the protocol; `aip44` and `narrows` are ours, the rest is anybody's.
    pub metadata: Metadata,
    /// Words to find it by: small letters, digits and hyphens, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$")), extend("uniqueItems" = true))]
    pub tags: Vec<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// The side of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Drives an agent.
    Client,
    /// Is an agent, in front of an operator.
    Server,
    /// Stands between both.
    Bridge,
}

impl Kind {
    /// Its name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Bridge => "bridge",
        }
    }
}

/// A way to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// As a child process.
    Stdio,
    /// Over the network.
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

/// What goes beyond the protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// What binds the runtime to an operator, its governance and its sandbox.
    pub aip44: Aip44,
    /// Settings of this gate that AIP-44 has no key for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrows: Option<Narrows>,
    /// What others put there.
    #[serde(flatten)]
    pub other: Open,
}

/// Settings of the gate that AIP-44 has no key for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Narrows {
    /// Methods beyond those the gate decides about that the client may send, by their exact names, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = METHOD_NAME)), extend("uniqueItems" = true))]
    pub client_methods: Vec<String>,
    /// Methods beyond those the gate decides about that the agent may send, by their exact names, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = METHOD_NAME)), extend("uniqueItems" = true))]
    pub agent_methods: Vec<String>,
    /// Members of `_meta` that the client may send to the agent, by their exact names, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(min = 1, max = 128)), extend("uniqueItems" = true))]
    pub client_meta: Vec<String>,
}

/// An exact method name: there is no form for several at once.
const METHOD_NAME: &str = r"^[A-Za-z0-9_$][A-Za-z0-9_$./:-]{0,127}$";

/// What binds a runtime to an operator, its governance and its sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("allOf" = [{
    "if": {"properties": {"tier": {"const": "sandboxed"}}, "required": ["tier"]},
    "then": {"required": ["sandbox"]},
}]))]
pub struct Aip44 {
    /// The revision of the protocol: 7 to 40 small hexadecimal digits, in quotes.
    #[schemars(regex(pattern = r"^[a-f0-9]{7,40}$"))]
    pub acp_rev: String,
    /// How much of the profile it takes part in.
    pub tier: Tier,
    /// What is supported where that differs from what the tier implies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// The path of the OPERATOR.md, such as ./OPERATOR.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The path of the GOVERNANCE.md, such as ./GOVERNANCE.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governance: Option<String>,
    /// The path of the SANDBOX.md, such as ./SANDBOX.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Where decisions and calls are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// MCP servers that sessions get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// How much of the profile a runtime takes part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Sessions and prompts.
    Basic,
    /// Also an operator that is governed, and a mirror of its tool calls.
    GovernanceAware,
    /// Also a sandbox.
    Sandboxed,
}

impl Tier {
    /// Its name in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::GovernanceAware => "governance-aware",
            Self::Sandboxed => "sandboxed",
        }
    }
}

/// What is supported where that differs from what the tier implies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// What the client offers.
    #[serde(default)]
    pub client: ClientCapabilities,
    /// What the agent offers.
    #[serde(default)]
    pub agent: AgentCapabilities,
}

/// What the client offers.
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

/// What the client offers of its files.
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

/// What the agent offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentCapabilities {
    /// Going on with old sessions: true or false.
    #[serde(default)]
    pub load_session: Option<bool>,
    /// What a prompt may contain.
    #[serde(default)]
    pub prompt_capabilities: PromptCapabilities,
    /// Which MCP servers it can use.
    #[serde(default)]
    pub mcp_capabilities: McpCapabilities,
}

/// What a prompt may contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PromptCapabilities {
    /// Images: true or false.
    #[serde(default)]
    pub image: Option<bool>,
    /// Sound: true or false.
    #[serde(default)]
    pub audio: Option<bool>,
    /// Embedded files: true or false.
    #[serde(default)]
    pub embedded_context: Option<bool>,
}

/// Which MCP servers an agent can use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpCapabilities {
    /// Over HTTP: true or false.
    #[serde(default)]
    pub http: Option<bool>,
    /// Over server-sent events: true or false.
    #[serde(default)]
    pub sse: Option<bool>,
}

/// Where decisions and calls are recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// The path of the log, where it is not that of the governance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// Whose log it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AuditKind>,
}

/// Whose log it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// That of the governance.
    Governance,
    /// Another.
    External,
    /// There is none.
    Off,
}

/// An MCP server that sessions get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// What it is called.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// Where it is described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpTransport {
    /// As a child process.
    Stdio,
    /// Over HTTP.
    Http,
    /// Over server-sent events.
    Sse,
}
