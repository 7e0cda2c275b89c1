//! Sessions that are being opened while their agent sends a request or does not respond.

use super::*;

/// Returns a bus with one worker and two pending requests for a session, from clients of two identities.
fn two_openings() -> (TestBus, [u32; 2], [u64; 2]) {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let clients = [bus.open_as("token:one"), bus.open_as("token:two")];
    let ids = clients.map(|client| {
        bus.request(client, 7, "session/new", &json!({"cwd": "/"}));
        bus.last_id(0)
    });
    bus.seen();
    (bus, clients, ids)
}

impl TestBus {
    /// Sends a request of worker 0 in session `x`, which is not known yet.
    fn asks_early(&mut self, id: &str, method: &str) {
        let params = json!({"sessionId": "x", "path": "/AGENTS.md", "options": []});
        self.worker_sends(
            0,
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        );
    }
}

#[test]
fn a_request_in_a_session_of_unknown_client_fails_after_a_timeout() {
    let (mut bus, _, ids) = two_openings();
    bus.asks_early("f", "fs/read_text_file");
    bus.asks_early("p", "session/request_permission");
    bus.update(0, "x", "said early");
    assert_eq!(bus.seen(), "");
    bus.advance(2.1);
    let seen = bus.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 2, "{seen}");
    assert!(lines[0].starts_with(r#"w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32011"#), "{seen}");
    assert_eq!(lines[1], r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#);
    // The agent continues after the error, and none of its other messages is lost.
    bus.answer(0, ids[1], &json!({"sessionId": "x"}));
    let seen = bus.seen();
    assert!(seen.starts_with("c1 < ") && seen.contains("said early"), "{seen}");
    assert!(seen.ends_with(r#"c1 < {"jsonrpc":"2.0","id":7,"result":{"sessionId":"x"}}"#), "{seen}");
    bus.advance(5.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_request_in_a_session_that_is_opened_in_time_reaches_its_client() {
    let (mut bus, _, ids) = two_openings();
    bus.asks_early("f", "fs/read_text_file");
    bus.answer(0, ids[0], &json!({"sessionId": "x"}));
    let seen = bus.seen();
    assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file""#), "{seen}");
    bus.advance(5.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_request_reaches_the_only_client_that_its_session_can_have_at_once() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    for id in [7, 8] {
        bus.request(client, id, "session/new", &json!({"cwd": "/"}));
    }
    bus.seen();
    bus.asks_early("f", "fs/read_text_file");
    assert!(bus.seen().starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file""#));
}

#[test]
fn a_request_in_a_session_of_disconnected_clients_fails_at_once() {
    let (mut bus, clients, _) = two_openings();
    for client in clients {
        bus.disconnect(client);
    }
    bus.seen();
    bus.asks_early("f", "fs/read_text_file");
    assert!(bus.seen().starts_with(r#"w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32800"#));
    // With a second possible client, the request goes to none, because that could be the wrong one.
    let other = bus.open_as("token:three");
    bus.request(other, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.asks_early("g", "fs/write_text_file");
    bus.advance(2.1);
    let seen = bus.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","id":"g","error":{"code":-32011"#), "{seen}");
}

#[test]
fn a_request_for_a_session_times_out_and_its_worker_stays() {
    let (mut bus, clients, ids) = two_openings();
    bus.answer(0, ids[1], &json!({"sessionId": "b"}));
    bus.request(clients[1], 8, "session/fork", &json!({"sessionId": "b", "cwd": "/"}));
    bus.request(clients[1], 9, "session/prompt", &prompt("b"));
    bus.seen();
    bus.advance(299.0);
    assert_eq!(bus.seen(), "");
    bus.advance(2.0);
    let seen = bus.seen();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 2, "{seen}");
    assert!(lines[0].starts_with(r#"c0 < {"jsonrpc":"2.0","id":7,"error":{"code":-32011"#), "{seen}");
    assert!(lines[1].starts_with(r#"c1 < {"jsonrpc":"2.0","id":8,"error":{"code":-32011"#), "{seen}");
    assert!(lines[0].contains(r#""effects":"possible""#), "{seen}");
    // A late response creates a session without a client, which belongs to the identity that asked for it.
    bus.answer(0, ids[0], &json!({"sessionId": "late"}));
    assert_eq!(bus.seen(), "");
    bus.request(clients[0], 8, "session/resume", &json!({"sessionId": "late"}));
    assert!(bus.seen().starts_with("w0 < "));
    bus.request(clients[1], 10, "session/resume", &json!({"sessionId": "late"}));
    assert!(bus.seen().contains("-32002"));
}
