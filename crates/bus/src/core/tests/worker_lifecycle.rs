//! Clients that disconnect, a bus that drains, settings that change.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_client_can_return_to_its_session_after_a_disconnect() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#,
    );
    bus.seen();
    bus.disconnect(client);
    bus.advance(0.1);
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    bus.answer(0, 3, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32800,"message":"client disconnected","data":{"condition":"cancelled","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"cancelled"}}}
    "#);
    let other = bus.open();
    bus.request(other, 1, "session/prompt", &prompt("a"));
    bus.advance(200.0);
    bus.request(other, 2, "session/load", &json!({"sessionId": "a"}));
    bus.update(0, "a", "history");
    bus.answer(0, 4, &json!({}));
    bus.advance(200.0);
    bus.request(other, 3, "session/prompt", &prompt("a"));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"session must be loaded or resumed first","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/load","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"history"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn a_session_without_a_client_is_closed_after_the_grace_period() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.disconnect(client);
    bus.advance(299.0);
    assert_snapshot!(bus.seen(), @"");
    bus.advance(2.0);
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"a"}}
    "#);
}

#[test]
fn a_client_that_ends_its_input_still_gets_its_answers() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/new", &json!({}));
    bus.request(client, 2, "_ext", &json!({}));
    bus.seen();
    bus.core.client_eof(bus.now, ClientId(client), &mut bus.output);
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{}}
    Close { client: ClientId(0), reason: Served }
    "#);
}

#[test]
fn workers_of_one_connection_end_with_it() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::Connection)]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    bus.seen();
    bus.disconnect(client);
    assert_snapshot!(bus.seen(), @"
    Stop { worker: WorkerId(0), kill: false }
    ");
}

#[test]
fn a_drain_lets_turns_end_and_accepts_no_more() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.seen();
    bus.core.drain(bus.now, &mut bus.output);
    bus.request(client, 2, "session/new", &json!({}));
    bus.update(0, "a", "last");
    assert!(bus.core.client_open(bus.now, ClientInfo::new(0, ANYONE), &mut bus.output).is_none());
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    bus.disconnect(client);
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32016,"message":"bus is shutting down","data":{"condition":"draining","retryable":true,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"last"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    Close { client: ClientId(0), reason: Draining }
    Finished
    "#);
}

#[test]
fn a_drain_answers_requests_behind_dropped_lines() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::Connection) }]));
    bus.up(0);
    let (one, other) = (bus.open(), bus.open());
    bus.request(one, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.core.drain(bus.now, &mut bus.output);
    bus.seen();
    bus.notify(other, "_ext/note", &json!({}));
    bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_snapshot!(bus.seen(), @r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"bus is shutting down","data":{"condition":"draining","retryable":true,"effects":"none"}}}"#);
}

#[test]
fn a_drain_has_a_timeout() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.core.drain(bus.now, &mut bus.output);
    bus.advance(29.9);
    bus.seen();
    bus.advance(0.2);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"bus stopped","data":{"condition":"draining","retryable":true,"effects":"possible"}}}
    Stop { worker: WorkerId(0), kill: false }
    Close { client: ClientId(0), reason: Draining }
    "#);
}

#[test]
fn settings_change_without_a_failed_request() {
    let first = config(vec![Pool { instances: 1, ..pool(ShareMode::All) }]);
    let mut bus = TestBus::new(&first);
    bus.up(0);
    bus.answer(0, 1, &able());
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.seen();
    let changed = Pool { command: vec!["other".into()], ..pool(ShareMode::All) };
    bus.core.reload(bus.now, &config(vec![changed.clone()]), &mut bus.output);
    bus.up(1);
    bus.answer(1, 1, &able());
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.answer(1, 2, &json!({}));
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(1), pool: PoolId(1) }
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(1)))
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
    // The first reload increases the number of instances, and the second one decreases it.
    bus.core.reload(bus.now, &config(vec![Pool { instances: 3, ..changed.clone() }]), &mut bus.output);
    bus.core.reload(bus.now, &config(vec![changed]), &mut bus.output);
    assert_snapshot!(bus.seen(), @"
    Spawn { worker: WorkerId(0), pool: PoolId(1) }
    Spawn { worker: WorkerId(2), pool: PoolId(1) }
    Stop { worker: WorkerId(2), kill: false }
    Stop { worker: WorkerId(0), kill: false }
    ");
}

#[test]
fn on_stdio_requests_before_the_end_of_input_are_answered() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    let from = ClientInfo { ends_bus: true, ..ClientInfo::new(0, ANYONE) };
    let client = bus.core.client_open(bus.now, from, &mut bus.output).unwrap();
    bus.request(client.0, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.core.client_eof(bus.now, client, &mut bus.output);
    bus.up(0);
    bus.seen();
    bus.answer(0, 1, &json!({"protocolVersion": 1}));
    bus.disconnect(client.0);
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    Log(Ready(WorkerId(0)))
    c0 < {"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[]}}
    Close { client: ClientId(0), reason: Served }
    Stop { worker: WorkerId(0), kill: false }
    Finished
    "#);
}

#[test]
fn a_pool_that_is_added_again_is_found_by_its_name() {
    let named = |name: &str| Pool { name: name.into(), ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![named("p"), named("q")]));
    bus.core.reload(bus.now, &config(vec![named("p")]), &mut bus.output);
    bus.core.reload(bus.now, &config(vec![named("p"), named("q")]), &mut bus.output);
    let client = bus.open();
    bus.seen();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "q"}}));
    assert_snapshot!(bus.seen(), @"");
}
