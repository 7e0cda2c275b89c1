//! Peers that exit, send invalid messages, or do not respond.

use insta::assert_snapshot;

use super::*;
use crate::core::StuckReason;

#[test]
fn requests_of_a_lost_worker_fail_and_its_session_is_restored_in_another() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(
        client,
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}}),
    );
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.update(0, "a", "first");
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    bus.seen();
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"notice","severity":"warning","title":"Agent process exited","description":"killed by SIGKILL. The next prompt restores the session."}}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"agent process exited: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"possible","worker":0}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    "#);
    // The client does not get the replayed history a second time.
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.update(1, "a", "history");
    bus.answer(1, 2, &json!({}));
    bus.update(1, "a", "second");
    bus.answer(1, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"second"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn requests_that_a_lost_worker_never_read_are_sent_again() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "_ext/read", &json!({}));
    let read = bus.output.queued[&0].len();
    bus.request(client, 2, "_ext/written", &json!({}));
    let written = bus.output.queued[&0].len();
    bus.request(client, 3, "_ext/queued", &json!({"sessionId": null}));
    let unsent = bus.output.queued[&0][written..].to_vec();
    bus.seen();
    bus.exit_worker(0, read as u64, unsent);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"agent process exited: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"possible","worker":0}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32010,"message":"agent process exited: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"none","worker":0}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 3, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"_ext/queued","params":{"sessionId":null}}
    "#);
}

#[test]
fn a_session_that_cannot_be_restored_is_lost_with_a_reason() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    assert_snapshot!(bus.seen(), @r#"
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"session lost: killed by SIGKILL","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"session not found","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn the_only_worker_is_restarted_and_its_session_restored() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.answer(0, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn a_turn_that_waits_for_its_session_can_be_cancelled() {
    for by_client in [true, false] {
        let mut bus = TestBus::shared(1);
        let client = bus.open();
        bus.session(client, 0, "a");
        bus.kill_worker(0);
        bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
        bus.request(client, 1, "session/prompt", &prompt("a"));
        if by_client {
            bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
        } else {
            bus.core.client_eof(bus.now, ClientId(client), &mut bus.output);
        }
        bus.advance(1.0);
        bus.up(0);
        bus.answer(0, 1, &able());
        bus.seen();
        bus.answer(0, 2, &json!({}));
        bus.advance(0.0);
        bus.answer(0, 3, &json!({"stopReason": "cancelled"}));
        let hung_up = if by_client { "" } else { "\nClose { client: ClientId(0), reason: Served }" };
        let expected = concat!(
            r#"w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}"#,
            "\n",
            r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}"#,
            "\n",
            r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}"#,
        );
        assert_eq!(bus.seen(), format!("{expected}{hung_up}"));
    }
}

#[test]
fn a_turn_cancelled_before_its_worker_read_it_is_not_started_in_another() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.session(client, 0, "a");
    let bytes_read = bus.output.queued[&0].len();
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    // The cancellation does not apply to the third prompt.
    bus.request(client, 3, "session/prompt", &prompt("a"));
    bus.seen();
    let unsent = bus.output.queued[&0][bytes_read..].to_vec();
    bus.exit_worker(0, bytes_read as u64, unsent);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 3, sessions: 1 })
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    "#);
    bus.answer(1, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}"#);
}

#[test]
fn invalid_lines_do_not_wait_for_a_worker() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    let start = br#"{"jsonrpc":"2.0","id":2,"method":"m","params":{"a":""#;
    bus.core.client_line(bus.now, ClientId(client), View::too_long(start), &mut bus.output);
    assert_snapshot!(bus.seen(), @r#"c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32013,"message":"line too long","data":{"condition":"message_too_large","retryable":false,"effects":"none"}}}"#);
}

#[test]
fn a_worker_of_one_connection_is_replaced_and_initialized_again() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::Connection)]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1, "mine": true}));
    bus.answer(0, 1, &able());
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.up(1);
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({}));
    bus.answer(1, 3, &json!({"stopReason": "end_turn"}));
    bus.request(client, 3, "session/list", &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    Log(Ready(WorkerId(1)))
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"mine":true}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    w1 < {"jsonrpc":"2.0","id":4,"method":"session/list","params":{}}
    "#);
}

