//! What a failure is, read from a status, headers and a body, or from an event within a stream.

mod class;
mod wait;
mod window;
mod words;

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::error::{Error, Kind, one_line};
use words::Words;

/// How much of the body of a failure is worth reading.
pub(crate) const MAX_BODY: usize = 64 << 10;

/// A failure as the provider tells it; where it happened is not known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) status: Option<u16>,
    pub(crate) message: String,
    /// Whether the same request may work a little later, provided that nothing has been shown.
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) window: Option<u64>,
}

impl Problem {
    /// A failure of which only this is known.
    pub(crate) fn new(kind: Kind, message: &str, retryable: bool) -> Self {
        Self { kind, status: None, message: one_line(message), retryable, retry_after: None, window: None }
    }

    /// What an answer with a status other than success means. `body` may be cut at [`MAX_BODY`].
    pub(crate) fn of_response(status: u16, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Self {
        let words = Words::of_body(body);
        let problem = Self::of_words(Some(status), &words, class::of_status);
        let wait = wait::of_headers(headers, now).or(problem.retry_after);
        let retry_after = wait.filter(|_| problem.retryable);
        if problem.message.is_empty() {
            let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
            let message = reason.unwrap_or("no explanation was given").to_owned();
            return Self { message, retry_after, ..problem };
        }
        Self { retry_after, ..problem }
    }

    /// What an error in the place of a chunk, or beside one, means: the whole event, or what it has under `error`.
    pub(crate) fn of_event(event: &Value) -> Self {
        let words = Words::of_value(event);
        let problem = Self::of_words(words.status, &words, class::of_event);
        if problem.message.is_empty() {
            let message = "the provider reports an error without saying which".to_owned();
            return Self { message, ..problem };
        }
        problem
    }

    /// What a web page in the place of an answer means.
    pub(crate) fn of_page(body: &[u8]) -> Self {
        let words = Words::of_body(body);
        let message = if words.message.is_empty() {
            "a web page came in the place of an answer".to_owned()
        } else {
            format!("a web page came in the place of an answer: {}", words.message)
        };
        Self::new(Kind::Garbage, &message, false)
    }

    fn of_words(status: Option<u16>, words: &Words, class: fn(Option<u16>, &str) -> (Kind, bool)) -> Self {
        let marks = words.marks();
        let (kind, retryable) = class(status, &marks);
        let window =
            (kind == Kind::Overflow).then(|| words.window.or_else(|| window::of_text(&marks))).flatten();
        let retry_after = retryable.then(|| words.delay.or_else(|| wait::of_text(&marks))).flatten();
        Self { kind, status, message: one_line(&words.message), retryable, retry_after, window }
    }

    /// The failure of a request to `url`.
    pub(crate) fn into_error(self, url: &str, request_id: Option<String>) -> Error {
        Error {
            status: self.status,
            retryable: self.retryable,
            retry_after: self.retry_after,
            window: self.window,
            request_id,
            ..Error::new(self.kind, url, &self.message)
        }
    }
}

/// What an answer to `url` with a status other than success means.
pub(crate) fn read(status: u16, headers: &HeaderMap, body: &[u8], url: &str, now: SystemTime) -> Error {
    Problem::of_response(status, headers, body, now).into_error(url, request_id(headers))
}

/// What the provider can find the request by.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    /// Names in the order of how far they lead.
    const NAMES: [&str; 7] = [
        "x-request-id",
        "request-id",
        "apim-request-id",
        "x-ms-request-id",
        "x-amzn-requestid",
        "x-generation-id",
        "cf-ray",
    ];
    /// Longer ones are no ids.
    const MAX: usize = 200;
    let id = NAMES.iter().find_map(|name| headers.get(*name)?.to_str().ok().filter(|id| !id.is_empty()))?;
    Some(one_line(id).chars().take(MAX).collect())
}

#[cfg(test)]
mod tests;
