//! Destinations and ids of messages.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_shared_pool_answers_initialize_itself_with_what_every_worker_can() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 2, ..pool(ShareMode::All) }]));
    let client = bus.open();
    bus.request(client, 7, "initialize", &json!({"protocolVersion": 65_535}));
    bus.up(0);
    bus.up(1);
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    "#);
    bus.answer(0, 1, &able());
    assert_snapshot!(bus.seen(), @r#"
    Log(Ready(WorkerId(0)))
    c0 < {"jsonrpc":"2.0","id":7,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{},"list":{},"close":{}}},"authMethods":[]}}
    "#);
    bus.answer(1, 1, &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": false, "x": 1}}));
    bus.request(client, 8, "initialize", &json!({"protocolVersion": 1}));
    bus.request(client, 9, "initialize", &json!({"protocolVersion": 0}));
    bus.request(client, 10, "initialize", &json!({}));
    bus.request(client, 11, "authenticate", &json!({"methodId": "x"}));
    assert_snapshot!(bus.seen(), @r#"
    Log(Ready(WorkerId(1)))
    c0 < {"jsonrpc":"2.0","id":8,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":false},"authMethods":[]}}
    c0 < {"jsonrpc":"2.0","id":9,"error":{"code":-32022,"message":"pool requires a later protocol version","data":{"condition":"unsupported_version","retryable":false,"effects":"none","requested":0,"supported":[1]}}}
    c0 < {"jsonrpc":"2.0","id":10,"error":{"code":-32602,"message":"protocolVersion must be a number from 0 to 65535","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":11,"error":{"code":-32602,"message":"pool has no authentication methods","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_session_method_that_names_no_session_does_not_reach_shared_agents() {
    let methods = narrows_acp::method::METHODS.iter().filter(|method| {
        method.is_received_by(narrows_acp::method::Side::Agent)
            && method.scope == narrows_acp::method::Scope::Session
    });
    let names: Vec<&str> = methods.map(|method| method.name).collect();
    assert!(names.contains(&"session/prompt") && names.contains(&"tool_call/cancel"), "{names:?}");
    for name in names {
        for params in [json!({}), json!({"sessionId": null}), json!(["s"]), json!(null)] {
            let mut bus = TestBus::shared(1);
            let client = bus.open();
            bus.request(client, 1, name, &params);
            let seen = bus.seen();
            assert!(!seen.contains("w0 <") && seen.contains("-32602"), "{name} {params} {seen}");
            bus.notify(client, name, &params);
            assert_eq!(bus.seen(), "", "{name} {params}");
        }
        let mut bus = TestBus::shared(1);
        let client = bus.open();
        bus.line(client, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"}}"#));
        let seen = bus.seen();
        assert!(!seen.contains("w0 <") && seen.contains("-32602"), "{name} {seen}");
    }
    // An exclusive agent has no sessions of other clients, so the request is forwarded to it.
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::Connection) }]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "session/prompt", &json!({}));
    assert!(bus.seen().contains("w0 <"));
}

#[test]
fn ids_of_any_kind_are_returned_unchanged_and_never_mixed_up() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 0, "b");
    for (client, session) in [(one, "a"), (two, "b")] {
        for id in ["1", "\"1\"", "1.0", "9223372036854775808", "\"\\u0031\""] {
            bus.line(client, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/prompt","params":{{"sessionId":"{session}"}}}}"#));
        }
    }
    bus.line(one, r#"{"jsonrpc":"2.0","id":null,"method":"session/prompt","params":{"sessionId":"a"}}"#);
    bus.seen();
    // The worker answers in reverse order.
    for id in (4..=13).rev() {
        bus.worker_sends(
            0,
            &format!(r#"{{ "result" : {{"stopReason":"end_turn"}}, "jsonrpc":"2.0", "id":{id} }}"#),
        );
    }
    assert_snapshot!(bus.seen(), @r#"
    c1 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":"\u0031" }
    c1 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":9223372036854775808 }
    c1 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":1.0 }
    c1 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":"1" }
    c1 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":1 }
    c0 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":"\u0031" }
    c0 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":9223372036854775808 }
    c0 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":1.0 }
    c0 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":"1" }
    c0 < { "result" : {"stopReason":"end_turn"}, "jsonrpc":"2.0", "id":1 }
    "#);
}

#[test]
fn a_session_goes_to_its_worker_and_everything_about_it_to_its_client() {
    let mut bus = TestBus::shared(2);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(two, 1, "b");
    bus.request(one, 1, "session/prompt", &prompt("a"));
    bus.request(two, 1, "session/prompt", &prompt("b"));
    bus.update(1, "b", "to two");
    bus.update(0, "a", "to one");
    let permission =
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#;
    bus.worker_sends(0, permission);
    // Only the answer of the session's owner counts.
    bus.line(two, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":"forged"}}"#);
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":"mine"}}"#);
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":"twice"}}"#);
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    // A session of another client and an unknown session get the same answer.
    bus.request(two, 2, "session/prompt", &prompt("a"));
    bus.request(two, 3, "session/prompt", &prompt("z"));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"b","prompt":[]}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":"to two"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"to one"}}
    c0 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":"mine"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    c1 < {"jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn two_sessions_with_one_name_get_different_names() {
    let mut bus = TestBus::shared(2);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "same");
    bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
    bus.update(1, "same", "before the answer");
    bus.answer(1, 2, &json!({"sessionId": "same"}));
    bus.request(two, 2, "session/prompt", &prompt("same~2"));
    bus.update(1, "same", "to two");
    bus.update(0, "same", "to one");
    bus.notify(two, "session/cancel", &json!({"sessionId": "same~2"}));
    assert_snapshot!(bus.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"same~2","update":"before the answer"}}
    c1 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"same~2"}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"same","prompt":[]}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"same~2","update":"to two"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"same","update":"to one"}}
    w1 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"same"}}
    "#);
}

