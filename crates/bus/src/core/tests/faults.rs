//! What happens when somebody dies, lies or does nothing.

use insta::assert_snapshot;

use super::*;
use crate::core::Stuck;

#[test]
fn a_dead_worker_owes_nothing_any_more_and_its_session_goes_on_elsewhere() {
    let mut scene = Scene::shared(2);
    let client = scene.open();
    scene.ask(
        client,
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}}),
    );
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.update(0, "a", "first");
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a"}}"#,
    );
    scene.seen();
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"notice","severity":"warning","title":"The agent's process has ended","description":"killed by SIGKILL. The session is taken up again with the next prompt."}}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"the agent's process ended: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"possible","worker":0}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    "#);
    // Its history is not shown again.
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.update(1, "a", "history");
    scene.answer(1, 2, &json!({}));
    scene.update(1, "a", "second");
    scene.answer(1, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"second"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn what_a_dead_worker_never_saw_is_sent_again() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.ask(client, 1, "_ext/read", &json!({}));
    let read = scene.sight.queued[&0].len();
    scene.ask(client, 2, "_ext/written", &json!({}));
    let written = scene.sight.queued[&0].len();
    scene.ask(client, 3, "_ext/queued", &json!({"sessionId": null}));
    let unsent = scene.sight.queued[&0][written..].to_vec();
    scene.seen();
    scene.gone(0, read as u64, unsent);
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"the agent's process ended: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"possible","worker":0}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32010,"message":"the agent's process ended: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"none","worker":0}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 3, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"_ext/queued","params":{"sessionId":null}}
    "#);
}

#[test]
fn a_session_that_cannot_be_taken_up_is_lost_with_a_reason() {
    let mut scene = Scene::new(&config(vec![Pool { instances: 1, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.dies(0);
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    assert_snapshot!(scene.seen(), @r#"
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"the session was lost: killed by SIGKILL","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32002,"message":"the bus knows no such session","data":{"condition":"not_found","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_lone_worker_comes_back_and_its_session_with_it() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.dies(0);
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.answer(0, 2, &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn a_turn_that_waits_for_its_session_is_stopped_like_one_that_runs() {
    for by_client in [true, false] {
        let mut scene = Scene::shared(1);
        let client = scene.open();
        scene.session(client, 0, "a");
        scene.dies(0);
        scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
        scene.ask(client, 1, "session/prompt", &prompt("a"));
        if by_client {
            scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
        } else {
            scene.core.client_eof(scene.now, ClientId(client), &mut scene.sight);
        }
        scene.pass(1.0);
        scene.up(0);
        scene.answer(0, 1, &able());
        scene.seen();
        scene.answer(0, 2, &json!({}));
        scene.pass(0.0);
        scene.answer(0, 3, &json!({"stopReason": "cancelled"}));
        let hung_up = if by_client { "" } else { "\nClose { client: ClientId(0), reason: Served }" };
        let expected = concat!(
            r#"w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}"#,
            "\n",
            r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}"#,
            "\n",
            r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}"#,
        );
        assert_eq!(scene.seen(), format!("{expected}{hung_up}"));
    }
}

#[test]
fn a_turn_that_was_cancelled_before_its_worker_saw_it_is_not_begun_elsewhere() {
    let mut scene = Scene::shared(2);
    let client = scene.open();
    scene.session(client, 0, "a");
    let taken = scene.sight.queued[&0].len();
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    // The third is wanted.
    scene.ask(client, 3, "session/prompt", &prompt("a"));
    scene.seen();
    let unsent = scene.sight.queued[&0][taken..].to_vec();
    scene.gone(0, taken as u64, unsent);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 3, sessions: 1 })
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    "#);
    scene.answer(1, 2, &json!({}));
    assert_snapshot!(scene.seen(), @r#"w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}"#);
}

#[test]
fn what_cannot_be_read_does_not_wait() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.dies(0);
    scene.seen();
    scene.ask(client, 1, "session/new", &json!({"cwd": "/"}));
    let start = br#"{"jsonrpc":"2.0","id":2,"method":"m","params":{"a":""#;
    scene.core.client_line(scene.now, ClientId(client), View::too_long(start), &mut scene.sight);
    assert_snapshot!(scene.seen(), @r#"c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32013,"message":"line too long","data":{"condition":"message_too_large","retryable":false,"effects":"none"}}}"#);
}

#[test]
fn a_connections_worker_is_replaced_with_all_it_was_told() {
    let mut scene = Scene::new(&config(vec![pool(Share::Connection)]));
    scene.up(0);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1, "mine": true}));
    scene.answer(0, 1, &able());
    scene.session(client, 0, "a");
    scene.dies(0);
    scene.up(1);
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.answer(1, 1, &able());
    scene.answer(1, 2, &json!({}));
    scene.answer(1, 3, &json!({"stopReason": "end_turn"}));
    scene.ask(client, 3, "session/list", &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 0, sessions: 1 })
    Tell(Ready(WorkerId(1)))
    w1 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"mine":true}}
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w1 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    w1 < {"jsonrpc":"2.0","id":4,"method":"session/list","params":{}}
    "#);
}

