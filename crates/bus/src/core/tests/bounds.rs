//! Bounds of what the bus parses and keeps of a message, per identity and in total.

use super::identities::authenticating;
use super::*;

/// Returns a bus with one shared worker and a limit of `memory` bytes for held messages. One identity may use
/// a quarter of the limit.
fn bus(memory: usize, protocol: PoolProtocol) -> TestBus {
    let mut settings = authenticating(vec![Pool { mix_identities: true, protocol, ..pool(ShareMode::All) }]);
    settings.limits.unfinished_input = memory;
    settings.limits.unfinished_input_per_identity = memory / 4;
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    if protocol != PoolProtocol::JsonRpc {
        bus.answer(0, 1, &able());
    }
    bus.seen();
    bus
}

fn held(bus: &TestBus) -> usize {
    bus.core.memory.held(super::super::identity::Identity::ANYONE).0
}

#[test]
fn a_request_to_list_or_delete_sessions_that_is_too_long_is_refused() {
    for share in [ShareMode::All, ShareMode::Connection] {
        let mut bus = TestBus::new(&config(vec![pool(share)]));
        bus.up(0);
        bus.answer(0, 1, &able());
        let client = bus.open();
        for (id, method) in [(1, "session/list"), (2, "session/delete")] {
            let fits = json!({"sessionId": "s", "a": "x".repeat(60 << 10)});
            bus.request(client, id, method, &fits);
            assert!(!bus.seen().contains("-32013"), "{method}");
            bus.request(client, id + 10, method, &json!({"sessionId": "s", "a": "x".repeat(64 << 10)}));
            let seen = bus.seen();
            assert!(seen.contains("-32013") && !seen.contains("w0 < "), "{method}");
        }
    }
}

#[test]
fn a_list_of_sessions_that_is_too_long_fails_the_request_and_not_the_worker() {
    let long = json!({"sessions": [], "x": "x".repeat(5 << 20)});
    let many = json!({"sessions": vec![json!({}); 200_000]});
    for answer in [long, many] {
        let mut bus = bus(256 << 20, PoolProtocol::V1);
        let client = bus.open();
        bus.request(client, 1, "session/list", &json!({}));
        let id = bus.last_id(0);
        bus.seen();
        bus.answer(0, id, &answer);
        let seen = bus.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{seen:.200}");
        assert!(!seen.contains("Stop"));
    }
}

#[test]
fn a_list_of_the_only_worker_of_a_client_is_bounded_where_owners_are_kept() {
    let mut bus = TestBus::new(&authenticating(vec![pool(ShareMode::Connection)]));
    bus.up(0);
    let client = bus.open_as("token:one");
    bus.request(client, 1, "session/list", &json!({}));
    let id = bus.last_id(0);
    bus.seen();
    bus.answer(0, id, &json!({"sessions": [], "x": "x".repeat(5 << 20)}));
    let seen = bus.seen();
    assert!(seen.contains("-32013"), "{seen:.200}");
}

#[test]
fn a_worker_with_too_long_an_initialize_result_is_not_used() {
    let long = "x".repeat(300 << 10);
    let many = vec![json!({}); 30_000];
    for junk in [json!(long), json!(many)] {
        let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
        bus.up(0);
        let mut answer = able();
        answer["_meta"] = junk.clone();
        bus.seen();
        bus.answer(0, 1, &answer);
        assert!(bus.seen().contains("Stop {"));

        let mut bus = TestBus::new(&config(vec![pool(ShareMode::Connection)]));
        bus.up(0);
        let client = bus.open();
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
        let id = bus.last_id(0);
        bus.seen();
        bus.answer(0, id, &answer);
        let seen = bus.seen();
        assert!(seen.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32013"#), "{seen:.200}");
    }
}

#[test]
fn requests_that_open_a_session_have_a_bounded_number_of_values() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/new", &json!({"cwd": "/", "x": vec![json!({}); 30_000]}));
    let seen = bus.seen();
    assert!(seen.contains("-32013") && !seen.contains("w0 < "), "{seen:.200}");
}

