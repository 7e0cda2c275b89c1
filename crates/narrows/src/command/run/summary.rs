//! The result of a turn as one JSON object.

use narrows_client::{AgentDescription, Info, RunResult, RuntimeEvent, Status, Usage};
use serde::Serialize;
use serde_json::Value;

use crate::error_report::{self, ErrorReport};
use crate::failure::{ExitStatus, Failure};
use crate::output;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    pub(super) text: String,
    pub(super) stop_reason: Option<String>,
    pub(super) session_id: Option<String>,
    #[serde(skip)]
    pub(super) has_run: bool,
    #[serde(skip)]
    pub(super) run_id: Option<String>,
    #[serde(skip)]
    status: Option<Status>,
    agent: Option<Info>,
    protocol: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Warnings of the agent, as printed to stderr.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorReport>,
}

impl Summary {
    pub(super) fn introduce(&mut self, known: &AgentDescription) {
        self.protocol = Some(known.version.number());
        self.agent.clone_from(&known.info);
    }

    pub(super) fn end(&mut self, result: &RunResult) {
        self.status = Some(result.status);
        self.stop_reason.clone_from(&result.stop_reason);
        self.structured_output.clone_from(&result.structured_output);
        self.usage.clone_from(&result.usage);
    }

    /// Writes `failure` to stdout as an event, if `run.completed` reports a success but the answer is
    /// incomplete or does not match the schema. Returns `true` if the failure needs no other event.
    pub(super) fn print_event(&self, failure: &Failure) -> Result<bool, Failure> {
        if self.status != Some(Status::Success) || failure.code() != ExitStatus::Limit {
            return Ok(self.has_run);
        }
        let event = RuntimeEvent {
            run_id: self.run_id.as_deref().map(Into::into),
            session_id: self.session_id.as_deref().map(Into::into),
            ..error_report::failure_event(failure)
        };
        let line = serde_json::to_string(&event)
            .map_err(|error| Failure::setup("write the error as JSON", &error.into()))?;
        output::print_json(line).map(|()| true)
    }

    pub(super) fn print(mut self, failure: Option<&Failure>) -> Result<(), Failure> {
        self.error = failure.map(ErrorReport::from);
        let object = serde_json::to_string(&self)
            .map_err(|error| Failure::setup("write the result as JSON", &error.into()))?;
        output::print_json(object)
    }
}
