//! Failures: their kind, their message, and the secrets that are never shown.

use std::time::Duration;

use narrows_model::{Client, ErrorKind, ModelError, Provider};
use narrows_testkit::model::{ModelServer, Reply, Step, nobody, preset};
use serde_json::json;

use crate::support::{ask, client_with, endpoint, request};

async fn failure(reply: Reply, key: &str) -> ModelError {
    let server = ModelServer::start(reply);
    let client = client_with(&server, |endpoint| {
        endpoint.limits.attempts = 1;
        endpoint.key = Some(key.into());
        endpoint.query.push(("code".to_owned(), "hidden-parameter".to_owned()));
    });
    let outcome = ask(&client, &request()).await;
    assert!(outcome.events.is_empty(), "{outcome:?}");
    let error = outcome.failed().clone();
    assert_eq!(error.url, server.url("/v1/chat/completions"), "without its query");
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(key) && !shown.contains("hidden-parameter"), "{shown}");
        assert!(!shown.contains('\n'), "{shown}");
    }
    error
}

async fn check(reply: Reply, kind: ErrorKind, status: u16, retryable: bool, said: &str) {
    let shown = format!("{reply:?}");
    let error = failure(reply, "sk-secret-key").await;
    assert_eq!(
        (error.kind, error.status, error.retryable),
        (kind, Some(status), retryable),
        "{error:?}\n{shown}"
    );
    assert!(error.message.contains(said), "{error:?}\n{shown}");
    assert!(!error.shown);
}

#[tokio::test]
async fn statuses_have_kinds() {
    for (status, kind, retryable) in [
        (400, ErrorKind::Http, false),
        (401, ErrorKind::Auth, false),
        (402, ErrorKind::Quota, false),
        (403, ErrorKind::Auth, false),
        (404, ErrorKind::Http, false),
        (408, ErrorKind::Http, true),
        (409, ErrorKind::Http, true),
        (413, ErrorKind::Overflow, false),
        (422, ErrorKind::Http, false),
        (425, ErrorKind::Http, true),
        (429, ErrorKind::RateLimit, true),
        (500, ErrorKind::Server, true),
        (502, ErrorKind::Server, true),
        (503, ErrorKind::Server, true),
        (529, ErrorKind::Server, true),
    ] {
        check(Reply::refused(status, "the words"), kind, status, retryable, "the words").await;
    }
}

#[tokio::test]
async fn the_message_is_found_in_every_field() {
    for body in [
        json!({"error": {"message": "the words"}}),
        json!({"error": "the words"}),
        json!({"message": "the words"}),
        json!({"object": "error", "message": "the words", "code": 400}),
        json!({"detail": "the words"}),
        json!({"detail": [{"loc": ["body", "x"], "msg": "the words", "type": "missing"}]}),
        json!({"message": {"detail": [{"loc": ["body", "x"], "msg": "the words"}]}}),
        json!([{"error": {"code": 400, "message": "the words", "status": "INVALID"}}]),
    ] {
        check(Reply::error(400, &body), ErrorKind::Http, 400, false, "the words").await;
    }
    check(Reply::document(400, "text/plain", "the words\n"), ErrorKind::Http, 400, false, "the words").await;
    let page = "<html><head><title>\n the words &amp; more </title></head><body>nothing of use</body></html>";
    let error = failure(Reply::document(502, "text/html", page), "sk-secret-key").await;
    assert!(error.message.contains("the words") && !error.message.contains("nothing of use"), "{error:?}");
}

#[tokio::test]
async fn without_a_message_the_status_is_reported() {
    for reply in
        [Reply::document(418, "text/plain", ""), Reply::json(418, &json!({})), Reply::json(418, &json!(null))]
    {
        let error = failure(reply, "sk-secret-key").await;
        assert_eq!((error.kind, error.status), (ErrorKind::Http, Some(418)));
        assert!(error.to_string().contains("418"), "{error}");
    }
}

#[tokio::test]
async fn every_provider_words_refusals_differently() {
    check(preset::openai::rate_limit(), ErrorKind::RateLimit, 429, true, "Too many requests").await;
    check(preset::openai::quota(), ErrorKind::Quota, 429, false, "quota").await;
    check(preset::azure::bad_key(), ErrorKind::Auth, 401, false, "subscription key").await;
    check(preset::azure::no_version(), ErrorKind::Http, 404, false, "Resource not found").await;
    check(preset::openrouter::payment(), ErrorKind::Quota, 402, false, "credits").await;
    check(preset::deepseek::payment(), ErrorKind::Quota, 402, false, "Balance").await;
    check(preset::groq::rate_limit(), ErrorKind::RateLimit, 429, true, "tokens per minute").await;
    check(preset::gemini::bad_key(), ErrorKind::Http, 400, false, "not valid").await;
    check(preset::gemini::overloaded(), ErrorKind::Server, 503, true, "overloaded").await;
    check(preset::ollama::no_model(), ErrorKind::Http, 404, false, "there is no model").await;
    check(preset::litellm::bad_key(), ErrorKind::Http, 400, false, "No connected db").await;
    check(preset::litellm::no_key(), ErrorKind::Server, 500, true, "Internal Server Error").await;
    check(preset::llamacpp::loading(), ErrorKind::Server, 503, true, "Loading model").await;
    check(preset::lmstudio::refused(), ErrorKind::Http, 400, false, "not enough memory").await;
}

