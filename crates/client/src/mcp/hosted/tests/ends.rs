//! Tests of servers that die, hang or flood, and of sessions that end.

use narrows_testkit::wait::wait_until;

use super::*;

#[tokio::test]
async fn dead_servers_are_reported() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let message =
        json!({"serverId": "s", "requestId": "r", "method": "tools/call", "params": {"name": "die"}});
    let answer = fixture.agent.request::<_, Value>(MCP_MESSAGE, &message, TEST_TIMEOUT).await;
    let Err(narrows_rpc::CallError::Refused(error)) = answer else { panic!("{answer:?}") };
    assert_eq!(error.code, -33001);
    assert!(error.message.contains("out of luck"), "{error}");
    assert_eq!(error.data.as_ref().map(|data| &data["effects"]), Some(&json!("possible")));
    assert_eq!(fixture.message("s", "tools/list", json!({})).await, Err(-33001));
    assert!(fixture.message("host", "tools/list", json!({})).await.is_ok(), "the other processes are alive");
    hosting.close().await;
}

#[tokio::test]
async fn servers_that_never_start_are_reported() {
    for fault in ["exit", "only-garbage"] {
        let fixture = Fixture::new();
        let mut options = fixture.options();
        options.start_timeout = Duration::from_secs(2);
        let hosting = fixture.host_with(fault, options);
        assert_eq!(fixture.call("s", "echo", json!({})).await, Err(-33001), "{fault}");
        hosting.close().await;
    }
}

#[tokio::test]
async fn slow_calls_end_at_the_deadline() {
    let fixture = Fixture::new();
    let mut options = fixture.options();
    options.call_timeout = Duration::from_millis(300);
    let hosting = fixture.host_with("", options);
    hosting.settled().await;
    assert_eq!(fixture.call("s", "slow", json!({})).await, Err(-33002));
    assert!(fixture.notes_hold("cancelled").await, "the server gets a cancellation");
    assert_eq!(fixture.call("s", "wrong-id", json!({})).await, Err(-33002));
    assert!(fixture.call("s", "echo", json!({})).await.is_ok());
    assert_eq!(fixture.call("s", "deaf", json!({})).await, Err(-33002));
    assert_eq!(
        fixture.call("s", "echo", json!({})).await,
        Err(-33002),
        "it is there, but it does not listen"
    );
    hosting.close().await;
    assert_eq!(fixture.alive(), [0; 0]);
}

#[tokio::test]
async fn long_answers_are_errors() {
    let fixture = Fixture::new();
    let hosting = fixture.host("");
    let long = fixture.call("s", "long", json!({"bytes": 17 << 20})).await.expect("it is an answer");
    assert_eq!(long["error"]["code"], -32603);
    let fits = fixture.call("s", "long", json!({"bytes": 1 << 20})).await.expect("it is an answer");
    assert_eq!(fits["result"]["content"][0]["text"].as_str().map(str::len), Some(1 << 20));
    hosting.close().await;
}

#[tokio::test]
async fn a_flood_does_not_block_others() {
    let fixture = Fixture::new();
    let mut options = fixture.options();
    options.start_timeout = Duration::from_secs(1);
    let hosting = fixture.host_with("flood", options);
    let mut others = 0;
    let flooded = fixture.call("s", "echo", json!({}));
    tokio::pin!(flooded);
    let answer = loop {
        tokio::select! {
            answer = &mut flooded => break answer,
            other = fixture.message("host", "ping", json!({})) => {
                assert!(other.is_ok());
                others += 1;
            }
        }
    };
    assert_eq!(answer, Err(-33001));
    assert!(others > 0);
    hosting.close().await;
    assert_eq!(fixture.alive(), [0; 0]);
}

#[tokio::test]
async fn the_end_of_a_session_answers_all_requests() {
    for verdict in [Verdict::Yes, Verdict::Never] {
        let fixture = Fixture::new();
        let hosting = fixture.host("daemon");
        fixture.gate.says(verdict);
        let params = json!({"name": "slow"});
        let message = json!({"serverId": "s", "requestId": "r", "method": "tools/call", "params": params});
        let call = fixture.agent.call(MCP_MESSAGE, &message).await.expect("it is sent");
        assert!(wait_until(TEST_TIMEOUT, || !fixture.gate.asked().is_empty()).await);
        assert!(verdict == Verdict::Never || fixture.notes_hold("working on").await);
        hosting.settled().await;
        assert!(!fixture.alive().is_empty());
        hosting.close().await;
        assert_eq!(fixture.alive(), [0; 0], "{verdict:?}");
        let answer = call.response().await;
        let ended = matches!(&answer, Err(narrows_rpc::CallError::Refused(error)) if error.code == -33001);
        assert!(ended, "{answer:?}");
        assert_eq!(fixture.message("s", "ping", json!({})).await, Err(-33001), "the server was removed");
        assert_eq!(fixture.message("host", "ping", json!({})).await, Err(-33001));
    }
}

#[tokio::test]
async fn dropping_the_session_ends_its_servers() {
    let fixture = Fixture::new();
    let hosting = fixture.host("daemon");
    hosting.settled().await;
    drop(hosting);
    assert!(wait_until(TEST_TIMEOUT, || fixture.alive().is_empty()).await, "{:?}", fixture.alive());
    assert_eq!(fixture.message("s", "ping", json!({})).await, Err(-33001));
}

#[tokio::test]
async fn a_lost_agent_leaves_no_open_request() {
    let Fixture { agent, inbox, hosted, gate, .. } = {
        let fixture = Fixture::new();
        fixture.gate.says(Verdict::Never);
        fixture
    };
    let own = crate::mcp::fixture::host_server();
    let gate: Arc<dyn Gate> = gate;
    let servers = vec![HostedServer { id: "host".into(), kind: HostedServerKind::Host(own) }];
    let hosting = hosted.host(servers, Options::new("/", narrows_process::Environment::empty()), &gate);
    let params = json!({"name": "run_command", "arguments": {"command": "stuck"}});
    let message = json!({"serverId": "host", "requestId": "r", "method": "tools/call", "params": params});
    let call = agent.call(MCP_MESSAGE, &message).await.expect("it is sent");
    let open = || hosted.shared.table().open.len();
    assert!(wait_until(TEST_TIMEOUT, || open() == 1).await);
    agent.close();
    drop((call, agent, inbox));
    assert!(wait_until(TEST_TIMEOUT, || open() == 0).await);
    hosting.close().await;
}
