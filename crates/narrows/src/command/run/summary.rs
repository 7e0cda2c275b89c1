//! What became of a turn, as one JSON object for programs.

use narrows_client::{EventBody, Info, Introduced, RunResult, RuntimeEvent, Usage};
use serde::Serialize;
use serde_json::Value;

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
    error: Option<ErrorSummary>,
}

/// What went wrong. What is empty is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorSummary {
    kind: &'static str,
    message: String,
    exit_code: u8,
    /// Of the JSON-RPC error with which the agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    /// What the agent says about the model that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Value>,
    /// The last that the agent wrote there.
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<String>,
}

/// Writes a failure as the one event there is.
pub(super) fn print_error(failure: &Failure) -> Result<(), Failure> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let event = RuntimeEvent {
        at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        run_id: None,
        session_id: None,
        body: EventBody::Error { message: failure.message(), code: Some(failure.code().name().to_owned()) },
        raw: None,
    };
    let mut line = serde_json::to_vec(&event)
        .map_err(|error| Failure::setup("write an event as JSON", &error.into()))?;
    line.push(b'\n');
    output::print(&line)
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
        self.error = failure.map(|failure| ErrorSummary {
            kind: failure.code().name(),
            message: failure.message(),
            exit_code: failure.code().number(),
            code: failure.rpc().map(|error| error.code),
            data: failure.rpc().and_then(|error| error.data.clone()),
            endpoint: failure.fault().map(|fault| serde_json::json!(fault)),
            stderr: failure.stderr().to_owned(),
            hints: failure.hints().to_vec(),
        });
        let mut object = serde_json::to_vec(&self)
            .map_err(|error| Failure::setup("write the result as JSON", &error.into()))?;
        object.push(b'\n');
        output::print(&object)
    }
}
