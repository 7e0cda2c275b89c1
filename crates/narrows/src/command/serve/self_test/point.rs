//! What was found about one point of AIP-44.

use serde::Serialize;

/// Whether a point holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Pass,
    Fail,
    NotApplicable,
}

impl Verdict {
    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotApplicable => "not applicable",
        }
    }
}

/// A verdict and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    pub(super) evidence: String,
}

/// It holds.
pub(super) fn passes(evidence: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Pass, evidence: evidence.into() }
}

/// It does not.
pub(super) fn fails(evidence: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::Fail, evidence: evidence.into() }
}

/// The manifest gives no occasion to see.
pub(super) fn not_applicable(why: impl Into<String>) -> Outcome {
    Outcome { verdict: Verdict::NotApplicable, evidence: why.into() }
}

/// It holds if that is so.
pub(super) fn holds(is_so: bool, evidence: impl Into<String>) -> Outcome {
    if is_so { passes(evidence) } else { fails(evidence) }
}

impl Outcome {
    /// Both together: what fails counts, and what does not apply does not.
    pub(super) fn with(&self, other: &Self) -> Self {
        match (self.verdict, other.verdict) {
            (_, Verdict::Fail) => other.clone(),
            (Verdict::Fail, _) | (_, Verdict::NotApplicable) => self.clone(),
            (Verdict::NotApplicable, _) => other.clone(),
            (Verdict::Pass, Verdict::Pass) => passes(format!("{}; {}", self.evidence, other.evidence)),
        }
    }
}

/// One point, as it is told.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) point: u8,
    pub(super) about: &'static str,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

/// What the points are about, in their order.
pub(super) const ABOUT: [&str; 30] = [
    "what is declared is there",
    "plain peers",
    "front matter",
    "fields",
    "traps of YAML",
    "name",
    "operator or governance",
    "revision",
    "role",
    "stdio",
    "undeclared capability",
    "tier",
    "contradictions",
    "_meta.aip44",
    "operator honoured",
    "states",
    "cancel and close",
    "ending the agent",
    "seven facts",
    "recorded before shown",
    "the log's place",
    "allowed, denied, approved, failed",
    "unauthorised tools",
    "permissions",
    "never by title",
    "identity",
    "cwd outside",
    "MCP servers",
    "deadlines",
    "history",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_counts_and_what_does_not_apply_does_not() {
        let (pass, fail, none) = (passes("a"), fails("b"), not_applicable("c"));
        for (one, other, expected) in [
            (&pass, &pass, Verdict::Pass),
            (&pass, &fail, Verdict::Fail),
            (&fail, &pass, Verdict::Fail),
            (&none, &fail, Verdict::Fail),
            (&none, &pass, Verdict::Pass),
            (&pass, &none, Verdict::Pass),
            (&none, &none, Verdict::NotApplicable),
        ] {
            assert_eq!(one.with(other).verdict, expected);
        }
        assert_eq!(passes("a").with(&passes("b")).evidence, "a; b");
    }
}
