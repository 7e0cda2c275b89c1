//! What a client is shown of a turn, in one form for both versions and for the disk.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something a client is shown, and shown again when the session is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shown", rename_all = "snake_case")]
pub(crate) enum Shown {
    /// What the person said.
    User { id: String, content: Vec<Value> },
    /// What the model said.
    Text { id: String, text: String },
    /// What it thought.
    Thought { id: String, text: String },
    /// A tool that was called, as it stood in the end.
    Tool(Box<ToolCall>),
    /// The plan as it stood in the end.
    Plan { entries: Vec<PlanEntry> },
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) title: String,
    /// The tool as the model knows it.
    pub(crate) name: String,
    pub(crate) kind: ToolKind,
    pub(crate) status: Status,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) content: Vec<ToolContent>,
    /// Absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) locations: Vec<String>,
    pub(crate) input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Value>,
}

/// What sort of thing a tool does. The names are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolKind {
    Read,
    Edit,
    Execute,
    Other,
}

/// How far a call has come. The names are those of the protocol; version 1 knows no `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Pending,
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

/// What a call has to show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToolContent {
    /// A content block of the protocol.
    Block { block: Value },
    /// A file before and after.
    Diff { path: String, old: Option<String>, new: String },
    /// A terminal of the client. It is gone when the session is loaded, so the output is kept in its place.
    Terminal { id: String },
}

impl ToolContent {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self::Block { block: serde_json::json!({"type": "text", "text": text}) }
    }
}

/// A step of a plan. The names are those of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanEntry {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) priority: Priority,
    #[serde(default)]
    pub(crate) status: Step,
}

/// How much a step matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Priority {
    High,
    #[default]
    Medium,
    Low,
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    #[default]
    Pending,
    InProgress,
    Completed,
}
