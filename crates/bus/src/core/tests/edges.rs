//! Interactions of two conditions: a turn and closed input, a cancellation and a wait, a name and two
//! sessions.

use insta::assert_snapshot;

use super::super::StuckReason;
use super::*;

fn servers(name: &str) -> Value {
    json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "x", "serverId": name}]})
}

#[test]
fn closed_input_fails_unread_requests_and_read_ones_can_still_be_answered() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    for name in ["a", "b"] {
        bus.session(client, 0, name);
    }
    bus.request(client, 1, "session/prompt", &prompt("a"));
    let bytes_read = bus.output.queued[&0].len() as u64;
    bus.request(client, 2, "session/prompt", &prompt("b"));
    bus.seen();
    bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::InputClosed { bytes_read }, &mut bus.output);
    bus.request(client, 3, "_ext/x", &json!({"sessionId": "a"}));
    bus.request(client, 4, "session/prompt", &prompt("b"));
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32010,"message":"agent closed its input","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32010,"message":"agent closed its input","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    "#);
    bus.up(1);
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(1)))
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"b","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"b","prompt":[]}}
    "#);
    bus.answer(0, 4, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn requests_that_wait_for_their_session_can_be_cancelled() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.request(client, 2, "_ext/x", &json!({"sessionId": "a"}));
    bus.seen();
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"cancelled before reaching an agent","data":{"condition":"cancelled","retryable":false,"effects":"none"}}}
    "#);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus.answer(0, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"_ext/x","params":{"sessionId":"a"}}
    "#);
}

