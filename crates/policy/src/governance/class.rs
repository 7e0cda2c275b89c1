//! Decision classes of governance rules, and their severity.

use std::fmt;

use serde::Serialize;

use crate::decision::Verdict;

/// A decision of a governance. The strictest is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    Allow,
    /// An approver must decide.
    RequireApproval,
    /// A higher approver must decide.
    Escalate,
    Deny,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Allow, Self::RequireApproval, Self::Escalate, Self::Deny];

    /// Returns the name used in manifests and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RequireApproval => "require-approval",
            Self::Escalate => "escalate",
            Self::Deny => "deny",
        }
    }

    /// Converts a verdict of a policy.
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

/// The effect of a matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The rule decides.
    #[default]
    Error,
    /// The rule is shown.
    Warn,
    /// The rule is recorded.
    Info,
}
