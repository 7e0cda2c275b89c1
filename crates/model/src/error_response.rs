//! Parses failures from a status, headers and a body, or from a stream event.

mod classify;
mod context_window;
mod error_text;
mod retry_after;

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::error::{ErrorKind, ModelError, one_line};
use error_text::ErrorText;

/// Maximum number of bytes that are read of an error body.
pub(crate) const MAX_ERROR_BODY_BYTES: usize = 64 << 10;

/// A failure as reported by the provider, without the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorResponse {
    pub(crate) kind: ErrorKind,
    pub(crate) status: Option<u16>,
    pub(crate) message: String,
    /// `true` if the same request may succeed later. Applies only if no part of the answer was shown.
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) window: Option<u64>,
}

impl ErrorResponse {
    pub(crate) fn new(kind: ErrorKind, message: &str, retryable: bool) -> Self {
        Self { kind, status: None, message: one_line(message), retryable, retry_after: None, window: None }
    }

    /// Parses a response with an unsuccessful status. `body` may be cut at [`MAX_ERROR_BODY_BYTES`].
    pub(crate) fn from_response(status: u16, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Self {
        let words = ErrorText::from_body(body);
        let problem = Self::from_text(Some(status), &words, classify::classify_status);
        let wait = retry_after::from_headers(headers, now).or(problem.retry_after);
        let retry_after = wait.filter(|_| problem.retryable);
        if problem.message.is_empty() {
            let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
            let message = reason.unwrap_or("no explanation was given").to_owned();
            return Self { message, retry_after, ..problem };
        }
        Self { retry_after, ..problem }
    }

    /// Parses an error from a stream event: the whole event, or the value of its `error` field.
    pub(crate) fn from_event(event: &Value) -> Self {
        let words = ErrorText::from_value(event);
        let problem = Self::from_text(words.status, &words, classify::classify_event);
        if problem.message.is_empty() {
            let message = "the provider reports an error without a message".to_owned();
            return Self { message, ..problem };
        }
        problem
    }

    pub(crate) fn from_page(body: &[u8]) -> Self {
        let words = ErrorText::from_body(body);
        let message = if words.message.is_empty() {
            "the endpoint returned a web page".to_owned()
        } else {
            format!("the endpoint returned a web page: {}", words.message)
        };
        Self::new(ErrorKind::Garbage, &message, false)
    }

    fn from_text(
        status: Option<u16>,
        words: &ErrorText,
        class: fn(Option<u16>, &str) -> (ErrorKind, bool),
    ) -> Self {
        let marks = words.marks();
        let (kind, retryable) = class(status, &marks);
        let window = (kind == ErrorKind::Overflow)
            .then(|| words.window.or_else(|| context_window::from_text(&marks)))
            .flatten();
        let retry_after = retryable.then(|| words.delay.or_else(|| retry_after::from_text(&marks))).flatten();
        Self { kind, status, message: one_line(&words.message), retryable, retry_after, window }
    }

    /// Converts the failure to an error of the request to `url`.
    pub(crate) fn into_error(self, url: &str, request_id: Option<String>) -> ModelError {
        ModelError {
            status: self.status,
            retryable: self.retryable,
            retry_after: self.retry_after,
            window: self.window,
            request_id,
            ..ModelError::new(self.kind, url, &self.message)
        }
    }
}

pub(crate) fn read(status: u16, headers: &HeaderMap, body: &[u8], url: &str, now: SystemTime) -> ModelError {
    ErrorResponse::from_response(status, headers, body, now).into_error(url, request_id(headers))
}

/// Returns the id by which the provider can find the request.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    /// Headers that may contain the request id, the most useful one first.
    const NAMES: [&str; 7] = [
        "x-request-id",
        "request-id",
        "apim-request-id",
        "x-ms-request-id",
        "x-amzn-requestid",
        "x-generation-id",
        "cf-ray",
    ];
    /// Maximum length of a request id. A longer header value is something else.
    const MAX: usize = 200;
    let id = NAMES.iter().find_map(|name| headers.get(*name)?.to_str().ok().filter(|id| !id.is_empty()))?;
    Some(one_line(id).chars().take(MAX).collect())
}

#[cfg(test)]
mod tests;
