//! AGENT-CLI.md: an agent that is a program, and how it is started.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cli::{Auth, Install, Requires, SetupStep, VersionCheck};
use super::{Open, acp::McpTransport};

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
    /// What it is called: the name of its directory, up to 80 characters.
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    /// What others refer to it by: 2 to 64 small letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{1,63}$"))]
    pub id: String,
    /// What it is, in up to 2000 characters.
    #[schemars(length(min = 1, max = 2000))]
    pub description: String,
    /// The version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: String,
    /// The program: a name or a path, without arguments.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._/-]+$"))]
    pub bin: String,
    /// Its first arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args: Vec<String>,
    /// Ways to install it: a list of at least one.
    #[schemars(length(min = 1))]
    pub install: Vec<Install>,
    /// How its version is found and judged.
    pub version_check: VersionCheck,
    /// Steps that are taken once after the installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<SetupStep>,
    /// How it is logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// The path of a SANDBOX.md, or what would stand in it.
    pub sandbox: Block,
    /// The path of a RUNNER.md, or what would stand in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<Block>,
    /// What it speaks.
    pub protocol: Protocol,
    /// The path of the ACP.md that says how it speaks ACP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acp: Option<String>,
    /// How it speaks MCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Mcp>,
    /// The package that speaks its language: small letters, digits and -./ only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@?[a-z0-9][a-z0-9./-]*$"))]
    pub adapter: Option<String>,
    /// How long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// Its models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Models>,
    /// What it can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Ways to start it, of which one is chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<Mode>,
    /// What can be set when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
    /// How earlier turns reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Continuation>,
    /// What its machine must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Requires>,
    /// Words to find it by: small letters, digits and hyphens, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$")), extend("uniqueItems" = true))]
    pub tags: Vec<String>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// Another manifest: by its path, or what would stand in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Block {
    /// By its path.
    Path(String),
    /// In full.
    Inline(Open),
}

/// What an agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// ACP.
    Acp,
    /// MCP.
    Mcp,
    /// A language of its own.
    Proprietary,
}

/// How an agent speaks MCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mcp {
    /// The program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// How it is reached.
    pub transport: McpTransport,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// How long an agent lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// What it survives.
    #[serde(default)]
    pub mode: SessionMode,
    /// How long it may be idle: milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
    /// How many turns, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_turns: Option<u64>,
    /// Whether a turn knows of the one before: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_carryover: Option<bool>,
}

/// What an agent's session survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SessionMode {
    /// Nothing.
    #[default]
    Ephemeral,
    /// A lost connection.
    Persistent,
    /// The agent itself.
    Resumable,
}

/// The models of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The one it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Those it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// The variables with their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// What an agent can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    /// Shows its answer while it comes: true or false.
    #[serde(default)]
    pub streaming: Option<bool>,
    /// Calls tools: true or false.
    #[serde(default)]
    pub tool_calls: Option<bool>,
    /// Starts agents of its own: true or false.
    #[serde(default)]
    pub sub_agents: Option<bool>,
    /// Reads and writes files: true or false.
    #[serde(default)]
    pub file_io: Option<bool>,
    /// Takes images and sound: true or false.
    #[serde(default)]
    pub multimodal: Option<bool>,
    /// Goes on with old sessions: true or false.
    #[serde(default)]
    pub resumable: Option<bool>,
    /// Asks back: true or false.
    #[serde(default)]
    pub bidirectional: Option<bool>,
}

/// A way to start an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    /// Its id: up to 64 small letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
    pub id: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Further arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_append: Vec<String>,
    /// Further variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// Something that can be set when an agent starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("allOf" = [{
    "if": {"properties": {"type": {"const": "enum"}}, "required": ["type"]},
    "then": {"required": ["enum"]},
}]))]
pub struct Choice {
    /// Its id: up to 64 small letters, digits and underscores.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9_]{0,63}$"))]
    pub id: String,
    /// What sort of value it takes.
    pub r#type: ChoiceType,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The values to choose from: a list of at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub r#enum: Option<Vec<String>>,
    /// The value if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::present")]
    #[schemars(with = "Value")]
    pub default: Option<Value>,
    /// The least, a whole number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// The most, a whole number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// Arguments with {value} in the place of the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_template: Vec<String>,
    /// Arguments for true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bin_args_append_when_true: Vec<String>,
    /// Variables, with {value} in the place of the value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// What sort of value can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChoiceType {
    /// True or false.
    Boolean,
    /// A whole number.
    Integer,
    /// A text.
    String,
    /// One of several texts.
    Enum,
}

/// How earlier turns reach an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Continuation {
    /// How, if nobody says otherwise.
    pub default: Continuing,
    /// How they can: a list of at least one, each once.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub supported: Vec<Continuing>,
    /// More about sessions that stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_session: Option<PinnedSession>,
}

/// A way in which earlier turns reach an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Continuing {
    /// They do not.
    None,
    /// The session stays.
    PinnedSession,
    /// They are told again.
    Transcript,
    /// The agent remembers.
    NativeResume,
}

/// More about sessions that stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinnedSession {
    /// How long one may be idle: milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
    /// Whose it is: a list of at least one, each once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub key_scope: Option<Vec<KeyScope>>,
}

/// Whose a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Of a conversation.
    Conversation,
    /// Of an operator.
    Operator,
    /// Of a user.
    User,
    /// Of a guild.
    Guild,
    /// Of a workspace.
    Workspace,
}