#[test]
fn cancellations_use_the_id_that_the_receiver_knows() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.line(client, r#"{"jsonrpc":"2.0","id":"mine","method":"session/prompt","params":{"sessionId":"a"}}"#);
    bus.notify(client, "$/cancel_request", &json!({"requestId": "mine"}));
    bus.notify(client, "$/cancel_request", &json!({"requestId": "unknown"}));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"requestId":3,"mode":"url"}}"#,
    );
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"q"}}"#);
    // The `requestId` of an MCP message is not an id of the bus, and stays unchanged.
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":"m","method":"mcp/message","params":{"requestId":3,"serverId":"s","sessionId":"a"}}"#);
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":3}}
    c0 < {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"requestId":"mine","mode":"url"}}
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c0 < {"jsonrpc":"2.0","id":2,"method":"mcp/message","params":{"requestId":3,"serverId":"s","sessionId":"a"}}
    "#);
}

#[test]
fn batches_are_split_and_answered_with_one_array() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.line(client, r#"[{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}},{"jsonrpc":"2.0","id":1,"method":"x"},7,{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"a"}},{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}]"#);
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.worker_sends(0, r#"[{"jsonrpc":"2.0","id":5,"method":"fs/read_text_file","params":{"sessionId":"a"}},{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a"}},{"jsonrpc":"2.0","id":3,"result":{"stopReason":"cancelled"}}]"#);
    bus.line(client, r#"{"jsonrpc":"2.0","id":1,"result":{"content":""}}"#);
    bus.line(client, "[]");
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a"}}
    w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a"}}
    c0 < [{"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}},{"jsonrpc":"2.0","id":1,"error":{"code":-32014,"message":"the id is used twice in one batch","data":{"condition":"duplicate_id","retryable":false,"effects":"none"}}},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}},{"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}]
    w0 < [{"jsonrpc":"2.0","id":5,"result":{"content":""}}]
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"empty batch","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn lists_are_merged() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/list", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessions": [{"sessionId": "a"}, {"sessionId": "b"}], "nextCursor": "x"}));
    bus.answer(1, 2, &json!({"sessions": [{"sessionId": "b"}, {"sessionId": "c"}]}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/list","params":{"cwd":"/"}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/list","params":{"cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessions":[{"sessionId":"a"},{"sessionId":"b"},{"sessionId":"c"}],"nextCursor":"{\"1\":\"x\"}"}}
    "#);
    bus.request(client, 2, "session/list", &json!({"cursor": "{\"1\":\"x\"}"}));
    bus.fail(0, 3, -32603);
    bus.request(client, 3, "session/list", &json!({"cursor": "made up"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cursor":"x"}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no"}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"invalid cursor","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_connection_can_have_a_worker_for_itself() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::Connection)]));
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"_about/nothing"}"#);
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":0,"method":"_ask"}"#);
    let other = bus.open();
    bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.up(1);
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{},"list":{},"close":{}}},"authMethods":[{"id":"x","name":"X"}]}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","method":"_about/nothing"}
    c0 < {"jsonrpc":"2.0","id":1,"method":"_ask"}
    Spawn { worker: WorkerId(2), pool: PoolId(0) }
    Log(Ready(WorkerId(1)))
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}
    "#);
}

