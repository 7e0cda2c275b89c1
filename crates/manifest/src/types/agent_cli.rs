//! AGENT-CLI.md: an agent that is a program, with its arguments, modes and options.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cli::{Auth, Install, Requires, SetupStep, VersionCheck};
use super::{OtherKeys, acp::McpTransport};

/// The front matter of an AGENT-CLI.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("allOf" = [
    {"if": {"properties": {"protocol": {"const": "acp"}}, "required": ["protocol"]}, "then": {"required": ["acp"]}},
    {"if": {"properties": {"protocol": {"const": "mcp"}}, "required": ["protocol"]}, "then": {"required": ["mcp"]}},
    {
        "if": {"properties": {"protocol": {"const": "proprietary"}}, "required": ["protocol"]},
        "then": {"required": ["adapter"]},
    },
    {
        "if": {
            "required": ["session"],
            "properties": {"session": {
                "type": "object", "required": ["mode"], "properties": {"mode": {"const": "resumable"}},
            }},
        },
        "then": {
            "required": ["capabilities"],
            "properties": {"capabilities": {
                "type": "object", "required": ["resumable"], "properties": {"resumable": {"const": true}},
            }},
        },
    },
    {
        "if": {
            "required": ["continuation"],
            "properties": {"continuation": {
                "type": "object", "required": ["default"], "properties": {"default": {"const": "native-resume"}},
            }},
        },
        "then": {
            "required": ["capabilities"],
            "properties": {"capabilities": {
                "type": "object", "required": ["resumable"], "properties": {"resumable": {"const": true}},
            }},
        },
    },
]))]
pub struct AgentCli {
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
    /// Program: a name or a path, without arguments.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._/-]+$"))]
    pub bin: String,
    /// First arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args: Vec<String>,
    /// Ways to install it, at least one.
    #[schemars(length(min = 1))]
    pub install: Vec<Install>,
    /// Check of its version.
    pub version_check: VersionCheck,
    /// Setup steps after the installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<SetupStep>,
    /// Login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Path of a SANDBOX.md, or its content.
    pub sandbox: Block,
    /// Path of a RUNNER.md, or its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<Block>,
    /// Its protocol: acp, mcp or proprietary.
    pub protocol: Protocol,
    /// Path of the ACP.md that describes its ACP support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acp: Option<String>,
    /// Its MCP connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Mcp>,
    /// Adapter package for its protocol: lower-case letters, digits and -./ only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@?[a-z0-9][a-z0-9./-]*$"))]
    pub adapter: Option<String>,
    /// Lifetime of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// Its models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Models>,
    /// Capabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Modes; one is selected at the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<Mode>,
    /// Options that are set at the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<AgentOption>,
    /// Way to pass earlier turns to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Continuation>,
    /// Requirements on the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
    /// Tags: lower-case letters, digits and hyphens, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$")), extend("uniqueItems" = true))]
    pub tags: Vec<String>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Another manifest: its path or its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Block {
    /// Its path.
    Path(String),
    /// Its content.
    Inline(OtherKeys),
}

/// Protocol of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// ACP.
    Acp,
    /// MCP.
    Mcp,
    /// Another protocol.
    Proprietary,
}

/// MCP connection of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mcp {
    /// The program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its transport.
    pub transport: McpTransport,
    /// Its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Lifetime of an agent's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Lifetime: ephemeral (one connection), persistent (beyond it) or resumable (beyond the process).
    #[serde(default)]
    pub mode: SessionMode,
    /// Idle timeout in milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
    /// Maximum number of turns, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_turns: Option<u64>,
    /// Turns remember earlier turns: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_carryover: Option<bool>,
}

/// Lifetime of an agent's session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionMode {
    /// Ends with the connection.
    #[default]
    Ephemeral,
    /// Survives a lost connection.
    Persistent,
    /// Survives a restart of the agent.
    Resumable,
}

/// The models of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// Default model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Permitted models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// Environment variables that hold their API keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// Capabilities of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Streams its answer: true or false.
    #[serde(default)]
    pub streaming: Option<bool>,
    /// Calls tools: true or false.
    #[serde(default)]
    pub tool_calls: Option<bool>,
    /// Starts subagents: true or false.
    #[serde(default)]
    pub sub_agents: Option<bool>,
    /// Reads and writes files: true or false.
    #[serde(default)]
    pub file_io: Option<bool>,
    /// Accepts images and audio: true or false.
    #[serde(default)]
    pub multimodal: Option<bool>,
    /// Continues earlier sessions: true or false.
    #[serde(default)]
    pub resumable: Option<bool>,
    /// Asks the user questions: true or false.
    #[serde(default)]
    pub bidirectional: Option<bool>,
}

/// A mode of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    /// Id: up to 64 lower-case letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
    pub id: String,
    /// Description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Additional arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_append: Vec<String>,
    /// Additional environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// An option that is set when an agent starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("allOf" = [{
    "if": {"properties": {"type": {"const": "enum"}}, "required": ["type"]},
    "then": {"required": ["enum"]},
}]))]
#[schemars(rename = "Choice")]
pub struct AgentOption {
    /// Id: up to 64 lower-case letters, digits and underscores.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9_]{0,63}$"))]
    pub id: String,
    /// Type of the value.
    pub r#type: ChoiceType,
    /// Description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Permitted values, at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub r#enum: Option<Vec<String>>,
    /// Default value.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::present")]
    #[schemars(with = "Value")]
    pub default: Option<Value>,
    /// Minimum, an integer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// Maximum, an integer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// Arguments, with {value} as placeholder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_template: Vec<String>,
    /// Arguments for true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_append_when_true: Vec<String>,
    /// Environment variables, with {value} as placeholder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// Type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChoiceType {
    /// True or false.
    Boolean,
    /// An integer.
    Integer,
    /// A string.
    String,
    /// One of several strings.
    Enum,
}

/// Way to pass earlier turns to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// Default way.
    pub default: ContinuationMode,
    /// Supported ways: at least one, without duplicates.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub supported: Vec<ContinuationMode>,
    /// Settings of persistent sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_session: Option<PinnedSession>,
}

/// A way to pass earlier turns to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Continuing")]
pub enum ContinuationMode {
    /// Not at all.
    None,
    /// The session is kept.
    PinnedSession,
    /// They are sent again as a transcript.
    Transcript,
    /// The agent stores them.
    NativeResume,
}

/// Settings of persistent sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinnedSession {
    /// Idle timeout in milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
    /// Scopes: at least one, without duplicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub key_scope: Option<Vec<KeyScope>>,
}

/// Scope of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// A conversation.
    Conversation,
    /// An operator.
    Operator,
    /// A user.
    User,
    /// A guild.
    Guild,
    /// A workspace.
    Workspace,
}
