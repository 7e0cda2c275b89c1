//! SANDBOX.md: what something that runs can see and reach.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runner::Limits;
use super::storage::{Identity, PolicyRef, Storage};
use super::{OneOrMany, Open, Secrets};

/// The front matter of a SANDBOX.md, or the same inside another manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    /// Write sandbox/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Tag>,
    /// What others refer to it by: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// The version of this file: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// Who makes it; here only local.
    #[schemars(length(min = 1))]
    pub provider: String,
    /// What the provider is told; {} if nothing.
    pub config: Open,
    /// What each command may use up.
    #[serde(default)]
    pub limits: Limits,
    /// Which variables it sees.
    #[serde(default)]
    pub env: Env,
    /// Which hosts it reaches.
    #[serde(default)]
    pub network: Network,
    /// Which files it sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OneOrMany<Identity>>,
    /// Who may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<OneOrMany<PolicyRef>>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Whether nothing may be run in it: true or false.
    #[serde(default)]
    pub read_only: bool,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// The word that says what the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A sandbox.
    #[serde(rename = "sandbox/v1")]
    V1,
}

/// Which variables a sandbox sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Secrets, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Secrets>,
    /// Variables of ours, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passthrough: Vec<String>,
}

/// Which hosts a sandbox reaches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Their names. None: no network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<String>,
}

/// Files that a sandbox sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Which: workspace, or a map with one of ref, file and inline.
    pub source: Source,
    /// Where: an absolute path.
    #[schemars(length(min = 1), regex(pattern = r"^/"))]
    pub at: String,
    /// Whether they can be changed there.
    #[serde(default)]
    pub mode: Mode,
}

/// Which files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Source {
    /// Those of the workspace.
    Workspace(Workspace),
    /// Those of a storage elsewhere.
    Ref(Reference),
    /// Those of a storage described here.
    Inline(Box<Inline>),
    /// Those of a storage described in a file.
    File(FilePath),
}

/// The word `workspace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Workspace {
    /// The workspace.
    Workspace,
}

/// Something elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// What it is called: a path, or "@owner/name".
    #[schemars(length(min = 1))]
    pub r#ref: String,
}

/// Something in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePath {
    /// Its path.
    #[schemars(length(min = 1))]
    pub file: String,
}

/// A storage described where it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inline {
    /// The storage.
    pub inline: Storage,
}

/// Whether files can be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// They can.
    #[default]
    ReadWrite,
    /// They cannot.
    ReadOnly,
}

/// When a sandbox ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lifecycle {
    /// After which event it rests, such as idle-600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub pause_after_idle: Option<String>,
    /// After which event it is gone, such as workspace-close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub destroy_on: Option<String>,
}
