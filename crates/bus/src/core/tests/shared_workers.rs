//! What a client of one identity cannot do to a worker with sessions of others.

use super::identities::authenticating;
use super::identities_at_one_worker::mixed;
use super::*;

/// Returns alice and bob with their sessions `a` and `b` in one worker.
fn two() -> (TestBus, u32, u32) {
    let mut bus = mixed(1, PoolProtocol::V1);
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.session(alice, 0, "a");
    bus.session(bob, 0, "b");
    (bus, alice, bob)
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
    let (mut bus, alice, _) = two();
    for method in methods {
        for params in [json!({}), json!({"id": "main"}), json!({"sessionId": "a"}), json!({"sessionId": "x"})]
        {
            bus.request(alice, 7, method, &params);
            let seen = bus.seen();
            assert!(
                !seen.contains("w0 < ") && seen.contains(r#""id":7,"error""#),
                "{method} {params}: {seen}"
            );
            bus.notify(alice, method, &params);
            assert_eq!(bus.seen(), "", "{method} {params}");
        }
    }
    bus.request(alice, 8, "_vendor/read", &json!({}));
    assert!(bus.seen().starts_with("w0 < "), "methods outside ACP still reach the worker");
}

#[test]
fn a_child_session_does_not_take_what_concerns_the_whole_connection_to_a_shared_worker() {
    let mut bus = mixed(1, PoolProtocol::V2);
    let alice = bus.open_as("token:alice");
    bus.session(alice, 0, "a");
    bus.announces(0, "a", "kid");
    bus.seen();
    bus.request(alice, 7, "providers/set", &json!({"sessionId": "kid", "id": "main"}));
    let seen = bus.seen();
    assert!(!seen.contains("w0 < ") && seen.contains("error"), "{seen}");
}

#[test]
fn capabilities_that_clients_of_a_shared_worker_may_not_use_are_removed() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    bus.up(0);
    let capabilities = json!({"loadSession": true, "providers": {}, "auth": {"logout": {}}});
    bus.answer(0, 1, &json!({"protocolVersion": 1, "agentCapabilities": capabilities}));
    let client = bus.open();
    bus.seen();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = bus.seen();
    assert!(
        seen.contains("loadSession") && !seen.contains("providers") && !seen.contains("logout"),
        "{seen}"
    );
}

#[test]
fn a_cancellation_with_an_id_reaches_no_worker() {
    let (mut bus, alice, bob) = two();
    bus.request(bob, 1, "session/prompt", &prompt("b"));
    let number = bus.last_id(0);
    bus.seen();
    for method in ["$/cancel_request", "notifications/cancelled"] {
        for params in [json!({"requestId": number}), json!({"requestId": number, "sessionId": "a"})] {
            bus.request(alice, 7, method, &params);
            let seen = bus.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32600"), "{method}: {seen}");
        }
    }
}