#[test]
fn a_worker_that_could_not_start_for_lack_of_resources_is_no_loss() {
    for share in [ShareMode::All, ShareMode::Connection] {
        let mut bus = TestBus::new(&config(vec![pool(share)]));
        let client = bus.open();
        let end =
            WorkerExit { reason: "cannot fork".into(), lacked_resources: true, ..WorkerExit::default() };
        for id in 0..20 {
            bus.request(client, id, "initialize", &json!({"protocolVersion": 1}));
            bus.advance(5.0);
            // A pool that is not shared starts a spare worker for the next client.
            for worker in [0, 1].map(WorkerId) {
                bus.core.worker_gone(bus.now, worker, &end, &mut bus.output);
            }
            let seen = bus.seen();
            let answer =
                format!("\"id\":{id},\"error\":{{\"code\":-32012,\"message\":\"no worker of pool \\\"p\\\"");
            assert!(seen.contains(&answer) && seen.contains("retryAfterMs"), "{seen}");
            assert!(!seen.contains("CircuitOpened"), "{seen}");
        }
        assert_eq!(bus.core.status(bus.now).counters.lost, 0);
        // The pool starts workers again without any other event.
        bus.advance(5.0);
        bus.request(client, 20, "initialize", &json!({"protocolVersion": 1}));
        bus.up(0);
        bus.up(1);
        let seen = bus.seen();
        assert!(seen.contains("\"method\":\"initialize\"") && !seen.contains("error"), "{seen}");
    }
}

#[test]
fn too_many_losses_open_the_circuit_and_health_closes_it() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    let client = bus.open();
    bus.request(client, 1, "session/new", &json!({}));
    for _ in 0..5 {
        bus.advance(2.0);
        bus.up(0);
        bus.kill_worker(0);
    }
    bus.request(client, 2, "session/new", &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Log(CircuitOpened(PoolId(0)))
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32012,"message":"circuit breaker of pool \"p\" is open: killed by SIGKILL","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":60000}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32012,"message":"circuit breaker of pool \"p\" is open: killed by SIGKILL","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":60000}}}
    "#);
    bus.advance(60.0);
    bus.up(0);
    bus.request(client, 3, "session/new", &json!({}));
    bus.answer(0, 1, &able());
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(CircuitClosed(PoolId(0)))
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    "#);
}

#[test]
fn workers_lost_together_are_replaced_as_soon_as_one() {
    let mut settings = config(vec![Pool { instances: 8, ..pool(ShareMode::All) }]);
    settings.limits.restart_budget = 100;
    let mut bus = TestBus::new(&settings);
    (0..8).for_each(|worker| bus.up(worker));
    bus.advance(5.0);
    (0..8).for_each(|worker| bus.kill_worker(worker));
    bus.seen();
    bus.advance(0.1);
    assert_eq!(bus.seen().lines().filter(|line| line.starts_with("Spawn")).count(), 8);
}

#[test]
fn a_worker_that_does_not_answer_initialize_is_lost() {
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "session/new", &json!({}));
    bus.advance(29.9);
    bus.seen();
    bus.advance(0.2);
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    Stop { worker: WorkerId(0), kill: false }
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"no worker of pool \"p\" is free","data":{"condition":"deadline","retryable":true,"effects":"none","retryAfterMs":100}}}
    Log(Lost { worker: WorkerId(0), reason: "did not respond to initialize in time; killed by SIGKILL", requests: 0, sessions: 0 })
    "#);
}

