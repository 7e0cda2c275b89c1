//! Permission requests that the policy leaves to a person or a program, and their answers.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use narrows_policy::{Action, Decision};
use serde::Serialize;
use serde_json::Value;

use crate::option_choice::PermissionOption;

/// An action of an agent that needs a decision.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    pub id: String,
    pub session_id: String,
    /// Id of the active run. `None` between runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Title, as the agent wrote it.
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool. `None` if the agent does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Kind of the tool, as the agent wrote it.
    pub kind: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub input: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<PathBuf>,
    /// All actions of the request, as the policy judged them. An approval covers only these actions, `input`
    /// and `changes`, so a person must be shown all of them.
    #[serde(skip)]
    pub subjects: Vec<Action>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    /// Options that the agent offers. Empty for file and terminal requests.
    pub options: Vec<PermissionOption>,
    pub decision: Decision,
    /// Approval that a gate in front of the agent requests; `None` for any other request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Reason why the request is ambiguous. If set, every answer except a rejection counts as a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<RequestProblem>,
}

impl PermissionRequest {
    /// Returns `true` if `reply` rejects the request, or selects a rejecting option.
    pub(crate) fn is_rejected_by(&self, reply: &PermissionReply) -> bool {
        match reply {
            PermissionReply::Allow => false,
            PermissionReply::Reject | PermissionReply::NoApprover | PermissionReply::Cancel => true,
            PermissionReply::Select(id) => self
                .options
                .iter()
                .filter(|option| option.option_id == *id)
                .all(|option| matches!(option.kind.as_str(), "reject_once" | "reject_always")),
        }
    }
}

/// Reason why a request cannot be read completely or unambiguously, with the text of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestProblem {
    pub reason: String,
    /// Params of the request as written by the agent, cut to [`MAX_REQUEST_CHARS`](Self::MAX_REQUEST_CHARS).
    pub request: String,
}

impl RequestProblem {
    /// Maximum number of characters kept of a request.
    pub const MAX_REQUEST_CHARS: usize = 3000;

    pub(crate) fn new(reason: String, params: &[u8]) -> Self {
        let text = String::from_utf8_lossy(params);
        let request = match text.char_indices().nth(Self::MAX_REQUEST_CHARS) {
            None => text.into_owned(),
            Some((end, _)) => {
                format!("{} [… {} more characters]", &text[..end], text[end..].chars().count())
            }
        };
        Self { reason, request }
    }
}

/// A file change that an agent shows or requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// Path of the changed file. `None` if the agent's text cannot be parsed, or is a patch that names its
    /// files itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_text: Option<String>,
    /// New text of the file, or the whole patch.
    pub new_text: String,
}

impl FileChange {
    /// Reads a content block of a tool call. Returns `None` if the block is not a file change. A change that
    /// cannot be parsed gets the block's JSON text as its new text.
    pub(crate) fn from_content(block: &Value) -> Option<Self> {
        if !Action::is_change(block) {
            return None;
        }
        let has_only = |block: &Value, known: &[&str]| {
            block.as_object().is_some_and(|members| members.keys().all(|key| known.contains(&key.as_str())))
        };
        let text = |key: &str| block.get(key).and_then(Value::as_str).map(str::to_owned);
        let is_plain = has_only(block, &["type", "path", "oldText", "newText", "_meta"]);
        let read = text("path").filter(|_| is_plain).zip(text("newText")).map(|(path, new_text)| Self {
            path: Some(path.into()),
            old_text: text("oldText"),
            new_text,
        });
        let patch = || {
            let patch = block.get("patch").filter(|patch| has_only(patch, &["format", "text", "_meta"]))?;
            has_only(block, &["type", "changes", "patch", "_meta"]).then(|| patch.get("text")?.as_str())?
        };
        Some(read.unwrap_or_else(|| patch().map_or_else(|| Self::unread(&block.to_string()), Self::unread)))
    }

    /// Creates a change that shows only `text`, for a block that cannot be parsed.
    pub(crate) fn unread(text: &str) -> Self {
        Self { new_text: text.to_owned(), ..Self::default() }
    }
}

/// An approval that a gate in front of the agent requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Approval {
    /// Id to pass to `narrows approve`.
    pub id: String,
    /// Reason that the gate gives: the policy, or a note that the policy has no reason.
    pub reason: String,
}

/// Reply to a permission request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermissionReply {
    Allow,
    Reject,
    /// Denies the action because no person could be asked.
    NoApprover,
    /// Selects an option by id. An id that was not offered counts as a rejection.
    Select(String),
    Cancel,
}

/// Future of a permission reply.
pub type Pending = Pin<Box<dyn Future<Output = PermissionReply> + Send>>;

/// Answers permission requests.
pub trait PermissionHandler: Send + Sync {
    /// Answers `permission_request`. At the deadline, or if the turn is cancelled, the future is dropped and
    /// the request is rejected.
    fn decide(&self, permission_request: Arc<PermissionRequest>) -> Pending;
}

impl<F, R> PermissionHandler for F
where
    F: Fn(Arc<PermissionRequest>) -> R + Send + Sync,
    R: Future<Output = PermissionReply> + Send + 'static,
{
    fn decide(&self, permission_request: Arc<PermissionRequest>) -> Pending {
        Box::pin(self(permission_request))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_file_change_is_shown_with_its_text() {
        let check = |block: Value, expected: Option<(Option<&str>, &str)>| {
            let read = FileChange::from_content(&block);
            let found = read.as_ref().map(|change| {
                let path = change.path.as_ref().and_then(|path| path.to_str());
                (path, change.new_text.as_str())
            });
            assert_eq!(found, expected, "{block}");
        };
        check(json!({"type": "content", "content": {"type": "text", "text": "x"}}), None);
        check(json!({"type": "diff", "path": "/a", "newText": "x"}), Some((Some("/a"), "x")));
        let patch = json!({"type": "diff", "changes": [], "patch": {"format": "git_patch", "text": "+x"}});
        check(patch, Some((None, "+x")));
        check(json!({"NewText": "x"}), Some((None, r#"{"NewText":"x"}"#)));
        // The agent may mean either of two contradicting members, so both are shown.
        for block in [
            json!({"type": "diff", "path": "/a", "newText": "x", "NewText": "y"}),
            json!({"type": "diff", "path": "/a", "newText": "x", "patch": {"text": "+y"}}),
            json!({"type": "diff", "patch": {"text": "+x", "Text": "+y"}}),
        ] {
            check(block.clone(), Some((None, &block.to_string())));
        }
    }
}
