//! What a client of one identity may cause at a worker that has sessions of others.

use super::identities::asking;
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

/// Alice's current pool is another one than that of her session `mine` at worker 1, where bob has `victim`. Her request `q` is open there.
fn in_another_pool(own: Pool) -> (Scene, u32) {
    let shared = Pool { name: "shared".into(), mix_identities: true, ..pool(Share::All) };
    let raw = own.protocol == Protocol::JsonRpc;
    let mut scene = Scene::new(&asking(vec![Pool { name: "own".into(), ..own }, shared]));
    scene.up(0);
    scene.up(1);
    scene.answer(1, 1, &able());
    let initialize = |pool: &str| json!({"protocolVersion": 1, "_meta": {"narrows/pool": pool}});
    let bob = scene.open_as("token:bob");
    scene.ask(bob, 1, "initialize", &initialize("shared"));
    scene.session(bob, 1, "victim");
    let mut alice = scene.open_as("token:alice");
    scene.ask(alice, 1, "initialize", &initialize("shared"));
    scene.session(alice, 1, "mine");
    if raw {
        scene.line(alice, r#"{"jsonrpc":"2.0","method":"_y","params":{},"pool":"own"}"#);
    } else {
        scene.leaves(alice);
        alice = scene.open_as("token:alice");
        scene.ask(alice, 1, "initialize", &initialize("own"));
        scene.answer(0, 1, &able());
        scene.ask(alice, 2, "session/load", &json!({"sessionId": "mine", "cwd": "/", "mcpServers": []}));
        let id = scene.last_id(1);
        scene.answer(1, id, &json!({}));
    }
    scene.line(
        alice,
        r#"{"jsonrpc":"2.0","id":"q","method":"session/prompt","params":{"sessionId":"mine","prompt":[]}}"#,
    );
    assert!(scene.seen().ends_with(r#""params":{"sessionId":"mine","prompt":[]}}"#));
    (scene, alice)
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
    let raw = Pool { protocol: Protocol::JsonRpc, ..pool(Share::All) };
    for own in [pool(Share::Connection), raw] {
        for line in lines {
            let (mut scene, alice) = in_another_pool(own.clone());
            scene.line(alice, line);
            let seen = scene.seen();
            assert!(!seen.contains("w1 < "), "{line}: {seen}");
        }
    }
}

#[test]
fn keys_that_only_look_like_routing_keys_pass_to_a_worker_of_one_client() {
    let (mut scene, alice) = in_another_pool(pool(Share::Connection));
    scene.ask(alice, 3, "session/new", &json!({"cwd": "/", "mcpServers": []}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({"sessionId": "private"}));
    scene.seen();
    scene.ask(alice, 4, "session/prompt", &json!({"sessionId": "private", "session_id": "x", "prompt": []}));
    assert!(scene.seen().starts_with("w0 < "));
}

#[test]
fn a_name_beside_one_of_a_session_that_speaks_acp_is_no_name_at_its_worker() {
    let raw = Pool { protocol: Protocol::JsonRpc, ..pool(Share::All) };
    let (mut scene, alice) = in_another_pool(raw);
    scene.line(
        alice,
        r#"{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{"sessionId":"unknown"},"sessionId":"mine"}"#,
    );
    let seen = scene.seen();
    assert!(!seen.contains("w1 < "), "{seen}");
}

/// Alice and bob with a turn each at one worker, where alice has an MCP server. Returns the worker's number of alice's prompt.
fn two_turns() -> (Scene, u32, u64) {
    let mut scene = mixed(1, Protocol::V1);
    let (alice, bob) = (scene.open_as("token:alice"), scene.open_as("token:bob"));
    scene.session(bob, 0, "b");
    let servers = json!([{"type": "acp", "name": "x", "id": "files", "serverId": "files"}]);
    scene.ask(alice, 1, "session/new", &json!({"cwd": "/", "mcpServers": servers}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({"sessionId": "a"}));
    scene.ask(bob, 2, "session/prompt", &prompt("b"));
    scene.ask(alice, 2, "session/prompt", &prompt("a"));
    let number = scene.last_id(0);
    scene.seen();
    (scene, alice, number)
}

#[test]
fn a_client_that_does_not_answer_in_a_cancelled_turn_does_not_stop_the_worker_whatever_it_was_asked() {
    for method in ["mcp/message", "mcp/connect", "elicitation/create"] {
        for is_late in [false, true] {
            let (mut scene, alice, number) = two_turns();
            let params = match method {
                "mcp/message" => json!({"serverId": "files", "method": "tools/call"}),
                "mcp/connect" => json!({"acpId": "files"}),
                _ => json!({"requestId": number, "message": "x"}),
            };
            let line = json!({"jsonrpc": "2.0", "id": "m", "method": method, "params": params});
            if !is_late {
                scene.said(0, &line.to_string());
                assert!(scene.seen().starts_with(&format!("c{alice} < ")), "{method}");
            }
            scene.note(alice, "session/cancel", &json!({"sessionId": "a"}));
            scene.seen();
            scene.pass(16.0);
            if is_late {
                scene.said(0, &line.to_string());
            }
            let seen = scene.seen();
            let failed = r#"w0 < {"jsonrpc":"2.0","id":"m","error":{"code":-32800"#;
            assert!(seen.contains(failed), "{method} {is_late}: {seen}");
            scene.answer(0, number, &json!({"stopReason": "cancelled"}));
            scene.seen();
            scene.pass(100.0);
            assert_eq!(scene.seen(), "", "{method} {is_late}");
        }
    }
}

#[test]
fn what_another_client_is_asked_is_left_alone_when_a_turn_is_cancelled() {
    let (mut scene, alice, _) = two_turns();
    let bob = alice + 1;
    let params = json!({"sessionId": "b", "path": "/x"});
    let line = json!({"jsonrpc": "2.0", "id": "f", "method": "fs/read_text_file", "params": params});
    scene.said(0, &line.to_string());
    assert!(scene.seen().starts_with(&format!("c{bob} < ")));
    scene.note(alice, "session/cancel", &json!({"sessionId": "a"}));
    scene.seen();
    scene.pass(16.0);
    assert_eq!(scene.seen(), "");
}

#[test]
fn params_of_a_list_that_cannot_be_read_are_refused() {
    let (mut scene, alice, _) = two();
    scene.line(alice, r#"{"jsonrpc":"2.0","id":7,"method":"session/list","params":{"cwd":"/x","n":1e999}}"#);
    let seen = scene.seen();
    assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{seen}");
    scene.line(alice, r#"{"jsonrpc":"2.0","id":8,"method":"session/list","params":null}"#);
    assert!(scene.seen().starts_with("w0 < "));
}
