//! Questions that the rules leave to somebody, and how they are answered.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use narrows_policy::{Action, Decision};
use serde::Serialize;
use serde_json::Value;

use crate::choose::PermissionOption;

/// Something an agent wants to do, about which somebody is to decide.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// Names it among the questions of the session.
    pub id: String,
    /// The session.
    pub session_id: String,
    /// The run it belongs to, if one is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The agent's words for it.
    pub title: String,
    /// More of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The call it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool, if it has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What kind of thing it is, in the agent's words.
    pub kind: String,
    /// What goes into it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// The files it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<PathBuf>,
    /// Everything it is about, as it was judged: a request can have several subjects. This, `input` and `changes` are all
    /// that an approval holds for, so a person has to be shown all of it.
    #[serde(skip)]
    pub subjects: Vec<Action>,
    /// The new texts of files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    /// What the agent offers as answers; none for what it asks of the files and terminals here.
    pub options: Vec<PermissionOption>,
    /// What the rules say.
    pub decision: Decision,
    /// The approval that it is, if a gate in front of the agent asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Why the request cannot be read for certain. It can only be rejected then: any other answer counts as a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<RequestProblem>,
}

impl Question {
    /// Returns `true` if `reply` certainly allows nothing: it rejects, or takes an option that does.
    pub(crate) fn is_rejected_by(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Allow => false,
            Reply::Reject | Reply::Nobody | Reply::Cancel => true,
            Reply::Select(id) => self
                .options
                .iter()
                .filter(|option| option.option_id == *id)
                .all(|option| matches!(option.kind.as_str(), "reject_once" | "reject_always")),
        }
    }
}

/// Why a request cannot be read in whole, or in one way only, and what was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestProblem {
    /// What is wrong with it.
    pub reason: String,
    /// The params of the request as the agent wrote them, at most [`MAX_REQUEST_CHARS`](Self::MAX_REQUEST_CHARS) of them.
    pub request: String,
}

impl RequestProblem {
    /// How many characters of a request are kept.
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

/// A change of a file that an agent shows or asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// The file. `None` if the text is a patch, which names its files itself, or cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The text before, if the agent tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_text: Option<String>,
    /// The text after, or the patch.
    pub new_text: String,
}

impl FileChange {
    /// Reads a block of the content of a tool call. `None` if it does not change files; one that cannot be read is the
    /// text of the block.
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

    /// A change that is shown by this text alone.
    pub(crate) fn unread(text: &str) -> Self {
        Self { new_text: text.to_owned(), ..Self::default() }
    }
}

/// An approval that a gate in front of the agent asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Approval {
    /// By what `narrows approve` knows it.
    pub id: String,
    /// Why it is asked for, in the gate's words: the policy, or that there is none.
    pub reason: String,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Let it, this once.
    Allow,
    /// Do not let it.
    Reject,
    /// Nobody could be asked, which does not let it either.
    Nobody,
    /// Take this option, by its id. One that was not offered counts as a rejection.
    Select(String),
    /// Neither: the turn is given up.
    Cancel,
}

/// What becomes a reply in time.
pub type Pending = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Somebody who can be asked.
pub trait Decide: Send + Sync {
    /// Answers `question`. It is dropped at the deadline and when the turn is cancelled; the question counts as
    /// rejected then.
    fn decide(&self, question: Arc<Question>) -> Pending;
}

impl<F, R> Decide for F
where
    F: Fn(Arc<Question>) -> R + Send + Sync,
    R: Future<Output = Reply> + Send + 'static,
{
    fn decide(&self, question: Arc<Question>) -> Pending {
        Box::pin(self(question))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_changes_files_is_shown_by_its_text() {
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
        // A member that could be meant in place of another is shown too.
        for block in [
            json!({"type": "diff", "path": "/a", "newText": "x", "NewText": "y"}),
            json!({"type": "diff", "path": "/a", "newText": "x", "patch": {"text": "+y"}}),
            json!({"type": "diff", "patch": {"text": "+x", "Text": "+y"}}),
        ] {
            check(block.clone(), Some((None, &block.to_string())));
        }
    }
}
