//! The kind of a failure, and whether to try again.

use crate::error::Kind;

/// The account is out of credit, which no waiting changes. The sentence that OpenAI sends with its code is no mark:
/// Gemini sends the same for limits per minute.
const QUOTA: [&str; 6] = [
    "insufficient_quota",
    "insufficient quota",
    "insufficient balance",
    "insufficient credits",
    "credit balance is too low",
    "billing_hard_limit_reached",
];

/// The conversation does not fit into the context window.
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

/// The key is wrong, though the status says something else.
const AUTH: [&str; 7] = [
    "api key not valid",
    "api_key_invalid",
    "invalid_api_key",
    "incorrect api key",
    "invalid api key",
    "no api key passed in",
    "invalid proxy server token",
];

/// The model cannot take what was sent.
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

/// The provider has too much to do.
const BUSY: [&str; 4] = ["rate_limit", "rate limit", "ratelimit", "resource_exhausted"];

/// The request itself is at fault, so that it fails again.
const AT_FAULT: [&str; 6] =
    ["invalid_request", "invalid_argument", "badrequest", "bad_request", "not_found", "permission"];

/// What an answer with this status and these words, in lower case, means, and whether to try again.
pub(super) fn of_status(status: Option<u16>, marks: &str) -> (Kind, bool) {
    let status = status.unwrap_or(0);
    let kind = match status {
        401 | 403 => Kind::Auth,
        402 => Kind::Quota,
        413 => Kind::Overflow,
        400..600 => by_words(marks).unwrap_or(match status {
            429 => Kind::RateLimit,
            500..600 => Kind::Server,
            _ => Kind::Http,
        }),
        _ => Kind::Http,
    };
    (kind, may_pass(kind) && is_passing(status))
}

/// What an error within a stream means, which may name a status of its own.
pub(super) fn of_event(status: Option<u16>, marks: &str) -> (Kind, bool) {
    let kind = by_words(marks).unwrap_or(match status {
        Some(401) => Kind::Auth,
        Some(402) => Kind::Quota,
        Some(413) => Kind::Overflow,
        Some(429) => Kind::RateLimit,
        _ if has_any(marks, &BUSY) => Kind::RateLimit,
        _ => Kind::Provider,
    });
    let passing = status.map_or_else(|| !has_any(marks, &AT_FAULT), is_passing);
    (kind, may_pass(kind) && passing)
}

/// The kinds that words tell more surely than a status.
fn by_words(marks: &str) -> Option<Kind> {
    if has_any(marks, &QUOTA) {
        Some(Kind::Quota)
    } else if has_any(marks, &OVERFLOW) {
        Some(Kind::Overflow)
    } else if has_any(marks, &AUTH) {
        Some(Kind::Auth)
    } else if has_any(marks, &UNSUPPORTED) {
        Some(Kind::Unsupported)
    } else {
        None
    }
}

fn has_any(marks: &str, words: &[&str]) -> bool {
    words.iter().any(|word| marks.contains(word))
}

/// Whether waiting helps against a failure of this kind at all.
fn may_pass(kind: Kind) -> bool {
    !matches!(kind, Kind::Quota | Kind::Overflow | Kind::Auth | Kind::Unsupported)
}

/// Whether a status speaks of the moment and not of the request.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..600)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_status_has_its_kind() {
        for status in 100..600 {
            let expected = match status {
                401 | 403 => (Kind::Auth, false),
                402 => (Kind::Quota, false),
                408 | 409 | 425 => (Kind::Http, true),
                413 => (Kind::Overflow, false),
                429 => (Kind::RateLimit, true),
                _ if status >= 500 => (Kind::Server, true),
                _ => (Kind::Http, false),
            };
            assert_eq!(of_status(Some(status), "something went wrong"), expected, "{status}");
        }
    }

    #[track_caller]
    fn check(status: u16, marks: &str, kind: Kind, retryable: bool) {
        assert_eq!(of_status(Some(status), marks), (kind, retryable), "{status} {marks}");
    }

    #[test]
    fn words_tell_more_than_a_status() {
        check(429, "you exceeded your current quota\ninsufficient_quota", Kind::Quota, false);
        check(429, "you exceeded your current quota\nresource_exhausted", Kind::RateLimit, true);
        check(400, "x\ncontext_length_exceeded", Kind::Overflow, false);
        check(400, "x\nexceed_context_size_error", Kind::Overflow, false);
        check(500, "litellm.contextwindowexceedederror: x", Kind::Overflow, false);
        check(429, "request too large for gpt-4o on tokens per min", Kind::Overflow, false);
        check(400, "api key not valid. please pass a valid api key.", Kind::Auth, false);
        check(500, "image input is not supported - hint: mmproj", Kind::Unsupported, false);
        check(404, "no endpoints found that support image input", Kind::Unsupported, false);
        check(400, "m does not support tools", Kind::Unsupported, false);
        check(400, "max_tokens is too large: 9", Kind::Http, false);
        check(503, "loading model", Kind::Server, true);
        check(401, "maximum context length is 5", Kind::Auth, false);
    }

    #[track_caller]
    fn check_event(status: Option<u16>, marks: &str, kind: Kind, retryable: bool) {
        assert_eq!(of_event(status, marks), (kind, retryable), "{status:?} {marks}");
    }

    #[test]
    fn an_event_is_the_providers_own_failure() {
        check_event(None, "it broke", Kind::Provider, true);
        check_event(Some(502), "it broke", Kind::Provider, true);
        check_event(Some(400), "it broke", Kind::Provider, false);
        check_event(Some(429), "slow", Kind::RateLimit, true);
        check_event(None, "x\nrate_limit_exceeded", Kind::RateLimit, true);
        check_event(Some(401), "x", Kind::Auth, false);
        check_event(Some(402), "x", Kind::Quota, false);
        check_event(None, "x\ncontext_length_exceeded", Kind::Overflow, false);
        check_event(None, "x\ninvalid_request_error", Kind::Provider, false);
    }

    proptest! {
        #[test]
        fn what_cannot_pass_is_never_tried_again(
            status in 100..600u16,
            words in prop::sample::select([QUOTA.as_slice(), &OVERFLOW, &AUTH, &UNSUPPORTED].concat()),
            before in "[a-z ]{0,10}",
            behind in "[a-z ]{0,10}",
        ) {
            let marks = format!("{before}{words}{behind}");
            prop_assert!(!of_status(Some(status), &marks).1);
            prop_assert!(!of_event(Some(status), &marks).1);
        }

        #[test]
        fn words_never_make_a_refusal_retryable(
            status in prop::sample::select(vec![400u16, 401, 402, 403, 404, 405, 410, 413, 415, 422, 451]),
            marks in "[ -~]{0,80}",
        ) {
            prop_assert!(!of_status(Some(status), &marks).1);
        }
    }
}
