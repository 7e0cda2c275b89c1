//! Questions that the rules leave to somebody, and how they are answered.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use narrows_policy::Decision;
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
    /// What the agent offers as answers; none for what it asks of the files and terminals here.
    pub options: Vec<PermissionOption>,
    /// What the rules say.
    pub decision: Decision,
    /// The approval that it is, if a gate in front of the agent asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
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
