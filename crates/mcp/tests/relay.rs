//! Forwarded requests and their answers, with a process as the server.
#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use narrows_mcp::{CallError, CallProgress, Options, RawAnswer, Server, Servers};
use narrows_process::Environment;
use narrows_testkit::example::example;
use serde_json::{Map, Value, json};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// `examples/mcp_server.rs`, which cargo builds beside the tests.
fn program() -> String {
    example("narrows-mcp", "mcp_server")
}

async fn start(fault: &str, call_timeout: Duration) -> Servers {
    let server =
        Server::Stdio { name: "s".into(), command: program(), args: vec![fault.into()], env: Vec::new() };
    let mut options = Options::new("/", Environment::empty());
    options.call_timeout = call_timeout;
    Servers::start(vec![server], options, None)
}

async fn request(
    servers: &Servers,
    method: &str,
    params: Value,
    news: impl FnMut(CallProgress) + Send,
) -> Result<Result<String, (i64, String)>, CallError> {
    let Value::Object(params) = params else { panic!("{params} is not an object") };
    servers.request("s", method, params, news).await.map(|answered| match answered {
        RawAnswer::Result(result) => Ok(result.get().to_owned()),
        RawAnswer::Error { code, message, .. } => Err((code, message)),
    })
}

#[tokio::test]
async fn answers_are_unchanged() {
    for fault in ["", "modern", "garbage"] {
        let servers = start(fault, TEST_TIMEOUT).await;
        let ask = async |method, params| request(&servers, method, params, |_| {}).await.expect("it answers");
        let page = ask("tools/list", json!({})).await.expect("it lists");
        let page: Value = serde_json::from_str(&page).expect("it is JSON");
        assert_eq!(page["tools"][1], json!({"name": 7}), "{fault:?}: nothing is repaired or left out");
        assert_eq!(page["nextCursor"], "second");
        let page = ask("tools/list", json!({"cursor": "second"})).await.expect("it lists");
        assert!(page.contains("more"), "{page}");
        let call = |tool: &str| json!({"name": tool, "arguments": {"a": 1}});
        assert_eq!(
            ask("tools/call", call("future")).await.as_deref(),
            Ok(r#"{"content":[], "future":{"n":1.50,"b":1,"a":[ ]},"isError":false}"#)
        );
        assert_eq!(ask("tools/call", call("refuse")).await, Err((-32602, "no\nsuch tool".into())));
        assert_eq!(ask("no/such", json!({})).await, Err((-32601, "there is no such method".into())));
        // Other answers are still parsed.
        let outcome = servers.call("s", "echo", Map::new(), |_| {}).await.expect("it echoes");
        assert!(!outcome.failed && outcome.content.len() == 1, "{outcome:?}");
        servers.close().await;
    }
}

#[tokio::test]
async fn parameters_are_unchanged() {
    let servers = start("", TEST_TIMEOUT).await;
    let params = json!({
        "name": "params", "arguments": {"n": 1.5, "b": null}, "future": [1],
        "_meta": {"progressToken": "mine", "io.modelcontextprotocol/clientInfo": {"name": "agent"}, "traceparent": "x"},
    });
    let seen = request(&servers, "tools/call", params, |_| {}).await.expect("it answers").expect("a result");
    let mut seen: Value = serde_json::from_str(&seen).expect("it is JSON");
    assert!(seen["_meta"]["progressToken"].is_number(), "the token is that of this connection: {seen}");
    seen["_meta"]["progressToken"].take();
    let expected = json!({
        "name": "params", "arguments": {"n": 1.5, "b": null}, "future": [1],
        "_meta": {"progressToken": null, "traceparent": "x"},
    });
    assert_eq!(seen, expected);
    servers.close().await;
}

#[tokio::test]
async fn progress_comes_before_the_answer() {
    let servers = start("", TEST_TIMEOUT).await;
    let mut heard = Vec::new();
    let answer = request(&servers, "tools/call", json!({"name": "progress"}), |news| heard.push(news))
        .await
        .expect("it answers");
    assert_eq!(answer.as_deref(), Ok(r#"{"content":[]}"#));
    let expected = [
        CallProgress { progress: 1.0, total: None, message: Some("one | step".into()) },
        CallProgress { progress: 2.0, total: Some(3.0), message: None },
        CallProgress { progress: 3.0, total: None, message: None },
    ];
    assert_eq!(heard, expected);
    servers.close().await;
}

#[tokio::test]
async fn every_request_ends() {
    let servers = start("", Duration::from_millis(300)).await;
    servers.wait_until_settled(TEST_TIMEOUT).await;
    let late = request(&servers, "tools/call", json!({"name": "slow"}), |_| {}).await;
    assert_eq!(late, Err(CallError::Deadline(Duration::from_millis(300))));
    let gone = request(&servers, "tools/call", json!({"name": "die"}), |_| {}).await;
    assert!(
        matches!(&gone, Err(CallError::NotRunning(reason)) if reason.contains("out of luck")),
        "{gone:?}"
    );
    let gone = request(&servers, "tools/list", json!({}), |_| {}).await;
    assert!(matches!(&gone, Err(CallError::NotRunning(_))), "{gone:?}");
    assert!(matches!(servers.server_info("s").await, Err(CallError::NotRunning(_))));
    assert!(matches!(servers.server_info("t").await, Err(CallError::NoServer)));
    servers.close().await;
}

#[tokio::test]
async fn a_server_describes_itself() {
    for (fault, protocol, handshake) in [("", "2025-11-25", true), ("modern", "2026-07-28", false)] {
        let servers = start(fault, TEST_TIMEOUT).await;
        let about = servers.server_info("s").await.expect("it is there");
        assert_eq!((about.protocol.as_str(), about.handshake), (protocol, handshake));
        assert_eq!(about.capabilities, json!({"tools": {"listChanged": true}}));
        servers.close().await;
    }
}
