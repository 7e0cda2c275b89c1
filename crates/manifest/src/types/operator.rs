//! OPERATOR.md: the role that an agent plays, with its skills, tools and limits.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OtherKeys;

/// The front matter of an OPERATOR.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("allOf" = [
    {
        "if": {
            "required": ["governance"],
            "properties": {"governance": {"required": ["autonomy"], "properties": {"autonomy": {"const": "gated"}}}},
        },
        "then": {"properties": {"participation": {"properties": {"mode": {"enum": ["mention-only", "silent"]}}}}},
    },
    {
        "if": {
            "required": ["runtime"],
            "properties": {"runtime": {
                "type": "object",
                "required": ["kind"],
                "properties": {"kind": {"const": "agent-cli"}},
            }},
        },
        "then": {"properties": {"runtime": {"type": "object", "required": ["ref"]}}},
    },
]))]
pub struct Operator {
    /// Display name, up to 80 characters.
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    /// Id for references: 2 to 64 lower-case letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 64), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub id: String,
    /// Description in one sentence of up to 280 characters.
    #[schemars(length(min = 1, max = 280))]
    pub persona_summary: String,
    /// Version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][a-zA-Z0-9.-]+)?$"))]
    pub version: String,
    /// Path of its code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// Persona: the basis of its system prompt.
    pub profile: Profile,
    /// Skills: ids, or maps with an id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillRef>,
    /// Permitted tools: ids, maps with an id, or maps with `kind: mcp` and a server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolRef>,
    /// Memory: where it is stored, which changes are permitted, and who may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Governance of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governance: Option<Binding>,
    /// Capabilities: lower-case letters, digits and hyphens each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*$")))]
    pub capabilities: Vec<String>,
    /// Presence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participation: Option<Participation>,
    /// Runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// Tags: lower-case letters, digits and hyphens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*$")))]
    pub tags: Vec<String>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Persona of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Task, up to 1000 characters.
    #[schemars(length(min = 1, max = 1000))]
    pub role: String,
    /// Tone, up to 1000 characters.
    #[schemars(length(min = 1, max = 1000))]
    pub voice: String,
    /// Limits: sentences of up to 500 characters.
    #[schemars(inner(length(max = 500)))]
    pub boundaries: Vec<String>,
}

/// A skill: its id or a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SkillRef {
    /// Its id.
    Id(#[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))] String),
    /// Its content.
    Full(Skill),
}

impl SkillRef {
    /// Returns the id of the skill.
    pub fn id(&self) -> &str {
        match self {
            Self::Id(id) => id,
            Self::Full(skill) => &skill.id,
        }
    }

    /// Returns the source of the skill, if it has one.
    pub fn source(&self) -> Option<&str> {
        match self {
            Self::Id(_) => None,
            Self::Full(skill) => skill.source.as_deref(),
        }
    }
}

/// A skill as a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// Id: lower-case letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub id: String,
    /// Source, such as ./skills/notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Tools of the skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// A tool: its id, a map, or tools of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolRef {
    /// Its id.
    Id(#[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))] String),
    /// Its content.
    Full(Tool),
    /// Tools of an MCP server.
    Mcp(McpTools),
}

/// A tool as a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its id.
    pub id: String,
    /// Source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Scope; it can only restrict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// Scope of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Part of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<String>>,
    /// Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// Tools of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpTools {
    /// `mcp`.
    pub kind: McpKind,
    /// Name of the server.
    pub server: String,
    /// Tools of the server; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// The word `mcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpKind {
    /// Tools of an MCP server.
    Mcp,
}

/// What an operator remembers: where it is stored, which changes are permitted, and who may read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Storage of the memory.
    pub kind: MemoryKind,
    /// Permitted changes of the memory.
    #[serde(default)]
    pub policy: MemoryPolicy,
    /// Ids of other operators that may read the memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$")))]
    pub share_with: Vec<String>,
    /// External store of the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalMemory>,
}

/// Storage of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// No memory.
    None,
    /// Only the conversation is remembered.
    Thread,
    /// A file of the operator.
    OperatorContext,
    /// An external store.
    External,
}

impl MemoryKind {
    /// Returns `true` if memory outlives a session.
    pub fn persists(self) -> bool {
        self != Self::None
    }
}

/// Permitted changes of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPolicy {
    /// Entries are only added.
    AppendOnly,
    /// Entries can be removed.
    Redactable,
    /// Old entries are summarized.
    #[default]
    Summarising,
}

/// An external memory store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalMemory {
    /// URL of the external store.
    pub uri: String,
    /// Namespace in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Governance of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// Policies, such as policy:finance-write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^policy:[A-Za-z0-9_./-]+$")))]
    pub policies: Vec<String>,
    /// Audit log, such as audit:default.
    #[schemars(regex(pattern = r"^audit:[A-Za-z0-9_./-]+$"))]
    pub audit_log: String,
    /// Autonomy.
    pub autonomy: Autonomy,
}

/// Autonomy of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Autonomy {
    /// Each turn needs an approval.
    Gated,
    /// Each change needs an approval.
    Supervised,
    /// The policies decide.
    Autonomous,
}

/// Presence of an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Participation {
    /// Answers only when addressed.
    #[serde(default)]
    pub mode: ParticipationMode,
    /// Precedence in a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_when: Option<String>,
    /// Uses reactions: true or false.
    #[serde(default)]
    pub reactions: bool,
}

/// When an operator answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ParticipationMode {
    /// When addressed.
    #[default]
    MentionOnly,
    /// Also unprompted.
    Proactive,
    /// Never.
    Silent,
}

/// Runtime of an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// Agent that runs the operator.
    pub kind: RuntimeKind,
    /// Path of the AGENT-CLI.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// Lifetime of the agent's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<RuntimeSession>,
    /// Start options of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RuntimeConfig>,
}

/// Agent that runs an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// The built-in agent.
    InProcess,
    /// The agent of an AGENT-CLI.md.
    AgentCli,
}

/// Lifetime of an agent's process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeSession {
    /// Lifetime: ephemeral (one connection), persistent (beyond it) or resumable (beyond the process).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<super::agent_cli::SessionMode>,
    /// Idle timeout in milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
}

/// Start options of an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeConfig {
    /// Mode of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Values of its options.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub options: OtherKeys,
    /// Way to pass earlier turns to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<super::agent_cli::ContinuationMode>,
}