#[tokio::test]
async fn an_overflow_reports_the_window_if_stated() {
    for (reply, window) in [
        (preset::openai::overflow(), Some(8192)),
        (preset::vllm::overflow(), Some(4096)),
        (preset::llamacpp::overflow(), Some(256)),
        (preset::litellm::overflow(), None),
        (Reply::refused(413, "too much"), None),
    ] {
        let error = failure(reply, "sk-secret-key").await;
        assert_eq!(
            (error.kind, error.window, error.retryable),
            (ErrorKind::Overflow, window, false),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn an_error_may_have_a_success_status() {
    let error = failure(preset::openrouter::error_in_200(), "sk-secret-key").await;
    assert!(matches!(error.kind, ErrorKind::Provider | ErrorKind::RateLimit), "{error:?}");
    assert!(error.message.contains("busy") && error.retryable, "{error:?}");
    let error = failure(Reply::json(200, &json!({"error": "no such model"})), "sk-secret-key").await;
    assert_eq!(error.kind, ErrorKind::Provider, "{error:?}");
    assert!(error.message.contains("no such model"), "{error:?}");
}

#[tokio::test]
async fn errors_contain_the_request_id() {
    for name in ["x-request-id", "request-id", "apim-request-id"] {
        let error = failure(Reply::refused(400, "no").header(name, "req-7"), "sk-secret-key").await;
        assert_eq!(error.request_id.as_deref(), Some("req-7"), "{name}");
        assert!(error.to_string().contains("req-7"), "{error}");
    }
}

#[tokio::test]
async fn the_key_is_never_repeated() {
    // The helper checks that no form of the error contains the key.
    let error = failure(preset::openai::bad_key("sk-very-secret"), "sk-very-secret").await;
    assert_eq!(error.kind, ErrorKind::Auth);
    let long = format!("{}sk-very-secret", "x".repeat(1990));
    failure(Reply::refused(400, &long), "sk-very-secret").await;
    let page = "<html><title>Key sk-very-secret is wrong</title></html>";
    failure(Reply::document(200, "text/html", page), "sk-very-secret").await;
    failure(Reply::json(200, &json!({"error": "Key sk-very-secret is wrong"})), "sk-very-secret").await;
}

#[tokio::test]
async fn error_messages_are_escaped_and_shortened() {
    let error =
        failure(Reply::refused(400, "red \u{1b}[31m alert\r\nsecond line\u{202e}\0"), "sk-secret-key").await;
    assert!(!error.message.chars().any(char::is_control), "{:?}", error.message);
    assert!(error.message.contains("second line"), "{:?}", error.message);
    let error = failure(Reply::refused(400, &"é".repeat(100_000)), "sk-secret-key").await;
    assert!(error.message.chars().count() <= 2000, "{}", error.message.len());
}

#[tokio::test]
async fn a_long_refusal_is_not_read_to_its_end() {
    let endless = Reply::stream(["no. "]).status(400).then(Step::Forever(vec![b'x'; 8192], Duration::ZERO));
    let server = ModelServer::start(endless);
    let client = client_with(&server, |endpoint| endpoint.limits.attempts = 1);
    let outcome = ask(&client, &request()).await;
    assert_eq!((outcome.failed().kind, outcome.failed().status), (ErrorKind::Http, Some(400)));
    assert!(outcome.failed().message.starts_with("no. "));
    server.hung_up().await;
}

#[tokio::test]
async fn an_incomplete_refusal_is_a_refusal() {
    for end in [Step::Close, Step::Cut] {
        let reply = Reply::stream(["{\"error\": {\"message\": \"the wo"])
            .status(404)
            .then(Step::Pause(Duration::from_millis(150)))
            .then(end);
        let error = failure(reply, "sk-secret-key").await;
        assert_eq!((error.kind, error.status), (ErrorKind::Http, Some(404)), "{error:?}");
    }
}

#[tokio::test]
async fn redirects_to_other_hosts_do_not_get_the_key() {
    let other = ModelServer::start(Reply::text("stolen"));
    for status in [301, 302, 303, 307, 308] {
        let away =
            Reply::document(status, "text/plain", "").header("location", &other.url("/v1/chat/completions"));
        let server = ModelServer::start(away);
        for provider in [Provider::Other, Provider::AzureDated] {
            let client = client_with(&server, |endpoint| {
                endpoint.provider = Some(provider);
                endpoint.key = Some("sk-secret-key".into());
                endpoint.limits.attempts = 1;
            });
            let outcome = ask(&client, &request()).await;
            assert_eq!(outcome.failed().status, Some(status), "{:?}", outcome.failed());
        }
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn a_server_that_does_not_speak_http_is_a_network_error() {
    let greeting = Reply::raw("").before(Step::Bytes(b"220 mail.example.org ready\r\n".to_vec()));
    for reply in [Reply::close(), Reply::cut(), greeting.before(Step::Close)] {
        let error = failure(reply, "sk-secret-key").await;
        assert_eq!((error.kind, error.status), (ErrorKind::Network, None), "{error:?}");
        assert!(!error.message.is_empty());
    }
}

#[tokio::test]
async fn the_cause_of_a_failed_connection_is_reported() {
    let mut endpoint = endpoint(&nobody().0);
    endpoint.limits.attempts = 1;
    let client = Client::new(endpoint).expect("the settings are good");
    let outcome = ask(&client, &request()).await;
    let error = outcome.failed();
    assert_eq!((error.kind, error.retryable), (ErrorKind::Network, true), "{error:?}");
    assert!(error.message.to_lowercase().contains("refused"), "{error:?}");
}
