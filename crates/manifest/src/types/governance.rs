//! GOVERNANCE.md: the rules of a workspace, or stricter rules for some of its operators.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OtherKeys;

/// The front matter of a GOVERNANCE.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("allOf" = [{
    "if": {"required": ["appliesTo"], "properties": {"appliesTo": {"type": "array", "minItems": 1}}},
    "then": {"required": ["extends"]},
}]))]
pub struct Governance {
    /// Write governance.workspace/v1.
    pub schema: Tag,
    /// Id for references: 2 to 96 lower-case letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 96), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub name: String,
    /// Display name, up to 200 characters.
    #[schemars(length(min = 1, max = 200))]
    pub title: String,
    /// Description of what it governs, up to 2000 characters.
    #[schemars(length(min = 1, max = 2000))]
    pub description: String,
    /// Version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(-[A-Za-z0-9.-]+)?$"))]
    pub version: String,
    /// Path of the parent GOVERNANCE.md, beginning with ./ or ../.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^(\.\./|\./)[^\s\u{feff}]+/GOVERNANCE\.md$"))]
    pub extends: Option<String>,
    /// Governed operators, such as ws://operators/notes or ../operators/notes, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        inner(regex(pattern = r"^(ws://(operators|companies|skills)/[a-z][a-z0-9-]*|\.\./[^\s\u{feff}]+)$")),
        extend("uniqueItems" = true)
    )]
    pub applies_to: Vec<String>,
    /// Autonomy: what is done without approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autonomy: Option<Autonomy>,
    /// Signatures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// Audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// Policies in effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyEntry>,
    /// Approvers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Approver>,
    /// Operator that runs the governance, such as ws://operators/governance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^ws://operators/[a-z][a-z0-9-]*$"))]
    pub executor: Option<String>,
    /// Operator that decides last, such as ws://operators/founder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^ws://operators/[a-z][a-z0-9-]*$"))]
    pub escalate_to: Option<String>,
    /// Tracker of work items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub work: Option<String>,
    /// Knowledge base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub knowledge: Option<String>,
    /// Presentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Kind of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A governance of a workspace.
    #[serde(rename = "governance.workspace/v1")]
    V1,
}

/// Autonomy: what is done without approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Autonomy {
    /// Level: 0 reads, 1 suggests, 2 acts within limits, 3 also acts irreversibly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3))]
    pub level: Option<u8>,
    /// Approval where no policy matches: auto, always, on-mutate, or policy: and a slug.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(auto|always|on-mutate|policy:[a-z][a-z0-9-]*)$"))]
    pub default_approval: Option<String>,
    /// Escalation: approvers who replace others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_escalation: Option<Escalation>,
}

/// Escalation: approvers who replace others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    /// Original approvers, up to 96 characters.
    #[schemars(length(max = 96))]
    pub from: String,
    /// Replacing approvers, up to 96 characters.
    #[schemars(length(max = 96))]
    pub to: String,
}

/// Signatures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signing {
    /// Algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algo: Option<SigningAlgorithm>,
    /// Path of the public keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub keyring: Option<String>,
    /// Signatures are required: true or false; children cannot unset it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
}

/// Signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SigningAlgorithm {
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256.
    EcdsaP256,
    /// RSA.
    RsaPssSha256,
}

/// Audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Audit {
    /// Retention: forever, or days: and a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(forever|days:[0-9]+)$"))]
    pub retention: Option<String>,
    /// Hash algorithm of the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_algo: Option<HashAlgorithm>,
    /// Append-only: true or false; children cannot unset it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_only: Option<bool>,
    /// Documented location; the log is always beside this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub storage: Option<String>,
    /// The head is signed: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_pointer_sign: Option<bool>,
}

/// Hash algorithm of an audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// BLAKE3.
    Blake3,
}

/// A policy of a workspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PolicyEntry {
    /// Slug: lower-case letters, digits and hyphens; a child's policy replaces the parent's.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub id: String,
    /// Path of the POLICY.md.
    #[schemars(length(min = 1, max = 512))]
    pub r#ref: String,
    /// Actions, such as workspace.write, or "*" for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([a-z][a-z0-9._-]*[a-z0-9]|\*)$"))]
    pub applies_to: Option<String>,
    /// Effect of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Parameters of the policy.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub params: OtherKeys,
}

/// Effect of a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Its decision applies.
    #[default]
    Error,
    /// Its decision is shown as a warning.
    Warn,
    /// Its decision is recorded only.
    Info,
}

/// An approver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Approver {
    /// Id: lower-case letters, digits and hyphens; a child's entry replaces the parent's.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub id: String,
    /// Description of up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub role: Option<String>,
    /// Actions, such as workspace.write, without duplicates; an empty list revokes the right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9._-]*[a-z0-9]$")), extend("uniqueItems" = true))]
    pub can_approve: Option<Vec<String>>,
    /// Quorum: "1", or "2-of-3" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([1-9][0-9]*|[1-9][0-9]*-of-[1-9][0-9]*)$"))]
    pub quorum: Option<String>,
}

impl Approver {
    /// Returns the number of approvals that are needed.
    pub fn needed(&self) -> u32 {
        let quorum = self.quorum.as_deref().unwrap_or("1");
        let needed = quorum.split_once("-of-").map_or(quorum, |(needed, _)| needed);
        // A number that is too large to be read is never reached.
        needed.parse().unwrap_or(u32::MAX)
    }
}

/// Presentation of a governance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Display {
    /// Slug of the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub default_dashboard: Option<String>,
    /// Announces the end of the retention: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show_retention_warnings: Option<bool>,
}
