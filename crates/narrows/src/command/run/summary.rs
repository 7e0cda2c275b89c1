//! What became of a turn, as one JSON object for programs.

use narrows_client::{Info, Introduced, RunResult, Usage};
use serde::Serialize;
use serde_json::Value;

use crate::error_report::ErrorReport;
use crate::failure::Failure;
use crate::output;

/// The object.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    pub(super) text: String,
    pub(super) stop_reason: Option<String>,
    pub(super) session_id: Option<String>,
    /// Whether a run has begun.
    #[serde(skip)]
    pub(super) has_run: bool,
    agent: Option<Info>,
    protocol: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorReport>,
}

impl Summary {
    /// Notes who the agent is.
    pub(super) fn introduce(&mut self, known: &Introduced) {
        self.protocol = Some(known.version.number());
        self.agent.clone_from(&known.info);
    }

    /// Notes how the run ended.
    pub(super) fn end(&mut self, result: &RunResult) {
        self.stop_reason.clone_from(&result.stop_reason);
        self.structured_output.clone_from(&result.structured_output);
        self.usage.clone_from(&result.usage);
    }

    /// Writes it to stdout.
    pub(super) fn print(mut self, failure: Option<&Failure>) -> Result<(), Failure> {
        self.error = failure.map(ErrorReport::from);
        let mut object = serde_json::to_vec(&self)
            .map_err(|error| Failure::setup("write the result as JSON", &error.into()))?;
        object.push(b'\n');
        output::print(&object)
    }
}
