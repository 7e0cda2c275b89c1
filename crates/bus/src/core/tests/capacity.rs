//! Shared workers that accept no more sessions, and identities that have used up their share.

use super::*;

const FULL: i64 = -32012;

fn new(bus: &mut TestBus, client: u32, id: u64) {
    bus.request(client, id, "session/new", &json!({"cwd": "/"}));
}

#[test]
fn a_session_without_a_client_is_closed_when_its_worker_is_full() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    for name in ["a", "b"] {
        bus.session(one, 0, name);
    }
    bus.session(two, 0, "c");
    bus.disconnect(one);
    bus.seen();
    new(&mut bus, two, 7);
    let id = bus.last_id(0);
    bus.seen();
    bus.fail(0, id, FULL);
    let close = bus.last_id(0);
    assert_eq!(
        bus.seen(),
        format!(
            r#"w0 < {{"jsonrpc":"2.0","id":{close},"method":"session/close","params":{{"sessionId":"a"}}}}"#
        )
    );
    bus.answer(0, close, &json!({}));
    let id = bus.last_id(0);
    assert!(bus.seen().contains("session/new"));
    bus.answer(0, id, &json!({"sessionId": "d"}));
    assert_eq!(bus.seen(), r#"c1 < {"jsonrpc":"2.0","id":7,"result":{"sessionId":"d"}}"#);
}

#[test]
fn a_refused_session_is_retried_once_and_then_fails() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    for name in ["a", "b"] {
        bus.session(one, 0, name);
    }
    bus.disconnect(one);
    new(&mut bus, two, 7);
    let id = bus.last_id(0);
    bus.fail(0, id, FULL);
    let close = bus.last_id(0);
    bus.answer(0, close, &json!({}));
    let again = bus.last_id(0);
    bus.seen();
    bus.fail(0, again, FULL);
    assert_eq!(bus.seen(), r#"c1 < {"jsonrpc":"2.0","id":7,"error":{"code":-32012,"message":"no"}}"#);
}

