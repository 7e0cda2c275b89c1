//! Shared workers that take no more sessions, and identities that have used up their share.

use super::*;

const FULL: i64 = -32012;

fn new(scene: &mut Scene, client: u32, id: u64) {
    scene.ask(client, id, "session/new", &json!({"cwd": "/"}));
}

#[test]
fn a_session_without_a_client_gives_way_when_its_worker_is_full() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    for name in ["a", "b"] {
        scene.session(one, 0, name);
    }
    scene.session(two, 0, "c");
    scene.leaves(one);
    scene.seen();
    new(&mut scene, two, 7);
    let id = scene.last_id(0);
    scene.seen();
    scene.fail(0, id, FULL);
    let close = scene.last_id(0);
    assert_eq!(
        scene.seen(),
        format!(
            r#"w0 < {{"jsonrpc":"2.0","id":{close},"method":"session/close","params":{{"sessionId":"a"}}}}"#
        )
    );
    scene.answer(0, close, &json!({}));
    let id = scene.last_id(0);
    assert!(scene.seen().contains("session/new"));
    scene.answer(0, id, &json!({"sessionId": "d"}));
    assert_eq!(scene.seen(), r#"c1 < {"jsonrpc":"2.0","id":7,"result":{"sessionId":"d"}}"#);
}

#[test]
fn it_is_tried_once_and_then_the_client_is_told() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    for name in ["a", "b"] {
        scene.session(one, 0, name);
    }
    scene.leaves(one);
    new(&mut scene, two, 7);
    let id = scene.last_id(0);
    scene.fail(0, id, FULL);
    let close = scene.last_id(0);
    scene.answer(0, close, &json!({}));
    let again = scene.last_id(0);
    scene.seen();
    scene.fail(0, again, FULL);
    assert_eq!(scene.seen(), r#"c1 < {"jsonrpc":"2.0","id":7,"error":{"code":-32012,"message":"no"}}"#);
}

