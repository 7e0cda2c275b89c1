//! The result of one point of AIP-44.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PointStatus {
    Pass,
    Fail,
    NotApplicable,
}

impl PointStatus {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotApplicable => "not applicable",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PointResult {
    pub(super) verdict: PointStatus,
    pub(super) evidence: String,
}

pub(super) fn passes(evidence: impl Into<String>) -> PointResult {
    PointResult { verdict: PointStatus::Pass, evidence: evidence.into() }
}

pub(super) fn fails(evidence: impl Into<String>) -> PointResult {
    PointResult { verdict: PointStatus::Fail, evidence: evidence.into() }
}

/// Returns the result for a point that the manifest gives no opportunity to test.
pub(super) fn not_applicable(why: impl Into<String>) -> PointResult {
    PointResult { verdict: PointStatus::NotApplicable, evidence: why.into() }
}

pub(super) fn passes_if(is_so: bool, evidence: impl Into<String>) -> PointResult {
    if is_so { passes(evidence) } else { fails(evidence) }
}

impl PointResult {
    /// Combines two results: a failure decides, and "not applicable" is neutral.
    pub(super) fn with(&self, other: &Self) -> Self {
        match (self.verdict, other.verdict) {
            (_, PointStatus::Fail) => other.clone(),
            (PointStatus::Fail, _) | (_, PointStatus::NotApplicable) => self.clone(),
            (PointStatus::NotApplicable, _) => other.clone(),
            (PointStatus::Pass, PointStatus::Pass) => {
                passes(format!("{}; {}", self.evidence, other.evidence))
            }
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) point: u8,
    pub(super) about: &'static str,
    #[serde(flatten)]
    pub(super) outcome: PointResult,
}

pub(super) const POINT_TITLES: [&str; 30] = [
    "declared capabilities",
    "plain peers",
    "front matter",
    "fields",
    "YAML pitfalls",
    "name",
    "operator or governance",
    "revision",
    "role",
    "stdio",
    "undeclared capability",
    "tier",
    "contradictions",
    "_meta.aip44",
    "operator settings",
    "states",
    "cancel and close",
    "agent shutdown",
    "seven facts",
    "recorded before shown",
    "location of the log",
    "allowed, denied, approved, failed",
    "unauthorized tools",
    "permissions",
    "title ignored",
    "identity",
    "cwd outside of root",
    "MCP servers",
    "deadlines",
    "history",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_outweighs_a_pass_and_not_applicable_is_neutral() {
        let (pass, fail, none) = (passes("a"), fails("b"), not_applicable("c"));
        for (one, other, expected) in [
            (&pass, &pass, PointStatus::Pass),
            (&pass, &fail, PointStatus::Fail),
            (&fail, &pass, PointStatus::Fail),
            (&none, &fail, PointStatus::Fail),
            (&none, &pass, PointStatus::Pass),
            (&pass, &none, PointStatus::Pass),
            (&none, &none, PointStatus::NotApplicable),
        ] {
            assert_eq!(one.with(other).verdict, expected);
        }
        assert_eq!(passes("a").with(&passes("b")).evidence, "a; b");
    }
}
