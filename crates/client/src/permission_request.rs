//! Permission requests that the policy leaves to a user or a program, and their answers.

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
    /// Id of the request, unique in its session.
    pub id: String,
    /// Id of the session.
    pub session_id: String,
    /// Id of the active run. `None` between runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Title, as the agent wrote it.
    pub title: String,
    /// Description, as the agent wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Id of the tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool. `None` if the agent does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Kind of the tool, as the agent wrote it.
    pub kind: String,
    /// Input of the tool.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// Affected files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<PathBuf>,
    /// All actions of the request, as the policy judged them. An approval covers only these, `input` and
    /// `changes`, so a person has to be shown all of them.
    #[serde(skip)]
    pub subjects: Vec<Action>,
    /// File changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    /// Answers that the agent offers. Empty for requests for files and terminals.
    pub options: Vec<PermissionOption>,
    /// Decision of the policy.
    pub decision: Decision,
    /// The approval, if a gate in front of the agent asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Why the request cannot be read unambiguously. It can only be rejected then: any other answer counts as
    /// a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<RequestProblem>,
}

impl PermissionRequest {
    /// Returns `true` if `reply` allows nothing: it rejects, or selects a rejecting option.
    pub(crate) fn is_rejected_by(&self, reply: &PermissionReply) -> bool {
        match reply {
            PermissionReply::Allow => false,
            PermissionReply::Reject | PermissionReply::Nobody | PermissionReply::Cancel => true,
            PermissionReply::Select(id) => self
                .options
                .iter()
                .filter(|option| option.option_id == *id)
                .all(|option| matches!(option.kind.as_str(), "reject_once" | "reject_always")),
        }
    }
}

/// Why a request cannot be read completely or unambiguously, and its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestProblem {
    /// Reason for people.
    pub reason: String,
    /// Params of the request as written by the agent, at most [`MAX_REQUEST_CHARS`](Self::MAX_REQUEST_CHARS).
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
    /// Path of the file. `None` if the text is a patch, which names its files itself, or is unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Old text, if the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_text: Option<String>,
    /// New text, or the patch.
    pub new_text: String,
}

impl FileChange {
    /// Reads a content block of a tool call. Returns `None` if it is not a file change. An unreadable change
    /// contains the text of the block.
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

    /// Creates a change that is shown by this text alone.
    pub(crate) fn unread(text: &str) -> Self {
        Self { new_text: text.to_owned(), ..Self::default() }
    }
}

/// An approval that a gate in front of the agent requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Approval {
    /// Id for `narrows approve`.
    pub id: String,
    /// Reason given by the gate: the policy, or that there is none.
    pub reason: String,
}

/// The answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermissionReply {
    /// Allows the action once.
    Allow,
    /// Denies the action.
    Reject,
    /// Denies the action, because there was no person to ask.
    Nobody,
    /// Selects an option by its id. An id that was not offered counts as a rejection.
    Select(String),
    /// Cancels the turn.
    Cancel,
}

/// A future reply.
pub type Pending = Pin<Box<dyn Future<Output = PermissionReply> + Send>>;

/// Answers permission requests.
pub trait PermissionHandler: Send + Sync {
    /// Answers `permission_request`. The future is dropped at the deadline and when the turn is cancelled;
    /// the request is rejected then.
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
        // A member that may be meant instead of another is shown too.
        for block in [
            json!({"type": "diff", "path": "/a", "newText": "x", "NewText": "y"}),
            json!({"type": "diff", "path": "/a", "newText": "x", "patch": {"text": "+y"}}),
            json!({"type": "diff", "patch": {"text": "+x", "Text": "+y"}}),
        ] {
            check(block.clone(), Some((None, &block.to_string())));
        }
    }
}
