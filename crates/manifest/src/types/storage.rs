//! The parts of STORAGE.md and of access policies that a SANDBOX.md can contain: mounts, and access to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::collections::BTreeMap;

use super::sandbox::{FilePath, Reference};
use super::{OneOrMany, OtherKeys, Secrets};

/// A storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Write storage/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Tag>,
    /// Id for references: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// Version: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// Provider.
    #[schemars(length(min = 1))]
    pub provider: String,
    /// Settings of the provider; {} if there are none.
    pub config: OtherKeys,
    /// Synchronization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Sync>,
    /// Names of secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Secrets>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OneOrMany<Identity>>,
    /// Access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<OneOrMany<PolicyRef>>,
    /// Excluded paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Read-only: true or false.
    #[serde(default)]
    pub read_only: bool,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Kind of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A storage.
    #[serde(rename = "storage/v1")]
    V1,
}

/// Synchronization of a storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sync {
    /// Authority in a conflict.
    #[serde(default)]
    pub mode: SyncMode,
    /// When it is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<Pull>,
    /// When changes are committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// When changes are pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// Conflict resolution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<Conflict>,
}

/// Authority in a conflict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMode {
    /// Storage.
    #[default]
    Canonical,
    /// The first writer.
    PullPush,
    /// The last writer.
    Watch,
}

/// When a storage is pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pull {
    /// Event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// Interval in seconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u64>,
}

/// When changes are committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// Debounce in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_window_ms: Option<u64>,
    /// Message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_template: Option<String>,
}

/// When changes are pushed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// Event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub on: Option<String>,
    /// Branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_policy: Option<BranchPolicy>,
    /// Pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr_policy: Option<PrPolicy>,
}

/// Branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BranchPolicy {
    /// The main branch.
    Main,
    /// A branch per conversation.
    PerConversation,
    /// A branch per turn.
    PerTurn,
}

/// Use of pull requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrPolicy {
    /// No.
    None,
    /// Yes.
    Auto,
    /// Manually.
    Manual,
}

/// Conflict resolution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conflict {
    /// Strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ConflictPolicy>,
}

/// Strategy of a conflict resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictPolicy {
    /// One after the other.
    Rebase,
    /// Both versions.
    Merge,
    /// Neither version.
    Abort,
    /// A person decides.
    Manual,
    /// The last version.
    LastWriterWins,
    /// Side by side.
    SplitConflicts,
}

/// An identity: a map, a reference, or a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Identity {
    /// A map.
    Person(Person),
    /// A reference.
    Ref(IdentityRef),
    /// A file.
    File(IdentityFile),
}

/// An identity as a map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Person {
    /// Name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Address.
    #[schemars(length(min = 1))]
    pub email: String,
    /// Picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// Key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpg_key: Option<String>,
    /// Role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<OtherKeys>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// An identity by reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityRef {
    /// Its URL.
    #[schemars(length(min = 1))]
    pub r#ref: String,
    /// Role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// An identity in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityFile {
    /// Path.
    #[schemars(length(min = 1))]
    pub file: String,
    /// Role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// Access rules: a map, a reference, or a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PolicyRef {
    /// A map.
    Inline(Box<AccessPolicy>),
    /// A reference.
    Ref(Reference),
    /// A file.
    File(FilePath),
}

/// Access rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessPolicy {
    /// Write policy/v1.
    pub schema: AccessTag,
    /// Id for references: "@owner/name" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^@[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$"))]
    pub id: Option<String>,
    /// Version: three numbers such as "1.0.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9_.-]+)?$"))]
    pub version: Option<String>,
    /// Default decision.
    #[serde(default)]
    pub default: AccessDefault,
    /// Access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
    /// Assumptions: a map of maps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub defaults: BTreeMap<String, OtherKeys>,
    /// Quotas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Kind of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AccessTag {
    /// An access policy.
    #[serde(rename = "policy/v1")]
    V1,
}

/// Default decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessDefault {
    /// Allow.
    Allow,
    /// Deny.
    #[default]
    Deny,
}

/// Access rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Grantee.
    pub principal: Principal,
    /// Actions: a list of maps with an action.
    #[schemars(length(min = 1))]
    pub actions: Vec<ActionGrant>,
    /// Conditions: a list of maps with a kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Duration in seconds, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u64>,
    /// Start time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at: Option<String>,
    /// Granting identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_by: Option<Principal>,
    /// Revoked: true or false.
    #[serde(default)]
    pub revoked: bool,
}

/// Grantee: an identity, or its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Principal {
    /// Its content.
    Identity(Box<Identity>),
    /// A name.
    Name(#[schemars(length(min = 1))] String),
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionGrant {
    /// Its name.
    #[schemars(length(min = 1))]
    pub action: String,
    /// Resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// Kind of condition.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// Quotas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Unit.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Amount, at least 0.
    #[schemars(with = "f64", range(min = 0))]
    pub value: Number,
    /// Its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Per>,
    /// Purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<Vec<String>>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}

/// A period.
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

/// A condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// Kind of condition.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applies_to: Option<Vec<String>>,
    /// Other keys.
    #[serde(flatten)]
    pub other: OtherKeys,
}
