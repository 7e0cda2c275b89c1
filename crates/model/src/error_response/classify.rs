//! Classifies failures, and decides whether a retry can help.

use crate::error::ErrorKind;

/// Marks of an account without credit, for which waiting does not help. OpenAI's sentence is missing on
/// purpose: Gemini sends the same sentence for limits per minute.
const QUOTA: [&str; 6] = [
    "insufficient_quota",
    "insufficient quota",
    "insufficient balance",
    "insufficient credits",
    "credit balance is too low",
    "billing_hard_limit_reached",
];

const OVERFLOW: [&str; 21] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    "contextwindowexceedederror",
    "context_window_exceeded",
    "maximum context length",
    "maximum prompt length",
    "longer than the maximum model length",
    "exceeds the available context size",
    "exceeds the context window",
    "exceeds the model's context",
    "exceed context window",
    "context length exceeded",
    "context window exceeded",
    "greater than the context length",
    "loaded with context length of only",
    "longer than the model's context length",
    "prompt is too long",
    "input is too long for requested model",
    "exceeds the maximum number of tokens allowed",
    "reduce the length of the messages",
    "request too large for",
];

/// Marks of an invalid key, which count even if the status says otherwise.
const AUTH: [&str; 7] = [
    "api key not valid",
    "api_key_invalid",
    "invalid_api_key",
    "incorrect api key",
    "invalid api key",
    "no api key passed in",
    "invalid proxy server token",
];

const UNSUPPORTED: [&str; 14] = [
    "image input is not supported",
    "image input not supported",
    "audio input is not supported",
    "does not support image",
    "doesn't support image",
    "do not support image",
    "support image input",
    "image_url is only supported",
    "not a multimodal model",
    "does not support audio",
    "support audio input",
    "does not support tools",
    "does not support function calling",
    "support tool use",
];

const BUSY: [&str; 4] = ["rate_limit", "rate limit", "ratelimit", "resource_exhausted"];

/// Marks of an invalid request, for which a retry would fail again.
const INVALID_REQUEST_MARKS: [&str; 6] =
    ["invalid_request", "invalid_argument", "badrequest", "bad_request", "not_found", "permission"];

/// Classifies a response by its status and by its text in lower case. The flag is `true` if a retry can help.
pub(super) fn classify_status(status: Option<u16>, marks: &str) -> (ErrorKind, bool) {
    let status = status.unwrap_or(0);
    let kind = match status {
        401 | 403 => ErrorKind::Auth,
        402 => ErrorKind::Quota,
        413 => ErrorKind::Overflow,
        400..600 => by_words(marks).unwrap_or(match status {
            429 => ErrorKind::RateLimit,
            500..600 => ErrorKind::Server,
            _ => ErrorKind::Http,
        }),
        _ => ErrorKind::Http,
    };
    (kind, may_pass(kind) && is_passing(status))
}

/// Classifies an error event of a stream, which may have a status of its own.
pub(super) fn classify_event(status: Option<u16>, marks: &str) -> (ErrorKind, bool) {
    let kind = by_words(marks).unwrap_or(match status {
        Some(401) => ErrorKind::Auth,
        Some(402) => ErrorKind::Quota,
        Some(413) => ErrorKind::Overflow,
        Some(429) => ErrorKind::RateLimit,
        _ if has_any(marks, &BUSY) => ErrorKind::RateLimit,
        _ => ErrorKind::Provider,
    });
    let passing = status.map_or_else(|| !has_any(marks, &INVALID_REQUEST_MARKS), is_passing);
    (kind, may_pass(kind) && passing)
}

/// Returns the kind of failure if the text shows it better than the status.
fn by_words(marks: &str) -> Option<ErrorKind> {
    if has_any(marks, &QUOTA) {
        Some(ErrorKind::Quota)
    } else if has_any(marks, &OVERFLOW) {
        Some(ErrorKind::Overflow)
    } else if has_any(marks, &AUTH) {
        Some(ErrorKind::Auth)
    } else if has_any(marks, &UNSUPPORTED) {
        Some(ErrorKind::Unsupported)
    } else {
        None
    }
}

