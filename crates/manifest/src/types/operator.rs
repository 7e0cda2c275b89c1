//! OPERATOR.md: who acts, with which skills and tools, and within which bounds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Open;

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
    /// What people call it, in up to 80 characters.
    #[schemars(length(min = 1, max = 80))]
    pub name: String,
    /// What others refer to it by: 2 to 64 small letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 64), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub id: String,
    /// Who it is, in one sentence of up to 280 characters.
    #[schemars(length(min = 1, max = 280))]
    pub persona_summary: String,
    /// The version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][a-zA-Z0-9.-]+)?$"))]
    pub version: String,
    /// The path of the code behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// What it is told about itself.
    pub profile: Profile,
    /// Skills it has: ids, or maps with an id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillRef>,
    /// Tools it may use: ids, maps with an id, or maps with `kind: mcp` and a server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolRef>,
    /// What it remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// What holds it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governance: Option<Binding>,
    /// What it can do: small letters, digits and hyphens each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*$")))]
    pub capabilities: Vec<String>,
    /// When it speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub participation: Option<Participation>,
    /// What runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// Words to find it by: small letters, digits and hyphens each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*$")))]
    pub tags: Vec<String>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// What an operator is told about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its task, in up to 1000 characters.
    #[schemars(length(min = 1, max = 1000))]
    pub role: String,
    /// How it speaks, in up to 1000 characters.
    #[schemars(length(min = 1, max = 1000))]
    pub voice: String,
    /// What it does not do: a list of sentences of up to 500 characters.
    #[schemars(inner(length(max = 500)))]
    pub boundaries: Vec<String>,
}

/// A skill, by its id or in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SkillRef {
    /// By its id.
    Id(#[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))] String),
    /// In full.
    Full(Skill),
}

impl SkillRef {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            Self::Id(id) => id,
            Self::Full(skill) => &skill.id,
        }
    }

    /// Where it comes from, if that was said.
    pub fn source(&self) -> Option<&str> {
        match self {
            Self::Id(_) => None,
            Self::Full(skill) => skill.source.as_deref(),
        }
    }
}

/// A skill in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// Its id: small letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub id: String,
    /// Where it comes from, such as ./skills/notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Which version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Which of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// A tool by its id, a tool in full, or tools of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolRef {
    /// By its id.
    Id(#[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))] String),
    /// In full.
    Full(Tool),
    /// Of an MCP server.
    Mcp(McpTools),
}

/// A tool in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its id.
    pub id: String,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What it may touch. It can only be less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// What a tool may touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Which part of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Which hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<String>>,
    /// Which secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

/// Tools of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpTools {
    /// `mcp`.
    pub kind: McpKind,
    /// The name of the server.
    pub server: String,
    /// Which of its tools. Absent: all.
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

/// What an operator remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Where memories live.
    pub kind: MemoryKind,
    /// What may happen to them.
    #[serde(default)]
    pub policy: MemoryPolicy,
    /// Operators that may read them, by their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$")))]
    pub share_with: Vec<String>,
    /// The store outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalMemory>,
}

/// Where memories live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Nowhere.
    None,
    /// In the conversation.
    Thread,
    /// With the operator.
    OperatorContext,
    /// In a store outside.
    External,
}

impl MemoryKind {
    /// Whether anything is kept when a session ends.
    pub fn persists(self) -> bool {
        self != Self::None
    }
}

/// What may happen to memories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPolicy {
    /// They only become more.
    AppendOnly,
    /// Some may be taken out.
    Redactable,
    /// Old ones become shorter.
    #[default]
    Summarising,
}

/// A store of memories outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalMemory {
    /// Its address.
    pub uri: String,
    /// The part of it that is ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// What holds an operator back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// Policies it is under, such as policy:finance-write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^policy:[A-Za-z0-9_./-]+$")))]
    pub policies: Vec<String>,
    /// The log it is recorded in, such as audit:default.
    #[schemars(regex(pattern = r"^audit:[A-Za-z0-9_./-]+$"))]
    pub audit_log: String,
    /// How much it does by itself.
    pub autonomy: Autonomy,
}

/// How much an operator does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Autonomy {
    /// No turn without somebody's word.
    Gated,
    /// Nothing is changed without somebody's word.
    Supervised,
    /// What the policies let it.
    Autonomous,
}

/// When an operator speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Participation {
    /// Whether it waits to be asked.
    #[serde(default)]
    pub mode: ParticipationMode,
    /// When it lets others speak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_when: Option<String>,
    /// Whether it reacts without words: true or false.
    #[serde(default)]
    pub reactions: bool,
}

/// Whether an operator waits to be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ParticipationMode {
    /// It does.
    #[default]
    MentionOnly,
    /// It does not.
    Proactive,
    /// It never speaks.
    Silent,
}

/// What runs an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// Who takes its turns.
    pub kind: RuntimeKind,
    /// The path of the AGENT-CLI.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// How long the agent lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<RuntimeSession>,
    /// How the agent is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<RuntimeConfig>,
}

/// Who takes an operator's turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// The universal agent.
    InProcess,
    /// The agent of an AGENT-CLI.md.
    AgentCli,
}

/// How long an agent lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeSession {
    /// What it survives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<super::agent_cli::SessionMode>,
    /// How long it may be idle: milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub idle_timeout_ms: Option<u64>,
}

/// How an agent is started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeConfig {
    /// One of the agent's modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Values of the agent's options.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub options: Open,
    /// How earlier turns reach the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<super::agent_cli::Continuing>,
}
