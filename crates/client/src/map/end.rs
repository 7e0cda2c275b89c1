//! Ends a run: completes open messages and calls, and reports the result.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_acp::stop::StopReason;
use serde_json::Value;

use super::call::{Call, Stage};
use super::fault::Fault;
use super::{Emit, Mapper};
use crate::event::{Completed, EventBody, Role, RuntimeEvent, Status};
use crate::usage::Usage;

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// The agent ended the turn, with its stop reason.
    Stopped(Option<StopReason>),
    /// The run was cancelled, but the agent has not confirmed the cancellation.
    Cancelled,
    /// The run failed. Takes precedence over a cancellation.
    Failed { message: String, code: Option<String> },
}

/// Data to report at the end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    pub end: RunEnd,
    /// `true` if the agent had been asked to stop.
    pub cancelling: bool,
    pub usage: Option<Usage>,
    /// The JSON value found in the answer, if the prompt requested one.
    pub structured: Option<Value>,
}

impl RunOutcome {
    /// Creates an outcome without further details.
    pub fn new(end: RunEnd) -> Self {
        Self { end, cancelling: false, usage: None, structured: None }
    }
}

/// Status of a run, and message and code of its failure.
type Verdict = (Status, Option<(String, Option<String>)>);

impl Mapper {
    /// Ends the run: completes open messages and calls, reports an error if the run failed, and then
    /// `run.completed`. Without a run, does nothing.
    pub fn finish(
        &mut self,
        outcome: RunOutcome,
        now_ms: u64,
        out: &mut Vec<RuntimeEvent>,
    ) -> Option<Status> {
        self.run_id.as_ref()?;
        let RunOutcome { end, cancelling, usage, structured } = outcome;
        let emit = &mut Emit::new(now_ms, out);
        self.end_thought(emit);
        if let Some(ended) = self.answer.end() {
            self.push_ended_message(emit, Role::Assistant, ended, structured.clone());
        }
        for call in self.calls.settle_run() {
            self.interrupt(call, emit);
        }
        let fault = self.fault.take();
        let (status, failure) = verdict(end, cancelling, fault, self.version, self.settings.limits_fail);
        if let Some((message, code)) = failure {
            self.push_event(emit, EventBody::Error { message, code });
        }
        let completed =
            Completed { status, final_text: self.answer.last_ended(), structured_output: structured, usage };
        self.push_event(emit, EventBody::RunCompleted(Box::new(completed)));
        self.run_id = None;
        self.answer = super::MessageAssembler::default();
        self.thought = super::MessageAssembler::default();
        Some(status)
    }

    /// Reports a tool call that ends without a result.
    fn interrupt(&self, call: Call, emit: &mut Emit<'_>) {
        let call_id = Arc::clone(&call.id);
        if call.stage == Stage::New {
            let (tool_name, input) = (call.tool_name(), call.input());
            self.push_event(emit, EventBody::ToolCall { call_id: Arc::clone(&call_id), tool_name, input });
        }
        let output = call.output(Some("interrupted"));
        self.push_event(emit, EventBody::ToolResult { call_id, output });
    }
}

fn verdict(
    end: RunEnd,
    cancelling: bool,
    fault: Option<Fault>,
    version: Version,
    limits_fail: bool,
) -> Verdict {
    let stopped = match end {
        RunEnd::Cancelled | RunEnd::Stopped(Some(StopReason::Cancelled)) => return (Status::Cancelled, None),
        RunEnd::Failed { message, code } => return failed(message, code),
        // A cancelled run counts as cancelled even if the agent reports a failure.
        RunEnd::Stopped(_) if cancelling && fault.is_some() => return (Status::Cancelled, None),
        RunEnd::Stopped(reason) => reason,
    };
    if let Some(fault) = fault {
        let message = if fault.message.is_empty() { "the agent failed".to_owned() } else { fault.message };
        let code = if fault.kind.is_empty() { "agent_error".to_owned() } else { fault.kind };
        return failed(message, Some(code));
    }
    let words = match &stopped {
        None if version == Version::V2 && cancelling => return (Status::Cancelled, None),
        None if version == Version::V2 => return (Status::Success, None),
        Some(StopReason::EndTurn) => return (Status::Success, None),
        Some(StopReason::MaxTokens | StopReason::MaxTurnRequests) if !limits_fail => {
            return (Status::Success, None);
        }
        None => {
            return failed(
                "the agent stopped without a reason".to_owned(),
                Some("no_stop_reason".to_owned()),
            );
        }
        Some(StopReason::MaxTokens) => "the agent reached its limit of tokens".to_owned(),
        Some(StopReason::MaxTurnRequests) => "the agent reached its limit of requests in one turn".to_owned(),
        Some(StopReason::Refusal) => "the agent refused".to_owned(),
        Some(StopReason::Error(Some(error))) if !error.message.is_empty() => error.message.clone(),
        Some(StopReason::Error(_)) => "the agent failed".to_owned(),
        Some(other) => format!("the agent stopped for an unknown reason: {:?}", other.name()),
    };
    failed(words, stopped.map(|reason| reason.name().to_owned()))
}

fn failed(message: String, code: Option<String>) -> Verdict {
    (Status::Error, Some((message, code)))
}
