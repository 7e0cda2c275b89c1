//! Pending approvals in lists: every text is bounded, because peers choose the tools, inputs and reasons.
//!
//! The summary of an input is made once, so that a list costs little, however large the inputs are.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Gate;
use super::api::{ApprovalRequest, ApprovalSummary};
use super::approval::{PendingApproval, approval_name};

/// Bound for the pending approvals of one connection. Further actions that need one are refused.
pub(super) const MAX_PENDING_APPROVALS: usize = 64;

const MAX_INPUT_BYTES: usize = 4 << 10;

/// Bound for each other text.
const MAX_TEXT_BYTES: usize = 1 << 10;

/// Returns the input as JSON. A long one is cut, and followed by its length and digest.
pub(super) fn summarize_input(id: &str, input: &Value) -> String {
    let mut text = input.to_string();
    if text.len() > MAX_INPUT_BYTES {
        let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        let length = text.len();
        cut(&mut text, MAX_INPUT_BYTES);
        text.push_str(&format!("… ({length} bytes, sha256:{digest}; in full: narrows approve {id} --show)"));
        text.shrink_to_fit();
    }
    text
}

/// Returns the text, or its beginning and its length.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    cut(&mut short, MAX_TEXT_BYTES);
    format!("{short}… ({} bytes)", text.len())
}

fn cut(text: &mut String, most: usize) {
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.truncate(end);
}

impl PendingApproval {
    fn summary(&self, id: String, client: String, until: u64) -> ApprovalSummary {
        ApprovalSummary {
            id,
            tool: shorten(&self.tool),
            input: self.input_summary.to_string(),
            reason: shorten(&self.reason),
            needs: shorten(&self.describe_requirements()),
            client,
            until,
        }
    }
}

impl Gate {
    /// Returns the pending approvals for a list.
    #[must_use]
    pub fn approval_summaries(&self) -> Vec<ApprovalSummary> {
        let (start, client) = (&self.start, &self.principal.id);
        let summary = |(number, approval): (&u64, &PendingApproval)| {
            let until = start.started_at + approval.due.as_secs();
            approval.summary(approval_name(start, *number), client.clone(), until)
        };
        self.approvals.iter().map(summary).collect()
    }

    /// Returns the pending approval with this id.
    #[must_use]
    pub fn pending_approval(&self, id: &str) -> Option<ApprovalRequest> {
        let number = id.strip_prefix(&*self.start.nonce)?.strip_prefix('-')?.parse().ok()?;
        let approval = self.approvals.get(&number).filter(|_| approval_name(&self.start, number) == id)?;
        Some(approval.to_request(&self.start, &self.principal, number))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_text_is_bounded() {
        let long = "é\u{1}".repeat(100_000);
        let (one, other) = (json!([long]), json!([format!("{long} ")]));
        for (input, more) in [(&one, "é"), (&other, "é")] {
            let told = summarize_input("n-1", input);
            assert!(told.starts_with(&format!("[\"{more}")) && told.len() < MAX_INPUT_BYTES + 180, "{told}");
            assert!(
                told.contains(" bytes, sha256:") && told.ends_with("narrows approve n-1 --show)"),
                "{told}"
            );
        }
        assert_ne!(summarize_input("n-1", &one), summarize_input("n-1", &other));
        assert_eq!(summarize_input("n-1", &json!({"path": "a"})), r#"{"path":"a"}"#);
        assert!(shorten(&long).len() < MAX_TEXT_BYTES + 40 && shorten(&long).ends_with("… (300000 bytes)"));
        assert_eq!(shorten("Bash"), "Bash");
    }
}
