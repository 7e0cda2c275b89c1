//! Restores that a worker answers after their timeout. The worker then has a session that the bus no longer
//! looks for in it.

use super::*;

/// Returns a bus in which a restore of alice's session `a` has timed out in worker 0, and alice and bob. No
/// owners are kept.
fn late() -> (TestBus, u32, u32) {
    let pool = Pool { mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![pool]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (alice, bob) = (bus.open_as("uid:1"), bus.open_as("uid:2"));
    bus.session(alice, 0, "a");
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.request(alice, 1, "session/prompt", &prompt("a"));
    assert!(bus.seen().contains("session/resume"));
    bus.advance(31.0);
    let seen = bus.seen();
    assert!(seen.contains("session not restored in time"), "{seen}");
    (bus, alice, bob)
}

/// Returns the list that a client gets when worker 0 lists `a`.
fn list(bus: &mut TestBus, client: u32) -> String {
    bus.request(client, 7, "session/list", &json!({}));
    let id = bus.last_id(0);
    bus.seen();
    bus.answer(0, id, &json!({"sessions": [{"sessionId": "a", "cwd": "/"}]}));
    bus.seen()
}

const EMPTY: &str = r#""result":{"sessions":[]}}"#;

#[test]
fn a_session_restored_too_late_is_not_listed_for_another_identity() {
    let (mut bus, alice, bob) = late();
    bus.answer(0, 2, &json!({}));
    assert!(list(&mut bus, bob).ends_with(EMPTY));
    assert!(list(&mut bus, alice).contains(r#""sessionId":"a""#));
    // The bus forgets the session, but the worker still has it.
    bus.request(alice, 8, "session/close", &json!({"sessionId": "a"}));
    assert!(bus.seen().contains(r#""id":8,"result""#));
    assert!(list(&mut bus, bob).ends_with(EMPTY));
    bus.request(bob, 9, "session/resume", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    let seen = bus.seen();
    assert!(!seen.contains("w0 < ") && seen.contains("-32002"), "{seen}");
}

#[test]
fn a_session_whose_client_leaves_during_its_restore_is_not_listed_for_another_identity() {
    let (mut bus, alice, bob) = late();
    bus.answer(0, 2, &json!({}));
    bus.request(alice, 2, "session/prompt", &prompt("a"));
    assert!(bus.seen().contains("session/resume"));
    bus.disconnect(alice);
    bus.advance(301.0);
    assert_eq!(bus.core.status(bus.now).sessions, 0);
    assert!(list(&mut bus, bob).ends_with(EMPTY));
}

#[test]
fn a_request_in_a_session_restored_too_late_reaches_no_other_client() {
    let (mut bus, _, bob) = late();
    bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.answer(0, 2, &json!({}));
    bus.update(0, "a", "hello");
    let request = json!({"jsonrpc": "2.0", "id": "p", "method": "session/request_permission",
        "params": {"sessionId": "a", "options": []}});
    bus.worker_sends(0, &request.to_string());
    let seen = bus.seen();
    assert!(
        !seen.contains(&format!("c{bob} < ")) && seen.contains(r#"w0 < {"jsonrpc":"2.0","id":"p""#),
        "{seen}"
    );
    assert_eq!(bus.core.status(bus.now).counters.strikes, 0);
}

#[test]
fn a_session_open_in_another_worker_is_not_listed_for_another_identity() {
    let pool = Pool { instances: 2, mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![pool]));
    for worker in [0, 1] {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    let (alice, bob) = (bus.open_as("uid:1"), bus.open_as("uid:2"));
    bus.session(alice, 0, "a");
    for (client, is_listed) in [(bob, false), (alice, true)] {
        bus.request(client, 7, "session/list", &json!({}));
        let seen = bus.seen();
        bus.answer(0, last_id_in(&seen, 0), &json!({"sessions": []}));
        bus.answer(1, last_id_in(&seen, 1), &json!({"sessions": [{"sessionId": "a", "cwd": "/"}]}));
        let seen = bus.seen();
        assert_eq!(seen.contains(r#""sessionId":"a""#), is_listed, "{seen}");
    }
}
