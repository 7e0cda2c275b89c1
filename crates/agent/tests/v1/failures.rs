//! Failing endpoints: the text, the fields beside it, and the session after the failure.

use std::time::Duration;

use narrows_agent::{FailureFormat, Settings};
use narrows_testkit::model::{ModelServer, Plan, Reply, Step, data, delta, nobody};
use serde_json::{Value, json};

use crate::common::{Client, chats, last_messages, settings};

const KEY: &str = "narrows/error";
const ANSWER: &str = "The answer after the failure";

fn url(server: &ModelServer) -> String {
    format!("{}/chat/completions", server.base_url())
}

/// Starts an agent with an endpoint that fails once and then works. Uses short timeouts if the failure is a
/// timeout.
fn failing_once(reply: Reply, errors: FailureFormat, kind: &str) -> (ModelServer, Settings) {
    let server = ModelServer::start(Plan::new([Reply::text("The first answer"), reply, Reply::text(ANSWER)]));
    let mut settings = Settings { errors, ..settings(&server) };
    let limits = &mut settings.routes[0].endpoint.limits;
    limits.max_line = 4096;
    limits.max_reply = 65536;
    if kind == "timeout" {
        limits.first_event = Duration::from_millis(400);
        limits.idle = Duration::from_millis(400);
        limits.total = Duration::from_millis(1000);
    }
    (server, settings)
}

/// Runs a turn that works, one that fails, and one that works. Returns response and text of the second one.
async fn fail(server: &ModelServer, settings: Settings) -> (Result<Value, Value>, Vec<Value>) {
    let mut client = Client::v1(settings, json!({})).await;
    let session = client.session().await;
    client.prompt(&session, "One").await.unwrap();
    client.forget();
    let outcome = client.prompt(&session, "Two").await;
    let chunks = std::mem::take(&mut client.updates);
    let chunks =
        chunks.into_iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk").collect();
    assert_eq!(client.prompt(&session, "Three").await.unwrap()["stopReason"], "end_turn");
    assert_eq!(client.text(), ANSWER, "the session continues");
    let kept: Vec<Value> =
        last_messages(server).as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(kept, ["One", "The first answer", "Three"], "nothing of the failed turn is kept");
    client.forget();
    client.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await.unwrap();
    assert_eq!(client.text(), format!("The first answer{ANSWER}"), "not replayed");
    client.leave().await;
    (outcome, chunks)
}

/// Checks one failure. `expected` contains `{url}` and `{message}`; `shown` is the text before the failure.
async fn check(name: &str, reply: Reply, kind: &str, status: Option<u16>, expected: &str, shown: &str) {
    let (server, settings) = failing_once(reply.clone(), FailureFormat::Text, kind);
    let (outcome, chunks) = fail(&server, settings).await;
    let end = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(end["stopReason"], "end_turn", "{name}");
    let fields = &end["_meta"][KEY];
    let told = (&fields["kind"], &fields["status"], &fields["url"]);
    assert_eq!(told, (&json!(kind), &json!(status), &json!(url(&server))), "{name}: {fields}");
    assert!(fields["retryable"].is_boolean() && fields["message"].is_string(), "{name}: {fields}");
    let message = fields["message"].as_str().unwrap();
    let expected =
        |server: &ModelServer| expected.replace("{url}", &url(server)).replace("{message}", message);
    let last = chunks.last().unwrap();
    assert_eq!(last["content"]["text"], json!(expected(&server)), "{name}");
    assert_eq!(last["_meta"][KEY], *fields, "{name}: the chunk has the fields as well");
    let with_fields = chunks.iter().filter(|chunk| chunk["_meta"].get(KEY).is_some()).count();
    assert_eq!(with_fields, 1, "{name}: it is said once");
    let before: String =
        chunks[..chunks.len() - 1].iter().filter_map(|chunk| chunk["content"]["text"].as_str()).collect();
    let break_ = if shown.is_empty() { "" } else { "\n\n" };
    assert_eq!(before, format!("{shown}{break_}"), "{name}");

    let (server, settings) = failing_once(reply, FailureFormat::Rpc, kind);
    let (outcome, chunks) = fail(&server, settings).await;
    let error = outcome.expect_err(name);
    let code = if kind == "auth" { -32000 } else { -32018 };
    assert_eq!(error["code"], code, "{name}: {error}");
    assert_eq!(error["message"], json!(expected(&server)), "{name}");
    for field in ["kind", "status", "retryable", "message"] {
        assert_eq!(error["data"][field], fields[field], "{name}: {error}");
    }
    assert_eq!(error["data"]["url"], json!(url(&server)), "{name}");
    assert!(chunks.iter().all(|chunk| chunk.get("_meta").is_none()), "{name}: no text beside the error");
}

