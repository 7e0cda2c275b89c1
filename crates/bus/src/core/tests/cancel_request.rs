//! Requests that are cancelled at every stage, and messages that need not wait behind other messages.

use super::*;

/// Returns a client with session `a` in pool `p`, and with a pool `q` that has no ready worker.
fn beside() -> (TestBus, u32) {
    let slow = Pool { name: "q".into(), ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::All) }, slow]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let client = bus.open();
    bus.session(client, 0, "a");
    (bus, client)
}

fn new_in(pool: &str) -> Value {
    json!({"cwd": "/", "_meta": {"narrows/pool": pool}})
}

#[test]
fn a_message_with_a_worker_does_not_wait_for_another_pool() {
    let (mut bus, client) = beside();
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.request(client, 2, "session/new", &new_in("q"));
    bus.seen();
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    bus.request(client, 3, "session/set_mode", &json!({"sessionId": "a", "modeId": "x"}));
    let seen = bus.seen();
    assert!(seen.starts_with(r#"w0 < {"jsonrpc":"2.0","method":"session/cancel""#), "{seen}");
    assert!(seen.contains(r#""method":"session/set_mode""#), "{seen}");
    // No message overtakes a batch, because the batch may contain a message for the same session.
    bus.line(
        client,
        r#"[{"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}]"#,
    );
    bus.request(client, 5, "session/set_mode", &json!({"sessionId": "a", "modeId": "y"}));
    assert_eq!(bus.seen(), "");
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    assert!(bus.seen().contains("session/cancel"));
    bus.up(1);
    bus.answer(1, 1, &able());
    let seen = bus.seen();
    let (array, mode) = (seen.find(r#""method":"session/prompt""#), seen.find(r#""modeId":"y""#));
    assert!(array.is_some() && array < mode, "{seen}");
}

#[test]
fn requests_that_wait_for_a_worker_are_cancelled_at_once() {
    let (mut bus, client) = beside();
    bus.request(client, 1, "session/new", &new_in("q"));
    bus.request(client, 2, "session/new", &new_in("q"));
    bus.request(client, 3, "session/new", &new_in("p"));
    bus.seen();
    let given_up = |id: u64| {
        format!(
            r#"c0 < {{"jsonrpc":"2.0","id":{id},"error":{{"code":-32800,"message":"cancelled before reaching an agent","data":{{"condition":"cancelled","retryable":false,"effects":"none"}}}}}}"#
        )
    };
    bus.notify(client, "$/cancel_request", &json!({"requestId": 2}));
    assert_eq!(bus.seen(), given_up(2));
    // After the first request is cancelled, the request behind it need not wait for pool `q`.
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    let seen = bus.seen();
    let (first, rest) = seen.split_once('\n').unwrap();
    assert_eq!(first, given_up(1));
    assert!(rest.starts_with("w0 < ") && rest.contains("session/new"), "{rest}");
    // A cancellation of an unknown request is dropped.
    bus.notify(client, "$/cancel_request", &json!({"requestId": 9}));
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_cancelled_list_is_cancelled_at_all_workers() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/list", &json!({}));
    bus.answer(0, 2, &json!({"sessions": []}));
    bus.seen();
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    let seen = bus.seen();
    let (first, rest) = seen.split_once('\n').unwrap();
    assert_eq!(first, r#"w1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}"#);
    assert!(rest.starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32800,"#), "{rest}");
    bus.answer(1, 2, &json!({"sessions": []}));
    assert_eq!(bus.seen(), "");
}

#[test]
fn an_incomplete_list_is_an_error() {
    let lists = |second: &dyn Fn(&mut TestBus)| {
        let mut bus = TestBus::shared(2);
        let client = bus.open();
        bus.request(client, 1, "session/list", &json!({}));
        bus.answer(0, 2, &json!({"sessions": [{"sessionId": "x"}]}));
        bus.seen();
        second(&mut bus);
        let seen = bus.seen();
        seen.lines().find_map(|line| line.strip_prefix("c0 < ")).map(str::to_owned).unwrap()
    };
    assert!(lists(&|bus| bus.fail(1, 2, -32603)).contains("-32603"));
    assert!(
        lists(&|bus| bus.worker_sends(1, r#"{"jsonrpc":"2.0","id":2,"result":{},"error":{}}"#))
            .contains("-32603")
    );
    let stopped = lists(&|bus| {
        bus.core.limits.drain_timeout = Duration::from_secs(5);
        bus.core.drain(bus.now, &mut bus.output);
        bus.advance(6.0);
    });
    assert!(stopped.contains("-32016"), "{stopped}");
    // A worker that does not know `session/list` counts as one without sessions.
    assert!(lists(&|bus| bus.fail(1, 2, -32601)).contains(r#"{"sessions":[{"sessionId":"x"}]}"#));
}

#[test]
fn initialize_is_sent_once_to_each_worker() {
    for share in [ShareMode::Connection, ShareMode::Session] {
        let mut bus = TestBus::new(&config(vec![Pool { instances: 2, ..pool(share) }]));
        bus.up(0);
        bus.up(1);
        let client = bus.open();
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
        bus.kill_worker(0);
        bus.seen();
        bus.request(client, 2, "initialize", &json!({"protocolVersion": 1}));
        bus.answer(1, 1, &able());
        let seen = bus.seen();
        assert_eq!(
            seen.matches(r#"w1 < {"jsonrpc":"2.0","id":1,"method":"initialize""#).count(),
            1,
            "{seen}"
        );
        assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":2,"result""#), "{seen}");
    }
}

#[test]
fn without_a_known_protocol_initialize_is_a_request_like_others() {
    let unknowing = Pool { instances: 1, protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![unknowing]));
    bus.up(0);
    let (one, other) = (bus.open(), bus.open());
    bus.request(one, 1, "initialize", &json!({}));
    bus.request(other, 1, "work", &json!({}));
    // In a pool without a known protocol, the methods of turns have no special meaning.
    bus.request(other, 2, "session/prompt", &prompt("a"));
    bus.notify(other, "session/cancel", &json!({"sessionId": "a"}));
    bus.seen();
    bus.advance(60.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_replacement_worker_gets_the_whole_initialize_exchange() {
    let unknowing = Pool { instances: 2, protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::Connection) };
    let mut bus = TestBus::new(&config(vec![unknowing]));
    bus.up(0);
    bus.up(1);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"x": 1}));
    bus.answer(0, 1, &json!({}));
    bus.notify(client, "notifications/initialized", &json!({}));
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 2, "tools/list", &json!({}));
    bus.answer(1, 1, &json!({}));
    let seen = bus.seen();
    let told: Vec<&str> = seen.lines().filter_map(|line| line.strip_prefix("w1 < ")).collect();
    assert_eq!(
        told,
        [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":1}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#,
        ]
    );
}

/// Cancels the request `id` with the method of LSP. Returns the output.
fn lsp_cancel(bus: &mut TestBus, client: u32, id: &Value) -> String {
    bus.notify(client, "$/cancelRequest", &json!({"id": id}));
    bus.seen()
}

#[test]
fn an_lsp_cancellation_cancels_only_a_request_of_the_same_client() {
    for protocol in [PoolProtocol::V1, PoolProtocol::JsonRpc] {
        let mut bus = TestBus::new(&config(vec![Pool { protocol, ..pool(ShareMode::All) }]));
        bus.up(0);
        if protocol == PoolProtocol::V1 {
            bus.answer(0, 1, &able());
        }
        let (alice, bob) = (bus.open(), bus.open());
        bus.initialized(alice);
        bus.seen();
        bus.request(alice, 1, "_x/work", &json!({}));
        let of_alice = bus.last_id(0);
        bus.request(bob, 1, "_x/work", &json!({}));
        let of_bob = bus.last_id(0);
        bus.seen();
        let expected =
            format!(r#"w0 < {{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{of_bob}}}}}"#);
        assert_eq!(lsp_cancel(&mut bus, bob, &json!(1)), expected);
        for id in [json!(of_alice), json!(of_bob), json!(7), Value::Null] {
            let seen = lsp_cancel(&mut bus, bob, &id);
            assert!(id == json!(1) || seen.is_empty(), "{id}: {seen}");
        }
        for params in [
            json!({"id": 1, "ID": of_alice}),
            json!({"id": 1, "requestId": of_alice}),
            json!({"id": 1, "sessionId": "x"}),
            json!({"requestId": 1}),
        ] {
            bus.notify(bob, "$/cancelRequest", &params);
            assert_eq!(bus.seen(), "", "{params}");
        }
        bus.notify(bob, "$/cancel_request", &json!({"requestId": 1, "id": of_alice}));
        assert_eq!(bus.seen(), "");
        bus.request(bob, 2, "$/cancelRequest", &json!({"id": 1}));
        assert!(bus.seen().contains("-32600"));
    }
}

#[test]
fn an_lsp_cancellation_of_a_worker_cancels_its_own_request() {
    let mut bus = TestBus::shared(1);
    let (alice, bob) = (bus.open(), bus.open());
    bus.session(alice, 0, "a");
    bus.session(bob, 0, "b");
    for (id, session) in [("1", "a"), ("2", "b"), ("3", "b")] {
        let params = json!({"sessionId": session, "path": "/x"});
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "fs/read_text_file", "params": params});
        bus.worker_sends(0, &line.to_string());
    }
    bus.seen();
    let cancel = |bus: &mut TestBus, params: Value| {
        bus.worker_sends(
            0,
            &json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": params}).to_string(),
        );
        bus.seen()
    };
    let expected = format!(r#"c{bob} < {{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":2}}}}"#);
    assert_eq!(cancel(&mut bus, json!({"id": "3"})), expected);
    for params in [json!({"id": 1}), json!({"id": "9"}), json!({"id": "1", "sessionId": "b"}), json!({})] {
        let seen = cancel(&mut bus, params);
        assert!(!seen.contains(" < "), "{seen}");
    }
}

#[test]
fn an_lsp_cancellation_ends_a_request_that_waits_for_a_worker() {
    let (mut bus, client) = beside();
    bus.request(client, 1, "session/new", &new_in("q"));
    bus.request(client, 2, "session/new", &new_in("q"));
    bus.seen();
    for id in [2, 1] {
        assert!(lsp_cancel(&mut bus, client, &json!(id)).contains("-32800"), "{id}");
    }
}

#[test]
fn a_request_that_waits_for_new_sessions_of_others_can_be_cancelled() {
    let mut bus = identities_at_one_worker::mixed(1, PoolProtocol::V1);
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    bus.request(one, 1, "session/new", &json!({"cwd": "/"}));
    let number = bus.last_id(0);
    bus.request(two, 1, "session/load", &json!({"sessionId": "x", "cwd": "/", "mcpServers": []}));
    bus.seen();
    bus.notify(two, "$/cancel_request", &json!({"requestId": 1}));
    let seen = bus.seen();
    assert!(!seen.contains("w0 < "), "{seen}");
    bus.answer(0, number, &json!({"sessionId": "a"}));
    bus.advance(1.0);
    assert!(!bus.seen().contains("session/load"));
}

#[test]
fn a_request_that_waits_for_room_can_be_cancelled() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "old");
    bus.disconnect(client);
    let client = bus.open();
    bus.seen();
    bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    let number = bus.last_id(0);
    bus.fail(0, number, -32012);
    let closing = bus.last_id(0);
    assert!(bus.seen().contains("session/close"));
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    let seen = bus.seen();
    assert!(seen.contains("-32800") && seen.contains("\"effects\":\"none\""), "{seen}");
    bus.answer(0, closing, &json!({}));
    assert!(!bus.seen().contains("session/new"));
}
