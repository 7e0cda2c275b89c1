//! Tests with the current form, and with correct and faulty servers.

use std::time::{Duration, Instant};

use serde_json::Map;

use super::*;
use crate::mcp::ServerRequest;
use crate::mcp::fixture::{Fixture, TEST_TIMEOUT, Verdict};

mod ends;
mod legacy;
mod ours;

impl Hosting {
    async fn settled(&self) {
        if let Some(servers) = &*self.servers.read().await {
            servers.wait_until_settled(TEST_TIMEOUT).await;
        }
    }
}

#[tokio::test]
async fn lists_are_the_servers_own() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let page = fixture.message("s", "tools/list", json!({})).await.expect("it lists");
    let first = json!({
        "name": "echo", "description": "a tool", "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": true},
    });
    assert_eq!(page, json!({"result": {"tools": [first, {"name": 7}], "nextCursor": "second"}}));
    let page = fixture.message("s", "tools/list", json!({"cursor": "second"})).await.expect("it lists");
    assert_eq!(page["result"]["tools"][0]["name"], "more");
    // The server has no resources, and reports that itself.
    let none = fixture.message("s", "resources/list", json!({})).await;
    assert_eq!(none, Ok(json!({"error": {"code": -32601, "message": "there is no such method"}})));
    assert_eq!(fixture.gate.asked(), [], "lists do not pass the gate");
    hosting.close().await;
}

#[tokio::test]
async fn calls_pass_the_gate() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let answer = fixture.call("s", "echo", json!({"a": 1})).await.expect("it echoes");
    assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}));
    let asked = ServerRequest {
        server: "files".into(),
        method: "tools/call".into(),
        tool: Some("echo".into()),
        arguments: Map::from_iter([("a".to_owned(), json!(1))]),
    };
    assert_eq!(fixture.gate.asked(), [asked]);
    let strange = fixture.call("s", "future", json!({})).await.expect("it answers");
    assert_eq!(
        strange,
        json!({"result": {"content": [], "future": {"n": 1.5, "b": 1, "a": []}, "isError": false}})
    );
    let refused = fixture.call("s", "refuse", json!({})).await;
    assert_eq!(refused, Ok(json!({"error": {"code": -32602, "message": "no\nsuch tool"}})));
    let failed = fixture.call("s", "fail", json!({})).await.expect("it answers");
    assert_eq!(failed["result"]["isError"], true);
    hosting.close().await;
}

#[tokio::test]
async fn what_the_gate_refuses_reaches_no_server() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    fixture.gate.says(Verdict::No);
    let refused = fixture.call("s", "slow", json!({})).await;
    let content = json!([{"type": "text", "text": "the rule book forbids it"}]);
    assert_eq!(refused, Ok(json!({"result": {"content": content, "isError": true}})));
    for (method, params) in [
        ("resources/read", json!({"uri": "file:///etc/passwd"})),
        ("prompts/get", json!({"name": "p", "arguments": {"x": "y"}})),
    ] {
        let refused = fixture.message("s", method, params).await.expect("it is an answer");
        assert_eq!(refused["error"]["code"], -32015, "{refused}");
    }
    let asked: Vec<_> = fixture.gate.asked().into_iter().map(|asked| (asked.method, asked.tool)).collect();
    let tool = Some("slow".to_owned());
    assert_eq!(
        asked,
        [
            ("tools/call".to_owned(), tool),
            ("resources/read".to_owned(), None),
            ("prompts/get".to_owned(), None)
        ]
    );
    assert_eq!(fixture.noted(), "", "no request reaches the server");
    hosting.close().await;
}

#[tokio::test]
async fn other_methods_are_not_forwarded() {
    let fixture = Fixture::new();
    let hosting = fixture.host("modern");
    for method in
        ["subscriptions/listen", "resources/subscribe", "sampling/createMessage", "tasks/get", "", "no/such"]
    {
        // An earlier instance, started only to probe the server, may still be exiting.
        let heard = || fixture.noted().replace("end of input\n", "");
        let before = heard();
        let refused = fixture.message("s", method, json!({})).await.expect("it is an answer");
        assert_eq!(refused["error"]["code"], -32601, "{method}");
        assert_eq!(heard(), before);
    }
    for (method, params) in [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": 7})),
        ("tools/call", json!({"name": "echo", "arguments": [1]})),
        ("resources/read", json!({"uri": {}})),
    ] {
        let refused = fixture.message("s", method, params).await.expect("it is an answer");
        assert_eq!(refused["error"]["code"], -32602, "{method}");
    }
    assert_eq!(fixture.gate.asked(), [], "no permission is requested for invalid requests");
    assert_eq!(fixture.message("s", "ping", json!({})).await, Ok(json!({"result": {}})));
    assert_eq!(fixture.message("s", "notifications/initialized", json!({})).await, Ok(json!({"result": {}})));
    hosting.close().await;
}