#[tokio::test]
async fn refusals_have_the_documented_messages() {
    let said = |status, message: &str| Reply::refused(status, message);
    for status in [401, 403] {
        let words =
            format!("Authentication error (HTTP {status}) calling {{url}}. Check your OPENAI_API_KEY.");
        check("auth", said(status, "no such key"), "auth", Some(status), &words, "").await;
    }
    let words = "Rate limit exceeded (HTTP 429) calling {url}. Please retry later.";
    check("rate", said(429, "too fast"), "rate_limit", Some(429), words, "").await;
    for status in [500, 502, 503, 504, 529] {
        let words = format!("Server error (HTTP {status}) from {{url}}.");
        check("server", said(status, "oh"), "server", Some(status), &words, "").await;
    }
    let words = "HTTP error (404) from {url}: {message}";
    check("http", said(404, "no such model"), "http", Some(404), words, "").await;
    check("http", said(418, "a teapot"), "http", Some(418), "HTTP error (418) from {url}: {message}", "")
        .await;
}

#[tokio::test]
async fn broken_connections_have_the_documented_messages() {
    let words = "Network error connecting to {url}: {message}";
    check("reset", Reply::cut(), "network", None, words, "").await;
    check("closed", Reply::close(), "network", None, words, "").await;
    check("silent", Reply::hang(), "timeout", None, words, "").await;
    check("silent after the head", Reply::text(ANSWER).after(0, Step::Hang), "timeout", None, words, "")
        .await;
    let begun = || Reply::text("An answer that is not said to its end").only(8);
    let shown = "An answer that is not said to ";
    check("reset in the middle", begun().then(Step::Cut), "cut", None, words, shown).await;
    check("closed in the middle", begun().then(Step::Close), "cut", None, words, shown).await;
    check("ended in the middle", begun(), "cut", None, words, shown).await;
    check("silent in the middle", begun().then(Step::Hang), "timeout", None, words, shown).await;
}

#[tokio::test]
async fn responses_that_are_no_answers_are_reported() {
    let words = "Unusable answer from {url}: {message}";
    let page = "<!doctype html><html><body>Log in</body></html>";
    let error = json!({"error": {"message": "model is loading", "type": "server_error"}});
    check("a web page", Reply::document(200, "text/html", page), "garbage", None, words, "").await;
    check("an error with 200", Reply::json(200, &error), "provider", None, words, "").await;
    check("nothing", Reply::document(200, "application/json", ""), "garbage", None, words, "").await;
    check("an empty stream", Reply::stream::<Vec<u8>>([]), "garbage", None, words, "").await;
    check("nothing but the end", Reply::sse([]), "garbage", None, words, "").await;
    let garbage = Reply::stream([data("{not json"), data("neither"), data("[DONE]")]);
    check("no valid chunk", garbage, "garbage", None, words, "").await;
    let begun = data(&delta(&json!({"content": "An answer and then an error"})));
    let failing = Reply::stream([begun, data(&error)]);
    check("an error in the stream", failing, "provider", None, words, "An answer and then an error").await;
    let endless =
        Reply::stream::<Vec<u8>>([]).then(Step::Forever(b": ping\n\n".to_vec(), Duration::from_millis(5)));
    check("nothing but pings", endless, "timeout", None, "Network error connecting to {url}: {message}", "")
        .await;
    let line = Reply::stream([&b"data: "[..]]).then(Step::Repeat(vec![b'x'; 1024], 64));
    check("a line without end", line, "garbage", None, words, "").await;
}

#[tokio::test]
async fn an_answer_without_end_is_ended() {
    let more = data(&delta(&json!({"content": "more and more and more of it. "})));
    let reply = Reply::stream::<Vec<u8>>([]).then(Step::Forever(more, Duration::ZERO));
    let (server, settings) = failing_once(reply, FailureFormat::Text, "timeout");
    let (outcome, chunks) = fail(&server, settings).await;
    let fields = &outcome.unwrap()["_meta"][KEY];
    assert!(["garbage", "timeout"].contains(&fields["kind"].as_str().unwrap()), "{fields}");
    assert_eq!(chunks.last().unwrap()["_meta"][KEY], *fields);
    server.hung_up().await;
}

