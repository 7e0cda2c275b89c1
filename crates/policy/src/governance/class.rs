//! Decision classes of governance rules, and their severity.

use std::fmt;

use serde::Serialize;

use crate::decision::Verdict;

/// A decision of a governance, ordered from the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    Allow,
    /// One of the approvers must decide.
    RequireApproval,
    /// An approver of a higher level must decide.
    Escalate,
    Deny,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Allow, Self::RequireApproval, Self::Escalate, Self::Deny];

    /// Returns the name of the decision in manifests and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RequireApproval => "require-approval",
            Self::Escalate => "escalate",
            Self::Deny => "deny",
        }
    }

    /// Converts a verdict of a policy to a decision of a governance.
    pub fn from_verdict(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Ask => Self::RequireApproval,
            Verdict::Deny => Self::Deny,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The decision of the rule counts.
    #[default]
    Error,
    /// The match is shown as a warning, and decides nothing.
    Warn,
    /// The match is recorded, and decides nothing.
    Info,
}