#[test]
fn a_worker_that_we_could_not_start_is_no_loss() {
    for share in [Share::All, Share::Connection] {
        let mut scene = Scene::new(&config(vec![pool(share)]));
        let client = scene.open();
        let end = WorkerExit { reason: "cannot fork".into(), ours: true, ..WorkerExit::default() };
        for id in 0..20 {
            scene.ask(client, id, "initialize", &json!({"protocolVersion": 1}));
            scene.pass(5.0);
            // Where nobody shares there is a second one, for those to come.
            for worker in [0, 1].map(WorkerId) {
                scene.core.worker_gone(scene.now, worker, &end, &mut scene.sight);
            }
            let seen = scene.seen();
            let answer =
                format!("\"id\":{id},\"error\":{{\"code\":-32012,\"message\":\"no worker of pool \\\"p\\\"");
            assert!(seen.contains(&answer) && seen.contains("retryAfterMs"), "{seen}");
            assert!(!seen.contains("CircuitOpened"), "{seen}");
        }
        assert_eq!(scene.core.status(scene.now).counters.lost, 0);
        // It goes on by itself.
        scene.pass(5.0);
        scene.ask(client, 20, "initialize", &json!({"protocolVersion": 1}));
        scene.up(0);
        scene.up(1);
        let seen = scene.seen();
        assert!(seen.contains("\"method\":\"initialize\"") && !seen.contains("error"), "{seen}");
    }
}

#[test]
fn too_many_losses_open_the_circuit_and_health_closes_it() {
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    let client = scene.open();
    scene.ask(client, 1, "session/new", &json!({}));
    for _ in 0..5 {
        scene.pass(2.0);
        scene.up(0);
        scene.dies(0);
    }
    scene.ask(client, 2, "session/new", &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 0 })
    Tell(CircuitOpened(PoolId(0)))
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32012,"message":"the workers of pool \"p\" keep dying: killed by SIGKILL","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":60000}}}
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32012,"message":"the workers of pool \"p\" keep dying: killed by SIGKILL","data":{"condition":"backpressure","retryable":true,"effects":"none","retryAfterMs":60000}}}
    "#);
    scene.pass(60.0);
    scene.up(0);
    scene.ask(client, 3, "session/new", &json!({}));
    scene.answer(0, 1, &able());
    assert_snapshot!(scene.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Tell(CircuitClosed(PoolId(0)))
    Tell(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    "#);
}

#[test]
fn workers_lost_together_are_replaced_as_soon_as_one() {
    let mut settings = config(vec![Pool { instances: 8, ..pool(Share::All) }]);
    settings.limits.restart_budget = 100;
    let mut scene = Scene::new(&settings);
    (0..8).for_each(|worker| scene.up(worker));
    scene.pass(5.0);
    (0..8).for_each(|worker| scene.dies(worker));
    scene.seen();
    scene.pass(0.1);
    assert_eq!(scene.seen().lines().filter(|line| line.starts_with("Spawn")).count(), 8);
}

#[test]
fn a_worker_that_does_not_answer_initialize_is_lost() {
    let mut scene = Scene::new(&config(vec![pool(Share::All)]));
    scene.up(0);
    let client = scene.open();
    scene.ask(client, 1, "session/new", &json!({}));
    scene.pass(29.9);
    scene.seen();
    scene.pass(0.2);
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    Stop { worker: WorkerId(0), kill: false }
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"no worker of pool \"p\" is free","data":{"condition":"deadline","retryable":true,"effects":"none","retryAfterMs":100}}}
    Tell(Lost { worker: WorkerId(0), reason: "it did not answer initialize in time; killed by SIGKILL", requests: 0, sessions: 0 })
    "#);
}