#[tokio::test]
async fn servers_receive_nothing_else_of_the_agent() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let answer = fixture.call("s", "ask", json!({})).await.expect("it answers");
    let text = answer["result"]["content"][0]["text"].as_str().expect("a text");
    assert_eq!(text, r#"-32601 -32601 {"action":"decline"} {} -32601"#);
    hosting.close().await;
}

#[tokio::test]
async fn handshakes_are_answered_locally() {
    for (fault, version) in [("", "2025-11-25"), ("modern", "2025-11-25")] {
        let fixture = Fixture::new();
        let hosting = fixture.host(fault);
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {"sampling": {}}});
        let answer = fixture.message("s", "initialize", params).await.expect("it answers");
        assert_eq!(answer["result"]["protocolVersion"], version);
        assert_eq!(answer["result"]["capabilities"], json!({"tools": {}}), "no changes are promised");
        assert!(answer["result"]["serverInfo"]["name"].is_string());
        let found = fixture.message("s", "server/discover", json!({})).await.expect("it answers");
        assert_eq!(found["result"]["supportedVersions"], json!(["2026-07-28"]));
        hosting.close().await;
    }
}

#[tokio::test]
async fn invalid_messages_are_refused() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    for (message, code) in [
        (json!({}), -32602),
        (json!({"method": "ping"}), -32602),
        (json!({"serverId": "s", "method": "ping"}), -32602),
        (json!({"serverId": "s", "requestId": 1, "method": "ping"}), -32602),
        (json!({"serverId": "s", "requestId": "r", "method": "ping", "params": []}), -32602),
        (json!({"serverId": "files", "requestId": "r", "method": "ping"}), -33001),
        (json!({"connectionId": "s", "method": "ping"}), -32602),
    ] {
        assert_eq!(fixture.ask(MCP_MESSAGE, message.clone()).await, Err(code), "{message}");
    }
    hosting.close().await;
}

#[tokio::test]
async fn an_active_request_id_cannot_be_reused() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let message = |server: &str, tool: &str| json!({"serverId": server, "requestId": "r", "method": "tools/call", "params": {"name": tool}});
    let slow = fixture.agent.call(MCP_MESSAGE, &message("s", "slow")).await.expect("it is sent");
    assert!(fixture.notes_hold("working on").await);
    assert_eq!(fixture.ask(MCP_MESSAGE, message("s", "echo")).await, Err(-32602));
    assert!(fixture.ask(MCP_MESSAGE, message("host", "no")).await.is_ok(), "at another server it is free");
    drop(slow);
    assert!(fixture.notes_hold("cancelled").await, "the server gets a cancellation");
    let open = || fixture.hosted.shared.table().open.len();
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, || open() == 0).await);
    assert!(fixture.ask(MCP_MESSAGE, message("s", "echo")).await.is_ok(), "there is room again");
    hosting.close().await;
}

#[tokio::test]
async fn more_than_the_limit_is_refused_at_once() {
    let fixture = Fixture::with(Limits { requests: 2, connections: 1, ..Limits::default() });
    let hosting = fixture.host("");
    let slow = json!({"name": "slow"});
    let message =
        |request| json!({"serverId": "s", "requestId": request, "method": "tools/call", "params": slow});
    let one = fixture.agent.call(MCP_MESSAGE, &message("a")).await.expect("it is sent");
    let two = fixture.agent.call(MCP_MESSAGE, &message("b")).await.expect("it is sent");
    assert_eq!(fixture.message("s", "ping", json!({})).await, Err(-33000));
    drop((one, two));
    let free = || fixture.hosted.shared.requests.available_permits();
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, || free() == 2).await);
    assert!(fixture.message("s", "ping", json!({})).await.is_ok());
    assert!(fixture.ask(MCP_CONNECT, json!({"acpId": "s"})).await.is_ok());
    assert_eq!(fixture.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33000));
    hosting.close().await;
}

