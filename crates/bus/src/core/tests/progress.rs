//! Progress of requests with equal tokens.

use insta::assert_snapshot;

use super::*;

/// Returns a bus with one shared worker, in a pool without a known protocol.
fn bus() -> TestBus {
    let mut bus =
        TestBus::new(&config(vec![Pool { protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.seen();
    bus
}

fn call(token: &Value) -> Value {
    json!({"name": "tool", "_meta": {"progressToken": token}})
}

fn progress(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

#[test]
fn equal_tokens_of_two_clients_stay_apart() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.request(one, 7, "tools/call", &call(&json!("t")));
    bus.request(two, 7, "tools/call", &call(&json!("t")));
    bus.request(two, 8, "tools/call", &json!({"name": "progressToken"}));
    bus.worker_sends(0, &progress("2"));
    bus.worker_sends(0, &progress("1"));
    bus.answer(0, 1, &json!({}));
    bus.worker_sends(0, &progress("2"));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tool","_meta":{"progressToken":1}}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tool","_meta":{"progressToken":2}}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"progressToken"}}
    c1 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    c0 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    c0 < {"jsonrpc":"2.0","id":7,"result":{}}
    c1 < {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}
    "#);
}

#[test]
fn progress_without_a_pending_request_is_dropped() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.request(one, 1, "tools/call", &call(&json!(5)));
    bus.request(two, 1, "tools/call", &json!({}));
    bus.seen();
    // These tokens name a request without a token, or no request, or are the client's own token.
    for token in ["2", "3", "5", "\"1\"", "null", "1.0"] {
        bus.worker_sends(0, &progress(token));
    }
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    bus.answer(0, 1, &json!({}));
    bus.worker_sends(0, &progress("1"));
    let seen = bus.seen();
    assert_eq!(seen.matches("progress of an unknown request").count(), 8, "{seen}");
    assert_eq!(seen.lines().filter(|line| line.starts_with('c')).count(), 1, "{seen}");
    // A client that has disconnected gets no progress.
    bus.request(one, 2, "tools/call", &call(&json!(5)));
    bus.disconnect(one);
    bus.seen();
    bus.worker_sends(0, &progress("3"));
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_duplicate_token_is_refused() {
    let mut bus = bus();
    let client = bus.open();
    bus.line(
        client,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
    );
    assert_snapshot!(bus.seen(), @r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"duplicate progressToken","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}"#);
}

/// When a request is sent to another worker, its token is replaced by its number there.
#[test]
fn a_request_that_is_sent_again_has_another_number() {
    let mut bus = bus();
    let client = bus.open();
    bus.request(client, 1, "x", &json!({}));
    bus.output.queued.clear();
    let line = r#"{"jsonrpc":"2.0","id":"q","method":"m","params":{"_meta":{"progressToken": "mine" }}}"#;
    bus.line(client, line);
    let unsent = bus.output.queued.remove(&0).unwrap();
    bus.seen();
    bus.exit_worker(0, 0, unsent);
    bus.advance(1.0);
    let worker = bus.core.workers.iter().map(|(worker, _)| worker.slot()).next().unwrap();
    bus.seen();
    bus.up(worker);
    let asked = bus.seen();
    let expected = line.replace("\"q\"", "1").replace("\"mine\"", "1");
    assert!(asked.contains(&format!("w{worker} < {expected}")), "{asked}");
    bus.worker_sends(worker, &progress("1"));
    assert!(bus.seen().contains(r#""progressToken":"mine""#));
}

#[test]
fn a_client_with_an_exclusive_worker_keeps_its_tokens() {
    for (share, protocol) in
        [(ShareMode::Connection, PoolProtocol::JsonRpc), (ShareMode::Connection, PoolProtocol::V1)]
    {
        let mut bus = TestBus::new(&config(vec![Pool { protocol, ..pool(share) }]));
        bus.up(0);
        let client = bus.open();
        bus.request(client, 1, "initialize", &call(&json!("t")));
        bus.worker_sends(0, &progress("\"t\""));
        let seen = bus.seen();
        assert_eq!(seen.matches(r#""progressToken":"t""#).count(), 2, "{seen}");
    }
}
