//! What a clause decides, and what follows from it.

use std::fmt;

use serde::Serialize;

use crate::decision::Verdict;

/// A decision of a governance. The strictest is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Yes.
    Allow,
    /// Those who may approve have to say.
    RequireApproval,
    /// Somebody higher has to say.
    Escalate,
    /// No.
    Deny,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Allow, Self::RequireApproval, Self::Escalate, Self::Deny];

    /// Its name in manifests and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RequireApproval => "require-approval",
            Self::Escalate => "escalate",
            Self::Deny => "deny",
        }
    }

    /// What a verdict of a policy is here.
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

/// What follows from a clause that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
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
