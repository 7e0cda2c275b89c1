//! The protocol of the admin socket: one line of JSON in each direction.

use narrows_audit::{Approval, jcs};
use narrows_govern::ApprovalRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(super) const MAX_REQUEST_BYTES: u64 = 4 << 20;

/// An input may be as long as a message, and gets longer when it is serialized again.
pub(super) const MAX_RESPONSE_BYTES: u64 = 128 << 20;

/// Most bytes of an input that a list includes.
const MAX_SUMMARY_BYTES: usize = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SocketRequest {
    List,
    Show(String),
    Approval(Box<Approval>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SocketResponse {
    Open(Vec<PendingActionSummary>),
    /// The requested action, if it is still pending.
    Whole(Option<Box<PendingAction>>),
    Counted,
    Refused(String),
}

/// An action that waits for approvals.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingAction {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) tool: String,
    pub(super) input: Value,
    /// Comma-separated.
    #[serde(default)]
    pub(super) kinds: String,
    /// SHA-256 of everything that the gate judged and shows, in hexadecimal.
    #[serde(default)]
    pub(super) digest: String,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) needs: String,
    #[serde(default)]
    pub(super) given: Vec<String>,
    /// The client whose session requests the action.
    #[serde(default)]
    pub(super) client: String,
    /// Content of the tool call that the agent shows besides the input.
    #[serde(default)]
    pub(super) content: Value,
    /// The deadline, in seconds since 1970.
    #[serde(default)]
    pub(super) until: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingActionSummary {
    pub(super) id: String,
    pub(super) tool: String,
    /// The input, or its beginning together with its length and digest.
    pub(super) input: String,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) needs: String,
    #[serde(default)]
    pub(super) until: u64,
}

impl From<&PendingAction> for PendingActionSummary {
    fn from(action: &PendingAction) -> Self {
        let PendingAction { id, tool, reason, needs, until, .. } = action.clone();
        Self { input: action.input_summary(), id, tool, reason, needs, until }
    }
}

impl From<ApprovalRequest> for PendingAction {
    fn from(open: ApprovalRequest) -> Self {
        let ApprovalRequest {
            id,
            session,
            tool,
            input,
            kinds,
            content,
            reason,
            requirements: needs,
            approved_by: given,
            client,
            expires_at: until,
            ..
        } = open;
        let digest = hex(&open.digest);
        Self { id, session, tool, input, kinds, digest, reason, needs, given, client, content, until }
    }
}

impl PendingAction {
    /// Returns the input in one line, shortened if it is long.
    pub(super) fn input_summary(&self) -> String {
        let mut text = self.input.to_string();
        if text.len() > MAX_SUMMARY_BYTES {
            let (length, digest) = (text.len(), hex(&Sha256::digest(&text)));
            let end =
                (0..=MAX_SUMMARY_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            text.truncate(end);
            let id = &self.id;
            text.push_str(&format!(
                "… ({length} bytes, sha256:{digest}; in full: narrows approve {id} --show)"
            ));
        }
        text
    }

    /// Returns the text that an approver signs: the id and a digest of the whole action, so that the
    /// signature is valid for nothing else.
    pub(super) fn signed_artifact(&self) -> Result<String, jcs::TooDeep> {
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
    fn a_long_input_is_summarized_and_signed_as_a_whole() {
        let action = |input: &str| PendingAction {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!(input),
            reason: "r".into(),
            ..PendingAction::default()
        };
        let end = MAX_SUMMARY_BYTES - 2;
        assert_eq!(action(&"a".repeat(end)).input_summary(), format!("\"{}\"", "a".repeat(end)));
        for long in ["a".repeat(5 << 20), "é".repeat(5 << 20)] {
            let (one, other) = (action(&long), action(&format!("{long}!")));
            assert!(one.input_summary().ends_with("; in full: narrows approve n-1 --show)"));
            let listed = PendingActionSummary::from(&one);
            assert!(
                listed.input.len() < MAX_SUMMARY_BYTES + 180
                    && listed.input.starts_with(&format!("\"{}", &long[..8]))
            );
            assert!(listed.input.contains(&format!("… ({} bytes, sha256:", long.len() + 2)));
            assert_ne!(one.input_summary(), other.input_summary());
            assert_ne!(
                one.signed_artifact().expect("the action is not nested too deeply"),
                other.signed_artifact().expect("the action is not nested too deeply")
            );
        }
    }

    #[test]
    fn the_signed_artifact_covers_every_field_of_the_action() {
        let action = PendingAction {
            id: "n-1".into(),
            session: "s".into(),
            tool: "t".into(),
            input: json!({"b": 1, "a": 2}),
            reason: "r".into(),
            ..PendingAction::default()
        };
        let artifact =
            |action: &PendingAction| action.signed_artifact().expect("the action is not nested too deeply");
        assert!(artifact(&action).starts_with("n-1#sha256:"));
        assert_eq!(artifact(&action), artifact(&PendingAction { reason: "other".into(), ..action.clone() }));
        assert_ne!(artifact(&action), artifact(&PendingAction { tool: "u".into(), ..action.clone() }));
        assert_ne!(
            artifact(&action),
            artifact(&PendingAction { input: json!({"b": 2, "a": 2}), ..action.clone() })
        );
        assert_ne!(artifact(&action), artifact(&PendingAction { kinds: "delete".into(), ..action.clone() }));
        assert_ne!(artifact(&action), artifact(&PendingAction { digest: "00".into(), ..action.clone() }));
        let line = serde_json::to_string(&SocketRequest::List).expect("JSON");
        assert_eq!(line, "\"list\"");
    }
}
