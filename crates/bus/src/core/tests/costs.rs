//! Work that one client can cause for the event loop of all. The inputs are so large that quadratic work
//! would exceed the time limit of a test.

use super::identities::authenticating;
use super::*;

fn bus() -> TestBus {
    let mut bus = TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.core.limits.queue_bytes = 1 << 30;
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus
}

fn opening(id: usize, servers: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"session/new","params":{{"cwd":"/","mcpServers":[{servers}]}}}}"#
    )
}

#[test]
fn descriptions_of_servers_have_a_bounded_number_of_keys_and_servers() {
    let mut bus = bus();
    let one = bus.open_as("token:one");
    let keys: Vec<String> = (0..15_000).map(|number| format!(r#""{number}":0"#)).collect();
    for kind in ["stdio", "acp"] {
        bus.line(one, &opening(1, &format!(r#"{{"type":"{kind}",{}}}"#, keys.join(","))));
        let seen = bus.seen();
        assert!(seen.starts_with("c0 < ") && seen.contains("-32602"), "{kind}");
    }
    let servers = |count: usize| -> Vec<String> {
        (0..count).map(|number| format!(r#"{{"type":"acp","name":"n","id":"{number}"}}"#)).collect()
    };
    bus.line(one, &opening(1, &servers(4_000).join(",")));
    assert!(bus.seen().contains("-32602"));
    bus.line(one, &opening(1, &servers(256).join(",")));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn sessions_with_many_servers_close_without_looking_through_all_of_them() {
    let mut bus = bus();
    let one = bus.open_as("token:one");
    for session in 0..200 {
        let servers: Vec<String> = (0..250)
            .map(|server| format!(r#"{{"type":"acp","name":"n","id":"{session}-{server}"}}"#))
            .collect();
        bus.line(one, &opening(session, &servers.join(",")));
        let number = last_id_in(&bus.seen(), 0);
        bus.answer(0, number, &json!({"sessionId": format!("s{session}")}));
    }
    bus.seen();
    for session in 0..200 {
        bus.request(one, session, "session/close", &json!({"sessionId": format!("s{session}")}));
        let number = last_id_in(&bus.seen(), 0);
        bus.answer(0, number, &json!({}));
    }
    bus.disconnect(one);
    assert!(bus.core.workers.iter().all(|(_, state)| state.servers.get("0-0").is_none()));
}

#[test]
fn many_lists_that_are_overdue_end_without_looking_through_all_requests() {
    let mut bus = bus();
    let clients: Vec<u32> = (0..20).map(|_| bus.open_as("token:one")).collect();
    for client in &clients {
        for id in 0..3_000 {
            bus.request(*client, id, "session/list", &json!({}));
        }
    }
    bus.seen();
    bus.advance(3_600.0);
    let seen = bus.seen();
    assert_eq!(seen.matches("agent did not respond in time").count(), 60_000, "{}", &seen[..300]);
}

#[test]
fn a_client_that_does_not_read_gets_no_repeated_replays() {
    let mut bus = bus();
    bus.core.limits.queue_bytes = 100_000;
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:one"));
    bus.session(one, 0, "a");
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.update(0, "a", &"x".repeat(60_000));
    bus.seen();
    for id in 0..1_000 {
        bus.request(two, id, "session/resume", &json!({"sessionId": "a"}));
    }
    let seen = bus.seen();
    assert_eq!(seen.matches("xxxxx\"").count(), 2, "the queue is full after the second answer");
    assert_eq!(seen.matches("-32012").count(), 998);
    bus.output.waiting.clear();
    bus.core.client_drained(bus.now, ClientId(two), &mut bus.output);
    bus.request(two, 2_000, "session/resume", &json!({"sessionId": "a"}));
    assert_eq!(bus.seen().matches("xxxxx\"").count(), 1);
}

#[test]
fn a_client_that_does_not_read_gets_no_long_lists() {
    let mut bus = bus();
    bus.core.limits.queue_bytes = 100_000;
    let one = bus.open_as("token:one");
    bus.session(one, 0, "a");
    for id in 0..100 {
        bus.request(one, id, "session/list", &json!({}));
    }
    let last = bus.last_id(0);
    bus.seen();
    for number in last - 99..=last {
        let sessions = json!({"sessions": [{"sessionId": "a", "title": "x".repeat(60_000)}]});
        bus.answer(0, number, &sessions);
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("xxxxx\"").count(), seen.matches("-32012").count()), (2, 98));
}

#[test]
fn answers_of_arrays_that_are_not_complete_are_bounded_for_an_identity() {
    let mut bus = bus();
    bus.core.limits.unfinished_input = 4 << 20;
    bus.core.limits.unfinished_input_per_identity = 1 << 20;
    let one = bus.open_as("token:one");
    bus.session(one, 0, "a");
    for array in 0..20 {
        let entries: Vec<Value> = (0..31)
            .map(|id| json!({"jsonrpc": "2.0", "id": array * 100 + id, "method": "_x", "params": {"sessionId": "a"}}))
            .collect();
        bus.line(one, &Value::from(entries).to_string());
        let seen = bus.seen();
        if seen.contains("queue limit of this identity") {
            assert!(array > 0 && !seen.contains("w0 < "));
            continue;
        }
        let last = last_id_in(&seen, 0);
        // The worker answers all requests of the array except the last.
        for number in last - 30..last {
            bus.answer(0, number, &json!({"text": "x".repeat(50_000)}));
        }
    }
    let held =
        bus.core.memory.held(bus.core.clients.get(bus.core.clients.key_at(one).unwrap()).unwrap().identity);
    // Beyond the limit, errors are kept in place of the responses. They count too, but are short.
    assert!((500_000..=5 << 18).contains(&held.1), "{held:?}");
    bus.disconnect(one);
    // Requests that the worker has not answered stay in its table until it exits.
    bus.kill_worker(0);
    let held = bus.core.memory.held(super::super::identity::Identity::ANYONE);
    assert_eq!(held.0, 0);
}

#[test]
fn cancelling_does_not_read_the_lines_again_that_wait() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    let one = bus.open_as("token:one");
    for id in 0..100 {
        bus.request(one, id, "session/new", &json!({"cwd": "/", "_meta": {"narrows": "x".repeat(70_000)}}));
    }
    for _ in 0..20_000 {
        bus.notify(one, "$/cancel_request", &json!({"requestId": "none"}));
    }
    bus.notify(one, "$/cancel_request", &json!({"requestId": 7}));
    assert!(bus.seen().contains(r#""id":7,"error":{"code":-32800"#));
}

#[test]
fn a_client_that_does_not_read_gets_no_repeated_initialize_results() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.core.limits.queue_bytes = 100_000;
    bus.up(0);
    let mut answer = able();
    answer["agentInfo"] = json!({"name": "x".repeat(60_000)});
    bus.answer(0, 1, &answer);
    bus.seen();
    let one = bus.open_as("token:one");
    for id in 0..100 {
        bus.request(one, id, "initialize", &json!({"protocolVersion": 1}));
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("xxxxx\"").count(), seen.matches("-32012").count()), (2, 98));
}

/// The bus parses a message that opens a session as a whole.
#[test]
fn a_message_that_opens_a_session_is_bounded() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let one = bus.open_as("token:one");
    bus.seen();
    for method in ["session/new", "session/load", "session/resume", "session/fork"] {
        let params = json!({"sessionId": "a", "cwd": "/", "_meta": {"narrows": 0}, "x": "x".repeat(1 << 20)});
        bus.request(one, 2, method, &params);
        let seen = bus.seen();
        assert!(
            seen.contains("request to open a session too long") && !seen.contains("w0 <"),
            "{method}: {seen}"
        );
    }
}

#[test]
fn extension_methods_of_shared_workers_have_a_bounded_length() {
    let mut bus = bus();
    let one = bus.open_as("token:one");
    bus.session(one, 0, "a");
    let long = |start: &str, length: usize| {
        let key = r#""\u0061aaaaaaaa":1,"#;
        format!(r#"{{"jsonrpc":"2.0",{start}{}"z":1}}}}"#, key.repeat(length / key.len()))
    };
    for (start, name) in [
        (r#""id":1,"method":"_x/y","params":{"#, "without a session"),
        (r#""id":1,"method":"_x/y","params":{"sessionId":"a","#, "in a session"),
    ] {
        bus.line(one, &long(start, 1_100_000));
        let seen = bus.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{name}");
        bus.line(one, &long(start, 900_000));
        assert!(bus.seen().starts_with("w0 < "), "{name}");
        bus.answer(0, 3 + u64::from(name.contains("in a")), &json!({}));
        bus.seen();
    }
    bus.line(one, &long(r#""method":"_x/y","params":{"sessionId":"a","#, 1_100_000));
    assert_eq!(bus.seen(), "", "a notification is dropped");
    bus.line(one, &long(r#""id":1,"method":"session/set_mode","params":{"sessionId":"a","#, 1_100_000));
    assert!(bus.seen().starts_with("w0 < "), "methods of the protocol are forwarded");
}

#[test]
fn extension_methods_of_other_workers_may_be_long() {
    for pool in
        [pool(ShareMode::Connection), Pool { protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) }]
    {
        let mut bus = TestBus::new(&authenticating(vec![pool]));
        bus.up(0);
        let one = bus.open_as("token:one");
        bus.request(one, 1, "_x/y", &json!({"text": "x".repeat(1_100_000)}));
        assert!(bus.seen().contains("w0 < "));
    }
}

fn unanswered(bus: &mut TestBus) -> Vec<u32> {
    let clients: Vec<u32> = (0..20).map(|_| bus.open_as("token:one")).collect();
    for client in &clients {
        for id in 0..2_500 {
            bus.request(*client, id, "_x/wait", &json!({}));
        }
    }
    bus.seen();
    clients
}

#[test]
fn sessions_open_and_close_without_looking_through_all_requests() {
    let mut bus = bus();
    let two = bus.open_as("token:two");
    unanswered(&mut bus);
    for _ in 0..4_000 {
        bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
        let number = last_id_in(&bus.seen(), 0);
        bus.answer(0, number, &json!({"sessionId": "s"}));
        bus.request(two, 2, "session/close", &json!({"sessionId": "s"}));
        let number = last_id_in(&bus.seen(), 0);
        bus.answer(0, number, &json!({}));
        assert!(bus.seen().contains(r#""id":2,"result":{}"#));
        bus.request(two, 3, "session/new", &json!({"cwd": "/"}));
        let number = last_id_in(&bus.seen(), 0);
        bus.fail(0, number, -32603);
        bus.seen();
    }
}

#[test]
fn answers_come_without_looking_through_requests_whose_clients_have_gone() {
    let mut bus = bus();
    let two = bus.open_as("token:two");
    for client in unanswered(&mut bus) {
        bus.disconnect(client);
    }
    for id in 0..8_000 {
        bus.request(two, id, "_x/do", &json!({}));
        let number = last_id_in(&bus.seen(), 0);
        bus.answer(0, number, &json!({}));
        assert!(bus.seen().contains("result"));
    }
}

#[test]
fn cancelling_an_answered_request_does_not_look_through_all_sessions() {
    let mut bus = bus();
    let clients: Vec<u32> = (0..25).map(|number| bus.open_as(&format!("token:{number}"))).collect();
    for client in &clients {
        for number in 0..250 {
            bus.session(*client, 0, &format!("{client}-{number}"));
        }
    }
    let one = clients[0];
    bus.line(
        one,
        r#"[{"jsonrpc":"2.0","id":1,"method":"session/set_mode","params":{"sessionId":"0-0","modeId":"x"}},
            {"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"0-0","prompt":[]}}]"#
            .replace('\n', "")
            .as_str(),
    );
    let last = bus.last_id(0);
    bus.answer(0, last - 1, &json!({}));
    bus.seen();
    for _ in 0..40_000 {
        bus.notify(one, "$/cancel_request", &json!({"requestId": 1}));
    }
    assert_eq!(bus.seen(), "");
    assert_eq!(bus.core.counters.dropped, 40_000);
    bus.notify(one, "$/cancel_request", &json!({"requestId": 2}));
    assert!(bus.seen().contains("$/cancel_request"));
}
