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
fn a_request_to_list_or_delete_sessions_that_is_too_long_is_refused() {
    for share in [Share::All, Share::Connection] {
        let mut scene = Scene::new(&config(vec![pool(share)]));
        scene.up(0);
        scene.answer(0, 1, &able());
        let client = scene.open();
        for (id, method) in [(1, "session/list"), (2, "session/delete")] {
            let fits = json!({"sessionId": "s", "a": "x".repeat(60 << 10)});
            scene.ask(client, id, method, &fits);
            assert!(!scene.seen().contains("-32013"), "{method}");
            scene.ask(client, id + 10, method, &json!({"sessionId": "s", "a": "x".repeat(64 << 10)}));
            let seen = scene.seen();
            assert!(seen.contains("-32013") && !seen.contains("w0 < "), "{method}");
        }
    }
}

#[test]
fn a_list_of_sessions_that_is_too_long_fails_the_request_and_not_the_worker() {
    let long = json!({"sessions": [], "x": "x".repeat(5 << 20)});
    let many = json!({"sessions": vec![json!({}); 200_000]});
    for answer in [long, many] {
        let mut scene = scene(256 << 20, Protocol::V1);
        let client = scene.open();
        scene.ask(client, 1, "session/list", &json!({}));
        let id = scene.last_id(0);
        scene.seen();
        scene.answer(0, id, &answer);
        let seen = scene.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{seen:.200}");
        assert!(!seen.contains("Stop"));
    }
}

#[test]
fn a_list_of_the_only_worker_of_a_client_is_bounded_where_owners_are_kept() {
    let mut scene = Scene::new(&asking(vec![pool(Share::Connection)]));
    scene.up(0);
    let client = scene.open_as("token:one");
    scene.ask(client, 1, "session/list", &json!({}));
    let id = scene.last_id(0);
    scene.seen();
    scene.answer(0, id, &json!({"sessions": [], "x": "x".repeat(5 << 20)}));
    let seen = scene.seen();
    assert!(seen.contains("-32013"), "{seen:.200}");
}

#[test]
fn workers_whose_answer_to_initialize_is_too_long_do_not_start() {
    let long = "x".repeat(300 << 10);
    let many = vec![json!({}); 30_000];
    for junk in [json!(long), json!(many)] {
        let mut scene = Scene::new(&config(vec![pool(Share::All)]));
        scene.up(0);
        let mut answer = able();
        answer["_meta"] = junk.clone();
        scene.seen();
        scene.answer(0, 1, &answer);
        assert!(scene.seen().contains("Stop {"));

        let mut scene = Scene::new(&config(vec![pool(Share::Connection)]));
        scene.up(0);
        let client = scene.open();
        scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
        let id = scene.last_id(0);
        scene.seen();
        scene.answer(0, id, &answer);
        let seen = scene.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{seen:.200}");
    }
}

#[test]
fn requests_that_open_a_session_have_a_bounded_number_of_values() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "session/new", &json!({"cwd": "/", "x": vec![json!({}); 30_000]}));
    let seen = scene.seen();
    assert!(seen.contains("-32013") && !seen.contains("w0 < "), "{seen:.200}");
}

#[test]
fn sessions_that_are_first_named_in_any_message_count_for_the_limits() {
    let mut scene = scene(256 << 20, Protocol::JsonRpc);
    scene.core.limits.max_sessions_per_identity = 2;
    let client = scene.open_as("token:one");
    for number in 0..5 {
        scene.ask(client, number, "x", &json!({"sessionId": format!("s{number}")}));
    }
    let seen = scene.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (2, 3), "{seen}");
    // Also those that an answer names, and two in one message.
    let other = scene.open_as("token:two");
    for number in 0..5 {
        scene.ask(other, number, "x", &json!({}));
        let id = scene.last_id(0);
        scene.answer(0, id, &json!({"sessionId": format!("t{number}")}));
    }
    let seen = scene.seen();
    assert_eq!((seen.matches(r#""result""#).count(), seen.matches("-32012").count()), (2, 3), "{seen}");
    let third = scene.open_as("token:three");
    for number in 0..5 {
        let line = json!({"jsonrpc": "2.0", "id": number, "method": "x", "sessionId": format!("u{number}"),
            "params": {"sessionId": format!("v{number}")}});
        scene.line(third, &line.to_string());
    }
    assert_eq!(scene.core.sessions.len(), 6);
}

#[test]
fn when_memory_is_short_no_message_makes_a_session() {
    let mut scene = scene(256 << 20, Protocol::JsonRpc);
    let client = scene.open_as("token:one");
    scene.ask(client, 0, "x", &json!({}));
    scene.ask(client, 1, "x", &json!({"sessionId": "known"}));
    scene.seen();
    scene.core.set_pressure(true);
    scene.ask(client, 2, "x", &json!({"sessionId": "s"}));
    scene.answer(0, 1, &json!({"sessionId": "t"}));
    let seen = scene.seen();
    assert_eq!(seen.matches("-32012").count(), 2, "{seen}");
    assert_eq!(scene.core.sessions.len(), 1);
    scene.ask(client, 3, "x", &json!({"sessionId": "known"}));
    assert!(scene.seen().starts_with("w0 < "));
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

#[test]
fn ids_of_servers_in_clients_are_bounded_and_counted() {
    let mut scene = scene(64 << 20, Protocol::V1);
    scene.core.limits.memory = 16 << 20;
    let client = scene.open_as("token:one");
    let server = |id: String| json!({"type": "acp", "name": "n", "id": id});
    scene.ask(client, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server("x".repeat(257))]}));
    let seen = scene.seen();
    assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{seen}");
    let mut refused = 0;
    for number in 0..40 {
        let servers: Vec<Value> =
            (0..200).map(|index| server(format!("{number}-{index}-{}", "x".repeat(200)))).collect();
        scene.ask(client, 10 + number, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
        let seen = scene.seen();
        if seen.contains("-32012") {
            refused += 1;
            continue;
        }
        let id = last_id_in(&seen, 0);
        scene.answer(0, id, &json!({"sessionId": format!("s{number}")}));
        scene.seen();
    }
    // A sixteenth of the budget is for one identity: 1 MiB.
    assert!((30..40).contains(&refused), "{refused}");
    let other = scene.open_as("token:two");
    scene.ask(other, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server("a".into())]}));
    assert!(scene.seen().starts_with("w0 < "), "another identity has room");
    scene.ask(client, 100, "session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert!(scene.seen().starts_with("w0 < "), "what names no servers needs no room");
}

#[test]
fn names_that_agents_give_sessions_have_a_bounded_length() {
    for protocol in [Protocol::V1, Protocol::JsonRpc] {
        for method in ["session/new", "x"] {
            let mut scene = scene(256 << 20, protocol);
            let client = scene.open_as("token:one");
            scene.ask(client, 1, method, &json!({"cwd": "/"}));
            let id = scene.last_id(0);
            scene.seen();
            scene.answer(0, id, &json!({"sessionId": "s".repeat(4_097)}));
            let seen = scene.seen();
            assert_eq!(scene.core.sessions.len(), 0);
            if protocol == Protocol::JsonRpc || method == "session/new" {
                assert!(seen.contains(r#""id":1,"error":{"code":-32603"#), "{method}: {seen:.300}");
                assert!(seen.contains("Strike"), "{method}: {seen:.300}");
            }
        }
    }
}