#[tokio::test]
async fn a_refused_connection_is_a_network_error() {
    let (base, _) = nobody();
    let server = ModelServer::start(Reply::text("unused"));
    let mut settings = settings(&server);
    settings.routes[0].endpoint.base_url.clone_from(&base);
    settings.routes[0].endpoint.query = vec![("api-version".to_owned(), "secret-looking".to_owned())];
    let mut client = Client::v1(settings, json!({})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    let fields = &end["_meta"][KEY];
    assert_eq!(
        (&end["stopReason"], &fields["kind"], &fields["retryable"]),
        (&json!("end_turn"), &json!("network"), &json!(true))
    );
    let message = fields["message"].as_str().unwrap();
    assert!(!message.is_empty() && !message.contains("http"), "{message}");
    // The URL is that of the request, without its query.
    assert_eq!(client.text(), format!("Network error connecting to {base}/chat/completions: {message}"));
    client.leave().await;
}

#[tokio::test]
async fn without_an_endpoint_the_answer_says_how_to_configure_one() {
    let mut client = Client::v1(Settings::default(), json!({})).await;
    let session = client.session().await;
    for prompt in ["Hi", "/compact", "/status"] {
        client.forget();
        let end = client.prompt(&session, prompt).await.unwrap();
        assert_eq!(
            (&end["stopReason"], &end["_meta"][KEY]["kind"]),
            (&json!("end_turn"), &json!("unconfigured"))
        );
        for word in ["OPENAI_BASE_URL", "OPENAI_API_KEY", "narrows.toml", "builtin:demo"] {
            assert!(client.text().contains(word), "{}", client.text());
        }
    }
    client.leave().await;
    let mut client =
        Client::v1(Settings { errors: FailureFormat::Rpc, ..Settings::default() }, json!({})).await;
    let session = client.session().await;
    let error = client.prompt(&session, "Hi").await.unwrap_err();
    assert_eq!(error["data"]["kind"], "unconfigured");
    assert!(error["message"].as_str().unwrap().contains("OPENAI_BASE_URL"));
    assert_eq!(client.text(), "");
    client.leave().await;
}

#[tokio::test]
async fn a_line_that_is_not_json_is_skipped() {
    let good = |text: &str| data(&delta(&json!({"content": text})));
    let reply = Reply::stream([
        good("The part before it, "),
        data("{\"choices\": [{"),
        data("not json at all"),
        good("and the part behind it"),
        data(&narrows_testkit::model::finish("stop")),
        data("[DONE]"),
    ]);
    let server = ModelServer::start(reply);
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None));
    assert_eq!(client.text(), "The part before it, and the part behind it");
    client.leave().await;
}

#[tokio::test]
async fn a_failure_is_reported_once_after_the_retries() {
    let server = ModelServer::start(Plan::new([
        Reply::refused(503, "busy").header("retry-after", "0"),
        Reply::refused(503, "busy").header("retry-after", "0"),
        Reply::text("The answer at last, and not a short one"),
    ]));
    let mut settings = settings(&server);
    settings.routes[0].endpoint.limits.attempts = 3;
    let mut client = Client::v1(settings, json!({"session": {"notices": {}}})).await;
    let session = client.session().await;
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!((&end["stopReason"], end.get("_meta")), (&json!("end_turn"), None));
    assert_eq!(client.text(), "The answer at last, and not a short one");
    assert_eq!(chats(&server).len(), 3);
    let notices = client.updates.iter().filter(|update| update["sessionUpdate"] == "notice");
    assert_eq!(notices.count(), 2, "clients with notices get one per retry");

    server.replan(Reply::refused(503, "busy").header("retry-after", "0"));
    client.forget();
    let end = client.prompt(&session, "Hi").await.unwrap();
    assert_eq!(end["_meta"][KEY]["status"], 503);
    assert_eq!(client.text(), format!("Server error (HTTP 503) from {}.", url(&server)));
    assert_eq!(chats(&server).len(), 6);
    client.leave().await;
}

#[tokio::test]
async fn a_refused_answer_is_a_refusal_and_is_not_kept() {
    let server = ModelServer::start(Plan::new([
        Reply::text("I would rather not say").finishing("content_filter"),
        Reply::text("An answer that is cut short").finishing("length"),
        Reply::text("The last answer"),
    ]));
    let mut client = Client::v1(settings(&server), json!({})).await;
    let session = client.session().await;
    assert_eq!(client.prompt(&session, "One").await.unwrap()["stopReason"], "refusal");
    assert_eq!(client.prompt(&session, "Two").await.unwrap()["stopReason"], "max_tokens");
    assert_eq!(client.prompt(&session, "Three").await.unwrap()["stopReason"], "end_turn");
    let kept: Vec<Value> =
        last_messages(&server).as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(kept, ["Two", "An answer that is cut short", "Three"]);
    client.leave().await;
}
