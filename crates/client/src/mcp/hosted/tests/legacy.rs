//! Tests with the older form: connections, and answers without a wrapper object.

use super::*;

async fn connect(fixture: &Fixture, server: &str) -> String {
    let answer = fixture.ask(MCP_CONNECT, json!({"acpId": server})).await.expect("it connects");
    answer["connectionId"].as_str().expect("an id").to_owned()
}

async fn say(fixture: &Fixture, connection: &str, method: &str, params: Value) -> Result<Value, i64> {
    fixture.ask(MCP_MESSAGE, json!({"connectionId": connection, "method": method, "params": params})).await
}

#[tokio::test]
async fn a_connection_from_connect_to_disconnect() {
    for server in ["s", "host"] {
        let fixture = Fixture::new();
        let hosting = fixture.host("");
        let connection = connect(&fixture, server).await;
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}});
        let hello = say(&fixture, &connection, "initialize", params).await.expect("it answers");
        assert_eq!(hello["protocolVersion"], "2025-11-25");
        assert_eq!(say(&fixture, &connection, "notifications/initialized", json!({})).await, Ok(json!({})));
        let page = say(&fixture, &connection, "tools/list", json!({})).await.expect("it lists");
        assert!(page["tools"].is_array(), "{page}");
        assert_eq!(say(&fixture, &connection, "no/such", json!({})).await, Err(-32601));
        assert_eq!(fixture.ask(MCP_DISCONNECT, json!({"connectionId": connection})).await, Ok(json!({})));
        assert_eq!(say(&fixture, &connection, "ping", json!({})).await, Err(-32602));
        assert_eq!(fixture.ask(MCP_DISCONNECT, json!({"connectionId": connection})).await, Err(-32602));
        hosting.close().await;
    }
}

#[tokio::test]
async fn calls_pass_the_gate() {
    let mut fixture = Fixture::new();
    let hosting = fixture.host("");
    let connection = connect(&fixture, "s").await;
    let call = |tool: &str| json!({"name": tool, "arguments": {"a": 1}, "_meta": {"progressToken": 5}});
    let echoed = say(&fixture, &connection, "tools/call", call("echo")).await.expect("it echoes");
    assert_eq!(echoed["structuredContent"], json!({"a": 1}));
    assert_eq!(say(&fixture, &connection, "tools/call", call("refuse")).await, Err(-32602));
    say(&fixture, &connection, "tools/call", call("progress")).await.expect("it answers");
    let Some(narrows_rpc::Item::Notification(frame)) = fixture.inbox.recv().await else {
        panic!("nothing was told")
    };
    let told: Value = frame.read_params().expect("it is JSON");
    assert_eq!((&told["connectionId"], &told["params"]["progressToken"]), (&json!(connection), &json!(5)));
    fixture.gate.says(Verdict::No);
    let refused = say(&fixture, &connection, "tools/call", call("slow")).await.expect("it is a result");
    assert_eq!(refused["isError"], true);
    assert_eq!(fixture.noted(), "");
    hosting.close().await;
}

#[tokio::test]
async fn disconnecting_ends_what_is_open() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let (one, two) = (connect(&fixture, "s").await, connect(&fixture, "s").await);
    assert_ne!(one, two);
    let slow = say(&fixture, &one, "tools/call", json!({"name": "slow"}));
    let hang_up = async {
        assert!(fixture.notes_hold("working on").await);
        fixture.ask(MCP_DISCONNECT, json!({"connectionId": one})).await
    };
    assert_eq!(tokio::join!(slow, hang_up), (Err(-32800), Ok(json!({}))));
    assert!(fixture.notes_hold("cancelled").await);
    assert!(say(&fixture, &two, "ping", json!({})).await.is_ok(), "the other connection is independent");
    let slow = say(&fixture, &two, "tools/call", json!({"name": "slow"}));
    let end = async {
        assert!(
            narrows_testkit::wait::wait_until(TEST_TIMEOUT, || fixture.noted().matches("working on").count()
                == 2)
            .await
        );
        hosting.close().await;
    };
    assert_eq!(tokio::join!(slow, end).0, Err(-33001));
    assert_eq!(say(&fixture, &two, "ping", json!({})).await, Err(-32602));
    assert_eq!(fixture.hosted.shared.table().connections.len(), 0);
}

#[tokio::test]
async fn unknown_servers_and_connections_are_refused() {
    let fixture = Fixture::new();
    assert_eq!(fixture.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33001));
    assert_eq!(fixture.ask(MCP_CONNECT, json!({})).await, Err(-32602));
    let hosting = fixture.host("exit");
    assert_eq!(fixture.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33001));
    hosting.close().await;
}
