//! Names that one client chooses and that another client's sessions or servers already have.

use super::*;

/// The client that gets `mcp/connect` chooses the name of the connection, so the name may equal any server
/// id.
#[test]
fn the_name_of_a_connection_is_not_looked_up_as_a_server_id() {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let clients = ["alice", "bob"].map(|name| bus.open_as(&format!("token:{name}")));
    for (client, name) in clients.into_iter().zip(["a", "b"]) {
        let server = json!({"type": "acp", "name": "n", "serverId": format!("files-{name}")});
        bus.request(client, 1, "session/new", &json!({"cwd": "/", "mcpServers": [server]}));
        let id = bus.last_id(0);
        bus.answer(0, id, &json!({"sessionId": name}));
    }
    bus.seen();
    let call = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    bus.worker_sends(0, &call(1, "mcp/connect", json!({"acpId": "files-a"})));
    assert!(bus.seen().starts_with(&format!("c{} < ", clients[0])));
    bus.line(clients[0], r#"{"jsonrpc":"2.0","id":1,"result":{"connectionId":"files-b"}}"#);
    bus.seen();
    for (id, method) in [(2, "mcp/message"), (3, "mcp/disconnect")] {
        bus.worker_sends(0, &call(id, method, json!({"connectionId": "files-b", "method": "tools/call"})));
        let seen = bus.seen();
        assert!(seen.starts_with("w0 < ") && seen.contains("-32601"), "{seen}");
    }
    bus.request(clients[0], 4, "mcp/message", &json!({"connectionId": "files-a"}));
    assert!(bus.seen().contains("-32602"));
}

/// Returns two identities in one worker. Each has a session with two names at most: one for clients, and one
/// for the worker.
fn two_at_one_worker() -> (TestBus, [u32; 2]) {
    let mut bus = identities_at_one_worker::mixed(2, PoolProtocol::V2);
    let clients = ["alice", "bob"].map(|name| bus.open_as(&format!("token:{name}")));
    bus.session(clients[1], 0, "b");
    bus.session(clients[0], 1, "a");
    (bus, clients)
}

#[test]
fn an_extension_method_names_no_session_of_another_identity_by_any_key() {
    let (mut bus, [alice, bob]) = two_at_one_worker();
    bus.announces(1, "a", "kid");
    // Worker 1 calls a session of alice `b`, as worker 0 calls a session of bob.
    bus.session(alice, 0, "other");
    bus.session(alice, 1, "b");
    let closed = json!({"sessionId": "other"});
    bus.request(alice, 5, "session/close", &closed);
    let number = bus.last_id(0);
    bus.answer(0, number, &json!({}));
    bus.seen();
    let spelled = |name: &str| {
        [
            json!({"parentSessionId": name}),
            json!({"sourceSessionId": name}),
            json!({"sessions": ["x", name]}),
            json!({"session": {"id": {"value": name}}}),
            json!({"threads": {name: 1}}),
        ]
    };
    for name in ["a", "kid", "b~2", "other"] {
        for params in spelled(name) {
            for method in ["_x/y", "x/y"] {
                bus.request(bob, 9, method, &params);
                let seen = bus.seen();
                assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{method} {params}: {seen}");
                bus.notify(bob, method, &params);
                assert_eq!(bus.seen(), "", "{method} {params}");
                let mut in_session = params.clone();
                in_session["sessionId"] = json!("b");
                bus.request(bob, 9, method, &in_session);
                let seen = bus.seen();
                assert!(seen.contains("-32602") && !seen.contains("w0 < "), "{method} {params}: {seen}");
            }
        }
    }
    let escaped = r#"{"jsonrpc":"2.0","id":9,"method":"_x/y","params":{"t":"k\u0069d"}}"#;
    bus.line(bob, escaped);
    assert!(bus.seen().contains("-32602"));
    // A client may name its own sessions, and any text that is no session. Ids in methods of the protocol are
    // accepted too.
    bus.session(bob, 0, "mine");
    let again = json!({"sessionId": "b", "rootSessionId": "b"});
    for params in spelled("mine").into_iter().chain(spelled("free")).chain([again]) {
        bus.request(bob, 9, "_x/y", &params);
        let seen = bus.seen();
        assert!(seen.contains("w0 < ") || seen.contains("w1 < "), "{params}: {seen}");
        let worker = u32::from(seen.contains("w1 < "));
        let number = last_id_in(&seen, worker);
        bus.answer(worker, number, &json!({}));
        bus.seen();
    }
    bus.request(bob, 10, "session/set_mode", &json!({"sessionId": "b", "modeId": "a"}));
    assert!(bus.seen().starts_with("w0 < "));
    bus.request(alice, 11, "_x/y", &json!({"parentSessionId": "a", "child": "kid"}));
    assert!(bus.seen().starts_with("w"));
}

#[test]
fn an_extension_method_with_too_many_texts_is_refused() {
    let (mut bus, [_, bob]) = two_at_one_worker();
    let line = |count: usize| {
        let texts = "\"\",".repeat(count);
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"_x/y","params":{{"t":[{texts}""]}}}}"#)
    };
    bus.line(bob, &line(300_000));
    let seen = bus.seen();
    assert!(seen.starts_with("w"), "{}", &seen[..200]);
    for worker in 0..2 {
        for child in 0..2 {
            bus.announces(worker, ["b", "a"][worker as usize], &format!("kid-{worker}-{child}"));
        }
    }
    bus.seen();
    bus.line(bob, &line(300_000).replacen(r#""id":1"#, r#""id":2"#, 1));
    assert!(bus.seen().contains("-32602"));
}
