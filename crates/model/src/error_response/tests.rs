use proptest::prelude::*;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::json;

use super::*;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
    };
    fields.iter().map(field).collect()
}

fn failed(status: u16, fields: &[(&str, &str)], body: &str) -> ModelError {
    read(
        status,
        &headers(fields),
        body.as_bytes(),
        "https://h/v1/chat/completions?k=v",
        SystemTime::UNIX_EPOCH,
    )
}

#[test]
fn a_response_becomes_an_error() {
    let error = failed(
        429,
        &[("retry-after", "3"), ("x-request-id", "req_1")],
        r#"{"error":{"message":"Rate limit reached.\nPlease try again in 300ms.","type":"tokens"}}"#,
    );
    let expected = ModelError {
        kind: ErrorKind::RateLimit,
        status: Some(429),
        url: "https://h/v1/chat/completions".to_owned(),
        message: "Rate limit reached. Please try again in 300ms.".to_owned(),
        retryable: true,
        retry_after: Some(Duration::from_secs(3)),
        request_id: Some("req_1".to_owned()),
        window: None,
        shown: false,
    };
    assert_eq!(error, expected);
}

#[test]
fn the_message_gives_the_wait_if_no_header_does() {
    let error = failed(429, &[], r#"{"error":{"message":"Please try again in 300ms."}}"#);
    assert_eq!(error.retry_after, Some(Duration::from_millis(300)));
    let error = failed(400, &[("retry-after", "3")], r#"{"error":{"message":"try again in 1s"}}"#);
    assert_eq!((error.retryable, error.retry_after), (false, None));
}

#[test]
fn an_overflow_reports_the_window() {
    #[track_caller]
    fn check(status: u16, body: &str, window: Option<u64>) {
        let error = failed(status, &[], body);
        assert_eq!(
            (error.kind, error.window, error.retryable),
            (ErrorKind::Overflow, window, false),
            "{body}"
        );
    }
    check(
        400,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":700,"n_ctx":256}}"#,
        Some(256),
    );
    check(
        400,
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","code":"context_length_exceeded"}}"#,
        Some(8192),
    );
    check(413, "", None);
}

#[test]
fn a_response_without_a_message_is_named_by_its_status() {
    assert_eq!(failed(404, &[], "").message, "Not Found");
    assert_eq!(failed(599, &[], "{}").message, "no explanation was given");
    assert_eq!(failed(502, &[], "<html><title>Bad gateway</title>").message, "Bad gateway");
}

#[test]
fn an_error_event_is_parsed() {
    #[track_caller]
    fn check(event: &Value, kind: ErrorKind, status: Option<u16>, message: &str) {
        let problem = ErrorResponse::from_event(event);
        assert_eq!((problem.kind, problem.status, &*problem.message), (kind, status, message), "{event}");
    }
    check(&json!({"error": {"message": "m", "code": 502}}), ErrorKind::Provider, Some(502), "m");
    check(&json!({"error": "m"}), ErrorKind::Provider, None, "m");
    check(&json!({"message": "m", "code": "rate_limit_exceeded"}), ErrorKind::RateLimit, None, "m");
    let silent = "the provider reports an error without a message";
    check(&json!({"error": {"code": 1}}), ErrorKind::Provider, None, silent);
}

#[test]
fn a_web_page_is_not_an_answer() {
    let problem = ErrorResponse::from_page(b"<html><title>Sign in</title>");
    assert_eq!(problem.kind, ErrorKind::Garbage);
    assert_eq!(problem.message, "the endpoint returned a web page: Sign in");
    assert!(!problem.retryable);
    assert_eq!(ErrorResponse::from_page(b"<p>").message, "the endpoint returned a web page");
}

#[test]
fn request_ids_are_found_under_many_names() {
    assert_eq!(request_id(&headers(&[])), None);
    assert_eq!(request_id(&headers(&[("x-request-id", "")])), None);
    assert_eq!(request_id(&headers(&[("cf-ray", "b"), ("x-request-id", "a")])), Some("a".to_owned()));
    assert_eq!(request_id(&headers(&[("cf-ray", &"b".repeat(900))])).map(|id| id.len()), Some(200));
}

proptest! {
    #[test]
    fn any_body_gives_one_short_line(status in 100..600u16, body in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let problem = ErrorResponse::from_response(status, &HeaderMap::new(), &body, SystemTime::UNIX_EPOCH);
        prop_assert!(!problem.message.is_empty());
        prop_assert!(problem.message.chars().count() <= 2000);
        prop_assert!(!problem.message.chars().any(char::is_control));
        prop_assert_eq!(problem.status, Some(status));
    }
}