#[test]
fn three_strikes_and_a_worker_is_exchanged_when_its_turn_has_ended() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.seen();
    scene.said(0, "hello world");
    scene.said(0, r#"{"jsonrpc":"2.0","id":99,"result":1}"#);
    scene.update(0, "not mine", "x");
    scene.ask(client, 2, "session/new", &json!({}));
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    Tell(Strike { worker: WorkerId(0), what: "sent a line that is no message" })
    Tell(Strike { worker: WorkerId(0), what: "answered what nobody asked" })
    Tell(Strike { worker: WorkerId(0), what: "named a session that is not its own" })
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn answers_that_are_none_end_the_request() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.seen();
    scene.said(0, r#"{"jsonrpc":"2.0","id":3,"result":1,"error":{"code":1,"message":""}}"#);
    let head = br#"{"jsonrpc":"2.0","id":4,"result":"xxxxxxx"#;
    scene.core.worker_line(scene.now, WorkerId(0), View::too_long(head), &mut scene.sight);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the agent's answer is both a result and an error","data":{"condition":"internal_error","retryable":false,"effects":"possible"}}}
    Tell(Strike { worker: WorkerId(0), what: "sent an answer that is none" })
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32013,"message":"the agent's answer is too long","data":{"condition":"message_too_large","retryable":false,"effects":"possible"}}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn a_turn_that_is_cancelled_ends_with_or_without_its_worker() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    scene.answer(0, 3, &json!({"stopReason": "cancelled"}));
    scene.pass(60.0);
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
    scene.seen();
    scene.pass(29.9);
    assert_snapshot!(scene.seen(), @"");
    scene.pass(0.2);
    // What it says later is nobody's, and no misdeed.
    scene.answer(0, 4, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    Spawn { worker: WorkerId(1), pool: PoolId(0) }
    Stop { worker: WorkerId(0), kill: false }
    "#);
}

#[test]
fn a_worker_that_is_stopped_is_given_up_on() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.seen();
    scene.core.worker_stuck(scene.now, WorkerId(0), Stuck::Stopped, &mut scene.sight);
    scene.update(0, "a", "too late");
    scene.dies(0);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"the agent's process was stopped","data":{"condition":"deadline","retryable":true,"effects":"possible"}}}
    Stop { worker: WorkerId(0), kill: true }
    Tell(Lost { worker: WorkerId(0), reason: "it was stopped; killed by SIGKILL", requests: 0, sessions: 0 })
    "#);
}

#[test]
fn clients_that_send_nonsense_are_told_and_kept() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    for line in [
        "",
        "{",
        "[]",
        "[1]",
        r#""x""#,
        r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":5,"result":1}"#,
    ] {
        scene.line(client, line);
    }
    scene.line(client, "\u{feff}{}");
    scene.ask(client, 1, "session/new", &json!({}));
    scene.ask(client, 1, "session/new", &json!({}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"empty batch","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < [{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}]
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC message","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"id must be a string or a number, of at most 4096 bytes","data":{"condition":"invalid_request","retryable":false,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON","data":{"condition":"parse_error","retryable":false,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32014,"message":"a request with this id is still unanswered","data":{"condition":"duplicate_id","retryable":false,"effects":"none"}}}
    "#);
}

#[test]
fn a_slow_reader_holds_up_its_own_worker_only() {
    let big = "x".repeat(5 << 20);
    let mut scene = Scene::new(&config(vec![pool(Share::Connection)]));
    scene.up(0);
    let client = scene.open();
    scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
    scene.answer(0, 1, &able());
    scene.session(client, 0, "a");
    scene.update(0, "a", &big);
    scene.sight.seen.clear();
    scene.update(0, "a", &big);
    scene.sight.seen.retain(|line| line.len() < 1000);
    scene.update(0, "a", "still delivered");
    scene.core.client_drained(scene.now, ClientId(client), &mut scene.sight);
    assert_snapshot!(scene.seen(), @r#"
    PauseWorker(WorkerId(0))
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"still delivered"}}
    ResumeWorker(WorkerId(0))
    "#);

    let mut scene = Scene::shared(1);
    let (client, other) = (scene.open(), scene.open());
    scene.session(client, 0, "a");
    scene.session(other, 0, "b");
    scene.update(0, "a", &big);
    scene.update(0, "a", &big);
    scene.sight.seen.retain(|line| line.len() < 1000);
    scene.update(0, "a", "not delivered");
    scene.update(0, "b", "delivered");
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":null,"error":{"code":-32012,"message":"this connection takes too slowly what an agent says that others use too","data":{"condition":"backpressure","retryable":true,"effects":"none"}}}
    Close { client: ClientId(0), reason: SlowReader }
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":"delivered"}}
    "#);
}

#[test]
fn what_a_client_that_is_gone_waited_for_is_not_given_to_the_next() {
    let mut scene = Scene::shared(1);
    let owner = scene.open();
    scene.session(owner, 0, "a");
    scene.leaves(owner);
    scene.dies(0);
    let other = scene.open();
    scene.ask(other, 4242, "session/close", &json!({"sessionId": "a"}));
    scene.leaves(other);
    assert_eq!(scene.open(), other, "the place is used again");
    scene.seen();
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.answer(0, 2, &json!({}));
    assert!(!scene.seen().contains("4242"));
}

#[test]
fn limits_may_change_while_lines_wait() {
    let with = |queue_bytes| Config {
        limits: Limits { queue_bytes, ..Limits::default() },
        ..config(vec![Pool { instances: 1, ..pool(Share::All) }])
    };
    for (before, after) in [(8 << 20, 1 << 19), (1 << 19, 8 << 20)] {
        let mut scene = Scene::new(&with(before));
        let client = scene.open();
        let text = "x".repeat(900 << 10);
        scene.ask(client, 1, "session/new", &json!({"text": text}));
        scene.core.reload(scene.now, &with(after), &mut scene.sight);
        scene.ask(client, 2, "session/new", &json!({}));
        scene.sight.seen.retain(|line| line.len() < 1000);
        scene.pass(31.0);
        let seen = scene.seen();
        assert_eq!(seen.matches("PauseClient").count(), 1, "{seen}");
        assert_eq!(seen.matches("ResumeClient").count(), 1, "{seen}");
        assert_eq!(seen.matches("-32011").count(), 2, "{seen}");
    }
}

#[test]
fn one_message_beyond_the_limit_is_let_through_with_what_follows() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.update(0, "a", &"x".repeat(9 << 20));
    scene.update(0, "a", "small");
    scene.sight.seen.retain(|line| line.len() < 1000);
    let seen = scene.seen();
    assert!(seen.contains("small") && !seen.contains("Close"), "{seen}");
}