#[test]
fn another_worker_is_asked_if_one_is_full_and_then_another_is_started() {
    let mut bus =
        TestBus::new(&config(vec![Pool { instances: 2, max_instances: 3, ..pool(ShareMode::All) }]));
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    let one = bus.open();
    bus.session(one, 0, "a");
    bus.session(one, 1, "b");
    new(&mut bus, one, 7);
    let id = bus.last_id(0);
    bus.seen();
    bus.fail(0, id, FULL);
    assert!(bus.seen().starts_with("w1 < "));
    let id = 3;
    bus.answer(1, id, &json!({"sessionId": "c"}));
    // Worker 0 has said that it is full, so worker 1 is asked. It is full now too.
    bus.seen();
    new(&mut bus, one, 8);
    let id = bus.last_id(1);
    bus.seen();
    bus.fail(1, id, FULL);
    assert!(bus.seen().contains("Spawn { worker: WorkerId(2)"));
    bus.up(2);
    bus.answer(2, 1, &able());
    let id = bus.last_id(2);
    bus.seen();
    bus.answer(2, id, &json!({"sessionId": "d"}));
    assert_eq!(bus.seen(), r#"c0 < {"jsonrpc":"2.0","id":8,"result":{"sessionId":"d"}}"#);
}

#[test]
fn a_request_that_a_full_worker_refused_goes_before_lines_that_came_later() {
    let mut bus = TestBus::new(&config(vec![Pool { max_instances: 2, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open();
    bus.session(one, 0, "a");
    new(&mut bus, one, 7);
    let first = bus.last_id(0);
    new(&mut bus, one, 8);
    let second = bus.last_id(0);
    bus.fail(0, first, FULL);
    // All lines of the client wait for the new worker, even a request whose id is in use.
    bus.request(one, 8, "session/list", &json!({}));
    bus.fail(0, second, FULL);
    bus.seen();
    bus.up(1);
    bus.answer(1, 1, &able());
    let seen = bus.seen();
    assert_eq!(seen.matches("session/new").count(), 2, "{seen}");
    assert_eq!(seen.matches(r#"c0 < {"jsonrpc":"2.0","id":8,"error":{"code":-32014"#).count(), 1, "{seen}");
    assert!(!seen.contains("session/list"), "{seen}");
}

/// Returns a bus with one worker that two identities share, each with at most two sessions.
fn two_identities_at_one_worker() -> (TestBus, u32, u32) {
    let mut config = config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]);
    config.limits.max_sessions_per_worker = 2;
    let mut bus = TestBus::new(&config);
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    (bus, one, two)
}

#[test]
fn one_identity_leaves_room_for_others_at_a_worker_that_they_share() {
    let (mut bus, one, two) = two_identities_at_one_worker();
    bus.session(one, 0, "a");
    bus.session(one, 0, "b");
    new(&mut bus, one, 7);
    let seen = bus.seen();
    assert!(seen.contains("-32012") && !seen.contains("Spawn"), "{seen}");
    new(&mut bus, two, 7);
    assert!(bus.seen().starts_with("w0 < "));
    // After the identity has closed a session, it may open another one.
    bus.request(one, 8, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    new(&mut bus, one, 9);
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_session_that_its_clients_left_makes_room_for_another_of_its_identity() {
    let (mut bus, one, two) = two_identities_at_one_worker();
    bus.session(one, 0, "a");
    bus.session(two, 0, "other");
    bus.disconnect(two);
    let again = bus.open_as("token:one");
    bus.session(again, 0, "b");
    bus.disconnect(again);
    bus.seen();
    new(&mut bus, one, 7);
    let seen = bus.seen();
    let closed = seen.find("session/close").expect("the session without a client is closed");
    assert!(closed < seen.find("session/new").expect("another session is opened"), "{seen}");
    assert!(seen.contains("\"b\"") && !seen.contains("other"), "{seen}");
}

#[test]
fn a_client_that_leaves_while_room_is_made_is_forgotten() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    new(&mut bus, two, 7);
    let id = bus.last_id(0);
    bus.fail(0, id, FULL);
    let close = bus.last_id(0);
    bus.disconnect(two);
    let three = bus.open();
    assert_eq!(three, two, "the slot is used again");
    bus.seen();
    bus.answer(0, close, &json!({}));
    assert_eq!(bus.seen(), "");
    // If the worker is lost meanwhile, the result is the same.
    bus.session(three, 0, "b");
    bus.disconnect(three);
    let four = bus.open();
    new(&mut bus, four, 7);
    let id = bus.last_id(0);
    bus.fail(0, id, FULL);
    bus.seen();
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    let seen = bus.seen();
    assert!(seen.contains(r#""method":"session/new""#), "it is asked for at the next worker: {seen}");
}

#[test]
fn sessions_that_are_being_opened_count_for_the_share_of_an_identity() {
    let mut settings = config(vec![Pool { mix_identities: true, max_instances: 1, ..pool(ShareMode::All) }]);
    settings.limits.max_sessions_per_worker = 2;
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.seen();
    for id in 1..=3 {
        new(&mut bus, one, id);
    }
    let seen = bus.seen();
    assert_eq!(seen.matches("w0 < ").count(), 2, "{seen}");
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32012"#), "{seen}");
    new(&mut bus, two, 1);
    assert!(bus.seen().starts_with("w0 < "));
    // A request for a session that failed does not count as a session.
    bus.fail(0, 2, -32603);
    bus.seen();
    new(&mut bus, one, 4);
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn sessions_that_are_being_opened_count_for_the_limit_of_an_identity() {
    let mut settings = config(vec![pool(ShareMode::All)]);
    settings.limits.max_sessions_per_identity = 2;
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open_as("token:one");
    bus.seen();
    for id in 1..=3 {
        new(&mut bus, one, id);
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (2, 1), "{seen}");
}

#[test]
fn one_identity_may_have_half_of_the_known_capacity_of_a_worker() {
    let mut bus =
        TestBus::new(&config(vec![Pool { mix_identities: true, max_instances: 1, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    for name in ["a", "b", "c", "d"] {
        bus.session(one, 0, name);
    }
    new(&mut bus, two, 1);
    let id = bus.last_id(0);
    bus.fail(0, id, FULL);
    for name in ["a", "b"] {
        bus.request(one, 5, "session/close", &json!({"sessionId": name}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({}));
    }
    bus.seen();
    new(&mut bus, one, 6);
    assert!(bus.seen().contains("-32012"));
    new(&mut bus, two, 2);
    assert!(bus.seen().starts_with("w0 < "));
}

fn four(share: ShareMode) -> TestBus {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 4, max_instances: 4, ..pool(share) }]));
    for worker in 0..4 {
        bus.up(worker);
        if share == ShareMode::All {
            bus.answer(worker, 1, &able());
        }
    }
    bus.seen();
    bus
}

#[test]
fn one_identity_cannot_use_all_workers_if_each_connection_has_its_own() {
    let mut bus = four(ShareMode::Connection);
    for client in 0..4 {
        let client_of_one = bus.open_as("token:one");
        bus.request(client_of_one, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = bus.seen();
        assert_eq!(seen.contains("-32012"), client == 3, "{seen}");
    }
    let two = bus.open_as("token:two");
    bus.request(two, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = bus.seen();
    assert!(seen.contains("w3 < "), "{seen}");
}

#[test]
fn one_identity_cannot_use_all_workers_of_a_shared_pool() {
    let mut bus = four(ShareMode::All);
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    for id in 1..=8 {
        new(&mut bus, one, id);
    }
    let seen = bus.seen();
    assert!(!seen.contains("-32012") && !seen.contains("w3 < "), "{seen}");
    new(&mut bus, two, 1);
    assert!(bus.seen().starts_with("w3 < "));
}

#[test]
fn idle_workers_of_the_identity_with_the_most_are_stopped_first() {
    let mut bus = four(ShareMode::Connection);
    let two = bus.open_as("token:two");
    bus.request(two, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    bus.session(two, 0, "b");
    bus.disconnect(two);
    for worker in 1..4 {
        let one = bus.open_as("token:one");
        bus.request(one, 1, "initialize", &json!({"protocolVersion": 1}));
        bus.answer(worker, 1, &able());
        bus.session(one, worker, &format!("a{worker}"));
        bus.disconnect(one);
        bus.advance(1.0);
    }
    bus.seen();
    let three = bus.open_as("token:three");
    bus.request(three, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_eq!(bus.seen(), "Stop { worker: WorkerId(1), kill: false }");
    bus.kill_worker(1);
    bus.up(1);
    assert!(bus.seen().contains("w1 < "));
    // If the identity has its maximum of workers, one of its own workers is stopped to make room.
    bus.disconnect(three);
    let one = bus.open_as("token:one");
    bus.request(one, 1, "initialize", &json!({"protocolVersion": 1}));
    assert!(!bus.seen().contains("WorkerId(0)"));
}

#[test]
fn a_fork_counts_as_a_session_of_its_identity() {
    let mut config = config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]);
    config.limits.max_sessions_per_identity = 2;
    let mut bus = TestBus::new(&config);
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open_as("token:one");
    bus.session(one, 0, "a");
    for id in [7, 8] {
        bus.request(one, id, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (1, 1), "{seen}");
    assert_eq!(bus.core.status(bus.now).identities["token:one"].refused, 1);
}

#[test]
fn a_fork_counts_for_the_share_of_its_identity_at_a_worker() {
    let (mut bus, one, two) = two_identities_at_one_worker();
    bus.session(one, 0, "a");
    bus.session(one, 0, "b");
    bus.session(two, 0, "c");
    bus.request(one, 7, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    let seen = bus.seen();
    assert!(seen.contains("-32012") && !seen.contains("w0 < "), "{seen}");
    bus.request(two, 7, "session/fork", &json!({"sessionId": "c", "cwd": "/"}));
    assert!(bus.seen().starts_with("w0 < "));
    // A session that is being created counts as a session of its identity.
    bus.request(two, 8, "session/fork", &json!({"sessionId": "c", "cwd": "/"}));
    let seen = bus.seen();
    assert!(seen.contains("-32012") && !seen.contains("w0 < "), "{seen}");
    // To make room for the fork, a session of the same identity without a client is closed.
    let other = bus.open_as("token:one");
    bus.request(other, 1, "session/resume", &json!({"sessionId": "x"}));
    bus.disconnect(one);
    bus.request(other, 2, "session/resume", &json!({"sessionId": "a"}));
    bus.seen();
    bus.request(other, 3, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    let seen = bus.seen();
    let close = seen.find(r#""method":"session/close","params":{"sessionId":"b"}"#);
    assert!(close < seen.find("session/fork") && close.is_some(), "{seen}");
}
