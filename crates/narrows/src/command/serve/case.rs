//! What is said over the admin socket of a gate: a line of JSON each way.

use narrows_audit::{Approval, jcs};
use narrows_govern::Open;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The longest line.
pub(super) const LONGEST: u64 = 4 << 20;

/// What is asked of a gate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// What waits for an approval?
    List,
    /// Somebody has signed.
    Approval(Box<Approval>),
}

/// What a gate answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// What waits.
    Open(Vec<Case>),
    /// It counts.
    Counted,
    /// It does not.
    Refused(String),
}

/// Something that waits for an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) tool: String,
    pub(super) input: Value,
    pub(super) reason: String,
}

impl From<Open> for Case {
    fn from(open: Open) -> Self {
        let Open { id, session, tool, input, reason, .. } = open;
        Self { id, session, tool, input, reason }
    }
}

impl Case {
    /// What is signed: its name, and a digest of what is to be done, so that nothing else can be meant by it.
    pub(super) fn artifact(&self) -> Result<String, jcs::TooDeep> {
        let Self { id, session, tool, input, .. } = self;
        let content = json!({"id": id, "session": session, "tool": tool, "input": input});
        let digest = Sha256::digest(jcs::to_vec(&content)?);
        Ok(format!("{id}#sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_depends_on_all_that_is_done() {
        let case = Case {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!({"b": 1, "a": 2}),
            reason: "r".into(),
        };
        let artifact = |case: &Case| case.artifact().expect("shallow");
        assert!(artifact(&case).starts_with("n-1#sha256:"));
        assert_eq!(artifact(&case), artifact(&Case { reason: "other".into(), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { tool: "u".into(), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { input: json!({"b": 2, "a": 2}), ..case.clone() }));
        let line = serde_json::to_string(&Ask::List).expect("JSON");
        assert_eq!(line, "\"list\"");
    }
}