/// Returns a bus where alice's current pool is not that of her session `mine`. Her session and bob's session
/// `victim` are in worker 1, which has not answered her request `q`.
fn in_another_pool(own: Pool) -> (TestBus, u32) {
    let shared = Pool { name: "shared".into(), mix_identities: true, ..pool(ShareMode::All) };
    let raw = own.protocol == PoolProtocol::JsonRpc;
    let mut bus = TestBus::new(&authenticating(vec![Pool { name: "own".into(), ..own }, shared]));
    bus.up(0);
    bus.up(1);
    bus.answer(1, 1, &able());
    let initialize = |pool: &str| json!({"protocolVersion": 1, "_meta": {"narrows/pool": pool}});
    let bob = bus.open_as("token:bob");
    bus.request(bob, 1, "initialize", &initialize("shared"));
    bus.session(bob, 1, "victim");
    let mut alice = bus.open_as("token:alice");
    bus.request(alice, 1, "initialize", &initialize("shared"));
    bus.session(alice, 1, "mine");
    if raw {
        bus.line(alice, r#"{"jsonrpc":"2.0","method":"_y","params":{},"pool":"own"}"#);
    } else {
        bus.disconnect(alice);
        alice = bus.open_as("token:alice");
        bus.request(alice, 1, "initialize", &initialize("own"));
        bus.answer(0, 1, &able());
        bus.request(alice, 2, "session/load", &json!({"sessionId": "mine", "cwd": "/", "mcpServers": []}));
        let id = bus.last_id(1);
        bus.answer(1, id, &json!({}));
    }
    bus.line(
        alice,
        r#"{"jsonrpc":"2.0","id":"q","method":"session/prompt","params":{"sessionId":"mine","prompt":[]}}"#,
    );
    assert!(bus.seen().ends_with(r#""params":{"sessionId":"mine","prompt":[]}}"#));
    (bus, alice)
}

#[test]
fn keys_that_name_another_session_are_refused_by_the_pool_that_a_message_goes_to() {
    let lines = [
        r#"{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"sessionId":"mine","session_id":"victim","prompt":[]}}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"_x/read","params":{"sessionId":"mine"},"sessionId":"victim"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"_x/read","params":{"sessionId":"mine"},"session_id":"victim"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"_x/read","params":{},"pool":"shared","sessionId":"victim"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"_x/read","params":{},"pool":"shared","x":{"sessionId":"victim"}}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"session/new","params":{"cwd":"/","session_id":"victim","_meta":{"narrows/pool":"shared"}}}"#,
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"mine","session_id":"victim"}}"#,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"q","request_id":2}}"#,
    ];
    let raw = Pool { protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
    for own in [pool(ShareMode::Connection), raw] {
        for line in lines {
            let (mut bus, alice) = in_another_pool(own.clone());
            bus.line(alice, line);
            let seen = bus.seen();
            assert!(!seen.contains("w1 < "), "{line}: {seen}");
        }
    }
}

#[test]
fn keys_similar_to_routing_keys_are_forwarded_to_an_exclusive_worker() {
    let (mut bus, alice) = in_another_pool(pool(ShareMode::Connection));
    bus.request(alice, 3, "session/new", &json!({"cwd": "/", "mcpServers": []}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"sessionId": "private"}));
    bus.seen();
    bus.request(
        alice,
        4,
        "session/prompt",
        &json!({"sessionId": "private", "session_id": "x", "prompt": []}),
    );
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_second_name_beside_that_of_an_acp_session_is_not_bound_to_its_worker() {
    let raw = Pool { protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
    let (mut bus, alice) = in_another_pool(raw);
    bus.line(
        alice,
        r#"{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"sessionId":"unknown"},"sessionId":"mine"}"#,
    );
    let seen = bus.seen();
    assert!(!seen.contains("w1 < "), "{seen}");
}

/// Returns alice and bob, each with a running turn in one worker, and the worker's id of alice's prompt.
/// Alice has an MCP server there.
fn two_turns() -> (TestBus, u32, u64) {
    let mut bus = mixed(1, PoolProtocol::V1);
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.session(bob, 0, "b");
    let servers = json!([{"type": "acp", "name": "x", "id": "files", "serverId": "files"}]);
    bus.request(alice, 1, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"sessionId": "a"}));
    bus.request(bob, 2, "session/prompt", &prompt("b"));
    bus.request(alice, 2, "session/prompt", &prompt("a"));
    let number = bus.last_id(0);
    bus.seen();
    (bus, alice, number)
}

#[test]
fn a_client_that_does_not_answer_in_a_cancelled_turn_does_not_stop_the_worker() {
    for method in ["mcp/message", "mcp/connect", "elicitation/create"] {
        for is_late in [false, true] {
            let (mut bus, alice, number) = two_turns();
            let params = match method {
                "mcp/message" => json!({"serverId": "files", "method": "tools/call"}),
                "mcp/connect" => json!({"acpId": "files"}),
                _ => json!({"requestId": number, "message": "x"}),
            };
            let line = json!({"jsonrpc": "2.0", "id": "m", "method": method, "params": params});
            if !is_late {
                bus.worker_sends(0, &line.to_string());
                assert!(bus.seen().starts_with(&format!("c{alice} < ")), "{method}");
            }
            bus.notify(alice, "session/cancel", &json!({"sessionId": "a"}));
            bus.seen();
            bus.advance(16.0);
            if is_late {
                bus.worker_sends(0, &line.to_string());
            }
            let seen = bus.seen();
            let failed = r#"w0 < {"jsonrpc":"2.0","id":"m","error":{"code":-32800"#;
            assert!(seen.contains(failed), "{method} {is_late}: {seen}");
            bus.answer(0, number, &json!({"stopReason": "cancelled"}));
            bus.seen();
            bus.advance(100.0);
            assert_eq!(bus.seen(), "", "{method} {is_late}");
        }
    }
}

#[test]
fn cancelling_a_turn_does_not_affect_requests_to_other_clients() {
    let (mut bus, alice, _) = two_turns();
    let bob = alice + 1;
    let params = json!({"sessionId": "b", "path": "/x"});
    let line = json!({"jsonrpc": "2.0", "id": "f", "method": "fs/read_text_file", "params": params});
    bus.worker_sends(0, &line.to_string());
    assert!(bus.seen().starts_with(&format!("c{bob} < ")));
    bus.notify(alice, "session/cancel", &json!({"sessionId": "a"}));
    bus.seen();
    bus.advance(16.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn params_of_a_list_that_cannot_be_read_are_refused() {
    let (mut bus, alice, _) = two();
    bus.line(alice, r#"{"jsonrpc":"2.0","id":7,"method":"session/list","params":{"cwd":"/x","n":1e999}}"#);
    let seen = bus.seen();
    assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{seen}");
    bus.line(alice, r#"{"jsonrpc":"2.0","id":8,"method":"session/list","params":null}"#);
    assert!(bus.seen().starts_with("w0 < "));
}
