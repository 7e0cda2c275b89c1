//! SANDBOX.md: the files, variables and hosts that a process can access.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runner::Limits;
use super::storage::{Identity, PolicyRef, Storage};
use super::{OneOrMany, OtherKeys, Secrets};

/// The front matter of a SANDBOX.md, or a map inside another manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    /// Write sandbox/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Tag>,
    /// Id for references: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// Version of this file: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// Provider; only local is supported.
    #[schemars(length(min = 1))]
    pub provider: String,
    /// Settings of the provider; {} if there are none.
    pub config: OtherKeys,
    /// Resource limits of each command.
    #[serde(default)]
    pub limits: Limits,
    /// Environment variables.
    #[serde(default)]
    pub env: Env,
    /// Network access.
    #[serde(default)]
    pub network: Network,
    /// Mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OneOrMany<Identity>>,
    /// Access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<OneOrMany<PolicyRef>>,
    /// Lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Disabled: true or false.
    #[serde(default)]
    pub read_only: bool,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Kind of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A sandbox.
    #[serde(rename = "sandbox/v1")]
    V1,
}

/// Environment variables of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Names of secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Secrets>,
    /// Names of environment variables of Narrows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passthrough: Vec<String>,
}

/// Network access of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Host names; an empty list means no network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<String>,
}

/// A mount of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Source: workspace, or a map with one of ref, file and inline.
    pub source: Source,
    /// Mount point: an absolute path.
    #[schemars(length(min = 1), regex(pattern = r"^/"))]
    pub at: String,
    /// Mode: read-write or read-only.
    #[serde(default)]
    pub mode: Mode,
}

/// Source of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Source {
    /// The workspace.
    Workspace(Workspace),
    /// An external storage.
    Ref(Reference),
    /// A storage that is described here.
    Inline(Box<Inline>),
    /// A storage that is described in a file.
    File(FilePath),
}

/// The word `workspace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Workspace {
    /// The workspace.
    Workspace,
}

/// A reference to another resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Name: a path, or "@owner/name".
    #[schemars(length(min = 1))]
    pub r#ref: String,
}

/// A reference to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilePath {
    /// Path.
    #[schemars(length(min = 1))]
    pub file: String,
}

/// A storage described where it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inline {
    /// Storage.
    pub inline: Storage,
}

/// Mode of a mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read only.
    ReadOnly,
}

/// Lifetime of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lifecycle {
    /// Event that pauses it, such as idle-600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub pause_after_idle: Option<String>,
    /// Event that deletes it, such as workspace-close.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub destroy_on: Option<String>,
}
