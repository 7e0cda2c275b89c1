//! What one client's messages cost everybody. The inputs are so large that work which grows with their square does not end
//! within the time of a test.

use super::identities::asking;
use super::*;

/// A worker that all share, with room for any number of queued bytes.
fn scene() -> Scene {
    let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    scene.core.limits.queue_bytes = 1 << 30;
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.seen();
    scene
}

/// `session/new` with these servers.
fn opening(id: usize, servers: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"session/new","params":{{"cwd":"/","mcpServers":[{servers}]}}}}"#
    )
}

#[test]
fn descriptions_of_servers_have_a_bounded_number_of_keys_and_servers() {
    let mut scene = scene();
    let one = scene.open_as("token:one");
    let keys: Vec<String> = (0..15_000).map(|number| format!(r#""{number}":0"#)).collect();
    for kind in ["stdio", "acp"] {
        scene.line(one, &opening(1, &format!(r#"{{"type":"{kind}",{}}}"#, keys.join(","))));
        let seen = scene.seen();
        assert!(seen.starts_with("c0 < ") && seen.contains("-32602"), "{kind}");
    }
    let servers = |count: usize| -> Vec<String> {
        (0..count).map(|number| format!(r#"{{"type":"acp","name":"n","id":"{number}"}}"#)).collect()
    };
    scene.line(one, &opening(1, &servers(4_000).join(",")));
    assert!(scene.seen().contains("-32602"));
    scene.line(one, &opening(1, &servers(256).join(",")));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn sessions_with_many_servers_close_without_looking_through_all_of_them() {
    let mut scene = scene();
    let one = scene.open_as("token:one");
    for session in 0..200 {
        let servers: Vec<String> = (0..250)
            .map(|server| format!(r#"{{"type":"acp","name":"n","id":"{session}-{server}"}}"#))
            .collect();
        scene.line(one, &opening(session, &servers.join(",")));
        let number = last_id_in(&scene.seen(), 0);
        scene.answer(0, number, &json!({"sessionId": format!("s{session}")}));
    }
    scene.seen();
    for session in 0..200 {
        scene.ask(one, session, "session/close", &json!({"sessionId": format!("s{session}")}));
        let number = last_id_in(&scene.seen(), 0);
        scene.answer(0, number, &json!({}));
    }
    scene.leaves(one);
    assert!(scene.core.workers.iter().all(|(_, state)| state.servers.get("0-0").is_none()));
}

#[test]
fn many_lists_that_are_overdue_end_without_looking_through_all_requests() {
    let mut scene = scene();
    let clients: Vec<u32> = (0..20).map(|_| scene.open_as("token:one")).collect();
    for client in &clients {
        for id in 0..3_000 {
            scene.ask(*client, id, "session/list", &json!({}));
        }
    }
    scene.seen();
    scene.pass(3_600.0);
    let seen = scene.seen();
    assert_eq!(seen.matches("an agent did not answer in time").count(), 60_000, "{}", &seen[..300]);
}

#[test]
fn who_does_not_read_is_not_told_a_history_again_and_again() {
    let mut scene = scene();
    scene.core.limits.queue_bytes = 100_000;
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:one"));
    scene.session(one, 0, "a");
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.update(0, "a", &"x".repeat(60_000));
    scene.seen();
    for id in 0..1_000 {
        scene.ask(two, id, "session/resume", &json!({"sessionId": "a"}));
    }
    let seen = scene.seen();
    assert_eq!(seen.matches("xxxxx\"").count(), 2, "the queue is full behind the second");
    assert_eq!(seen.matches("-32012").count(), 998);
    // It has read.
    scene.sight.waiting.clear();
    scene.core.client_drained(scene.now, ClientId(two), &mut scene.sight);
    scene.ask(two, 2_000, "session/resume", &json!({"sessionId": "a"}));
    assert_eq!(scene.seen().matches("xxxxx\"").count(), 1);
}

#[test]
fn who_does_not_read_gets_no_long_lists() {
    let mut scene = scene();
    scene.core.limits.queue_bytes = 100_000;
    let one = scene.open_as("token:one");
    scene.session(one, 0, "a");
    for id in 0..100 {
        scene.ask(one, id, "session/list", &json!({}));
    }
    let last = scene.last_id(0);
    scene.seen();
    for number in last - 99..=last {
        let sessions = json!({"sessions": [{"sessionId": "a", "title": "x".repeat(60_000)}]});
        scene.answer(0, number, &sessions);
    }
    let seen = scene.seen();
    assert_eq!((seen.matches("xxxxx\"").count(), seen.matches("-32012").count()), (2, 98));
}

#[test]
fn answers_of_arrays_that_are_not_complete_are_bounded_for_an_identity() {
    let mut scene = scene();
    scene.core.limits.unfinished_input = 4 << 20;
    scene.core.limits.unfinished_input_per_identity = 1 << 20;
    let one = scene.open_as("token:one");
    scene.session(one, 0, "a");
    for array in 0..20 {
        let entries: Vec<Value> = (0..31)
            .map(|id| json!({"jsonrpc": "2.0", "id": array * 100 + id, "method": "_x", "params": {"sessionId": "a"}}))
            .collect();
        scene.line(one, &Value::from(entries).to_string());
        let seen = scene.seen();
        if seen.contains("too much of this client waits") {
            assert!(array > 0 && !seen.contains("w0 < "));
            continue;
        }
        let last = last_id_in(&seen, 0);
        // All but the last.
        for number in last - 30..last {
            scene.answer(0, number, &json!({"text": "x".repeat(50_000)}));
        }
    }
    let held = scene
        .core
        .memory
        .held(scene.core.clients.get(scene.core.clients.key_at(one).unwrap()).unwrap().identity);
    // The errors in place of further answers are kept, too, and are short.
    assert!((500_000..=5 << 18).contains(&held.1), "{held:?}");
    scene.leaves(one);
    // Requests that the worker has not answered stay in its table as long as it lives.
    scene.dies(0);
    let held = scene.core.memory.held(super::super::identity::Identity::ANYONE);
    assert_eq!(held.0, 0);
}

#[test]
fn cancelling_does_not_read_the_lines_again_that_wait() {
    let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    let one = scene.open_as("token:one");
    for id in 0..100 {
        scene.ask(one, id, "session/new", &json!({"cwd": "/", "_meta": {"narrows": "x".repeat(70_000)}}));
    }
    for _ in 0..20_000 {
        scene.note(one, "$/cancel_request", &json!({"requestId": "none"}));
    }
    scene.note(one, "$/cancel_request", &json!({"requestId": 7}));
    assert!(scene.seen().contains(r#""id":7,"error":{"code":-32800"#));
}

#[test]
fn who_does_not_read_is_not_told_a_long_answer_to_initialize_again_and_again() {
    let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    scene.core.limits.queue_bytes = 100_000;
    scene.up(0);
    let mut answer = able();
    answer["agentInfo"] = json!({"name": "x".repeat(60_000)});
    scene.answer(0, 1, &answer);
    scene.seen();
    let one = scene.open_as("token:one");
    for id in 0..100 {
        scene.ask(one, id, "initialize", &json!({"protocolVersion": 1}));
    }
    let seen = scene.seen();
    assert_eq!((seen.matches("xxxxx\"").count(), seen.matches("-32012").count()), (2, 98));
}

/// What opens a session is read whole.
#[test]
fn a_message_that_opens_a_session_is_bounded() {
    let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let one = scene.open_as("token:one");
    scene.seen();
    for method in ["session/new", "session/load", "session/resume", "session/fork"] {
        let params = json!({"sessionId": "a", "cwd": "/", "_meta": {"narrows": 0}, "x": "x".repeat(1 << 20)});
        scene.ask(one, 2, method, &params);
        let seen = scene.seen();
        assert!(seen.contains("too long to open a session") && !seen.contains("w0 <"), "{method}: {seen}");
    }
}

#[test]
fn extension_methods_of_shared_workers_have_a_bounded_length() {
    let mut scene = scene();
    let one = scene.open_as("token:one");
    scene.session(one, 0, "a");
    let long = |start: &str, length: usize| {
        let key = r#""\u0061aaaaaaaa":1,"#;
        format!(r#"{{"jsonrpc":"2.0",{start}{}"z":1}}}}"#, key.repeat(length / key.len()))
    };
    for (start, name) in [
        (r#""id":1,"method":"_x/y","params":{"#, "without a session"),
        (r#""id":1,"method":"_x/y","params":{"sessionId":"a","#, "in a session"),
    ] {
        scene.line(one, &long(start, 1_100_000));
        let seen = scene.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{name}");
        scene.line(one, &long(start, 900_000));
        assert!(scene.seen().starts_with("w0 < "), "{name}");
        scene.answer(0, 3 + u64::from(name.contains("in a")), &json!({}));
        scene.seen();
    }
    scene.line(one, &long(r#""method":"_x/y","params":{"sessionId":"a","#, 1_100_000));
    assert_eq!(scene.seen(), "", "a notification is dropped");
    scene.line(one, &long(r#""id":1,"method":"session/set_mode","params":{"sessionId":"a","#, 1_100_000));
    assert!(scene.seen().starts_with("w0 < "), "a method of the protocol");
}

#[test]
fn extension_methods_of_other_workers_may_be_long() {
    for pool in [pool(Share::Connection), Pool { protocol: Protocol::JsonRpc, ..pool(Share::All) }] {
        let mut scene = Scene::new(&asking(vec![pool]));
        scene.up(0);
        let one = scene.open_as("token:one");
        scene.ask(one, 1, "_x/y", &json!({"text": "x".repeat(1_100_000)}));
        assert!(scene.seen().contains("w0 < "));
    }
}