#[test]
fn a_worker_with_three_strikes_is_replaced_when_its_turn_has_ended() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.seen();
    bus.worker_sends(0, "hello world");
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":99,"result":1}"#);
    bus.update(0, "not mine", "x");
    bus.request(client, 2, "session/new", &json!({}));
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    Log(Strike { worker: WorkerId(0), what: "sent an invalid message" })
    Log(Strike { worker: WorkerId(0), what: "answered an unknown request" })
    Log(Strike { worker: WorkerId(0), what: "named an unknown session" })
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn invalid_responses_end_the_request() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.seen();
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":3,"result":1,"error":{"code":1,"message":""}}"#);
    let head = br#"{"jsonrpc":"2.0","id":4,"result":"xxxxxxx"#;
    bus.core.worker_line(bus.now, WorkerId(0), View::too_long(head), &mut bus.output);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"agent response has both result and error","data":{"condition":"internal_error","retryable":false,"effects":"possible"}}}
    Log(Strike { worker: WorkerId(0), what: "sent an invalid response" })
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32013,"message":"agent response too long","data":{"condition":"message_too_large","retryable":false,"effects":"possible"}}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn a_turn_that_is_cancelled_ends_with_or_without_its_worker() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({"stopReason": "cancelled"}));
    bus.advance(60.0);
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
    bus.seen();
    bus.advance(29.9);
    assert_snapshot!(bus.seen(), @"");
    bus.advance(0.2);
    // A late response to the cancelled prompt is dropped, and is no protocol violation.
    bus.answer(0, 4, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn a_stopped_worker_is_killed() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.seen();
    bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::Stopped, &mut bus.output);
    bus.update(0, "a", "too late");
    bus.kill_worker(0);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"agent process was stopped","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    Stop { worker: WorkerId(0), kill: true }
    Log(Lost { worker: WorkerId(0), reason: "was stopped; killed by SIGKILL", requests: 0, sessions: 0 })
    "#);
}

#[test]
fn clients_that_send_invalid_messages_get_errors_and_stay_connected() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    for line in [
        "",
        "{",
        "[]",
        "[1]",
        r#""x""#,
        r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":5,"result":1}"#,
    ] {
        bus.line(client, line);
    }
    bus.line(client, "\u{feff}{}");
    bus.request(client, 1, "session/new", &json!({}));
    bus.request(client, 1, "session/new", &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"empty batch","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < [{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}]
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"id must be a string or a number, of at most 4096 bytes","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32014,"message":"duplicate request id","data":{"condition":"duplicate_id","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_slow_reader_holds_up_its_own_worker_only() {
    let big = "x".repeat(5 << 20);
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::Connection)]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    bus.session(client, 0, "a");
    bus.update(0, "a", &big);
    bus.output.seen.clear();
    bus.update(0, "a", &big);
    bus.output.seen.retain(|line| line.len() < 1000);
    bus.update(0, "a", "still delivered");
    bus.core.client_drained(bus.now, ClientId(client), &mut bus.output);
    assert_snapshot!(bus.seen(), @r#"
    PauseWorker(WorkerId(0))
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"still delivered"}}
    ResumeWorker(WorkerId(0))
    "#);

    let mut bus = TestBus::shared(1);
    let (client, other) = (bus.open(), bus.open());
    bus.session(client, 0, "a");
    bus.session(other, 0, "b");
    bus.update(0, "a", &big);
    bus.update(0, "a", &big);
    bus.output.seen.retain(|line| line.len() < 1000);
    bus.update(0, "a", "not delivered");
    bus.update(0, "b", "delivered");
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32012,"message":"client reads too slowly for a shared worker","data":{"condition":"backpressure","retryable":true,"effects":"none"}}}
    Close { client: ClientId(0), reason: SlowReader }
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":"delivered"}}
    "#);
}

#[test]
fn answers_for_a_disconnected_client_do_not_reach_the_next_one_in_its_slot() {
    let mut bus = TestBus::shared(1);
    let owner = bus.open();
    bus.session(owner, 0, "a");
    bus.disconnect(owner);
    bus.kill_worker(0);
    let other = bus.open();
    bus.request(other, 4242, "session/close", &json!({"sessionId": "a"}));
    bus.disconnect(other);
    assert_eq!(bus.open(), other, "the slot is used again");
    bus.seen();
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.answer(0, 2, &json!({}));
    assert!(!bus.seen().contains("4242"));
}