/// Requests of version 2 name no session, so they do not count towards a session's budget.
#[tokio::test]
async fn open_requests_have_no_more_bytes_together_than_the_limit() {
    let fixture = Fixture::with(Limits { request_bytes: 2000, ..Limits::default() });
    let hosting = fixture.host("");
    fixture.gate.says(Verdict::Never);
    let params = json!({"name": "echo", "arguments": {"text": "x".repeat(1000)}});
    let message =
        |request| json!({"serverId": "s", "requestId": request, "method": "tools/call", "params": params});
    let open = fixture.agent.call(MCP_MESSAGE, &message("a")).await.expect("it is sent");
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, || !fixture.gate.asked().is_empty()).await);
    assert_eq!(fixture.ask(MCP_MESSAGE, message("b")).await, Err(-33000));
    drop(open);
    fixture.gate.says(Verdict::Yes);
    let free = || fixture.hosted.shared.requests.available_permits() == Limits::default().requests;
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, free).await);
    assert!(fixture.ask(MCP_MESSAGE, message("c")).await.is_ok());
    hosting.close().await;
}

/// A request that names its session uses that session's budget.
#[tokio::test]
async fn the_bytes_of_a_request_are_held_until_it_is_answered() {
    let (near, far) = narrows_link::memory::pair(&narrows_link::Options::default());
    let (client, mut requests) = narrows_rpc::start(near, narrows_rpc::Options::client(Hosted::takes));
    let (agent, _inbox) =
        narrows_rpc::start(far, narrows_rpc::Options::agent(|method| method == MCP_MESSAGE));
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    fixture.gate.says(Verdict::Never);
    let message =
        json!({"serverId": "s", "requestId": "r", "method": "tools/call", "params": {"name": "echo"}});
    let call = agent.call(MCP_MESSAGE, &message).await.expect("it is sent");
    let Some(narrows_rpc::Item::Request(request)) = requests.recv().await else { panic!("it is a request") };
    let budget = Arc::new(Semaphore::new(1));
    let bytes = Arc::clone(&budget).try_acquire_owned().expect("it is free");
    fixture.hosted.serve(request, &client, Some(bytes));
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, || !fixture.gate.asked().is_empty()).await);
    assert_eq!(budget.available_permits(), 0);
    hosting.close().await;
    assert!(call.response().await.is_err());
    assert!(narrows_testkit::wait::wait_until(TEST_TIMEOUT, || budget.available_permits() == 1).await);
}

#[tokio::test]
async fn cancellation_is_answered_and_forwarded() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let params =
        json!({"serverId": "s", "requestId": "r", "method": "tools/call", "params": {"name": "slow"}});
    let call = fixture.agent.call(MCP_MESSAGE, &params).await.expect("it is sent");
    assert!(fixture.notes_hold("working on").await);
    fixture.agent.cancel(call.id());
    let answer = call.response().await;
    let refused = matches!(&answer, Err(narrows_rpc::CallError::Refused(error)) if error.code == -32800);
    assert!(refused, "{answer:?}");
    assert!(fixture.notes_hold("cancelled").await);
    hosting.close().await;
}

#[tokio::test]
async fn progress_goes_to_the_request_that_wants_it() {
    let mut fixture = Fixture::new();
    let hosting = fixture.host("");
    // The request asks for no progress.
    fixture.call("s", "progress", json!({})).await.expect("it answers");
    let params = json!({"name": "progress", "_meta": {"progressToken": "mine"}});
    let message = json!({"serverId": "s", "requestId": "r", "method": "tools/call", "params": params});
    assert_eq!(fixture.ask(MCP_MESSAGE, message).await, Ok(json!({"result": {"content": []}})));
    let Some(narrows_rpc::Item::Notification(frame)) = fixture.inbox.recv().await else {
        panic!("nothing was told")
    };
    let told: Value = frame.read_params().expect("it is JSON");
    let news = json!({"progressToken": "mine", "progress": 1.0, "message": "one | step"});
    let expected =
        json!({"serverId": "s", "requestId": "r", "method": "notifications/progress", "params": news});
    assert_eq!(told, expected);
    hosting.close().await;
}

#[tokio::test]
async fn slow_server_starts_have_a_timeout() {
    let fixture = Fixture::new();
    let mut options = fixture.options();
    options.start_timeout = Duration::from_millis(300);
    let started = Instant::now();
    let hosting = fixture.host_with("silent", options);
    assert_eq!(fixture.message("s", "tools/list", json!({})).await, Err(-33001));
    assert_eq!(fixture.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33001));
    assert!(started.elapsed() >= Duration::from_millis(300));
    hosting.settled().await;
    let failures = hosting.failures();
    assert!(failures[0].reason.contains("was not ready"), "{failures:?}");
    assert_eq!(failures[0].server, "files");
    hosting.close().await;
}
