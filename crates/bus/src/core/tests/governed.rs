//! Workers with a gate: only the bus sends them the identity of their client, and before any other line.

use serde_json::json;

use super::super::{ANYONE, ClientInfo};
use super::{Config, ListenerSettings, Pool, ShareMode, TestBus, able, config, last_id_in, pool};

fn bus(share: ShareMode) -> TestBus {
    gated_bus(config(vec![pool(share)]))
}

fn watched(share: ShareMode) -> TestBus {
    let listen = vec![ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap()];
    gated_bus(Config { listen, ..config(vec![pool(share)]) })
}

fn gated_bus(mut settings: Config) -> TestBus {
    let governed = settings.pools.remove(0).with_manifest("/w/ACP.md".into(), None);
    settings.pools.push(Pool { instances: 2, ..governed });
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    bus.up(1);
    bus.seen();
    bus
}

fn open(bus: &mut TestBus, identity: &str) -> u32 {
    open_narrowed(bus, identity, None)
}

fn open_narrowed(bus: &mut TestBus, identity: &str, scopes: Option<&[String]>) -> u32 {
    let from = ClientInfo { scopes, ..ClientInfo::new(0, identity) };
    bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0
}

fn sent_to(seen: &str, worker: u32) -> Vec<String> {
    let start = format!("w{worker} < ");
    seen.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

#[test]
fn a_worker_gets_the_identity_of_its_client_first() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = bus(share);
        let (ada, anyone) = (open(&mut bus, "uid:1000"), open(&mut bus, ANYONE));
        for client in [ada, anyone] {
            let claim =
                json!({"jsonrpc": "2.0", "method": "narrows/identity", "params": {"identity": "uid:0"}});
            bus.line(client, &claim.to_string());
            bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
        }
        let seen = bus.seen();
        let mut firsts = [sent_to(&seen, 0)[0].clone(), sent_to(&seen, 1)[0].clone()];
        firsts.sort();
        assert_eq!(
            firsts,
            ["anyone", "uid:1000"].map(|name| format!(
                r#"{{"jsonrpc":"2.0","method":"narrows/identity","params":{{"identity":"{name}"}}}}"#
            )),
            "{seen}"
        );
    }
}

