//! One event model, whatever the agent and its version.

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

/// Something that happened in a session.
///
/// As JSON it is one flat object, named by its `type`. Of the events of one run `run.started` is the first and
/// `run.completed` the last, and each comes once.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// In which run. What happens outside of runs belongs to none.
    pub run_id: Option<Arc<str>>,
    /// In which session, once it has an id.
    pub session_id: Option<Arc<str>>,
    /// What happened.
    pub body: EventBody,
    /// The message of the agent that it was read from. `None` if the body has all of it or it is not wanted.
    pub raw: Option<Json>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum EventBody {
    /// `run.started`: always the first.
    RunStarted {
        /// Who drives the agent.
        provider: Arc<str>,
    },
    /// `assistant.delta`: more text of the answer.
    AssistantDelta {
        /// The text.
        text_delta: String,
    },
    /// `assistant.reasoning.delta`: more of what the agent thinks.
    ReasoningDelta {
        /// The text.
        text_delta: String,
    },
    /// `assistant.message`: a message that is complete.
    AssistantMessage {
        /// The message.
        message: Message,
    },
    /// `assistant.reasoning.message`: a thought that is complete.
    ReasoningMessage {
        /// The thought.
        message: Message,
    },
    /// `tool.call`: a tool is used; once for every call.
    ToolCall {
        /// The call.
        call_id: Arc<str>,
        /// The tool, by the best name there is.
        tool_name: String,
        /// Its input, `{}` if the agent never told.
        input: Json,
    },
    /// `tool.result`: a call is over; once for every call.
    ToolResult {
        /// The call.
        call_id: Arc<str>,
        /// What came of it.
        output: ToolOutput,
    },
    /// `provider.event`: whatever else the agent said, or was done on its behalf.
    Provider {
        /// Who drives the agent.
        provider: Arc<str>,
        /// What it is.
        payload: Payload,
    },
    /// `error`: why the run fails. Not told of a run that was cancelled.
    Error {
        /// In words.
        message: String,
        /// In one word.
        code: Option<String>,
    },
    /// `run.completed`: always the last, exactly once.
    RunCompleted(Box<Completed>),
}

/// A message that is complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Its text.
    pub text: Arc<str>,
    /// What it holds in the form that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
}

/// What came of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolOutput {
    /// The agent's word for how it ended, or `interrupted` if the run ended first.
    pub status: String,
    /// What the tool returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_output: Option<Json>,
    /// What the agent shows of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Json>,
    /// The files it concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locations: Option<Json>,
    /// Whether it was more than what is kept of a call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The agent was done.
    Success,
    /// It failed; an `error` said why.
    Error,
    /// It was stopped.
    Cancelled,
}

impl Status {
    /// Its name in JSON.
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
    /// How it ended.
    pub status: Status,
    /// The last message of the agent.
    pub final_text: Option<Arc<str>>,
    /// The answer in the form that was asked for.
    pub structured_output: Option<Value>,
    /// What the run cost.
    pub usage: Option<Usage>,
}

impl RuntimeEvent {
    /// The `type` it has in JSON.
    pub fn name(&self) -> &'static str {
        self.body.name()
    }

    /// How many bytes it holds, roughly: what a buffer of events is to be bounded by.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.body.weight() + self.raw.as_ref().map_or(0, Json::len)
    }
}

impl EventBody {
    /// The `type` it has in JSON.
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
