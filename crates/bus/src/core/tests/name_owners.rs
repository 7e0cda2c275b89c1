//! Agents that number the sessions of each worker. If sessions of two identities have had one name, the name
//! opens neither session for the other identity.

use super::identities::authenticating;
use super::identities_at_one_worker::mixed;
use super::*;

fn open_params(session: &str) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": []})
}

fn entries(names: &[&str]) -> Value {
    let entries: Vec<Value> = names.iter().map(|name| json!({"sessionId": name, "cwd": "/"})).collect();
    json!({"sessions": entries})
}

fn reached(seen: &str) -> Vec<u32> {
    (0..2).filter(|worker| seen.contains(&format!("w{worker} < "))).collect()
}

/// Returns a bus in which alice has the open session `1` in worker 0, and bob had a session `1` in worker 1,
/// which is closed.
fn counted() -> (TestBus, u32, u32) {
    let mut bus = mixed(2, PoolProtocol::V1);
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.session(alice, 0, "1");
    bus.session(bob, 1, "1");
    bus.closes(bob, 1, "1~2");
    (bus, alice, bob)
}

impl TestBus {
    /// Returns the session list that a client gets if each worker lists these sessions.
    fn lists(&mut self, client: u32, listed: &[&[&str]]) -> String {
        self.request(client, 901, "session/list", &json!({}));
        let seen = self.seen();
        for (worker, names) in (0..).zip(listed) {
            self.answer(worker, last_id_in(&seen, worker), &entries(names));
        }
        self.seen()
    }
}

