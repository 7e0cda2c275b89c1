//! What is said over the admin socket of a gate: a line of JSON each way.

use narrows_audit::{Approval, jcs};
use narrows_govern::Open;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The longest line to a gate.
pub(super) const LONGEST: u64 = 4 << 20;

/// The longest line from one: an input may be as long as a message, and longer once it is written anew.
pub(super) const LONGEST_ANSWER: u64 = 128 << 20;

/// How much of an input is told where all that waits is.
const SHOWN: usize = 4 << 10;

/// What is asked of a gate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// What waits for an approval?
    List,
    /// What is it that waits under this name?
    Show(String),
    /// Somebody has signed.
    Approval(Box<Approval>),
}

/// What a gate answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// What waits.
    Open(Vec<Listed>),
    /// All of what was asked for, if it waits.
    Whole(Option<Box<Case>>),
    /// It counts.
    Counted,
    /// It does not.
    Refused(String),
}

/// Something that waits for an approval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) tool: String,
    pub(super) input: Value,
    /// The kinds that it is of, separated by commas.
    #[serde(default)]
    pub(super) kinds: String,
    /// The SHA-256 of all that the gate has judged and shows of it, in hexadecimal.
    #[serde(default)]
    pub(super) digest: String,
    pub(super) reason: String,
    /// Whose approval it needs, in words.
    #[serde(default)]
    pub(super) needs: String,
    /// Who has given theirs.
    #[serde(default)]
    pub(super) given: Vec<String>,
    /// For whom it is to be done.
    #[serde(default)]
    pub(super) client: String,
    /// What the agent shows of it beside the input.
    #[serde(default)]
    pub(super) content: Value,
    /// Until when it waits, in seconds since 1970.
    #[serde(default)]
    pub(super) until: u64,
}

/// The same in few words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) tool: String,
    /// The input, or how it begins, how long it is, and a digest of it.
    pub(super) input: String,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) needs: String,
    #[serde(default)]
    pub(super) until: u64,
}

impl From<&Case> for Listed {
    fn from(case: &Case) -> Self {
        let Case { id, tool, reason, needs, until, .. } = case.clone();
        Self { input: case.shown(), id, tool, reason, needs, until }
    }
}

impl From<Open> for Case {
    fn from(open: Open) -> Self {
        let Open { id, session, tool, input, kinds, content, reason, needs, given, client, until, .. } = open;
        let digest = hex(&open.digest);
        Self { id, session, tool, input, kinds, digest, reason, needs, given, client, content, until }
    }
}

impl Case {
    /// What it is called with, as far as it can be told in a line.
    pub(super) fn shown(&self) -> String {
        let mut text = self.input.to_string();
        if text.len() > SHOWN {
            let (length, digest) = (text.len(), hex(&Sha256::digest(&text)));
            let end = (0..=SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            text.truncate(end);
            let id = &self.id;
            text.push_str(&format!(
                "… ({length} bytes, sha256:{digest}; all of it: narrows approve {id} --show)"
            ));
        }
        text
    }

    /// What is signed: its name, and a digest of what is to be done, so that nothing else can be meant by it.
    pub(super) fn artifact(&self) -> Result<String, jcs::TooDeep> {
        let Self { id, session, tool, input, kinds, digest, .. } = self;
        let content = json!({
            "id": id, "session": session, "tool": tool, "input": input, "kinds": kinds, "call": digest,
        });
        Ok(format!("{id}#sha256:{}", hex(&Sha256::digest(jcs::to_vec(&content)?))))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_input_is_told_in_a_line_and_signed_as_a_whole() {
        let case = |input: &str| Case {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!(input),
            reason: "r".into(),
            ..Case::default()
        };
        let end = SHOWN - 2;
        assert_eq!(case(&"a".repeat(end)).shown(), format!("\"{}\"", "a".repeat(end)));
        for long in ["a".repeat(5 << 20), "é".repeat(5 << 20)] {
            let (one, other) = (case(&long), case(&format!("{long}!")));
            assert!(one.shown().ends_with("; all of it: narrows approve n-1 --show)"));
            let listed = Listed::from(&one);
            assert!(
                listed.input.len() < SHOWN + 180 && listed.input.starts_with(&format!("\"{}", &long[..8]))
            );
            assert!(listed.input.contains(&format!("… ({} bytes, sha256:", long.len() + 2)));
            assert_ne!(one.shown(), other.shown());
            assert_ne!(one.artifact().expect("shallow"), other.artifact().expect("shallow"));
        }
    }

    #[test]
    fn what_is_signed_depends_on_all_that_is_done() {
        let case = Case {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!({"b": 1, "a": 2}),
            reason: "r".into(),
            ..Case::default()
        };
        let artifact = |case: &Case| case.artifact().expect("shallow");
        assert!(artifact(&case).starts_with("n-1#sha256:"));
        assert_eq!(artifact(&case), artifact(&Case { reason: "other".into(), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { tool: "u".into(), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { input: json!({"b": 2, "a": 2}), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { kinds: "delete".into(), ..case.clone() }));
        assert_ne!(artifact(&case), artifact(&Case { digest: "00".into(), ..case.clone() }));
        let line = serde_json::to_string(&Ask::List).expect("JSON");
        assert_eq!(line, "\"list\"");
    }
}