#[test]
fn a_session_that_is_lost_is_closed_without_a_worker() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 1, "session/close", &json!({"sessionId": "a"}));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_server_is_known_as_long_as_one_session_uses_it() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    for name in ["a", "b"] {
        bus.request(client, 1, "session/new", &servers("s"));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": name}));
    }
    // A request for a session that fails does not remove the MCP servers of other sessions.
    bus.request(client, 2, "session/new", &servers("s"));
    let id = bus.last_id(0);
    bus.fail(0, id, -32_000);
    let message = r#"{"jsonrpc":"2.0","id":7,"method":"mcp/message","params":{"serverId":"s"}}"#;
    bus.seen();
    for name in ["a", "b"] {
        bus.request(client, 3, "session/close", &json!({"sessionId": name}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({}));
        bus.seen();
        bus.worker_sends(0, message);
        bus.line(client, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(bus.seen().contains("c0 < "), name == "a");
    }
}

#[test]
fn a_worker_for_one_session_ends_with_it_even_if_it_was_the_first() {
    let mut bus = TestBus::new(&config(vec![Pool { max_instances: 2, ..pool(ShareMode::Session) }]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    // A session that could not be opened does not use up the worker.
    bus.request(client, 2, "session/new", &json!({}));
    bus.fail(0, 2, -32_000);
    bus.request(client, 3, "session/new", &json!({}));
    bus.answer(0, 3, &json!({"sessionId": "a"}));
    bus.up(1);
    bus.request(client, 4, "session/close", &json!({"sessionId": "a"}));
    bus.seen();
    bus.answer(0, 4, &json!({}));
    bus.request(client, 5, "session/new", &json!({}));
    bus.answer(1, 1, &able());
    assert_snapshot!(bus.seen(), @r#"
    Stop { worker: WorkerId(0), kill: false }
    c0 < {"jsonrpc":"2.0","id":4,"result":{}}
    Spawn { worker: WorkerId(2), pool: PoolId(0) }
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    "#);
    bus.answer(1, 2, &json!({"sessionId": "b"}));
    bus.kill_worker(0);
    bus.request(client, 6, "_ext/x", &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":5,"result":{"sessionId":"b"}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"_ext/x","params":{}}
    "#);
}

#[test]
fn a_list_does_not_wait_for_ever_and_does_not_go_on_without_a_worker() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/list", &json!({}));
    bus.answer(0, 2, &json!({"sessions": [{"sessionId": "a"}], "nextCursor": "n"}));
    bus.seen();
    bus.advance(30.0);
    bus.answer(1, 2, &json!({"sessions": [{"sessionId": "late"}]}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"agent did not respond in time","data":{"condition":"deadline","retryable":true,"effects":"none"}}}
    "#);
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 2, "session/list", &json!({"cursor": r#"{"1":"n"}"#}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"cursor expired: an agent exited","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_session_is_named_by_a_string() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/prompt", &json!({"sessionId": 7}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"session id must be the string params.sessionId","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    "#);
}

/// An agent that reads sessions from other keys could reach sessions of other clients.
#[test]
fn an_extension_names_its_session_as_every_other_method_or_not_at_all() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    let mut check = |params: Value, passes: bool| {
        bus.notify(two, "_x/y", &params);
        assert_eq!(bus.seen().contains("w0 <"), passes, "{params}");
        bus.request(two, 1, "_x/y", &params);
        let seen = bus.seen();
        assert_eq!((seen.contains("w0 <"), seen.contains("-32602")), (passes, !passes), "{params}: {seen}");
        if passes {
            let id = serde_json::from_str::<Value>(seen.trim_start_matches("w0 < ")).unwrap()["id"].as_u64();
            bus.answer(0, id.unwrap(), &json!({}));
            bus.seen();
        }
    };
    check(json!({}), true);
    check(json!({"sessionId": null}), true);
    check(json!({"sessionId": "b"}), true);
    check(json!({"session": "a", "id": "sessionId"}), true);
    for params in [
        json!({"session_id": "a"}),
        json!({"SessionId": "a"}),
        json!({"_meta": {"narrows": {"sessionId": "a"}}}),
        json!({"list": [{"session-id": "a"}]}),
        json!({"sessionId": ["a"]}),
    ] {
        check(params.clone(), false);
        // Other keys are refused even if they name the client's own session.
        let mut both = params;
        if both["sessionId"].is_null() {
            both["sessionId"] = json!("b");
            check(both, false);
        }
    }
}

#[test]
fn a_session_without_an_owner_gets_none_from_a_failed_open() {
    let mut bus = TestBus::shared(1);
    let (one, other) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    let third = bus.open();
    for (client, id) in [(other, 3), (third, 4)] {
        bus.request(client, 1, "session/resume", &json!({"sessionId": "a", "cwd": "/"}));
        bus.fail(0, id, -32_603);
    }
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/resume","params":{"sessionId":"a","cwd":"/"}}
    c1 < {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/resume","params":{"sessionId":"a","cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}
    "#);
}

#[test]
fn a_turn_begun_after_a_cancellation_is_not_cancelled() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    bus.advance(29.0);
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.seen();
    bus.advance(2.0);
    bus.answer(0, 4, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn long_running_workers_lost_together_count_as_one_loss() {
    let mut bus = TestBus::shared(8);
    bus.advance(100.0);
    for worker in 0..8 {
        bus.kill_worker(worker);
    }
    assert!(!bus.seen().contains("CircuitOpened"));
    // Workers that are lost right after their start open the circuit breaker.
    bus.advance(1.0);
    for _ in 0..4 {
        for worker in 0..8 {
            bus.kill_worker(worker);
        }
        bus.advance(2.0);
    }
    assert!(bus.seen().contains("CircuitOpened"));
}

#[test]
fn an_array_of_a_worker_loses_no_answer() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    // A batch of a worker may have more entries than a batch of a client.
    bus.request(client, 1, "session/prompt", &prompt("a"));
    let id = bus.last_id(0);
    bus.seen();
    let update =
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "a", "update": 1}});
    let mut entries = vec![update; 150];
    entries.push(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}}));
    bus.worker_sends(0, &json!(entries).to_string());
    let seen = bus.seen();
    assert_eq!(seen.lines().count(), 151, "{seen}");
    assert!(seen.ends_with(r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}"#), "{seen}");
    // An invalid response fails its request, so that the client does not wait forever.
    bus.request(client, 2, "session/prompt", &prompt("a"));
    let id = bus.last_id(0);
    bus.seen();
    bus.worker_sends(0, &json!([{"jsonrpc": "2.0", "id": id}]).to_string());
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"invalid agent response","data":{"condition":"internal_error","retryable":false,"effects":"possible"}}}
    Log(Strike { worker: WorkerId(0), what: "sent an invalid response" })
    w0 < [{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"method is missing","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}]
    "#);
    // A batch that is too long is not parsed, so any request may be answered in it.
    bus.request(client, 3, "session/prompt", &prompt("a"));
    bus.seen();
    bus.worker_sends(0, &format!("[{}1]", "1,".repeat(10_000)));
    bus.advance(31.0);
    let seen = bus.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-320"#), "{seen}");
}

/// Some agents convert a list or an object to a name, or read the name of a session from another key.
#[test]
fn no_method_names_a_session_of_others_to_a_shared_agent_by_another_form_or_place() {
    let mut bus = TestBus::new(&identities::authenticating(vec![Pool {
        mix_identities: true,
        ..pool(ShareMode::All)
    }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    let methods = [
        "session/load",
        "session/resume",
        "session/delete",
        "session/list",
        "session/new",
        "session/fork",
        "session/close",
        "session/set_mode",
        "_x/y",
    ];
    for method in methods {
        for params in [
            json!({"cwd": "/", "sessionId": ["a"]}),
            json!({"cwd": "/", "sessionId": {"id": "a"}}),
            json!({"cwd": "/", "options": {"sessionId": "a"}}),
            json!({"cwd": "/", "sessionId": "b", "options": {"sessionId": "a"}}),
        ] {
            bus.request(two, 1, method, &params);
            let seen = bus.seen();
            assert!(!seen.contains("w0 <") && seen.contains("error"), "{method} {params}: {seen}");
        }
        for beside in [r#""sessionId":"a""#, r#""sessionId":["a"]"#, r#""_meta":{"sessionId":"a"}"#] {
            for params in [r#"{"cwd":"/"}"#, r#"{"cwd":"/","sessionId":"b"}"#] {
                bus.line(
                    two,
                    &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}",{beside},"params":{params}}}"#),
                );
                bus.line(
                    two,
                    &format!(r#"{{"jsonrpc":"2.0","params":{params},{beside},"id":2,"method":"{method}"}}"#),
                );
                let seen = bus.seen();
                assert!(
                    !seen.contains("w0 <") && seen.contains("error"),
                    "{method} {beside} {params}: {seen}"
                );
            }
        }
    }
    for method in ["session/prompt", "session/cancel"] {
        bus.line(
            two,
            &format!(
                r#"{{"jsonrpc":"2.0","method":"{method}","sessionId":"a","params":{{"sessionId":"b"}}}}"#
            ),
        );
        let seen = bus.seen();
        assert!(!seen.contains("w0 <"), "{method}: {seen}");
    }
    // If the client owns the session at the top level, or there is no such session, the name is a tag.
    bus.line(two, r#"{"jsonrpc":"2.0","id":3,"method":"session/prompt","sessionId":"b","params":{"sessionId":"b","prompt":[]}}"#);
    assert!(bus.seen().contains("w0 <"));
}
