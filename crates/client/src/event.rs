//! The events of a session, in one format for all agents and protocol versions.

mod json;
mod payload;
mod serial;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::json::Json;
pub use self::payload::{Payload, PermissionRequested, PermissionResolved, Role};
use crate::usage::Usage;

/// An event of a session.
///
/// In JSON it is a flat object with a `type`. Every run begins with one `run.started` and ends with one
/// `run.completed`.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeEvent {
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Id of the run. `None` outside of runs.
    pub run_id: Option<Arc<str>>,
    /// Id of the session; `None` until it is known.
    pub session_id: Option<Arc<str>>,
    pub body: EventBody,
    /// The agent's message that caused the event. `None` if `body` contains the whole message, or if raw
    /// messages are not requested.
    pub raw: Option<Json>,
}

/// Content of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventBody {
    /// `run.started`: always the first event of a run.
    RunStarted { provider: Arc<str> },
    /// `assistant.delta`: the next part of the answer's text.
    AssistantDelta { text_delta: String },
    /// `assistant.reasoning.delta`: the next part of the agent's reasoning.
    ReasoningDelta { text_delta: String },
    /// `assistant.message`: a complete message.
    AssistantMessage { message: Message },
    /// `assistant.reasoning.message`: a complete reasoning message.
    ReasoningMessage { message: Message },
    /// `tool.call`: a tool call begins. Emitted once per call.
    ToolCall {
        call_id: Arc<str>,
        /// Best available name of the tool.
        tool_name: String,
        /// Input of the tool; `{}` if the agent does not report it.
        input: Json,
    },
    /// `tool.result`: a tool call has ended. Emitted once per call.
    ToolResult { call_id: Arc<str>, output: ToolOutput },
    /// `provider.event`: another message of the agent, or an action of the client for the agent.
    Provider { provider: Arc<str>, payload: Payload },
    /// `error`: the cause of a failed run. Not emitted for a cancelled run.
    Error {
        message: String,
        /// Code for programs.
        code: Option<String>,
    },
    /// `run.completed`: always the last event of a run, exactly once.
    RunCompleted(Box<Completed>),
}

/// A complete message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub text: Arc<str>,
    /// The JSON value found in the answer, if the prompt requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
}

/// Result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolOutput {
    /// Final status reported by the agent, or `interrupted` if the run ended first.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_output: Option<Json>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locations: Option<Json>,
    /// `true` if the output was cut because it was too large to keep.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// Final status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Success,
    /// The run failed. An `error` event before `run.completed` has the cause.
    Error,
    Cancelled,
}

impl Status {
    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Completed {
    pub status: Status,
    pub final_text: Option<Arc<str>>,
    /// The JSON value found in the answer, if the prompt requested one.
    pub structured_output: Option<Value>,
    pub usage: Option<Usage>,
}

impl RuntimeEvent {
    /// Returns the `type` used in JSON.
    pub fn name(&self) -> &'static str {
        self.body.name()
    }

    /// Returns the approximate size in bytes, by which event buffers are bounded.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.body.weight() + self.raw.as_ref().map_or(0, Json::len)
    }
}

impl EventBody {
    /// Returns the `type` used in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run.started",
            Self::AssistantDelta { .. } => "assistant.delta",
            Self::ReasoningDelta { .. } => "assistant.reasoning.delta",
            Self::AssistantMessage { .. } => "assistant.message",
            Self::ReasoningMessage { .. } => "assistant.reasoning.message",
            Self::ToolCall { .. } => "tool.call",
            Self::ToolResult { .. } => "tool.result",
            Self::Provider { .. } => "provider.event",
            Self::Error { .. } => "error",
            Self::RunCompleted(_) => "run.completed",
        }
    }

    fn weight(&self) -> usize {
        match self {
            Self::RunStarted { .. } => 0,
            Self::AssistantDelta { text_delta } | Self::ReasoningDelta { text_delta } => text_delta.len(),
            Self::AssistantMessage { message } | Self::ReasoningMessage { message } => message.text.len(),
            Self::ToolCall { call_id, tool_name, input } => call_id.len() + tool_name.len() + input.len(),
            Self::ToolResult { call_id, output } => {
                let content = output.content.iter().map(Json::len).sum::<usize>();
                let others = [&output.raw_output, &output.locations];
                call_id.len() + content + others.into_iter().flatten().map(Json::len).sum::<usize>()
            }
            Self::Provider { payload, .. } => payload.weight(),
            Self::Error { message, code } => message.len() + code.as_ref().map_or(0, String::len),
            Self::RunCompleted(completed) => completed.final_text.as_ref().map_or(0, |text| text.len()),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde takes")]
fn is_false(value: &bool) -> bool {
    !value
}
