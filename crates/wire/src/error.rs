//! JSON-RPC errors: the codes and the error object.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Every error code that Narrows sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The line is not JSON.
    ParseError,
    /// The line is JSON, but not a valid message.
    InvalidRequest,
    MethodNotFound,
    /// The method does not accept these parameters.
    InvalidParams,
    Internal,
    /// The user must log in to the agent first.
    AuthRequired,
    NotFound,
    Cancelled,
    UnsupportedVersion,
    WorkerLost,
    Deadline,
    /// A limit was reached or a queue is full. The sender may retry later.
    Backpressure,
    /// The line exceeds the limit.
    MessageTooLarge,
    /// Another request in flight has the same id.
    DuplicateId,
    /// A governance rule denies the request.
    PolicyDenied,
    /// The program is shutting down and accepts no new work.
    Draining,
    /// The decision could not be recorded, so the action was not carried out.
    AuditUnavailable,
    UpstreamError,
    /// A newer socket has taken over this connection.
    ConnectionFenced,
    /// The effect of the request is unknown.
    OutcomeUnknown,
}

impl Code {
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

    /// Returns the number for `code`.
    #[must_use]
    pub fn number(self) -> i32 {
        self.row().0
    }

    /// Returns the name for `data.condition`.
    #[must_use]
    pub fn condition(self) -> &'static str {
        self.row().1
    }

    /// Returns `true` if the same request may succeed later.
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

/// Possible effects of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effects {
    None,
    /// The request may have had an effect, so it must not be repeated blindly.
    Possible,
}

/// The `error` object of a response.
///
/// [`RpcError::new`] sets `data` to `{condition, retryable, effects}`. An error of a peer keeps the peer's
/// `data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// A number of [`Code`], or any number of a peer.
    pub code: i64,
    pub message: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// Creates an error of a request that had no effects.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let data =
            json!({"condition": code.condition(), "retryable": code.retryable(), "effects": Effects::None});
        Self { code: code.number().into(), message: message.into(), data: Some(data) }
    }

    /// Sets `data.effects`.
    #[must_use]
    pub fn effects(self, effects: Effects) -> Self {
        self.with("effects", json!(effects))
    }

    /// Adds a field to `data`.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        if let Value::Object(fields) = self.data.get_or_insert_with(|| Value::Object(Map::new())) {
            fields.insert(key.to_owned(), value);
        }
        self
    }

    /// Returns `true` if the error has this code.
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
    fn codes_are_distinct_and_avoid_foreign_reserved_ranges() {
        let mut numbers: Vec<_> = Code::ALL.iter().map(|code| code.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Code::ALL.len());
    }

    #[test]
    fn error_data_has_the_condition_and_effects() {
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
