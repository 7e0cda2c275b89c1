//! What a client of one identity may cause at a worker that has sessions of others.

use super::identities_at_one_worker::mixed;
use super::*;

/// Alice and bob with sessions `a` and `b` at one worker.
fn two() -> (Scene, u32, u32) {
    let mut scene = mixed(1, Protocol::V1);
    let (alice, bob) = (scene.open_as("token:alice"), scene.open_as("token:bob"));
    scene.session(alice, 0, "a");
    scene.session(bob, 0, "b");
    (scene, alice, bob)
}

#[test]
fn a_method_that_concerns_the_whole_connection_does_not_reach_a_shared_worker() {
    let methods = [
        "authenticate",
        "logout",
        "auth/login",
        "auth/logout",
        "auth/status",
        "providers/list",
        "providers/set",
        "providers/disable",
    ];
    let (mut scene, alice, _) = two();
    for method in methods {
        for params in [json!({}), json!({"id": "main"}), json!({"sessionId": "a"}), json!({"sessionId": "x"})]
        {
            scene.ask(alice, 7, method, &params);
            let seen = scene.seen();
            assert!(
                !seen.contains("w0 < ") && seen.contains(r#""id":7,"error""#),
                "{method} {params}: {seen}"
            );
            scene.note(alice, method, &params);
            assert_eq!(scene.seen(), "", "{method} {params}");
        }
    }
    scene.ask(alice, 8, "_vendor/read", &json!({}));
    assert!(scene.seen().starts_with("w0 < "), "methods that ACP does not have still do");
}

#[test]
fn a_child_session_does_not_take_what_concerns_the_whole_connection_to_a_shared_worker() {
    let mut scene = mixed(1, Protocol::V2);
    let alice = scene.open_as("token:alice");
    scene.session(alice, 0, "a");
    scene.announces(0, "a", "kid");
    scene.seen();
    scene.ask(alice, 7, "providers/set", &json!({"sessionId": "kid", "id": "main"}));
    let seen = scene.seen();
    assert!(!seen.contains("w0 < ") && seen.contains("error"), "{seen}");
}

#[test]
fn clients_of_a_shared_worker_are_not_told_of_abilities_that_they_may_not_use() {
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    scene.up(0);
    let capabilities = json!({"loadSession": true, "providers": {}, "auth": {"logout": {}}});
    scene.answer(0, 1, &json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
    let client = scene.open();
    scene.seen();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = scene.seen();
    assert!(
        seen.contains("loadSession") && !seen.contains("providers") && !seen.contains("logout"),
        "{seen}"
    );
}

#[test]
fn a_cancellation_with_an_id_reaches_no_worker() {
    let (mut scene, alice, bob) = two();
    scene.ask(bob, 1, "session/prompt", &prompt("b"));
    let number = scene.last_id(0);
    scene.seen();
    for method in ["$/cancel_request", "notifications/cancelled"] {
        for params in [json!({"requestId": number}), json!({"requestId": number, "sessionId": "a"})] {
            scene.ask(alice, 7, method, &params);
            let seen = scene.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32600"), "{method}: {seen}");
        }
    }
}