#[test]
fn a_worker_gets_the_scopes_of_its_client() {
    for (scopes, expected) in [(vec![], "[]"), (vec!["kind:\"read".to_owned()], r#"["kind:\"read"]"#)] {
        let mut bus = bus(ShareMode::Connection);
        let ada = open_narrowed(&mut bus, "token:ada", Some(&scopes));
        bus.request(ada, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = bus.seen();
        let line = format!(r#""params":{{"identity":"token:ada","scopes":{expected}}}}}"#);
        assert!(seen.contains(&line), "{seen}");
    }
}

#[test]
fn each_further_worker_of_a_client_gets_its_identity() {
    let mut bus = bus(ShareMode::Session);
    let ada = open(&mut bus, "uid:1000");
    bus.request(ada, 1, "initialize", &json!({"protocolVersion": 1}));
    let first = if sent_to(&bus.seen(), 0).is_empty() { 1 } else { 0 };
    bus.answer(first, 1, &able());
    bus.session(ada, first, "one");
    bus.request(ada, 2, "session/new", &json!({"cwd": "/"}));
    let seen = bus.seen();
    let lines = sent_to(&seen, 1 - first);
    assert!(lines[0].contains("narrows/identity") && lines[0].contains("1000"), "{seen}");
    assert!(lines[1].contains("initialize"), "{seen}");
}

/// Returns a client that has sent `initialize`, and the worker that it has claimed.
fn claimed(bus: &mut TestBus, identity: &str, scopes: Option<&[String]>) -> (u32, u32) {
    let client = open_narrowed(bus, identity, scopes);
    for worker in 0..8 {
        bus.up(worker);
    }
    bus.seen();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = bus.seen();
    let worker = (0..8).find(|worker| !sent_to(&seen, *worker).is_empty()).unwrap();
    bus.answer(worker, 1, &able());
    (client, worker)
}

#[test]
fn a_session_continues_with_the_present_scopes_of_its_client() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = bus(share);
        let (ada, worker) = claimed(&mut bus, "token:ada", None);
        bus.session(ada, worker, "one");
        bus.disconnect(ada);
        let none: Vec<String> = Vec::new();
        let back = open_narrowed(&mut bus, "token:ada", Some(&none));
        bus.request(back, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = bus.seen();
        let second = (0..8).find(|worker| !sent_to(&seen, *worker).is_empty()).unwrap();
        assert!(sent_to(&seen, second)[0].contains(r#""scopes":[]"#), "{seen}");
        bus.answer(second, 1, &able());
        bus.seen();
        bus.request(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
        let seen = bus.seen();
        assert!(sent_to(&seen, worker).is_empty(), "{share:?}: {seen}");
        assert!(sent_to(&seen, second).iter().any(|line| line.contains("session/load")), "{share:?}: {seen}");
        assert!(seen.contains(&format!("Stop {{ worker: WorkerId({worker})")), "{share:?}: {seen}");
    }
}

#[test]
fn a_worker_is_kept_for_a_client_with_the_same_scopes() {
    let mut bus = bus(ShareMode::Connection);
    let read = vec!["kind:read".to_owned()];
    let (ada, worker) = claimed(&mut bus, "token:ada", Some(&read));
    bus.session(ada, worker, "one");
    bus.disconnect(ada);
    let (back, _) = claimed(&mut bus, "token:ada", Some(&read));
    bus.seen();
    bus.request(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
    assert_eq!(sent_to(&bus.seen(), worker).len(), 1);
}

#[test]
fn no_client_uses_a_gate_with_the_scopes_of_another_connected_client() {
    let mut bus = watched(ShareMode::Connection);
    let (ada, worker) = claimed(&mut bus, "token:ada", None);
    bus.session(ada, worker, "one");
    let (other, _) = claimed(&mut bus, "token:ada", Some(&[]));
    bus.seen();
    for (id, method) in
        [(2, "session/load"), (3, "session/resume"), (4, "session/prompt"), (5, "session/close")]
    {
        bus.request(other, id, method, &json!({"sessionId": "one", "cwd": "/"}));
        let seen = bus.seen();
        assert!(seen.contains("session_in_use") && sent_to(&seen, worker).is_empty(), "{method}: {seen}");
    }
}

#[test]
fn a_lost_session_is_not_reachable_with_other_scopes() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = watched(share);
        let (ada, worker) = claimed(&mut bus, "token:ada", None);
        bus.session(ada, worker, "one");
        let (other, _) = claimed(&mut bus, "token:ada", Some(&[]));
        bus.kill_worker(worker);
        bus.advance(1.0);
        bus.seen();
        for (id, method) in [(2, "session/load"), (3, "session/resume"), (4, "session/prompt")] {
            bus.request(other, id, method, &json!({"sessionId": "one", "cwd": "/", "prompt": []}));
            let seen = bus.seen();
            assert!(seen.contains("session_in_use"), "{share:?} {method}: {seen}");
        }
        // The client has the session restored, and disconnects. Clients with other scopes still cannot
        // control the session.
        for worker in 0..8 {
            bus.up(worker);
        }
        bus.request(ada, 2, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        let seen = bus.seen();
        let worker = (0..8).find(|worker| !sent_to(&seen, *worker).is_empty()).unwrap();
        bus.answer(worker, last_id_in(&seen, worker), &able());
        let id = bus.last_id(worker);
        assert!(bus.seen().contains("session/resume"));
        bus.answer(worker, id, &json!({}));
        let id = bus.last_id(worker);
        assert!(bus.seen().contains("session/prompt"));
        bus.answer(worker, id, &json!({"stopReason": "end_turn"}));
        bus.disconnect(ada);
        bus.seen();
        bus.request(other, 5, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        let seen = bus.seen();
        assert!(sent_to(&seen, worker).is_empty() && seen.contains("error"), "{share:?}: {seen}");
    }
}

#[test]
fn a_refused_client_changes_nothing_for_others() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = bus(share);
        let (ada, worker) = claimed(&mut bus, "token:ada", None);
        bus.session(ada, worker, "one");
        // The gate also answers a client of another identity, which cannot use any session there.
        let stranger = open(&mut bus, "token:mallory");
        bus.request(stranger, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = bus.seen();
        let lobby = (0..8).find(|worker| !sent_to(&seen, *worker).is_empty()).unwrap();
        bus.answer(lobby, 1, &json!({"protocolVersion": 1, "agentCapabilities": {}}));
        bus.disconnect(ada);
        // The client is disconnected for longer than `disconnect_grace`.
        bus.advance(30.0);
        bus.seen();
        let (back, _) = claimed(&mut bus, "token:ada", None);
        bus.seen();
        bus.request(back, 2, "session/load", &json!({"sessionId": "one", "cwd": "/"}));
        let seen = bus.seen();
        assert_eq!(sent_to(&seen, worker).len(), 1, "{share:?}");
        bus.answer(worker, last_id_in(&seen, worker), &json!({}));
        // If the worker is lost, the session is restored.
        bus.kill_worker(worker);
        bus.advance(1.0);
        bus.seen();
        bus.request(back, 3, "session/prompt", &json!({"sessionId": "one", "prompt": []}));
        assert!(!bus.seen().contains("-32002"), "{share:?}");
    }
}