#[test]
fn sessions_first_named_in_any_message_count_for_the_limits() {
    let mut bus = bus(256 << 20, PoolProtocol::JsonRpc);
    bus.core.limits.max_sessions_per_identity = 2;
    let client = bus.open_as("token:one");
    for number in 0..5 {
        bus.request(client, number, "x", &json!({"sessionId": format!("s{number}")}));
    }
    let seen = bus.seen();
    assert_eq!((seen.matches("w0 < ").count(), seen.matches("-32012").count()), (2, 3), "{seen}");
    // The limit also applies to sessions that a response names, and to two sessions in one message.
    let other = bus.open_as("token:two");
    for number in 0..5 {
        bus.request(other, number, "x", &json!({}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": format!("t{number}")}));
    }
    let seen = bus.seen();
    assert_eq!((seen.matches(r#""result""#).count(), seen.matches("-32012").count()), (2, 3), "{seen}");
    let third = bus.open_as("token:three");
    for number in 0..5 {
        let line = json!({"jsonrpc": "2.0", "id": number, "method": "x", "sessionId": format!("u{number}"),
            "params": {"sessionId": format!("v{number}")}});
        bus.line(third, &line.to_string());
    }
    assert_eq!(bus.core.sessions.len(), 6);
}

#[test]
fn no_message_creates_a_session_while_memory_is_short() {
    let mut bus = bus(256 << 20, PoolProtocol::JsonRpc);
    let client = bus.open_as("token:one");
    bus.request(client, 0, "x", &json!({}));
    bus.request(client, 1, "x", &json!({"sessionId": "known"}));
    bus.seen();
    bus.core.set_pressure(true);
    bus.request(client, 2, "x", &json!({"sessionId": "s"}));
    bus.answer(0, 1, &json!({"sessionId": "t"}));
    let seen = bus.seen();
    assert_eq!(seen.matches("-32012").count(), 2, "{seen}");
    assert_eq!(bus.core.sessions.len(), 1);
    bus.request(client, 3, "x", &json!({"sessionId": "known"}));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn progress_tokens_have_a_bounded_length() {
    let mut bus = bus(256 << 20, PoolProtocol::JsonRpc);
    let client = bus.open_as("token:one");
    bus.request(client, 1, "x", &json!({"_meta": {"progressToken": "y".repeat(4_000)}}));
    assert!(bus.seen().starts_with("w0 < "));
    bus.request(client, 2, "x", &json!({"_meta": {"progressToken": "y".repeat(4_096)}}));
    let seen = bus.seen();
    assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{seen:.200}");
}

#[test]
fn unanswered_requests_are_bounded_for_each_identity() {
    for protocol in [PoolProtocol::V1, PoolProtocol::JsonRpc] {
        let mut bus = bus(1 << 20, protocol);
        bus.core.limits.queue_bytes = 1 << 30;
        for _ in 0..20 {
            let client = bus.open_as("token:one");
            for id in 0..100 {
                let params = json!({"_meta": {"progressToken": "y".repeat(1_000)}});
                bus.request(client, id, "x", &params);
            }
        }
        let seen = bus.seen();
        let reached = seen.matches("w0 < ").count();
        assert!((50..600).contains(&reached), "{protocol:?}: {reached}");
        assert!(held(&bus) <= 300 << 10, "{protocol:?}: {}", held(&bus));
        let other = bus.open_as("token:two");
        bus.request(other, 1, "x", &json!({}));
        assert!(bus.seen().starts_with("w0 < "), "another identity has room");
        bus.kill_worker(0);
        assert_eq!(held(&bus), 0, "bytes queued for a lost worker are released");
    }
}

#[test]
fn short_lines_that_wait_for_a_worker_are_bounded_for_each_identity() {
    let mut settings = authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]);
    settings.limits.unfinished_input = 1 << 20;
    settings.limits.unfinished_input_per_identity = 256 << 10;
    for (method, is_cancel) in [("x", false), ("session/cancel", true), ("$/cancel_request", true)] {
        let mut bus = TestBus::new(&settings);
        for _ in 0..20 {
            let client = bus.open_as("token:one");
            bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
            for _ in 0..100 {
                bus.notify(
                    client,
                    method,
                    &json!({"sessionId": "s", "requestId": 7, "x": "y".repeat(1_000)}),
                );
            }
        }
        let most = if is_cancel { 300 << 10 } else { 260 << 10 };
        assert!(held(&bus) <= most, "{method}: {}", held(&bus));
        assert!(held(&bus) > 200 << 10, "{method}: {}", held(&bus));
    }
}

#[test]
fn waiting_lines_are_charged_for_more_than_their_bytes() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    for _ in 0..1_000 {
        bus.notify(client, "x", &json!({}));
    }
    assert!(held(&bus) >= 200_000, "{}", held(&bus));
    bus.disconnect(client);
    assert_eq!(held(&bus), 0);
}

#[test]
fn cancelling_and_closing_are_accepted_when_other_requests_are_refused() {
    let mut bus = bus(1 << 20, PoolProtocol::V1);
    bus.core.limits.queue_bytes = 1 << 30;
    let client = bus.open_as("token:one");
    bus.session(client, 0, "s");
    for id in 0..1_000 {
        bus.request(client, id, "x", &json!({"sessionId": "s"}));
    }
    assert!(bus.seen().contains("-32012"));
    bus.notify(client, "$/cancel_request", &json!({"requestId": 0}));
    bus.notify(client, "session/cancel", &json!({"sessionId": "s"}));
    bus.request(client, 2_000, "session/close", &json!({"sessionId": "s"}));
    let seen = bus.seen();
    assert_eq!(seen.matches("w0 < ").count(), 3, "{seen}");
    bus.request(client, 2_001, "x", &json!({"sessionId": "s"}));
    assert!(bus.seen().contains("-32012"));
}

#[test]
fn ids_of_servers_in_clients_are_bounded_and_counted() {
    let mut bus = bus(64 << 20, PoolProtocol::V1);
    bus.core.limits.memory = 16 << 20;
    let client = bus.open_as("token:one");
    let server = |id: String| json!({"type": "acp", "name": "n", "id": id});
    bus.request(client, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server("x".repeat(257))]}));
    let seen = bus.seen();
    assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{seen}");
    let mut refused = 0;
    for number in 0..40 {
        let servers: Vec<Value> =
            (0..200).map(|index| server(format!("{number}-{index}-{}", "x".repeat(200)))).collect();
        bus.request(client, 10 + number, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
        let seen = bus.seen();
        if seen.contains("-32012") {
            refused += 1;
            continue;
        }
        let id = last_id_in(&seen, 0);
        bus.answer(0, id, &json!({"sessionId": format!("s{number}")}));
        bus.seen();
    }
    // One identity may use 1 MiB, a sixteenth of the memory budget.
    assert!((30..40).contains(&refused), "{refused}");
    let other = bus.open_as("token:two");
    bus.request(other, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server("a".into())]}));
    assert!(bus.seen().starts_with("w0 < "), "another identity has room");
    bus.request(client, 100, "session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert!(bus.seen().starts_with("w0 < "), "a request without servers needs no memory for them");
}

#[test]
fn session_names_of_agents_have_a_bounded_length() {
    for protocol in [PoolProtocol::V1, PoolProtocol::JsonRpc] {
        for method in ["session/new", "x"] {
            let mut bus = bus(256 << 20, protocol);
            let client = bus.open_as("token:one");
            bus.request(client, 1, method, &json!({"cwd": "/"}));
            let id = bus.last_id(0);
            bus.seen();
            bus.answer(0, id, &json!({"sessionId": "s".repeat(4_097)}));
            let seen = bus.seen();
            assert_eq!(bus.core.sessions.len(), 0);
            if protocol == PoolProtocol::JsonRpc || method == "session/new" {
                assert!(seen.contains(r#""id":1,"error":{"code":-32603"#), "{method}: {seen:.300}");
                assert!(seen.contains("Strike"), "{method}: {seen:.300}");
            }
        }
    }
}
