//! POLICY.md: one rule of a governance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::OtherKeys;

/// The front matter of a POLICY.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("allOf" = [{
    "if": {"properties": {"decision": {"const": "require-approval"}}, "required": ["decision"]},
    "then": {
        "required": ["signers"],
        "properties": {"signers": {"description": "`signers: [{userId: NAME}]` or `signers: [{role: ROLE}]`, for require-approval"}},
    },
}]))]
pub struct Policy {
    /// Write agentgovernance/v1.
    pub schema: Tag,
    /// Write policy.
    pub doctype: Doctype,
    /// Id for references: 2 to 64 lower-case letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 64), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub slug: String,
    /// Version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][a-zA-Z0-9.-]+)?$"))]
    pub version: String,
    /// Subject: the actions that the policy matches.
    pub r#match: Match,
    /// Decision: allow, deny, require-approval or escalate.
    pub decision: Decision,
    /// Signers: a list of maps with a role or a userId; required for require-approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<Signer>,
    /// Number of approvals that are needed, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub quorum: Option<u64>,
    /// Highest autonomy level at which the decision is unchanged, 0 to 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4))]
    pub autonomy: Option<u8>,
    /// Budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Metadata of other programs.
    #[serde(default, skip_serializing_if = "OtherKeys::is_empty")]
    pub metadata: OtherKeys,
}

/// Format of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// The format of governance.
    #[serde(rename = "agentgovernance/v1")]
    V1,
}

/// Kind of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Doctype {
    /// A policy.
    Policy,
}

/// Subject of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// Action, such as tool.call; * matches any part.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9._*-]*$"))]
    pub action: String,
    /// Resource: an id, a pattern, or a path such as workspace:/finance/**.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Lowest risk, 0 to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3))]
    pub risk_level_min: Option<u8>,
}

/// Decision of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Allow.
    Allow,
    /// Deny.
    Deny,
    /// The signers decide.
    RequireApproval,
    /// The escalation decides.
    Escalate,
}

/// An approver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("anyOf" = [{"required": ["role"]}, {"required": ["userId"]}]))]
pub struct Signer {
    /// Role, up to 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub role: Option<String>,
    /// User id, up to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub user_id: Option<String>,
}

/// Budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Maximum per hour, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_per_hour: Option<u64>,
    /// Maximum per day, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_per_day: Option<u64>,
    /// Maximum cost per day in cents, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_amount_cents: Option<u64>,
    /// Currency: three capital letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Z]{3}$"))]
    pub currency: Option<String>,
}