fn has_any(marks: &str, words: &[&str]) -> bool {
    words.iter().any(|word| marks.contains(word))
}

/// Returns `true` if failures of this kind can be temporary.
fn may_pass(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Quota | ErrorKind::Overflow | ErrorKind::Auth | ErrorKind::Unsupported)
}

/// Returns `true` if the status reports a temporary failure, not an invalid request.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..600)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_status_has_a_kind() {
        for status in 100..600 {
            let expected = match status {
                401 | 403 => (ErrorKind::Auth, false),
                402 => (ErrorKind::Quota, false),
                408 | 409 | 425 => (ErrorKind::Http, true),
                413 => (ErrorKind::Overflow, false),
                429 => (ErrorKind::RateLimit, true),
                _ if status >= 500 => (ErrorKind::Server, true),
                _ => (ErrorKind::Http, false),
            };
            assert_eq!(classify_status(Some(status), "something went wrong"), expected, "{status}");
        }
    }

    #[track_caller]
    fn check(status: u16, marks: &str, kind: ErrorKind, retryable: bool) {
        assert_eq!(classify_status(Some(status), marks), (kind, retryable), "{status} {marks}");
    }

    #[test]
    fn text_overrides_the_status() {
        check(429, "you exceeded your current quota\ninsufficient_quota", ErrorKind::Quota, false);
        check(429, "you exceeded your current quota\nresource_exhausted", ErrorKind::RateLimit, true);
        check(400, "x\ncontext_length_exceeded", ErrorKind::Overflow, false);
        check(400, "x\nexceed_context_size_error", ErrorKind::Overflow, false);
        check(500, "litellm.contextwindowexceedederror: x", ErrorKind::Overflow, false);
        check(429, "request too large for gpt-4o on tokens per min", ErrorKind::Overflow, false);
        check(400, "api key not valid. please pass a valid api key.", ErrorKind::Auth, false);
        check(500, "image input is not supported - hint: mmproj", ErrorKind::Unsupported, false);
        check(404, "no endpoints found that support image input", ErrorKind::Unsupported, false);
        check(400, "m does not support tools", ErrorKind::Unsupported, false);
        check(400, "max_tokens is too large: 9", ErrorKind::Http, false);
        check(503, "loading model", ErrorKind::Server, true);
        check(401, "maximum context length is 5", ErrorKind::Auth, false);
    }

    #[track_caller]
    fn check_event(status: Option<u16>, marks: &str, kind: ErrorKind, retryable: bool) {
        assert_eq!(classify_event(status, marks), (kind, retryable), "{status:?} {marks}");
    }

    #[test]
    fn an_event_is_the_providers_own_failure() {
        check_event(None, "it broke", ErrorKind::Provider, true);
        check_event(Some(502), "it broke", ErrorKind::Provider, true);
        check_event(Some(400), "it broke", ErrorKind::Provider, false);
        check_event(Some(429), "slow", ErrorKind::RateLimit, true);
        check_event(None, "x\nrate_limit_exceeded", ErrorKind::RateLimit, true);
        check_event(Some(401), "x", ErrorKind::Auth, false);
        check_event(Some(402), "x", ErrorKind::Quota, false);
        check_event(None, "x\ncontext_length_exceeded", ErrorKind::Overflow, false);
        check_event(None, "x\ninvalid_request_error", ErrorKind::Provider, false);
    }

    proptest! {
        #[test]
        fn permanent_failures_are_never_retried(
            status in 100..600u16,
            words in prop::sample::select([QUOTA.as_slice(), &OVERFLOW, &AUTH, &UNSUPPORTED].concat()),
            before in "[a-z ]{0,10}",
            behind in "[a-z ]{0,10}",
        ) {
            let marks = format!("{before}{words}{behind}");
            prop_assert!(!classify_status(Some(status), &marks).1);
            prop_assert!(!classify_event(Some(status), &marks).1);
        }

        #[test]
        fn words_never_make_a_refusal_retryable(
            status in prop::sample::select(vec![400u16, 401, 402, 403, 404, 405, 410, 413, 415, 422, 451]),
            marks in "[ -~]{0,80}",
        ) {
            prop_assert!(!classify_status(Some(status), &marks).1);
        }
    }
}