#[test]
fn a_session_can_have_a_worker_for_itself() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 2, ..pool(ShareMode::Session) }]));
    bus.up(0);
    bus.up(1);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1, "mine": true}));
    bus.answer(0, 1, &able());
    bus.request(client, 2, "authenticate", &json!({"methodId": "x"}));
    bus.answer(0, 2, &json!({}));
    bus.request(client, 3, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 3, &json!({"sessionId": "a"}));
    bus.seen();
    bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({}));
    bus.answer(1, 3, &json!({"sessionId": "b"}));
    bus.request(client, 5, "session/close", &json!({"sessionId": "b"}));
    bus.answer(1, 4, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(3), pool: PoolId(0) }
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"mine":true}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"authenticate","params":{"methodId":"x"}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/new","params":{"cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":4,"result":{"sessionId":"b"}}
    w1 < {"jsonrpc":"2.0","id":4,"method":"session/close","params":{"sessionId":"b"}}
    Stop { worker: WorkerId(1), kill: false }
    c0 < {"jsonrpc":"2.0","id":5,"result":{}}
    "#);
}

#[test]
fn sessions_are_routed_without_a_known_protocol() {
    let mut bus = TestBus::new(&config(vec![Pool {
        instances: 2,
        protocol: PoolProtocol::JsonRpc,
        ..pool(ShareMode::All)
    }]));
    bus.up(0);
    bus.up(1);
    let (one, two) = (bus.open(), bus.open());
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"sessionId":"s","method":"x"}"#);
    bus.line(two, r#"{"jsonrpc":"2.0","id":1,"sessionId":"t","method":"x"}"#);
    bus.line(one, r#"{"jsonrpc":"2.0","id":2,"sessionId":"s","method":"x","params":{"sessionId":"deep"}}"#);
    bus.answer(1, 1, &json!(1));
    bus.answer(0, 1, &json!(2));
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"n","params":{"sessionId":"s"}}"#);
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"n","sessionId":"s","params":{}}"#);
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"n","params":{"sessionId":"t"}}"#);
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Log(Ready(WorkerId(0)))
    Log(Ready(WorkerId(1)))
    w0 < {"jsonrpc":"2.0","id":1,"sessionId":"s","method":"x"}
    w1 < {"jsonrpc":"2.0","id":1,"sessionId":"t","method":"x"}
    w0 < {"jsonrpc":"2.0","id":2,"sessionId":"s","method":"x","params":{"sessionId":"deep"}}
    c1 < {"sessionId":"t","jsonrpc":"2.0","id":1,"result":1}
    c0 < {"sessionId":"s","jsonrpc":"2.0","id":1,"result":2}
    c0 < {"sessionId":"s","jsonrpc":"2.0","method":"n","params":{"sessionId":"s"}}
    c0 < {"jsonrpc":"2.0","method":"n","sessionId":"s","params":{}}
    Log(Strike { worker: WorkerId(0), what: "named an unknown session" })
    "#);
}

#[test]
fn a_pool_can_be_named() {
    let other = Pool { name: "q".into(), ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All), other]));
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    bus.seen();
    let client = bus.open();
    bus.request(
        client,
        1,
        "initialize",
        &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "nobody's"}}),
    );
    bus.request(client, 2, "initialize", &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "q"}}));
    bus.request(client, 3, "session/new", &json!({}));
    bus.request(client, 4, "session/new", &json!({"_meta": {"narrows/pool": "p"}}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"unknown pool","data":{"condition":"invalid_params","retryable":false,"effects":"none","pool":"nobody's"}}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{},"list":{},"close":{}}},"authMethods":[]}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"_meta":{"narrows/pool":"p"}}}
    "#);
}

#[test]
fn a_session_that_is_not_open_is_requested_from_every_worker() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/load", &json!({"sessionId": "old"}));
    bus.update(0, "old", "history");
    bus.fail(0, 2, -32002);
    bus.update(1, "old", "its history");
    bus.answer(1, 2, &json!({}));
    bus.request(client, 2, "session/prompt", &prompt("old"));
    bus.request(client, 3, "session/load", &json!({"sessionId": "none"}));
    bus.fail(0, 3, -32002);
    bus.fail(1, 4, -32002);
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/load","params":{"sessionId":"old"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"old","update":"history"}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/load","params":{"sessionId":"old"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"old","update":"its history"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"old","prompt":[]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/load","params":{"sessionId":"none"}}
    w1 < {"jsonrpc":"2.0","id":4,"method":"session/load","params":{"sessionId":"none"}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"no"}}
    "#);
}