#[test]
fn limits_may_change_while_lines_wait() {
    let with = |queue_bytes| Config {
        limits: BusLimits { queue_bytes, ..BusLimits::default() },
        ..config(vec![Pool { instances: 1, ..pool(ShareMode::All) }])
    };
    for (before, after) in [(8 << 20, 1 << 19), (1 << 19, 8 << 20)] {
        let mut bus = TestBus::new(&with(before));
        let client = bus.open();
        let text = "x".repeat(900 << 10);
        bus.request(client, 1, "session/new", &json!({"text": text}));
        bus.core.reload(bus.now, &with(after), &mut bus.output);
        bus.request(client, 2, "session/new", &json!({}));
        bus.output.seen.retain(|line| line.len() < 1000);
        bus.advance(31.0);
        let seen = bus.seen();
        assert_eq!(seen.matches("PauseClient").count(), 1, "{seen}");
        assert_eq!(seen.matches("ResumeClient").count(), 1, "{seen}");
        assert_eq!(seen.matches("-32011").count(), 2, "{seen}");
    }
}

#[test]
fn one_message_over_the_limit_is_queued_with_the_messages_after_it() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.update(0, "a", &"x".repeat(9 << 20));
    bus.update(0, "a", "small");
    bus.output.seen.retain(|line| line.len() < 1000);
    let seen = bus.seen();
    assert!(seen.contains("small") && !seen.contains("Close"), "{seen}");
}

#[test]
fn a_session_is_not_restored_in_a_worker_that_uses_its_name() {
    // The agents number their sessions, so both sessions have the same name in their workers.
    for dead in [0, 1] {
        let mut bus = TestBus::shared(2);
        let (one, two) = (bus.open(), bus.open());
        bus.session(one, 0, "s1");
        bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
        bus.answer(1, 2, &json!({"sessionId": "s1"}));
        bus.kill_worker(dead);
        bus.seen();
        let (client, name) = if dead == 0 { (one, "s1") } else { (two, "s1~2") };
        bus.request(client, 7, "session/prompt", &prompt(name));
        assert_eq!(bus.seen(), "", "the request waits for another worker");
        bus.advance(1.0);
        bus.up(dead);
        bus.answer(dead, 1, &able());
        let seen = bus.seen();
        assert!(seen.contains(&format!("w{dead} < ")) && seen.contains("session/resume"), "{seen}");
        assert!(seen.contains(r#""sessionId":"s1""#), "{seen}");
    }
    // If every worker uses the name for another session, the session is lost.
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "s1");
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.request(two, 1, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "s1"}));
    bus.seen();
    bus.request(one, 7, "session/prompt", &prompt("s1"));
    assert_snapshot!(bus.seen(), @r#"c0 < {"jsonrpc":"2.0","id":7,"error":{"code":-32002,"message":"session lost, its id was reused","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#);
    bus.request(two, 8, "session/prompt", &prompt("s1~2"));
    assert!(bus.seen().starts_with("w0 < "), "the other session continues");
}

#[test]
fn invalid_lines_are_logged_until_the_worker_is_replaced() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.seen();
    for _ in 0..100 {
        bus.worker_sends(0, "rubbish");
    }
    assert_eq!(bus.seen().matches("Strike").count(), 3);
    assert_eq!(bus.core.status(bus.now).counters.strikes, 100);
}

#[test]
fn a_session_left_during_a_turn_can_be_taken_over_by_the_same_identity() {
    let mut bus = TestBus::shared(1);
    let (gone, back) = (bus.open(), bus.open());
    bus.session(gone, 0, "a");
    bus.request(gone, 1, "session/prompt", &prompt("a"));
    bus.seen();
    bus.request(back, 1, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    assert!(bus.seen().contains("session_in_use"), "the session is open");
    bus.core.client_eof(bus.now, ClientId(gone), &mut bus.output);
    bus.request(back, 2, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    bus.update(0, "a", "still");
    let seen = bus.seen();
    assert!(seen.contains("session/load") && seen.contains("c1 < "), "{seen}");
    assert!(!seen.contains("in_use"), "{seen}");
}