#[test]
fn a_session_of_another_identity_is_neither_listed_nor_deleted_by_its_name_at_another_worker() {
    let (mut bus, alice, bob) = counted();
    bus.request(alice, 1, "session/resume", &open_params("1"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    let seen = bus.lists(alice, &[&[], &["1"]]);
    assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
    let seen = bus.lists(alice, &[&["1"], &[]]);
    assert!(seen.contains(r#""sessionId":"1""#), "{seen}");
    bus.closes(alice, 0, "1");
    for client in [alice, bob] {
        let seen = bus.lists(client, &[&[], &["1"]]);
        assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
        for method in ["session/delete", "session/load", "session/resume"] {
            bus.request(client, 2, method, &open_params("1"));
            let seen = bus.seen();
            assert!(!reached(&seen).contains(&1), "{method}: {seen}");
        }
    }
}

#[test]
fn a_name_of_several_identities_opens_nothing_after_a_restart() {
    let (mut bus, alice, _) = counted();
    bus.request(alice, 1, "session/resume", &open_params("1"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    let seen = bus.seen();
    assert!(seen.contains(r#"session: "p"/"1", identity: "several""#), "{seen}");
    let mut bus = mixed(2, PoolProtocol::V1);
    bus.core.load_owner(&"1".into(), "token:alice");
    let in_pool = crate::core::OwnedName { pool: Some("p".into()), name: "1".into() };
    bus.core.load_owner(&in_pool, "several");
    let alice = bus.open_as("token:alice");
    let seen = bus.lists(alice, &[&["1"], &["1"]]);
    assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
    for method in ["session/delete", "session/load"] {
        bus.request(alice, 2, method, &open_params("1"));
        let seen = bus.seen();
        assert!(reached(&seen).is_empty() && seen.contains("-32002"), "{method}: {seen}");
    }
}

#[test]
fn a_stored_session_is_not_opened_while_its_worker_creates_one_for_another_identity() {
    let mut bus = mixed(2, PoolProtocol::V1);
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.session(alice, 0, "2");
    bus.session(alice, 1, "other");
    bus.closes(alice, 0, "2");
    bus.request(alice, 1, "session/new", &json!({"cwd": "/"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"sessionId": "more"}));
    bus.closes(alice, 1, "other");
    bus.seen();
    bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
    let new = bus.last_id(1);
    bus.seen();
    bus.request(alice, 2, "session/resume", &open_params("2"));
    let seen = bus.seen();
    assert_eq!(reached(&seen), [0], "{seen}");
    // A second worker may know the session that worker 0 does not.
    bus.fail(0, last_id_in(&seen, 0), -32002);
    let seen = bus.seen();
    assert_eq!(seen, "", "the request waits");
    bus.answer(1, new, &json!({"sessionId": "2"}));
    let seen = bus.seen();
    assert!(seen.contains(&format!(r#"c{bob} < {{"jsonrpc":"2.0","id":1,"result":{{"sessionId":"2~2"}}}}"#)));
    bus.advance(0.0);
    let seen = bus.seen();
    assert!(!reached(&seen).contains(&1), "{seen}");
}

#[test]
fn a_request_for_a_stored_session_goes_on_once_the_worker_has_answered_the_other_identity() {
    for end in ["answered", "failed", "overdue", "lost", "given up"] {
        let mut bus = mixed(1, PoolProtocol::V1);
        bus.core.load_owner(&"kept".into(), "token:alice");
        let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
        bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
        let new = bus.last_id(0);
        bus.seen();
        bus.request(alice, 1, "session/load", &open_params("kept"));
        assert_eq!(bus.seen(), "", "{end}");
        match end {
            "answered" => bus.answer(0, new, &json!({"sessionId": "s"})),
            "failed" => bus.fail(0, new, -32603),
            "overdue" => bus.advance(600.0),
            "lost" => {
                bus.kill_worker(0);
                bus.advance(5.0);
                bus.up(0);
                bus.answer(0, 1, &able());
            }
            _ => {
                bus.notify(alice, "$/cancel_request", &json!({"requestId": 1}));
                let seen = bus.seen();
                assert!(seen.contains("-32800") && reached(&seen).is_empty(), "{seen}");
                continue;
            }
        }
        bus.advance(0.0);
        let seen = bus.seen();
        assert!(seen.contains(r#""method":"session/load""#), "{end}: {seen}");
    }
}

#[test]
fn requests_that_wait_for_new_sessions_are_removed_with_their_client() {
    let mut bus = mixed(1, PoolProtocol::V1);
    bus.core.load_owner(&"kept".into(), "token:alice");
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
    let new = bus.last_id(0);
    bus.request(alice, 1, "session/load", &open_params("kept"));
    bus.disconnect(alice);
    bus.seen();
    bus.answer(0, new, &json!({"sessionId": "s"}));
    bus.advance(0.0);
    assert!(!bus.seen().contains("session/load"));
}

#[test]
fn a_session_created_for_one_identity_is_not_given_to_another_that_opened_it_meanwhile() {
    let mut bus = mixed(1, PoolProtocol::V1);
    bus.core.load_owner(&"2".into(), "token:alice");
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.request(alice, 1, "session/load", &open_params("2"));
    let load = bus.last_id(0);
    bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
    let new = bus.last_id(0);
    bus.answer(0, load, &json!({}));
    bus.answer(0, new, &json!({"sessionId": "2"}));
    bus.seen();
    bus.update(0, "2", "secret");
    let seen = bus.seen();
    assert!(seen.starts_with(&format!("c{bob} < ")) && seen.lines().count() == 1, "{seen}");
    bus.request(alice, 2, "session/prompt", &prompt("2"));
    let seen = bus.seen();
    assert!(reached(&seen).is_empty() && seen.contains("-32002"), "{seen}");
}

#[test]
fn a_child_of_one_identity_is_neither_listed_nor_loaded_by_another() {
    let listeners =
        ["unix:/run/bus.sock", "tcp://127.0.0.1:1"].map(|url| ListenerSettings::parse(url).unwrap());
    let mut bus = TestBus::new(&Config {
        listen: listeners.into(),
        ..config(vec![Pool { instances: 2, ..pool(ShareMode::Connection) }])
    });
    let (user, anyone) = (bus.open_as("uid:0"), bus.open_as("anyone"));
    for (client, worker) in [(user, 0), (anyone, 1)] {
        bus.up(worker);
        bus.request(
            client,
            1,
            "initialize",
            &json!({"protocolVersion": 1, "clientCapabilities": {"subagents": {}}}),
        );
        bus.answer(worker, 1, &able());
    }
    bus.session(user, 0, "parent");
    bus.announces(0, "parent", "kid");
    bus.seen();
    for is_closed in [false, true] {
        if is_closed {
            bus.closes(user, 0, "parent");
        }
        bus.request(anyone, 2, "session/list", &json!({}));
        let id = bus.last_id(1);
        bus.answer(1, id, &entries(&["parent", "kid", "old"]));
        let seen = bus.seen();
        assert!(!seen.contains("kid") && seen.contains("old"), "{is_closed}: {seen}");
        bus.request(anyone, 3, "session/load", &open_params("kid"));
        let seen = bus.seen();
        assert!(reached(&seen).is_empty() && seen.contains("-32002"), "{is_closed}: {seen}");
    }
}

#[test]
fn a_lost_session_is_not_restored_while_the_worker_creates_one_for_another_identity() {
    for name in ["s1", "s2"] {
        let mut bus = mixed(2, PoolProtocol::V1);
        let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
        bus.session(alice, 0, "s1");
        bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
        let new = bus.last_id(1);
        bus.kill_worker(0);
        bus.seen();
        bus.request(alice, 1, "session/prompt", &prompt("s1"));
        let seen = bus.seen();
        assert!(reached(&seen).is_empty(), "{seen}");
        bus.answer(1, new, &json!({"sessionId": name}));
        bus.advance(0.0);
        let seen = bus.seen();
        // The lost session is restored now, unless the new session has its name.
        assert_eq!(seen.contains(r#""method":"session/resume""#), name != "s1", "{seen}");
        assert_eq!(seen.contains(r#""id":1,"error":{"code":-32002"#), name == "s1", "{seen}");
    }
}

#[test]
fn a_stored_session_gets_a_worker_of_its_own_where_identities_do_not_share_workers() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { max_instances: 2, ..pool(ShareMode::All) }]));
    bus.core.load_owner(&"kept".into(), "token:alice");
    bus.up(0);
    bus.answer(0, 1, &able());
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.request(bob, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.request(alice, 1, "session/load", &open_params("kept"));
    assert!(bus.seen().contains("Spawn"), "a worker is started for alice");
}
