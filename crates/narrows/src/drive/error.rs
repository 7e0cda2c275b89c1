//! How driving an agent can fail.

use std::time::Duration;

use narrows_acp::offer::Unfit;
use narrows_link::CloseReason;
use narrows_process::SpawnError;
use narrows_rpc::CallError;
use narrows_wire::RpcError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::agent::Login;

/// How far it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The agent was being started.
    Start,
    /// `initialize` was to be answered.
    Initialize,
    /// `session/new` was to be answered.
    NewSession,
    /// The turn was running.
    Turn,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The process could not be started.
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: SpawnError,
    },
    /// The agent went away.
    Lost(CloseReason),
    /// The agent did not answer in time.
    Deadline(Duration),
    /// The agent answered with an error.
    Refused(RpcError),
    /// The agent wants the user to log in, in one of these ways.
    LoginNeeded(Vec<Login>),
    /// The agent's answer makes no sense.
    Malformed(String),
    /// There is no version both speak.
    Unfit(Unfit),
    /// The agent says that its answer is none.
    Fault(Fault),
    /// Our own message could not be written.
    Unwritable(String),
}

/// What went wrong, when, and what was seen until then.
#[derive(Debug)]
pub(crate) struct DriveError {
    /// How far it had come.
    pub(crate) stage: Stage,
    /// What went wrong.
    pub(crate) problem: Problem,
    /// How many lines came that were no messages.
    pub(crate) stray_lines: u64,
    /// The last that the agent wrote to stderr, made safe to show.
    pub(crate) stderr: String,
}

impl DriveError {
    /// A problem at `stage`.
    pub(crate) fn new(stage: Stage, problem: impl Into<Problem>) -> Self {
        Self { stage, problem: problem.into(), stray_lines: 0, stderr: String::new() }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(error) => Self::Refused(error),
            CallError::Deadline(limit) => Self::Deadline(limit),
            CallError::Lost { reason, .. } => Self::Lost(reason),
            CallError::Unwritable(reason) => Self::Unwritable(reason),
            CallError::Malformed(reason) => Self::Malformed(reason),
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// A failure that an agent reports in place of an answer, in `_meta["narrows/error"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Fault {
    /// What sort of failure it is, such as `auth` or `rate_limit`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) kind: String,
    /// The status of the endpoint's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Where the model was asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) url: String,
    /// The endpoint's own words, or the cause.
    pub(crate) message: String,
    /// Whether the same prompt may succeed later.
    pub(crate) retryable: bool,
}

impl Fault {
    /// The failure that `meta` reports, if it does.
    pub(crate) fn of(meta: Option<&Map<String, Value>>) -> Option<Self> {
        let reported = meta?.get("narrows/error").filter(|reported| !reported.is_null())?;
        // However it is written: what is marked as a failure is one.
        Some(Self::deserialize(reported).unwrap_or_default())
    }
}

/// Whether something is said only to keep a failure apart from what was said before, which is no part of the answer.
pub(super) fn separates(meta: Option<&Map<String, Value>>) -> bool {
    meta.is_some_and(|meta| meta.contains_key("narrows/separator"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_marked_as_a_failure_is_one() {
        #[track_caller]
        fn check(meta: &Value, expected: Option<(&str, bool)>) {
            let fault = Fault::of(meta.as_object());
            assert_eq!(fault.as_ref().map(|fault| (&*fault.message, fault.retryable)), expected, "{meta}");
        }
        check(&json!(null), None);
        check(&json!({}), None);
        check(&json!({"narrows/error": null}), None);
        check(&json!({"narrows/error": {"kind": "x", "message": "m", "retryable": true}}), Some(("m", true)));
        check(
            &json!({"narrows/error": {"kind": "auth", "status": null, "url": "", "message": "m", "retryable": false, "requestId": "r"}}),
            Some(("m", false)),
        );
        check(&json!({"narrows/error": {"message": 7}}), Some(("", false)));
        check(&json!({"narrows/error": "no"}), Some(("", false)));
    }
}
