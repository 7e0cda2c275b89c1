//! Batches that are answered late or have to wait, and lines sent meanwhile.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_notice_about_a_session_follows_the_array_that_names_it() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    let notices = json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}});
    bus.request(client, 0, "initialize", &notices);
    bus.session(client, 0, "a");
    bus.line(client, r#"[{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}},{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"a"}}]"#);
    let created = bus.last_id(1);
    bus.answer(1, created, &json!({"sessionId": "b"}));
    let turn = bus.last_id(0);
    bus.seen();
    bus.kill_worker(1);
    let seen = bus.seen();
    assert!(!seen.contains("c0 < "), "{seen}");
    bus.answer(0, turn, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < [{"jsonrpc":"2.0","id":1,"result":{"sessionId":"b"}},{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}]
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":{"sessionUpdate":"notice","severity":"warning","title":"Agent process exited","description":"killed by SIGKILL. The next prompt restores the session."}}}
    "#);
    // The client knows the name of session `a`, so the session does not wait for the batch.
    bus.line(client, r#"[{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a"}}]"#);
    bus.seen();
    bus.kill_worker(0);
    let seen = bus.seen();
    let (notice, array) = (seen.find("\"notice\""), seen.find("c0 < [{"));
    assert!(notice.is_some() && notice < array, "{seen}");
}

/// Returns a client with session `a` in pool `p`, and a pool `q` without a ready worker. The agent of `a`
/// waits for an answer.
fn asked_beside_slow_pool() -> (TestBus, u32) {
    let slow = Pool { name: "q".into(), ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::All) }, slow]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let client = bus.open();
    bus.session(client, 0, "a");
    let asks =
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#;
    bus.worker_sends(0, asks);
    bus.seen();
    (bus, client)
}

fn request(id: u64, method: &str, pool: &str) -> Value {
    let params = json!({"cwd": "/", "_meta": {"narrows/pool": pool}});
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

const RETURNED: &str = r#"w0 < {"jsonrpc":"2.0","id":"p","result":1}"#;

#[test]
fn answers_in_an_array_do_not_wait_for_the_lines_before_it() {
    let (mut bus, client) = asked_beside_slow_pool();
    bus.line(client, &request(1, "session/new", "q").to_string());
    bus.seen();
    let answer = |result: u64| json!({"jsonrpc": "2.0", "id": 1, "result": result});
    bus.line(client, &json!([request(2, "session/new", "q"), answer(1), {"x": 1}]).to_string());
    assert_eq!(bus.seen(), RETURNED);
    // A second answer to the same request is dropped.
    bus.line(client, &answer(2).to_string());
    assert_eq!(bus.seen(), "");
    // The other entries of the batch have to wait, and are answered with an array of their own.
    bus.up(1);
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({"sessionId": "b"}));
    bus.answer(1, 3, &json!({"sessionId": "c"}));
    let seen = bus.seen();
    let array = seen.lines().find(|line| line.starts_with("c0 < [")).unwrap();
    assert!(array.contains(r#""id":2,"result":{"sessionId":"c"}"#) && array.contains("-32600"), "{seen}");
}

#[test]
fn an_array_of_answers_never_waits() {
    let (mut bus, client) = asked_beside_slow_pool();
    bus.line(client, &request(1, "session/new", "q").to_string());
    bus.seen();
    bus.line(client, &json!([{"jsonrpc": "2.0", "id": 1, "result": 1}]).to_string());
    assert_eq!(bus.seen(), RETURNED);
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    bus.seen();
    assert!(bus.core.clients.values_mut().all(|state| state.held.is_none()));
}

#[test]
fn answers_in_an_array_do_not_wait_for_the_requests_before_them() {
    let (mut bus, client) = asked_beside_slow_pool();
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": 1});
    bus.line(client, &json!([request(1, "session/new", "p"), answer]).to_string());
    let seen = bus.seen();
    assert!(seen.ends_with(RETURNED) && seen.contains("session/new"), "{seen}");
    bus.answer(0, 3, &json!({"sessionId": "b"}));
    assert!(bus.seen().ends_with(r#"c0 < [{"jsonrpc":"2.0","id":1,"result":{"sessionId":"b"}}]"#));
}

#[test]
fn the_rest_of_an_array_waits_before_lines_that_came_after_it() {
    let (mut bus, client) = asked_beside_slow_pool();
    let array = json!([request(1, "session/new", "q"), request(2, "session/new", "q")]);
    bus.line(client, &array.to_string());
    bus.request(client, 2, "_x/custom", &json!({}));
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    assert_eq!(bus.seen().lines().filter(|line| line.starts_with(['c', 'w'])).count(), 0);
    bus.up(1);
    bus.answer(1, 1, &able());
    let seen = bus.seen();
    // Of the two requests with one id, that of the batch came first and is served.
    assert!(seen.contains(r#"w1 < {"jsonrpc":"2.0","id":2,"method":"session/new""#), "{seen}");
    assert!(
        !seen.contains("_x/custom")
            && seen.contains(r#"c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32014"#),
        "{seen}"
    );
}

#[test]
fn a_request_does_not_overtake_one_with_its_id() {
    let (mut bus, client) = asked_beside_slow_pool();
    bus.line(client, &request(7, "session/new", "q").to_string());
    bus.seen();
    bus.request(client, 7, "session/set_mode", &json!({"sessionId": "a", "modeId": "x"}));
    assert_eq!(bus.seen(), "");
    bus.request(client, 8, "session/set_mode", &json!({"sessionId": "a", "modeId": "y"}));
    assert!(bus.seen().contains(r#""modeId":"y""#));
    bus.up(1);
    bus.answer(1, 1, &able());
    let seen = bus.seen();
    assert!(seen.contains("session/new") && !seen.contains(r#""modeId":"x""#), "{seen}");
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":7,"error":{"code":-32014"#), "{seen}");
}
