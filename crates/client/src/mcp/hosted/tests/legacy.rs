//! Agents that ask in the older form: connections, and answers without a wrapping.

use super::*;

async fn connect(scene: &Scene, server: &str) -> String {
    let answer = scene.ask(MCP_CONNECT, json!({"acpId": server})).await.expect("it connects");
    answer["connectionId"].as_str().expect("an id").to_owned()
}

async fn say(scene: &Scene, connection: &str, method: &str, params: Value) -> Result<Value, i64> {
    scene.ask(MCP_MESSAGE, json!({"connectionId": connection, "method": method, "params": params})).await
}

#[tokio::test]
async fn a_whole_connection() {
    for server in ["s", "host"] {
        let scene = Scene::new();
        let hosting = scene.host("");
        let connection = connect(&scene, server).await;
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}});
        let hello = say(&scene, &connection, "initialize", params).await.expect("it answers");
        assert_eq!(hello["protocolVersion"], "2025-11-25");
        assert_eq!(say(&scene, &connection, "notifications/initialized", json!({})).await, Ok(json!({})));
        let page = say(&scene, &connection, "tools/list", json!({})).await.expect("it lists");
        assert!(page["tools"].is_array(), "{page}");
        assert_eq!(say(&scene, &connection, "no/such", json!({})).await, Err(-32601));
        assert_eq!(scene.ask(MCP_DISCONNECT, json!({"connectionId": connection})).await, Ok(json!({})));
        assert_eq!(say(&scene, &connection, "ping", json!({})).await, Err(-32602));
        assert_eq!(scene.ask(MCP_DISCONNECT, json!({"connectionId": connection})).await, Err(-32602));
        hosting.close().await;
    }
}

#[tokio::test]
async fn calls_pass_the_gate() {
    let mut scene = Scene::new();
    let hosting = scene.host("");
    let connection = connect(&scene, "s").await;
    let call = |tool: &str| json!({"name": tool, "arguments": {"a": 1}, "_meta": {"progressToken": 5}});
    let echoed = say(&scene, &connection, "tools/call", call("echo")).await.expect("it echoes");
    assert_eq!(echoed["structuredContent"], json!({"a": 1}));
    assert_eq!(say(&scene, &connection, "tools/call", call("refuse")).await, Err(-32602));
    say(&scene, &connection, "tools/call", call("progress")).await.expect("it answers");
    let Some(narrows_rpc::Item::Notification(frame)) = scene.inbox.recv().await else {
        panic!("nothing was told")
    };
    let told: Value = frame.read_params().expect("it is JSON");
    assert_eq!((&told["connectionId"], &told["params"]["progressToken"]), (&json!(connection), &json!(5)));
    scene.gate.says(Verdict::No);
    let refused = say(&scene, &connection, "tools/call", call("slow")).await.expect("it is a result");
    assert_eq!(refused["isError"], true);
    assert_eq!(scene.noted(), "");
    hosting.close().await;
}

#[tokio::test]
async fn disconnecting_ends_what_is_open() {
    let scene = Scene::new();
    let hosting = scene.host("");
    let (one, two) = (connect(&scene, "s").await, connect(&scene, "s").await);
    assert_ne!(one, two);
    let slow = say(&scene, &one, "tools/call", json!({"name": "slow"}));
    let hang_up = async {
        assert!(scene.notes_hold("working on").await);
        scene.ask(MCP_DISCONNECT, json!({"connectionId": one})).await
    };
    assert_eq!(tokio::join!(slow, hang_up), (Err(-32800), Ok(json!({}))));
    assert!(scene.notes_hold("cancelled").await);
    assert!(say(&scene, &two, "ping", json!({})).await.is_ok(), "the other connection is another");
    let slow = say(&scene, &two, "tools/call", json!({"name": "slow"}));
    let end = async {
        assert!(
            narrows_testkit::wait::wait_until(PATIENCE, || scene.noted().matches("working on").count() == 2)
                .await
        );
        hosting.close().await;
    };
    assert_eq!(tokio::join!(slow, end).0, Err(-33001));
    assert_eq!(say(&scene, &two, "ping", json!({})).await, Err(-32602));
    assert_eq!(scene.hosted.shared.table().connections.len(), 0);
}

#[tokio::test]
async fn there_is_no_way_to_nobody() {
    let scene = Scene::new();
    assert_eq!(scene.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33001));
    assert_eq!(scene.ask(MCP_CONNECT, json!({})).await, Err(-32602));
    let hosting = scene.host("exit");
    assert_eq!(scene.ask(MCP_CONNECT, json!({"acpId": "s"})).await, Err(-33001));
    hosting.close().await;
}
