//! Clients that go, a bus that stops, settings that change.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_client_that_goes_leaves_its_session_to_come_back_to() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    scene.said(0, r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    scene.seen();
    scene.leaves(client);
    scene.pass(0.1);
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    scene.answer(0, 3, &json!({"stopReason": "cancelled"}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32800,"message":"the client has gone","data":{"condition":"cancelled","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"cancelled"}}}
    "#);
    let other = scene.open();
    scene.ask(other, 1, "session/prompt", &prompt("a"));
    scene.pass(200.0);
    scene.ask(other, 2, "session/load", &json!({"sessionId": "a"}));
    scene.update(0, "a", "history");
    scene.answer(0, 4, &json!({}));
    scene.pass(200.0);
    scene.ask(other, 3, "session/prompt", &prompt("a"));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"load or resume the session on this connection first","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/load","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"history"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn a_session_that_nobody_comes_back_to_is_closed() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.leaves(client);
    scene.pass(299.0);
    assert_snapshot!(scene.seen(), @"");
    scene.pass(2.0);
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/close","params":{"sessionId":"a"}}
    "#);
}

#[test]
fn a_client_that_only_ends_its_input_gets_what_it_is_owed() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "session/new", &json!({}));
    scene.ask(client, 2, "_ext", &json!({}));
    scene.seen();
    scene.core.client_eof(scene.now, ClientId(client), &mut scene.sight);
    scene.answer(0, 2, &json!({"sessionId": "a"}));
    scene.answer(0, 3, &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{}}
    Close { client: ClientId(0), reason: Served }
    "#);
}

#[test]
fn workers_of_one_connection_go_with_it() {
    let mut scene = Scene::new(&config(vec![pool(Share::Connection)]));
    scene.up(0);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.answer(0, 1, &able());
    scene.seen();
    scene.leaves(client);
    assert_snapshot!(scene.seen(), @"
    Stop { worker: WorkerId(0), kill: false }
    ");
}

#[test]
fn a_bus_that_stops_lets_turns_end_and_takes_no_more() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.seen();
    scene.core.drain(scene.now, &mut scene.sight);
    scene.ask(client, 2, "session/new", &json!({}));
    scene.update(0, "a", "last");
    assert!(scene.core.client_open(scene.now, ClientInfo::new(0, ANYONE), &mut scene.sight).is_none());
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    scene.leaves(client);
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32016,"message":"the bus is stopping","data":{"condition":"draining","retryable":true,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"last"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    Close { client: ClientId(0), reason: Draining }
    Finished
    "#);
}

#[test]
fn a_bus_that_stops_answers_behind_what_it_drops() {
    let mut scene = Scene::new(&config(vec![Pool { instances: 1, ..pool(Share::Connection) }]));
    scene.up(0);
    let (one, other) = (scene.open(), scene.open());
    scene.ask(one, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.core.drain(scene.now, &mut scene.sight);
    scene.seen();
    scene.note(other, "_ext/note", &json!({}));
    scene.ask(other, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_snapshot!(scene.seen(), @r#"c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"the bus is stopping","data":{"condition":"draining","retryable":true,"effects":"none"}}}"#);
}

#[test]
fn a_bus_that_stops_waits_only_so_long() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.core.drain(scene.now, &mut scene.sight);
    scene.pass(29.9);
    scene.seen();
    scene.pass(0.2);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"the bus has stopped","data":{"condition":"draining","retryable":true,"effects":"possible"}}}
    Stop { worker: WorkerId(0), kill: false }
    Close { client: ClientId(0), reason: Draining }
    "#);
}

#[test]
fn settings_change_without_a_failed_request() {
    let first = config(vec![Pool { instances: 1, ..pool(Share::All) }]);
    let mut scene = Scene::new(&first);
    scene.up(0);
    scene.answer(0, 1, &able());
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.seen();
    let changed = Pool { command: vec!["other".into()], ..pool(Share::All) };
    scene.core.reload(scene.now, &config(vec![changed.clone()]), &mut scene.sight);
    scene.up(1);
    scene.answer(1, 1, &able());
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.answer(1, 2, &json!({}));
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    Spawn { worker: WorkerId(1), pool: PoolId(1) }
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Ready(WorkerId(1)))
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
    // More of the same, and fewer.
    scene.core.reload(scene.now, &config(vec![Pool { instances: 3, ..changed.clone() }]), &mut scene.sight);
    scene.core.reload(scene.now, &config(vec![changed]), &mut scene.sight);
    assert_snapshot!(scene.seen(), @"
    Spawn { worker: WorkerId(0), pool: PoolId(1) }
    Spawn { worker: WorkerId(2), pool: PoolId(1) }
    Stop { worker: WorkerId(2), kill: false }
    Stop { worker: WorkerId(0), kill: false }
    ");
}

#[test]
fn on_stdio_what_was_said_before_the_end_is_answered() {
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    let from = ClientInfo { ends_bus: true, ..ClientInfo::new(0, ANYONE) };
    let client = scene.core.client_open(scene.now, from, &mut scene.sight).unwrap();
    scene.ask(client.0, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.core.client_eof(scene.now, client, &mut scene.sight);
    scene.up(0);
    scene.seen();
    scene.answer(0, 1, &json!({"protocolVersion": 1}));
    scene.leaves(client.0);
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    Tell(Ready(WorkerId(0)))
    c0 < {"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"authMethods":[]}}
    Close { client: ClientId(0), reason: Served }
    Stop { worker: WorkerId(0), kill: false }
    Finished
    "#);
}

#[test]
fn a_pool_that_comes_back_is_found_by_its_name() {
    let named = |name: &str| Pool { name: name.into(), ..pool(Share::All) };
    let mut scene = Scene::new(&config(vec![named("p"), named("q")]));
    scene.core.reload(scene.now, &config(vec![named("p")]), &mut scene.sight);
    scene.core.reload(scene.now, &config(vec![named("p"), named("q")]), &mut scene.sight);
    let client = scene.open();
    scene.seen();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "q"}}));
    assert_snapshot!(scene.seen(), @"");
}