#[test]
fn servers_in_clients_move_with_their_session_to_another_worker() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/new", &json!({"mcpServers": [{"type": "acp", "serverId": "m"}]}));
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.kill_worker(0);
    bus.request(client, 2, "_ext/use", &json!({"sessionId": "a"}));
    bus.answer(1, 2, &json!({}));
    bus.seen();
    bus.worker_sends(1, r#"{"jsonrpc":"2.0","id":"q","method":"mcp/message","params":{"serverId":"m"}}"#);
    assert_snapshot!(bus.seen(), @r#"c0 < {"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"m"}}"#);
}

#[test]
fn messages_to_a_server_reach_only_its_client() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    let server = |id: &str| json!({"mcpServers": [{"type": "acp", "name": "n", "serverId": id}]});
    bus.request(one, 1, "session/new", &server("s1"));
    bus.request(two, 1, "session/new", &server("s2"));
    bus.request(two, 2, "session/new", &server("s1"));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"s2","requestId":"r"}}"#,
    );
    bus.notify(two, "mcp/message", &json!({"serverId": "s2", "requestId": "r"}));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":2,"method":"mcp/message","params":{"serverId":"s3","requestId":"r"}}"#,
    );
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"mcpServers":[{"type":"acp","name":"n","serverId":"s1"}]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/new","params":{"mcpServers":[{"type":"acp","name":"n","serverId":"s2"}]}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/new","params":{"mcpServers":[{"type":"acp","name":"n","serverId":"s1~2"}]}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"s2","requestId":"r"}}
    w0 < {"jsonrpc":"2.0","method":"mcp/message","params":{"serverId":"s2","requestId":"r"}}
    w0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"message names no session at a shared worker","data":{"condition":"method_not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn equal_server_ids_of_two_clients_of_one_worker_stay_apart() {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    let server = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "n", "serverId": "files"}]});
    for (client, name) in [(one, "a"), (two, "b")] {
        bus.request(client, 1, "session/new", &server);
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": name}));
    }
    assert!(bus.seen().contains(r#""serverId":"files~2""#));
    let call = |id: u32, server: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"mcp/message","params":{{"serverId":"{server}","requestId":"r"}}}}"#
        )
    };
    bus.worker_sends(0, &call(1, "files"));
    bus.worker_sends(0, &call(2, "files~2"));
    bus.worker_sends(0, &call(3, "files~2").replace("{\"serverId", "{\"sessionId\":\"b\",\"serverId"));
    bus.notify(one, "mcp/message", &json!({"serverId": "files", "requestId": "r"}));
    bus.notify(two, "mcp/message", &json!({"serverId": "files", "requestId": "r"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"files","requestId":"r"}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"files","requestId":"r"}}
    c1 < {"jsonrpc":"2.0","id":2,"method":"mcp/message","params":{"sessionId":"b","serverId":"files","requestId":"r"}}
    w0 < {"jsonrpc":"2.0","method":"mcp/message","params":{"serverId":"files","requestId":"r"}}
    w0 < {"jsonrpc":"2.0","method":"mcp/message","params":{"serverId":"files~2","requestId":"r"}}
    "#);
    // The ids are given again when they are free, and in another worker, which gets the client's own id.
    bus.request(two, 2, "session/new", &server);
    assert!(bus.seen().contains(r#""serverId":"files~2""#));
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus.request(two, 3, "session/prompt", &prompt("b"));
    let seen = bus.seen();
    assert!(seen.contains("session/resume") && seen.contains(r#""serverId":"files""#), "{seen}");
}

#[test]
fn a_renamed_server_has_its_new_id_under_both_keys() {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    let server =
        json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "n", "id": "files", "serverId": "files"}]});
    for (client, expected) in [(one, "files"), (two, "files~2")] {
        bus.request(client, 1, "session/new", &server);
        let seen = bus.seen();
        let line = seen.lines().find(|line| line.contains("session/new")).unwrap();
        let sent: Value = serde_json::from_str(line.strip_prefix("w0 < ").unwrap()).unwrap();
        let server = &sent["params"]["mcpServers"][0];
        assert_eq!((&server["id"], &server["serverId"]), (&json!(expected), &json!(expected)), "{seen}");
    }
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"files~2"}}"#);
    assert_snapshot!(bus.seen(), @r#"c1 < {"jsonrpc":"2.0","id":1,"method":"mcp/message","params":{"serverId":"files"}}"#);
}

