//! GOVERNANCE.md: what holds in a workspace, and for whom it is made stricter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Open;

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
    /// What others refer to it by: 2 to 96 small letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 96), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub name: String,
    /// What people call it, in up to 200 characters.
    #[schemars(length(min = 1, max = 200))]
    pub title: String,
    /// What it governs, in up to 2000 characters.
    #[schemars(length(min = 1, max = 2000))]
    pub description: String,
    /// The version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(-[A-Za-z0-9.-]+)?$"))]
    pub version: String,
    /// The path of the GOVERNANCE.md it goes on from, beginning with ./ or ../.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^(\.\./|\./)[^\s\u{feff}]+/GOVERNANCE\.md$"))]
    pub extends: Option<String>,
    /// Whom it is for, such as ws://operators/notes or ../operators/notes, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        inner(regex(pattern = r"^(ws://(operators|companies|skills)/[a-z][a-z0-9-]*|\.\./[^\s\u{feff}]+)$")),
        extend("uniqueItems" = true)
    )]
    pub applies_to: Vec<String>,
    /// How much is done without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autonomy: Option<Autonomy>,
    /// Who signs, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// How the log is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// The policies that hold here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyEntry>,
    /// Who may approve what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Approver>,
    /// The operator that runs governance, such as ws://operators/governance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^ws://operators/[a-z][a-z0-9-]*$"))]
    pub executor: Option<String>,
    /// The operator that decides where nobody else does, such as ws://operators/founder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^ws://operators/[a-z][a-z0-9-]*$"))]
    pub escalate_to: Option<String>,
    /// Where work is tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub work: Option<String>,
    /// Where knowledge is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub knowledge: Option<String>,
    /// How it is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// The word that says what the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// A governance of a workspace.
    #[serde(rename = "governance.workspace/v1")]
    V1,
}

/// How much is done without asking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Autonomy {
    /// 0 reads only, 1 suggests, 2 acts within bounds, 3 also does what cannot be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3))]
    pub level: Option<u8>,
    /// What happens where no policy matches: auto, always, on-mutate, or policy: and a slug.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(auto|always|on-mutate|policy:[a-z][a-z0-9-]*)$"))]
    pub default_approval: Option<String>,
    /// Who is asked when those who should be cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_escalation: Option<Escalation>,
}

/// Who is asked when those who should be cannot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    /// Those who should be, in up to 96 characters.
    #[schemars(length(max = 96))]
    pub from: String,
    /// Those who are, in up to 96 characters.
    #[schemars(length(max = 96))]
    pub to: String,
}

/// Who signs, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signing {
    /// How.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algo: Option<SigningAlgorithm>,
    /// The path of the public keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub keyring: Option<String>,
    /// Whether it must be: true or false. Once true it stays so below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
}

/// How something is signed.
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

/// How the log is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Audit {
    /// How long: forever, or days: and a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(forever|days:[0-9]+)$"))]
    pub retention: Option<String>,
    /// What chains its lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_algo: Option<HashAlgorithm>,
    /// Whether it only becomes more: true or false. Once true it stays so below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_only: Option<bool>,
    /// Where it is said to be. The log is beside this file all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub storage: Option<String>,
    /// Whether its head is signed: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_pointer_sign: Option<bool>,
}

/// What chains the lines of a log.
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

/// A policy that holds in a workspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PolicyEntry {
    /// Its place in the list: small letters, digits and hyphens. A child's takes the place of its parent's.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub id: String,
    /// The path of the POLICY.md.
    #[schemars(length(min = 1, max = 512))]
    pub r#ref: String,
    /// The actions it is for, such as workspace.write, or "*" for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([a-z][a-z0-9._-]*[a-z0-9]|\*)$"))]
    pub applies_to: Option<String>,
    /// What follows from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// What the policy is told.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub params: Open,
}

/// What follows from a policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It decides.
    #[default]
    Error,
    /// It is shown.
    Warn,
    /// It is recorded.
    Info,
}

/// Somebody who may approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Approver {
    /// The id: small letters, digits and hyphens. A child's takes the place of its parent's.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub id: String,
    /// Who that is, in up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub role: Option<String>,
    /// The actions, such as workspace.write, each once. An empty list takes the right away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(regex(pattern = r"^[a-z][a-z0-9._-]*[a-z0-9]$")), extend("uniqueItems" = true))]
    pub can_approve: Option<Vec<String>>,
    /// How many it takes: "1", or "2-of-3" in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([1-9][0-9]*|[1-9][0-9]*-of-[1-9][0-9]*)$"))]
    pub quorum: Option<String>,
}

impl Approver {
    /// How many have to say yes.
    pub fn needed(&self) -> u32 {
        let quorum = self.quorum.as_deref().unwrap_or("1");
        let needed = quorum.split_once("-of-").map_or(quorum, |(needed, _)| needed);
        // A number too large to be read is one that nobody reaches.
        needed.parse().unwrap_or(u32::MAX)
    }
}

/// How a governance is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Display {
    /// The slug of what is shown first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub default_dashboard: Option<String>,
    /// Whether the end of the retention is announced: true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show_retention_warnings: Option<bool>,
}
