//! The displayed part of a turn, in one format for both versions and for the store.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An item shown to the client, and again when the session is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shown", rename_all = "snake_case")]
pub(crate) enum TranscriptItem {
    /// A message of the user.
    User { id: String, content: Vec<Value> },
    /// A message of the model.
    Text { id: String, text: String },
    /// A thought of the model.
    Thought { id: String, text: String },
    /// A tool call in its final state.
    Tool(Box<ToolCall>),
    /// The plan in its final state.
    Plan { entries: Vec<PlanEntry> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) title: String,
    /// Name of the tool, as the model sees it.
    pub(crate) name: String,
    pub(crate) kind: ToolKind,
    pub(crate) status: ToolStatus,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) content: Vec<ToolContent>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) locations: Vec<String>,
    pub(crate) input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Value>,
}

/// Kind of a tool. Serialized with the protocol's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolKind {
    Read,
    Edit,
    Execute,
    Other,
}

/// Status of a call. Serialized with the protocol's names. Version 1 has no `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolStatus {
    Pending,
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToolContent {
    /// A content block of the protocol.
    Block { block: Value },
    /// A changed file, with the old and the new text.
    Diff { path: String, old: Option<String>, new: String },
    /// A terminal of the client. Its output is stored as well, because the terminal is gone when the session
    /// is loaded.
    Terminal { id: String },
}

impl ToolContent {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self::Block { block: serde_json::json!({"type": "text", "text": text}) }
    }
}

/// A plan entry. Serialized with the protocol's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanEntry {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) priority: PlanPriority,
    #[serde(default)]
    pub(crate) status: PlanStatus,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanPriority {
    High,
    #[default]
    Medium,
    Low,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PlanStatus {
    #[default]
    Pending,
    InProgress,
    Completed,
}