/// A shared worker cannot tell which client a message about a server comes from.
#[test]
fn a_client_can_send_messages_only_for_its_own_mcp_servers() {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let clients = ["one", "two", "none"].map(|name| bus.open_as(&format!("token:{name}")));
    let server = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "n", "serverId": "files"}]});
    for (client, name, params) in [(0, "a", &server), (1, "b", &server), (2, "c", &json!({"cwd": "/"}))] {
        bus.request(clients[client], 1, "session/new", params);
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": name}));
    }
    bus.seen();
    let mut check = |client: usize, params: Value, expected: Option<&str>| {
        for method in ["mcp/message", "mcp/connect", "mcp/disconnect"] {
            bus.notify(clients[client], method, &params);
            let note = bus.seen();
            bus.request(clients[client], 9, method, &params);
            let request = bus.seen();
            let Some(expected) = expected else {
                assert_eq!(note, "", "{method} {params}");
                assert!(request.contains("\"error\"") && !request.contains("w0 <"), "{request}");
                continue;
            };
            for line in [note, request] {
                assert!(line.starts_with("w0 <") && line.contains(expected), "{method} {params}: {line}");
            }
            let id = bus.output.queued[&0].split(|byte| *byte == b'\n').rev().nth(1).unwrap().to_vec();
            let id = serde_json::from_slice::<Value>(&id).unwrap()["id"].as_u64().unwrap();
            bus.answer(0, id, &json!({}));
            bus.seen();
        }
    };
    check(0, json!({"serverId": "files", "requestId": "r"}), Some(r#""serverId":"files""#));
    check(1, json!({"serverId": "files", "requestId": "r"}), Some(r#""serverId":"files~2""#));
    check(1, json!({"acpId": "files"}), Some(r#""acpId":"files~2""#));
    check(1, json!({"serverId": "files", "sessionId": "b"}), None);
    check(1, json!({"serverId": "files", "sessionId": "a"}), None);
    check(2, json!({"serverId": "files", "requestId": "r"}), None);
    check(2, json!({"serverId": "files", "sessionId": "c"}), None);
    check(2, json!({"connectionId": "files"}), None);
    check(1, json!({"serverId": "files~2"}), None);
    check(1, json!({"serverId": "files", "connectionId": "files"}), None);
    check(1, json!({"serverId": 7}), None);
    check(1, json!({}), None);
}

#[test]
fn a_server_of_two_sessions_answers_the_worker_that_asked() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    let server = json!({"cwd": "/", "mcpServers": [{"type": "acp", "name": "n", "serverId": "files"}]});
    for worker in 0..2 {
        bus.request(client, 1, "session/new", &server);
        let id = bus.last_id(worker);
        bus.answer(worker, id, &json!({"sessionId": format!("s{worker}")}));
    }
    for worker in [1, 0] {
        let ask = json!({"jsonrpc": "2.0", "id": 7, "method": "mcp/message", "params": {"serverId": "files", "requestId": worker}});
        bus.worker_sends(worker, &ask.to_string());
    }
    bus.seen();
    for worker in [1, 0] {
        bus.notify(client, "mcp/message", &json!({"serverId": "files", "requestId": worker}));
        assert!(bus.seen().starts_with(&format!("w{worker} <")), "{worker}");
    }
}

#[test]
fn identities_have_separate_workers_unless_mixing_is_permitted() {
    let mut bus = TestBus::shared(1);
    let one = bus.open();
    bus.request(one, 1, "session/new", &json!({}));
    let from = ClientInfo::new(0, "uid:7");
    let two = bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0;
    bus.initialized(two);
    bus.request(two, 1, "session/new", &json!({}));
    bus.request(two, 2, "session/new", &json!({}));
    bus.up(1);
    bus.answer(1, 1, &able());
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.request(two, 3, "session/load", &json!({"sessionId": "a"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(1)))
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/new","params":{}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    c1 < {"jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn the_top_level_session_is_returned_in_batches_too() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.seen();
    bus.line(
        client,
        r#"[{"jsonrpc":"2.0","id":1,"method":"_x","sessionId":"a","params":{}},{"jsonrpc":"2.0","id":2,"method":"session/prompt","sessionId":"b","params":{"sessionId":"none"}}]"#,
    );
    let id = bus.last_id(0);
    bus.seen();
    bus.answer(0, id, &json!({}));
    let seen = bus.seen();
    assert!(seen.starts_with("c0 < [") && seen.contains(r#""sessionId":"a""#), "{seen}");
    assert!(seen.contains(r#""sessionId":"b""#), "{seen}");
}
