//! What was decided, and why.

use std::fmt;

use serde::Serialize;

use crate::access::Access;
use crate::kind::Kind;

/// The answer to a request. The strictest is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Go ahead.
    Allow,
    /// Somebody has to say. Where nobody can: no.
    Ask,
    /// No.
    Deny,
}

impl Verdict {
    /// Its name in rule files.
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

/// A verdict and its reason. Displayed, it is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The answer.
    pub verdict: Verdict,
    /// What it follows from.
    pub because: DecisionReason,
    /// What of the request decided, where it has several parts: a command, a path or an address, shortened and
    /// escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

impl Decision {
    /// Returns the stricter of two decisions about one request, and the first if they are alike.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.verdict > self.verdict { other } else { self }
    }
}

/// What a decision follows from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum DecisionReason {
    /// The turn is being cancelled.
    Cancelling,
    /// Governance refuses.
    Governance {
        /// Its words.
        reason: String,
    },
    /// A gate in front of the agent asks for an approval.
    Approval {
        /// Its words.
        reason: String,
    },
    /// The network is off.
    Network,
    /// Searching the web is off.
    WebSearch,
    /// The command is nested too deeply or too long to be read to its end.
    Unreadable,
    /// A rule says so.
    Rule(RuleName),
    /// The path is protected and no rule names it.
    Protected {
        /// What lies there.
        what: &'static str,
        /// Whether it must not even be read.
        secret: bool,
    },
    /// No rule matches, so the preset decides.
    Preset {
        /// The preset.
        access: Access,
        /// The kind it was asked about.
        kind: Kind,
        /// Its reason.
        why: &'static str,
    },
}

/// Which rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleName {
    /// The file it stands in.
    pub file: String,
    /// The line it starts on, from 1.
    pub line: usize,
    /// Its place among the rules of the file, from 1.
    pub number: usize,
    /// Its `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its `because`.
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
            Self::Approval { reason } => write!(out, "governance asks: {reason}"),
            Self::Governance { reason } => write!(out, "governance refuses: {reason}"),
            Self::Network => out.write_str("the network is off"),
            Self::WebSearch => out.write_str("searching the web is off"),
            Self::Unreadable => out.write_str("the command cannot be read to its end"),
            Self::Rule(rule) => match &rule.reason {
                Some(reason) => write!(out, "{rule} says so: {reason}"),
                None => write!(out, "{rule} says so"),
            },
            Self::Protected { what, secret: true } => {
                write!(out, "{what} must not be read or changed unless a rule with a `path` says so")
            }
            Self::Protected { what, secret: false } => {
                write!(out, "{what} must not be changed unless a rule with a `path` says so")
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

/// Returns `text` as a decision quotes it.
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
        assert_eq!(
            decision.to_string(),
            "deny `git push\\n\\u{1b}[2J`: rule 2 (policy.toml:7) says so: people push"
        );
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
