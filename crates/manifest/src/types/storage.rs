//! What a sandbox may mount and who may use it: the parts of STORAGE and of access policies that can stand in it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::collections::BTreeMap;

use super::sandbox::{FilePath, Reference};
use super::{OneOrMany, Open, Secrets};

/// A storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Write storage/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Tag>,
    /// What others refer to it by: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// The version: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// Who keeps it.
    #[schemars(length(min = 1))]
    pub provider: String,
    /// What the provider is told; {} if nothing.
    pub config: Open,
    /// How it is kept the same everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Sync>,
    /// Secrets, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Secrets>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OneOrMany<Identity>>,
    /// Who may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<OneOrMany<PolicyRef>>,
    /// What of it is left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether it stays as it is: true or false.
    #[serde(default)]
    pub read_only: bool,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// The word that says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A storage.
    #[serde(rename = "storage/v1")]
    V1,
}

/// How a storage is kept the same everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sync {
    /// Who is right.
    #[serde(default)]
    pub mode: SyncMode,
    /// When it is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<Pull>,
    /// When a change is noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// When changes are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// What happens when two change the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<Conflict>,
}

/// Who is right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMode {
    /// The storage.
    #[default]
    Canonical,
    /// Whoever comes first.
    PullPush,
    /// Whoever comes last.
    Watch,
}

/// When a storage is fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// After which event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// After how many seconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u64>,
}

/// When a change is noted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// After which event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// How long others are waited for, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_window_ms: Option<u64>,
    /// In which words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_template: Option<String>,
}

/// When changes are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// After which event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// To which branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_policy: Option<BranchPolicy>,
    /// Whether it is proposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr_policy: Option<PrPolicy>,
}

/// To which branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BranchPolicy {
    /// To the one.
    Main,
    /// To one for each conversation.
    PerConversation,
    /// To one for each turn.
    PerTurn,
}

/// Whether a change is proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrPolicy {
    /// It is not.
    None,
    /// It is.
    Auto,
    /// Somebody does it.
    Manual,
}

/// What happens when two change the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conflict {
    /// Which way out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ConflictPolicy>,
}

/// A way out of a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictPolicy {
    /// One after the other.
    Rebase,
    /// Both.
    Merge,
    /// Neither.
    Abort,
    /// Somebody decides.
    Manual,
    /// The last.
    LastWriterWins,
    /// Side by side.
    SplitConflicts,
}

/// Who somebody is: by name and address, elsewhere, or in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Identity {
    /// By name and address.
    Person(Person),
    /// Elsewhere.
    Ref(IdentityRef),
    /// In a file.
    File(IdentityFile),
}

/// Somebody by name and address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Person {
    /// The name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The address.
    #[schemars(length(min = 1))]
    pub email: String,
    /// A picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// A key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpg_key: Option<String>,
    /// A role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Open>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// Somebody described elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityRef {
    /// Where.
    #[schemars(length(min = 1))]
    pub r#ref: String,
    /// A role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// Somebody described in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityFile {
    /// Its path.
    #[schemars(length(min = 1))]
    pub file: String,
    /// A role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// Who may do what: here, elsewhere, or in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PolicyRef {
    /// Here.
    Inline(Box<AccessPolicy>),
    /// Elsewhere.
    Ref(Reference),
    /// In a file.
    File(FilePath),
}

/// Who may do what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessPolicy {
    /// Write policy/v1.
    pub schema: AccessTag,
    /// What others refer to it by: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// The version: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// What holds where nothing is said.
    #[serde(default)]
    pub default: AccessDefault,
    /// Who may do what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// What is assumed: a map of maps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub defaults: BTreeMap<String, Open>,
    /// How much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// On which conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// The word that says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AccessTag {
    /// An access policy.
    #[serde(rename = "policy/v1")]
    V1,
}

/// What holds where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessDefault {
    /// Yes.
    Allow,
    /// No.
    #[default]
    Deny,
}

/// Who may do what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Who.
    pub principal: Principal,
    /// What: a list of maps with an action.
    #[schemars(length(min = 1))]
    pub actions: Vec<ActionGrant>,
    /// When: a list of maps with a kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// For how many seconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u64>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at: Option<String>,
    /// By whose word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_by: Option<Principal>,
    /// Whether it is over: true or false.
    #[serde(default)]
    pub revoked: bool,
}

/// Who: an identity, or a name for one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Principal {
    /// In full.
    Identity(Box<Identity>),
    /// By name.
    Name(#[schemars(length(min = 1))] String),
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionGrant {
    /// Its name.
    #[schemars(length(min = 1))]
    pub action: String,
    /// To what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// When something holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Which sort of condition.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// How much.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Of what.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// A number from 0.
    #[schemars(with = "f64", range(min = 0))]
    pub value: Number,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// In which time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Per>,
    /// For what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<Vec<String>>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

/// On which condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Which sort of condition.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// For what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<Vec<String>>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Open,
}
