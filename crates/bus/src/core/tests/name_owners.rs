//! Agents that count their sessions at each worker: a name that sessions of two identities have had opens neither for the other.

use super::identities_at_one_worker::mixed;
use super::*;

fn open_params(session: &str) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": []})
}

fn entries(names: &[&str]) -> Value {
    let entries: Vec<Value> = names.iter().map(|name| json!({"sessionId": name, "cwd": "/"})).collect();
    json!({"sessions": entries})
}

/// The workers that were sent something.
fn reached(seen: &str) -> Vec<u32> {
    (0..2).filter(|worker| seen.contains(&format!("w{worker} < "))).collect()
}

/// Alice has had session `1` at worker 0, which is open, and bob `1` at worker 1, which is closed.
fn counted() -> (Scene, u32, u32) {
    let mut scene = mixed(2, Protocol::V1);
    let (alice, bob) = (scene.open_as("token:alice"), scene.open_as("token:bob"));
    scene.session(alice, 0, "1");
    scene.session(bob, 1, "1");
    scene.closes(bob, 1, "1~2");
    (scene, alice, bob)
}

impl Scene {
    /// What a client is told that asks for its sessions, where each worker lists these.
    fn lists(&mut self, client: u32, listed: &[&[&str]]) -> String {
        self.ask(client, 901, "session/list", &json!({}));
        let seen = self.seen();
        for (worker, names) in (0..).zip(listed) {
            self.answer(worker, last_id_in(&seen, worker), &entries(names));
        }
        self.seen()
    }
}

#[test]
fn a_session_of_another_identity_is_neither_listed_nor_deleted_by_its_name_at_another_worker() {
    let (mut scene, alice, bob) = counted();
    scene.ask(alice, 1, "session/resume", &open_params("1"));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    let seen = scene.lists(alice, &[&[], &["1"]]);
    assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
    let seen = scene.lists(alice, &[&["1"], &[]]);
    assert!(seen.contains(r#""sessionId":"1""#), "{seen}");
    scene.closes(alice, 0, "1");
    for client in [alice, bob] {
        let seen = scene.lists(client, &[&[], &["1"]]);
        assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
        for method in ["session/delete", "session/load", "session/resume"] {
            scene.ask(client, 2, method, &open_params("1"));
            let seen = scene.seen();
            assert!(!reached(&seen).contains(&1), "{method}: {seen}");
        }
    }
}

#[test]
fn a_name_of_several_identities_opens_nothing_after_a_restart() {
    let (mut scene, alice, _) = counted();
    scene.ask(alice, 1, "session/resume", &open_params("1"));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    let seen = scene.seen();
    assert!(seen.contains(r#"session: "p"/"1", identity: "several""#), "{seen}");
    let mut scene = mixed(2, Protocol::V1);
    scene.core.know_owner(&"1".into(), "token:alice");
    let in_pool = crate::core::OwnedName { pool: Some("p".into()), name: "1".into() };
    scene.core.know_owner(&in_pool, "several");
    let alice = scene.open_as("token:alice");
    let seen = scene.lists(alice, &[&["1"], &["1"]]);
    assert!(seen.ends_with(r#""result":{"sessions":[]}}"#), "{seen}");
    for method in ["session/delete", "session/load"] {
        scene.ask(alice, 2, method, &open_params("1"));
        let seen = scene.seen();
        assert!(reached(&seen).is_empty() && seen.contains("-32002"), "{method}: {seen}");
    }
}

#[test]
fn a_child_of_one_identity_is_neither_listed_nor_loaded_by_another() {
    let doors = ["unix:/run/bus.sock", "tcp://127.0.0.1:1"].map(|door| Listen::parse(door).unwrap());
    let mut scene = Scene::new(&Config {
        listen: doors.into(),
        ..config(vec![Pool { instances: 2, ..pool(Share::Connection) }])
    });
    let (user, anyone) = (scene.open_as("uid:0"), scene.open_as("anyone"));
    for (client, worker) in [(user, 0), (anyone, 1)] {
        scene.up(worker);
        scene.ask(
            client,
            1,
            "initialize",
            &json!({"protocolVersion": 1, "clientCapabilities": {"subagents": {}}}),
        );
        scene.answer(worker, 1, &able());
    }
    scene.session(user, 0, "parent");
    scene.announces(0, "parent", "kid");
    scene.seen();
    for is_closed in [false, true] {
        if is_closed {
            scene.closes(user, 0, "parent");
        }
        scene.ask(anyone, 2, "session/list", &json!({}));
        let id = scene.last_id(1);
        scene.answer(1, id, &entries(&["parent", "kid", "old"]));
        let seen = scene.seen();
        assert!(!seen.contains("kid") && seen.contains("old"), "{is_closed}: {seen}");
        scene.ask(anyone, 3, "session/load", &open_params("kid"));
        let seen = scene.seen();
        assert!(reached(&seen).is_empty() && seen.contains("-32002"), "{is_closed}: {seen}");
    }
}
