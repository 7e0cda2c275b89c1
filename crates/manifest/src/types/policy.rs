//! POLICY.md: one rule of a governance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Open;

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
    /// What others refer to it by: 2 to 64 small letters, digits and hyphens, beginning with a letter.
    #[schemars(length(min = 2, max = 64), regex(pattern = r"^[a-z][a-z0-9-]*[a-z0-9]$"))]
    pub slug: String,
    /// The version of this file: three numbers such as "1.0.0".
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][a-zA-Z0-9.-]+)?$"))]
    pub version: String,
    /// What it is about.
    pub r#match: Match,
    /// What it decides.
    pub decision: Decision,
    /// Who may approve: a list of maps with a role or a userId. Needed where the decision is require-approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<Signer>,
    /// How many have to approve, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub quorum: Option<u64>,
    /// The highest level of autonomy at which it stays as it is, 0 to 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4))]
    pub autonomy: Option<u8>,
    /// How often and how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What others put there.
    #[serde(default, skip_serializing_if = "Open::is_empty")]
    pub metadata: Open,
}

/// The word that says whose form the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Tag {
    /// That of governance.
    #[serde(rename = "agentgovernance/v1")]
    V1,
}

/// The word that says what the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Doctype {
    /// A policy.
    Policy,
}

/// What a policy is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// The action, such as tool.call, with * for any part of it.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9._*-]*$"))]
    pub action: String,
    /// What it is done to: an id, a pattern, or a path such as workspace:/finance/**.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The lowest risk, 0 to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3))]
    pub risk_level_min: Option<u8>,
}

/// What a policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Yes.
    Allow,
    /// No.
    Deny,
    /// Its signers have to say.
    RequireApproval,
    /// Somebody higher has to say.
    Escalate,
}

/// Somebody who may approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("anyOf" = [{"required": ["role"]}, {"required": ["userId"]}]))]
pub struct Signer {
    /// By role, in up to 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub role: Option<String>,
    /// By name, in up to 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub user_id: Option<String>,
}

/// How often and how much.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// How often in an hour, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_per_hour: Option<u64>,
    /// How often in a day, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_per_day: Option<u64>,
    /// How much in a day, in cents, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_amount_cents: Option<u64>,
    /// Of which currency, in three capital letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Z]{3}$"))]
    pub currency: Option<String>,
}
