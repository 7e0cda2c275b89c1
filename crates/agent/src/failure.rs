//! Endpoint failures in the form for clients: a text for people, and fields for programs.

use narrows_model::{ErrorKind, ModelError};
use narrows_wire::{Code, RpcError};
use serde_json::{Value, json};

/// Key in `_meta` under which a failure is sent.
pub(crate) const ERROR_META_KEY: &str = "narrows/error";

/// Answer to a prompt while no endpoint is configured.
const UNCONFIGURED_MESSAGE: &str = "No model endpoint is configured, so nothing was sent. Set OPENAI_BASE_URL and \
    OPENAI_API_KEY (and OPENAI_MODEL) in the environment of `narrows acp`, or describe an endpoint in narrows.toml. \
    OPENAI_BASE_URL=builtin:demo selects the built-in demo model, which needs no key and no network.";

pub(crate) fn unconfigured() -> ModelError {
    ModelError {
        kind: ErrorKind::Unconfigured,
        status: None,
        url: String::new(),
        message: UNCONFIGURED_MESSAGE.to_owned(),
        retryable: false,
        retry_after: None,
        request_id: None,
        window: None,
        shown: false,
    }
}

/// Returns the text that the user sees instead of an answer.
pub(crate) fn text(error: &ModelError) -> String {
    let ModelError { kind, status, url, message, .. } = error;
    match (kind, status) {
        (ErrorKind::Unconfigured, _) => message.clone(),
        // Statuses 401 and 403 mean a wrong URL or key, regardless of the body.
        (_, Some(status @ (401 | 403))) => {
            format!("Authentication error (HTTP {status}) calling {url}. Check your OPENAI_API_KEY.")
        }
        (_, Some(429)) => format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."),
        (_, Some(status @ 500..)) => format!("Server error (HTTP {status}) from {url}."),
        (_, Some(status)) if *status >= 300 && message.is_empty() => {
            format!("HTTP error ({status}) from {url}.")
        }
        (_, Some(status)) if *status >= 300 => format!("HTTP error ({status}) from {url}: {message}"),
        (ErrorKind::Network | ErrorKind::Timeout | ErrorKind::Cut, _) => {
            format!("Network error connecting to {url}: {message}")
        }
        _ => format!("Unusable answer from {url}: {message}"),
    }
}

/// Returns the fields that accompany the text of [`text`], for programs.
pub(crate) fn fields(error: &ModelError) -> Value {
    let mut fields = json!({
        "kind": error.kind.name(),
        "status": error.status,
        "url": error.url,
        "retryable": error.retryable,
        "message": error.message,
    });
    if let Some(id) = &error.request_id {
        fields["requestId"] = id.as_str().into();
    }
    if let Some(wait) = error.retry_after {
        fields["retryAfterMs"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
    }
    fields
}

pub(crate) fn meta(error: &ModelError) -> Value {
    json!({ERROR_META_KEY: fields(error)})
}

pub(crate) fn rpc(error: &ModelError) -> RpcError {
    let code = match error.kind {
        ErrorKind::Auth => Code::AuthRequired,
        ErrorKind::Unconfigured => Code::Internal,
        _ => Code::UpstreamError,
    };
    let mut answer = RpcError::new(code, text(error));
    if let Value::Object(fields) = fields(error) {
        for (name, value) in fields {
            answer = answer.with(&name, value);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const URL: &str = "https://h/v1/chat/completions";

    fn error(kind: ErrorKind, status: Option<u16>, message: &str) -> ModelError {
        ModelError { kind, status, url: URL.to_owned(), message: message.to_owned(), ..unconfigured() }
    }

    #[track_caller]
    fn check(kind: ErrorKind, status: Option<u16>, message: &str, expected: &str) {
        assert_eq!(text(&error(kind, status, message)), expected);
    }

    #[test]
    fn failures_have_the_documented_texts() {
        let auth = "Authentication error (HTTP 401) calling https://h/v1/chat/completions. Check your OPENAI_API_KEY.";
        check(ErrorKind::Auth, Some(401), "bad key", auth);
        check(ErrorKind::Auth, Some(403), "", &auth.replace("401", "403"));
        let rate =
            "Rate limit exceeded (HTTP 429) calling https://h/v1/chat/completions. Please retry later.";
        check(ErrorKind::RateLimit, Some(429), "slow down", rate);
        check(ErrorKind::Quota, Some(429), "no money", rate);
        check(
            ErrorKind::Server,
            Some(503),
            "busy",
            "Server error (HTTP 503) from https://h/v1/chat/completions.",
        );
        let network = "Network error connecting to https://h/v1/chat/completions: connection refused";
        check(ErrorKind::Network, None, "connection refused", network);
        check(
            ErrorKind::Http,
            Some(404),
            "no such model",
            "HTTP error (404) from https://h/v1/chat/completions: no such model",
        );
        check(ErrorKind::Http, Some(418), "", "HTTP error (418) from https://h/v1/chat/completions.");
        check(
            ErrorKind::Garbage,
            Some(200),
            "a web page",
            "Unusable answer from https://h/v1/chat/completions: a web page",
        );
    }

    #[test]
    fn failures_have_fields_for_programs() {
        let error = error(ErrorKind::Auth, Some(401), "bad key");
        let answer = rpc(&error);
        assert_eq!(answer.code, -32000);
        let data = answer.data.unwrap();
        assert_eq!(
            (&data["kind"], &data["status"], &data["url"]),
            (&json!("auth"), &json!(401), &json!(URL))
        );
        assert_eq!(meta(&error)[ERROR_META_KEY]["message"], "bad key");
    }

    proptest! {
        #[test]
        fn every_status_has_a_text(status in 300u16..1000) {
            let said = text(&error(ErrorKind::Http, Some(status), ""));
            let expected = match status {
                401 | 403 => "Authentication error",
                429 => "Rate limit exceeded",
                500.. => "Server error",
                _ => "HTTP error",
            };
            prop_assert!(said.starts_with(expected), "{}", said);
            prop_assert!(said.contains(&status.to_string()) && said.contains(URL));
        }
    }
}