#[test]
fn a_session_is_not_taken_up_where_another_is_called_so() {
    // Agents that count their sessions, so that names meet.
    for dead in [0, 1] {
        let mut scene = Scene::shared(2);
        let (one, two) = (scene.open(), scene.open());
        scene.session(one, 0, "s1");
        scene.ask(two, 1, "session/new", &json!({"cwd": "/"}));
        scene.answer(1, 2, &json!({"sessionId": "s1"}));
        scene.dies(dead);
        scene.seen();
        let (client, name) = if dead == 0 { (one, "s1") } else { (two, "s1~2") };
        scene.ask(client, 7, "session/prompt", &prompt(name));
        assert_eq!(scene.seen(), "", "it waits for another worker");
        scene.pass(1.0);
        scene.up(dead);
        scene.answer(dead, 1, &able());
        let seen = scene.seen();
        assert!(seen.contains(&format!("w{dead} < ")) && seen.contains("session/resume"), "{seen}");
        assert!(seen.contains(r#""sessionId":"s1""#), "{seen}");
    }
    // Where all have one, it is lost.
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "s1");
    scene.dies(0);
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    scene.ask(two, 1, "session/new", &json!({"cwd": "/"}));
    scene.answer(0, 2, &json!({"sessionId": "s1"}));
    scene.seen();
    scene.ask(one, 7, "session/prompt", &prompt("s1"));
    assert_snapshot!(scene.seen(), @r#"c0 < {"jsonrpc":"2.0","id":7,"error":{"code":-32002,"message":"the session was lost, and its agent calls another one so by now","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#);
    scene.ask(two, 8, "session/prompt", &prompt("s1~2"));
    assert!(scene.seen().starts_with("w0 < "), "the other goes on");
}

#[test]
fn rubbish_is_told_of_until_it_is_too_much() {
    let mut scene = Scene::shared(1);
    let client = scene.open();
    scene.session(client, 0, "a");
    scene.ask(client, 1, "session/prompt", &prompt("a"));
    scene.seen();
    for _ in 0..100 {
        scene.said(0, "rubbish");
    }
    assert_eq!(scene.seen().matches("Strike").count(), 3);
    assert_eq!(scene.core.status(scene.now).counters.strikes, 100);
}

#[test]
fn what_a_client_left_in_a_turn_another_connection_of_its_takes_up() {
    let mut scene = Scene::shared(1);
    let (gone, back) = (scene.open(), scene.open());
    scene.session(gone, 0, "a");
    scene.ask(gone, 1, "session/prompt", &prompt("a"));
    scene.seen();
    scene.ask(back, 1, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    assert!(scene.seen().contains("session_in_use"), "it is there");
    scene.core.client_eof(scene.now, ClientId(gone), &mut scene.sight);
    scene.ask(back, 2, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    scene.update(0, "a", "still");
    let seen = scene.seen();
    assert!(seen.contains("session/load") && seen.contains("c1 < "), "{seen}");
    assert!(!seen.contains("in_use"), "{seen}");
}
