//! JSON-RPC errors: the codes, and the object that carries one.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Every code that Narrows sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Not JSON.
    ParseError,
    /// JSON, but no valid message.
    InvalidRequest,
    /// No such method.
    MethodNotFound,
    /// The method does not take these parameters.
    InvalidParams,
    /// Our fault.
    Internal,
    /// The agent wants the user to log in first.
    AuthRequired,
    /// No such session or resource.
    NotFound,
    /// The asker has cancelled the request.
    Cancelled,
    /// No common protocol version.
    UnsupportedVersion,
    /// The process that was to answer is gone.
    WorkerLost,
    /// No answer in time.
    Deadline,
    /// No room now.
    Backpressure,
    /// The line was longer than allowed.
    MessageTooLarge,
    /// The id is that of another request in flight.
    DuplicateId,
    /// A rule forbids it.
    PolicyDenied,
    /// Shutting down; no new work.
    Draining,
    /// The decision could not be recorded, so nothing was done.
    AuditUnavailable,
    /// The model endpoint failed.
    UpstreamError,
    /// A newer connection has taken over.
    ConnectionFenced,
    /// It is not known whether the operation took place.
    OutcomeUnknown,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::ParseError,
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::InvalidParams,
        Self::Internal,
        Self::AuthRequired,
        Self::NotFound,
        Self::Cancelled,
        Self::UnsupportedVersion,
        Self::WorkerLost,
        Self::Deadline,
        Self::Backpressure,
        Self::MessageTooLarge,
        Self::DuplicateId,
        Self::PolicyDenied,
        Self::Draining,
        Self::AuditUnavailable,
        Self::UpstreamError,
        Self::ConnectionFenced,
        Self::OutcomeUnknown,
    ];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> i32 {
        self.row().0
    }

    /// The name in `data.condition`.
    #[must_use]
    pub fn condition(self) -> &'static str {
        self.row().1
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn retryable(self) -> bool {
        self.row().2
    }

    fn row(self) -> (i32, &'static str, bool) {
        match self {
            Self::ParseError => (-32700, "parse_error", false),
            Self::InvalidRequest => (-32600, "invalid_request", false),
            Self::MethodNotFound => (-32601, "method_not_found", false),
            Self::InvalidParams => (-32602, "invalid_params", false),
            Self::Internal => (-32603, "internal_error", false),
            Self::AuthRequired => (-32000, "auth_required", true),
            Self::NotFound => (-32002, "not_found", false),
            Self::Cancelled => (-32800, "cancelled", false),
            Self::UnsupportedVersion => (-32022, "unsupported_version", false),
            Self::WorkerLost => (-32010, "worker_lost", true),
            Self::Deadline => (-32011, "deadline", true),
            Self::Backpressure => (-32012, "backpressure", true),
            Self::MessageTooLarge => (-32013, "message_too_large", false),
            Self::DuplicateId => (-32014, "duplicate_id", false),
            Self::PolicyDenied => (-32015, "policy_denied", false),
            Self::Draining => (-32016, "draining", true),
            Self::AuditUnavailable => (-32017, "audit_unavailable", true),
            Self::UpstreamError => (-32018, "upstream_error", true),
            Self::ConnectionFenced => (-32019, "connection_fenced", false),
            Self::OutcomeUnknown => (-32020, "operation_outcome_unknown", false),
        }
    }
}

/// Whether the failed request may have changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effects {
    /// Nothing happened.
    None,
    /// Something may have happened: do not simply send it again.
    Possible,
}

/// The `error` object of a response.
///
/// One made here carries `data: {condition, retryable, effects}`; one read from a peer carries what it carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// The number; [`Code`] has ours, a peer may use any.
    pub code: i64,
    /// One line for people.
    pub message: Cow<'static, str>,
    /// More, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error before anything was done.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let data =
            json!({"condition": code.condition(), "retryable": code.retryable(), "effects": Effects::None});
        Self { code: code.number().into(), message: message.into(), data: Some(data) }
    }

    /// The same, saying what may have happened.
    #[must_use]
    pub fn effects(self, effects: Effects) -> Self {
        self.with("effects", json!(effects))
    }

    /// The same, with one more field in `data`.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        if let Value::Object(fields) = self.data.get_or_insert_with(|| Value::Object(Map::new())) {
            fields.insert(key.to_owned(), value);
        }
        self
    }

    /// Whether this is the error `code`.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        self.code == i64::from(code.number())
    }
}

impl From<crate::Fault> for RpcError {
    fn from(fault: crate::Fault) -> Self {
        Self::new(fault.code(), fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_outside_the_reserved_ones_of_others() {
        let mut numbers: Vec<_> = Code::ALL.iter().map(|code| code.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Code::ALL.len());
    }

    #[test]
    fn an_error_says_what_it_is_and_what_may_have_happened() {
        let error = RpcError::new(Code::WorkerLost, "the agent exited")
            .effects(Effects::Possible)
            .with("worker", json!(3));
        let text = serde_json::to_value(&error).unwrap();
        let expected = json!({
            "code": -32010,
            "message": "the agent exited",
            "data": {"condition": "worker_lost", "retryable": true, "effects": "possible", "worker": 3},
        });
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_value::<RpcError>(text).unwrap(), error);
    }
}