#[test]
fn another_worker_is_asked_if_one_is_full_and_then_another_is_started() {
    let mut scene = Scene::new(&config(vec![Pool { instances: 2, max_instances: 3, ..pool(Share::All) }]));
    for worker in 0..2 {
        scene.up(worker);
        scene.answer(worker, 1, &able());
    }
    let one = scene.open();
    scene.session(one, 0, "a");
    scene.session(one, 1, "b");
    new(&mut scene, one, 7);
    let id = scene.last_id(0);
    scene.seen();
    scene.fail(0, id, FULL);
    assert!(scene.seen().starts_with("w1 < "));
    let id = 3;
    scene.answer(1, id, &json!({"sessionId": "c"}));
    // The one that is full is not asked again; the other says the same now.
    scene.seen();
    new(&mut scene, one, 8);
    let id = scene.last_id(1);
    scene.seen();
    scene.fail(1, id, FULL);
    assert!(scene.seen().contains("Spawn { worker: WorkerId(2)"));
    scene.up(2);
    scene.answer(2, 1, &able());
    let id = scene.last_id(2);
    scene.seen();
    scene.answer(2, id, &json!({"sessionId": "d"}));
    assert_eq!(scene.seen(), r#"c0 < {"jsonrpc":"2.0","id":8,"result":{"sessionId":"d"}}"#);
}

#[test]
fn a_request_that_a_full_worker_refused_goes_before_lines_that_came_later() {
    let mut scene = Scene::new(&config(vec![Pool { max_instances: 2, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open();
    scene.session(one, 0, "a");
    new(&mut scene, one, 7);
    let first = scene.last_id(0);
    new(&mut scene, one, 8);
    let second = scene.last_id(0);
    scene.fail(0, first, FULL);
    // All lines of the client wait for the new worker now, also one whose id is in use.
    scene.ask(one, 8, "session/list", &json!({}));
    scene.fail(0, second, FULL);
    scene.seen();
    scene.up(1);
    scene.answer(1, 1, &able());
    let seen = scene.seen();
    assert_eq!(seen.matches("session/new").count(), 2, "{seen}");
    assert_eq!(seen.matches(r#"c0 < {"jsonrpc":"2.0","id":8,"error":{"code":-32014"#).count(), 1, "{seen}");
    assert!(!seen.contains("session/list"), "{seen}");
}

/// A worker that two identities share, and at which each may have two sessions.
fn two_identities_at_one_worker() -> (Scene, u32, u32) {
    let mut config = config(vec![Pool { mix_identities: true, ..pool(Share::All) }]);
    config.limits.max_sessions_per_worker = 2;
    let mut scene = Scene::new(&config);
    scene.up(0);
    scene.answer(0, 1, &able());
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    (scene, one, two)
}

#[test]
fn one_identity_leaves_room_for_others_at_a_worker_that_they_share() {
    let (mut scene, one, two) = two_identities_at_one_worker();
    scene.session(one, 0, "a");
    scene.session(one, 0, "b");
    new(&mut scene, one, 7);
    let seen = scene.seen();
    assert!(seen.contains("-32012") && !seen.contains("Spawn"), "{seen}");
    new(&mut scene, two, 7);
    assert!(scene.seen().starts_with("w0 < "));
    // With one less it may have another.
    scene.ask(one, 8, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.seen();
    new(&mut scene, one, 9);
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn a_session_that_its_clients_left_makes_room_for_another_of_its_identity() {
    let (mut scene, one, two) = two_identities_at_one_worker();
    scene.session(one, 0, "a");
    scene.session(two, 0, "other");
    scene.leaves(two);
    let again = scene.open_as("token:one");
    scene.session(again, 0, "b");
    scene.leaves(again);
    scene.seen();
    new(&mut scene, one, 7);
    let seen = scene.seen();
    let closed = seen.find("session/close").expect("the one that was left is closed");
    assert!(closed < seen.find("session/new").expect("another is opened"), "{seen}");
    assert!(seen.contains("\"b\"") && !seen.contains("other"), "{seen}");
}

#[test]
fn a_client_that_leaves_while_room_is_made_is_forgotten() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.leaves(one);
    new(&mut scene, two, 7);
    let id = scene.last_id(0);
    scene.fail(0, id, FULL);
    let close = scene.last_id(0);
    scene.leaves(two);
    let three = scene.open();
    assert_eq!(three, two, "its place is used again");
    scene.seen();
    scene.answer(0, close, &json!({}));
    assert_eq!(scene.seen(), "");
    // So it is if the worker is lost meanwhile.
    scene.session(three, 0, "b");
    scene.leaves(three);
    let four = scene.open();
    new(&mut scene, four, 7);
    let id = scene.last_id(0);
    scene.fail(0, id, FULL);
    scene.seen();
    scene.dies(0);
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    let seen = scene.seen();
    assert!(seen.contains(r#""method":"session/new""#), "it is asked for at the next worker: {seen}");
}

#[test]
fn sessions_that_are_being_opened_count_for_the_share_of_an_identity() {
    let mut settings = config(vec![Pool { mix_identities: true, max_instances: 1, ..pool(Share::All) }]);
    settings.limits.max_sessions_per_worker = 2;
    let mut scene = Scene::new(&settings);
    scene.up(0);
    scene.answer(0, 1, &able());
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    scene.seen();
    for id in 1..=3 {
        new(&mut scene, one, id);
    }
    let seen = scene.seen();
    assert_eq!(seen.matches("w0 < ").count(), 2, "{seen}");
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32012"#), "{seen}");
    new(&mut scene, two, 1);
    assert!(scene.seen().starts_with("w0 < "));
    // What came to nothing does not count.
    scene.fail(0, 2, -32603);
    scene.seen();
    new(&mut scene, one, 4);
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn sessions_that_are_being_opened_count_for_the_limit_of_an_identity() {
    let mut settings = config(vec![pool(Share::All)]);
    settings.limits.max_sessions_per_identity = 2;
    let mut scene = Scene::new(&settings);
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open_as("token:one");
    scene.seen();
    for id in 1..=3 {
        new(&mut scene, one, id);
    }
    let seen = scene.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (2, 1), "{seen}");
}

#[test]
fn where_a_worker_takes_few_sessions_one_identity_may_have_half_of_them() {
    let mut scene =
        Scene::new(&config(vec![Pool { mix_identities: true, max_instances: 1, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    for name in ["a", "b", "c", "d"] {
        scene.session(one, 0, name);
    }
    new(&mut scene, two, 1);
    let id = scene.last_id(0);
    scene.fail(0, id, FULL);
    for name in ["a", "b"] {
        scene.ask(one, 5, "session/close", &json!({"sessionId": name}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({}));
    }
    scene.seen();
    new(&mut scene, one, 6);
    assert!(scene.seen().contains("-32012"));
    new(&mut scene, two, 2);
    assert!(scene.seen().starts_with("w0 < "));
}

/// A pool of four workers that are up, for clients that are asked who they are.
fn four(share: Share) -> Scene {
    let mut scene = Scene::new(&config(vec![Pool { instances: 4, max_instances: 4, ..pool(share) }]));
    for worker in 0..4 {
        scene.up(worker);
        if share == Share::All {
            scene.answer(worker, 1, &able());
        }
    }
    scene.seen();
    scene
}

#[test]
fn one_identity_leaves_a_worker_to_others_where_each_has_its_own() {
    let mut scene = four(Share::Connection);
    for client in 0..4 {
        let client_of_one = scene.open_as("token:one");
        scene.ask(client_of_one, 1, "initialize", &json!({"protocolVersion": 1}));
        let seen = scene.seen();
        assert_eq!(seen.contains("-32012"), client == 3, "{seen}");
    }
    let two = scene.open_as("token:two");
    scene.ask(two, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = scene.seen();
    assert!(seen.contains("w3 < "), "{seen}");
}

#[test]
fn one_identity_leaves_a_worker_to_others_where_sessions_are_spread() {
    let mut scene = four(Share::All);
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    for id in 1..=8 {
        new(&mut scene, one, id);
    }
    let seen = scene.seen();
    assert!(!seen.contains("-32012") && !seen.contains("w3 < "), "{seen}");
    new(&mut scene, two, 1);
    assert!(scene.seen().starts_with("w3 < "));
}

#[test]
fn workers_that_are_kept_for_one_identity_give_way_before_those_of_another() {
    let mut scene = four(Share::Connection);
    let two = scene.open_as("token:two");
    scene.ask(two, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.answer(0, 1, &able());
    scene.session(two, 0, "b");
    scene.leaves(two);
    for worker in 1..4 {
        let one = scene.open_as("token:one");
        scene.ask(one, 1, "initialize", &json!({"protocolVersion": 1}));
        scene.answer(worker, 1, &able());
        scene.session(one, worker, &format!("a{worker}"));
        scene.leaves(one);
        scene.pass(1.0);
    }
    scene.seen();
    let three = scene.open_as("token:three");
    scene.ask(three, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_eq!(scene.seen(), "Stop { worker: WorkerId(1), kill: false }");
    scene.dies(1);
    scene.up(1);
    assert!(scene.seen().contains("w1 < "));
    // One that has its share has its own give way.
    scene.leaves(three);
    let one = scene.open_as("token:one");
    scene.ask(one, 1, "initialize", &json!({"protocolVersion": 1}));
    assert!(!scene.seen().contains("WorkerId(0)"));
}

#[test]
fn a_fork_counts_as_a_session_of_its_identity() {
    let mut config = config(vec![Pool { mix_identities: true, ..pool(Share::All) }]);
    config.limits.max_sessions_per_identity = 2;
    let mut scene = Scene::new(&config);
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open_as("token:one");
    scene.session(one, 0, "a");
    for id in [7, 8] {
        scene.ask(one, id, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    }
    let seen = scene.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (1, 1), "{seen}");
    assert_eq!(scene.core.status(scene.now).identities["token:one"].refused, 1);
}

#[test]
fn a_fork_counts_for_the_share_of_its_identity_at_a_worker() {
    let (mut scene, one, two) = two_identities_at_one_worker();
    scene.session(one, 0, "a");
    scene.session(one, 0, "b");
    scene.session(two, 0, "c");
    scene.ask(one, 7, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    let seen = scene.seen();
    assert!(seen.contains("-32012") && !seen.contains("w0 < "), "{seen}");
    scene.ask(two, 7, "session/fork", &json!({"sessionId": "c", "cwd": "/"}));
    assert!(scene.seen().starts_with("w0 < "));
    // One that is being made counts too.
    scene.ask(two, 8, "session/fork", &json!({"sessionId": "c", "cwd": "/"}));
    let seen = scene.seen();
    assert!(seen.contains("-32012") && !seen.contains("w0 < "), "{seen}");
    // A session that its own clients have left gives way.
    let other = scene.open_as("token:one");
    scene.ask(other, 1, "session/resume", &json!({"sessionId": "x"}));
    scene.leaves(one);
    scene.ask(other, 2, "session/resume", &json!({"sessionId": "a"}));
    scene.seen();
    scene.ask(other, 3, "session/fork", &json!({"sessionId": "a", "cwd": "/"}));
    let seen = scene.seen();
    let close = seen.find(r#""method":"session/close","params":{"sessionId":"b"}"#);
    assert!(close < seen.find("session/fork") && close.is_some(), "{seen}");
}
