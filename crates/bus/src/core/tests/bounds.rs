//! Bounds on what the bus reads of a message and keeps because of it, for each identity and for all.

use super::identities::asking;
use super::*;

/// A worker that all share, with `memory` for all and a quarter of that for one identity.
fn scene(memory: usize, protocol: Protocol) -> Scene {
    let mut settings = asking(vec![Pool { mix_identities: true, protocol, ..pool(Share::All) }]);
    settings.limits.unfinished_input = memory;
    settings.limits.unfinished_input_per_identity = memory / 4;
    let mut scene = Scene::new(&settings);
    scene.up(0);
    if protocol != Protocol::JsonRpc {
        scene.answer(0, 1, &able());
    }
    scene.seen();
    scene
}

/// How many bytes are held for all.
fn held(scene: &Scene) -> usize {
    scene.core.memory.held(super::super::identity::Identity::ANYONE).0
}

#[test]
fn progress_tokens_have_a_bounded_length() {
    let mut scene = scene(256 << 20, Protocol::JsonRpc);
    let client = scene.open_as("token:one");
    scene.ask(client, 1, "x", &json!({"_meta": {"progressToken": "y".repeat(4_000)}}));
    assert!(scene.seen().starts_with("w0 < "));
    scene.ask(client, 2, "x", &json!({"_meta": {"progressToken": "y".repeat(4_096)}}));
    let seen = scene.seen();
    assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{seen:.200}");
}

#[test]
fn unanswered_requests_are_bounded_for_each_identity() {
    for protocol in [Protocol::V1, Protocol::JsonRpc] {
        let mut scene = scene(1 << 20, protocol);
        scene.core.limits.queue_bytes = 1 << 30;
        for _ in 0..20 {
            let client = scene.open_as("token:one");
            for id in 0..100 {
                let params = json!({"_meta": {"progressToken": "y".repeat(1_000)}});
                scene.ask(client, id, "x", &params);
            }
        }
        let seen = scene.seen();
        let reached = seen.matches("w0 < ").count();
        assert!((50..600).contains(&reached), "{protocol:?}: {reached}");
        assert!(held(&scene) <= 300 << 10, "{protocol:?}: {}", held(&scene));
        let other = scene.open_as("token:two");
        scene.ask(other, 1, "x", &json!({}));
        assert!(scene.seen().starts_with("w0 < "), "another identity has room");
        scene.dies(0);
        assert_eq!(held(&scene), 0, "what was for a worker that is gone is given back");
    }
}

#[test]
fn short_lines_that_wait_for_a_worker_are_bounded_for_each_identity() {
    let mut settings = asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]);
    settings.limits.unfinished_input = 1 << 20;
    settings.limits.unfinished_input_per_identity = 256 << 10;
    for (method, is_cancel) in [("x", false), ("session/cancel", true), ("$/cancel_request", true)] {
        let mut scene = Scene::new(&settings);
        for _ in 0..20 {
            let client = scene.open_as("token:one");
            scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
            for _ in 0..100 {
                scene.note(
                    client,
                    method,
                    &json!({"sessionId": "s", "requestId": 7, "x": "y".repeat(1_000)}),
                );
            }
        }
        let most = if is_cancel { 300 << 10 } else { 260 << 10 };
        assert!(held(&scene) <= most, "{method}: {}", held(&scene));
        assert!(held(&scene) > 200 << 10, "{method}: {}", held(&scene));
    }
}

#[test]
fn many_short_lines_that_wait_weigh_more_than_their_bytes() {
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    for _ in 0..1_000 {
        scene.note(client, "x", &json!({}));
    }
    assert!(held(&scene) >= 200_000, "{}", held(&scene));
    scene.leaves(client);
    assert_eq!(held(&scene), 0);
}

#[test]
fn who_gives_up_or_closes_is_heard_when_others_are_refused() {
    let mut scene = scene(1 << 20, Protocol::V1);
    scene.core.limits.queue_bytes = 1 << 30;
    let client = scene.open_as("token:one");
    scene.session(client, 0, "s");
    for id in 0..1_000 {
        scene.ask(client, id, "x", &json!({"sessionId": "s"}));
    }
    assert!(scene.seen().contains("-32012"));
    scene.note(client, "$/cancel_request", &json!({"requestId": 0}));
    scene.note(client, "session/cancel", &json!({"sessionId": "s"}));
    scene.ask(client, 2_000, "session/close", &json!({"sessionId": "s"}));
    let seen = scene.seen();
    assert_eq!(seen.matches("w0 < ").count(), 3, "{seen}");
    scene.ask(client, 2_001, "x", &json!({"sessionId": "s"}));
    assert!(scene.seen().contains("-32012"));
}
