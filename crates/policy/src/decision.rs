//! Decisions and their reasons.

use std::fmt;

use serde::Serialize;

use crate::access::Access;
use crate::kind::Kind;

/// A result of a policy, ordered from the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Allow,
    /// A person must decide. If no person can, the action is denied.
    Ask,
    Deny,
}

impl Verdict {
    /// Returns the name used in rule files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A verdict with its reason. It is displayed as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub verdict: Verdict,
    pub because: DecisionReason,
    /// The part of the request that decided: a command, a path or a URL, shortened and escaped. `None` if the
    /// request has only one part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

impl Decision {
    /// Returns the stricter of two decisions, or the first if they are equal.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.verdict > self.verdict { other } else { self }
    }
}

/// The reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum DecisionReason {
    Cancelling,
    Governance {
        reason: String,
    },
    /// A gate in front of the agent requires an approval.
    Approval {
        reason: String,
    },
    Network,
    WebSearch,
    /// The command is nested too deeply, or too long to be parsed completely.
    Unreadable,
    Rule(RuleName),
    /// The path is protected, and no rule names it.
    Protected {
        /// Description of what the protected path contains.
        what: &'static str,
        /// `true` if reading the path is also denied.
        secret: bool,
    },
    /// No rule matches, so the preset decides.
    Preset {
        access: Access,
        kind: Kind,
        why: &'static str,
    },
}

/// Identification of a rule in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleName {
    pub file: String,
    /// First line of the rule, from 1.
    pub line: usize,
    /// Position of the rule in its file, from 1.
    pub number: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl fmt::Display for RuleName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "rule `{name}`")?,
            None => write!(out, "rule {}", self.number)?,
        }
        write!(out, " ({}:{})", self.file, self.line)
    }
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelling => out.write_str("the turn is being cancelled"),
            Self::Approval { reason } => write!(out, "governance requires an approval: {reason}"),
            Self::Governance { reason } => write!(out, "governance denies it: {reason}"),
            Self::Network => out.write_str("the network is disabled"),
            Self::WebSearch => out.write_str("web search is disabled"),
            Self::Unreadable => out.write_str("the command is too long or nested too deeply"),
            Self::Rule(rule) => match &rule.reason {
                Some(reason) => write!(out, "{rule}: {reason}"),
                None => write!(out, "{rule} matches"),
            },
            Self::Protected { what, secret: true } => {
                write!(out, "{what} is protected: reading or changing it needs a rule with a `path`")
            }
            Self::Protected { what, secret: false } => {
                write!(out, "{what} is protected: changing it needs a rule with a `path`")
            }
            Self::Preset { access, why, .. } => write!(out, "no rule matches, and {access} access {why}"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.verdict)?;
        if let Some(about) = &self.about {
            write!(out, " `{about}`")?;
        }
        write!(out, ": {}", self.because)
    }
}

pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 120;
    narrows_base::text::quoted(text, MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_is_the_greatest() {
        assert!(Verdict::Deny > Verdict::Ask && Verdict::Ask > Verdict::Allow);
    }

    #[test]
    fn a_decision_is_a_sentence() {
        let rule = RuleName {
            file: "policy.toml".into(),
            line: 7,
            number: 2,
            name: None,
            reason: Some("people push".into()),
        };
        let decision = Decision {
            verdict: Verdict::Deny,
            because: DecisionReason::Rule(rule),
            about: Some(shown("git push\n\u{1b}[2J")),
        };
        assert_eq!(decision.to_string(), "deny `git push\\n\\u{1b}[2J`: rule 2 (policy.toml:7): people push");
        assert_eq!(
            serde_json::to_value(&decision).unwrap(),
            serde_json::json!({
                "verdict": "deny",
                "because": {"by": "rule", "file": "policy.toml", "line": 7, "number": 2, "reason": "people push"},
                "about": "git push\\n\\u{1b}[2J",
            })
        );
    }
}
