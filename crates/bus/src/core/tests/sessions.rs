//! Sessions that are lost, requested by several clients, named too early or too late, or known by different
//! names.

use insta::assert_snapshot;

use super::super::StuckReason;
use super::*;

/// Returns two clients with the first two of three workers, each for one session.
fn two_of_three() -> (TestBus, u32, u32) {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 3, ..pool(ShareMode::Session) }]));
    for worker in 0..3 {
        bus.up(worker);
    }
    let (one, other) = (bus.open(), bus.open());
    for (client, worker) in [(one, 0), (other, 1)] {
        bus.request(client, 0, "initialize", &json!({"protocolVersion": 1}));
        bus.answer(worker, 1, &able());
    }
    (bus, one, other)
}

#[test]
fn a_session_is_dropped_only_after_a_client_learnt_that_it_is_lost() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 1, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.seen();
    bus.notify(client, "_ext/note", &json!({"sessionId": "a"}));
    bus.request(client, 1, "session/prompt", &prompt("a"));
    assert_snapshot!(bus.seen(), @r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"session lost: killed by SIGKILL","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#);
}

#[test]
fn a_session_that_was_not_restored_in_time_is_tried_again() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.advance(1.0);
    // A single loss during a restore may be a coincidence, but two are not.
    for _ in 0..2 {
        bus.up(0);
        bus.answer(0, 1, &able());
        bus.kill_worker(0);
        bus.advance(1.0);
    }
    assert_snapshot!(bus.seen(), @r#"
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    w0 < {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"_meta":{"narrows/authorizes":true}},"clientInfo":{"name":"narrows-bus","title":"Narrows bus","version":"0.1.0"}}}
    Log(Ready(WorkerId(0)))
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"session not restored: agent process exited: killed by SIGKILL","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    Log(Lost { worker: WorkerId(0), reason: "killed by SIGKILL", requests: 1, sessions: 1 })
    Spawn { worker: WorkerId(0), pool: PoolId(0) }
    "#);
    // No worker becomes ready, so the request waits until the timeout for a worker.
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.advance(31.0);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32011,"message":"session not restored in time","data":{"condition":"deadline","retryable":true,"effects":"none"}}}
    "#);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    bus.request(client, 3, "session/prompt", &prompt("a"));
    bus.answer(0, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
}

#[test]
fn a_session_loaded_before_it_was_created_belongs_to_its_creator() {
    let mut bus = TestBus::shared(1);
    let (one, other) = (bus.open(), bus.open());
    bus.request(one, 1, "session/load", &json!({"sessionId": "a"}));
    bus.request(other, 1, "session/new", &json!({}));
    bus.seen();
    bus.answer(0, 3, &json!({"sessionId": "a"}));
    bus.update(0, "a", "hello");
    bus.answer(0, 2, &json!({}));
    assert_snapshot!(bus.seen(), @r#"
    c1 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"hello"}}
    c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn messages_in_a_closed_session_reach_no_client() {
    let mut bus = TestBus::shared(1);
    let (one, other) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    bus.advance(301.0);
    bus.request(other, 1, "session/new", &json!({}));
    bus.seen();
    // The client that waits for a session gets no request of another session, and the worker is not at fault.
    for id in ["p", "q", "r"] {
        let params = json!({"sessionId": "a"});
        let asked =
            json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params});
        bus.worker_sends(0, &asked.to_string());
    }
    bus.update(0, "a", "more");
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"cancelled"}}}
    w0 < {"jsonrpc":"2.0","id":"r","result":{"outcome":{"outcome":"cancelled"}}}
    "#);
}

#[test]
fn a_request_that_waited_is_refused_if_another_client_has_its_session_by_then() {
    let (mut bus, one, other) = two_of_three();
    bus.request(other, 1, "session/new", &json!({}));
    bus.kill_worker(0);
    // The new worker is still being initialized when another client gets a session of this name.
    bus.request(one, 2, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(1);
    bus.answer(1, id, &json!({"sessionId": "a"}));
    bus.seen();
    bus.answer(2, 1, &json!({"protocolVersion": 1}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn a_session_is_not_reached_by_its_workers_name_for_it() {
    let mut bus = TestBus::shared(2);
    let (one, other) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.session(other, 1, "a");
    bus.request(one, 1, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.seen();
    // `a` is the name of the second session in its worker. Clients know that session as `a~2`.
    bus.request(one, 2, "session/load", &json!({"sessionId": "a"}));
    bus.request(one, 3, "session/delete", &json!({"sessionId": "a"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    "#);
}

#[test]
fn early_requests_of_a_worker_are_delivered_once_their_session_is_known() {
    let mut bus = TestBus::shared(1);
    let (client, other) = (bus.open(), bus.open());
    bus.request(client, 1, "session/new", &json!({}));
    bus.request(other, 2, "session/new", &json!({}));
    bus.seen();
    let ask =
        |id| json!({"jsonrpc": "2.0", "id": id, "method": "fs/read_text_file", "params": {"sessionId": "a"}});
    bus.worker_sends(0, &json!([ask("p"), ask("q")]).to_string());
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.line(client, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    bus.line(client, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    // The client has already answered the request that is cancelled.
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p"}}"#);
    // The only pending request for a session fails, so the worker's request belongs to no session.
    bus.request(client, 3, "session/new", &json!({}));
    bus.worker_sends(0, &ask("r").to_string().replace("\"a\"", "\"b\""));
    bus.fail(0, 4, -32603);
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":3}"#);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"a"}}
    w0 < [{"jsonrpc":"2.0","id":"q","result":{}},{"jsonrpc":"2.0","id":"p","result":{}}]
    Log(Dropped { worker: WorkerId(0), why: "unknown requestId" })
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/new","params":{}}
    c0 < {"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"no"}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"invalid agent response","data":{"condition":"internal_error","retryable":false,"effects":"possible"}}}
    w0 < {"jsonrpc":"2.0","id":"r","error":{"code":-32602,"message":"not a session of this agent","data":{"condition":"invalid_params","retryable":false,"effects":"none"}}}
    Log(Strike { worker: WorkerId(0), what: "named an unknown session" })
    Log(Strike { worker: WorkerId(0), what: "sent an invalid response" })
    "#);
}

#[test]
fn a_client_with_several_workers_has_one_list() {
    let (mut bus, one, other) = two_of_three();
    bus.request(one, 1, "session/new", &json!({}));
    bus.answer(0, 2, &json!({"sessionId": "a"}));
    bus.request(one, 2, "session/new", &json!({}));
    bus.answer(2, 1, &able());
    bus.answer(2, 2, &json!({"sessionId": "a"}));
    bus.seen();
    // Each of the workers lists its own session and an old one.
    bus.request(one, 3, "session/list", &json!({"cwd": "/"}));
    bus.answer(2, 3, &json!({"sessions": [{"sessionId": "a"}, {"sessionId": "old"}]}));
    bus.answer(0, 3, &json!({"sessions": [{"sessionId": "a"}, {"sessionId": "old"}], "nextCursor": "n"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cwd":"/"}}
    w2 < {"jsonrpc":"2.0","id":3,"method":"session/list","params":{"cwd":"/"}}
    c0 < {"jsonrpc":"2.0","id":3,"result":{"sessions":[{"sessionId":"a~2"},{"sessionId":"old"},{"sessionId":"a"}],"nextCursor":"{\"1\":\"n\"}"}}
    "#);
    bus.request(one, 4, "session/list", &json!({"cursor": r#"{"1":"n"}"#}));
    bus.request(one, 5, "session/delete", &json!({"sessionId": "old"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/list","params":{"cursor":"n"}}
    w0 < {"jsonrpc":"2.0","id":5,"method":"session/delete","params":{"sessionId":"old"}}
    w2 < {"jsonrpc":"2.0","id":4,"method":"session/delete","params":{"sessionId":"old"}}
    "#);
    // A client that has no worker gets the list of the first worker.
    bus.kill_worker(1);
    bus.request(other, 1, "session/list", &json!({}));
    bus.advance(1.0);
    bus.up(1);
    bus.seen();
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({"sessions": [], "nextCursor": "m"}));
    assert_snapshot!(bus.seen(), @r#"
    w1 < {"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}
    c1 < {"jsonrpc":"2.0","id":1,"result":{"sessions":[],"nextCursor":"{\"8\":\"m\"}"}}
    "#);
}

#[test]
fn sessions_with_exclusive_workers_are_not_restored_in_one_worker() {
    let mut bus = TestBus::new(&config(vec![Pool { instances: 2, ..pool(ShareMode::Session) }]));
    bus.up(0);
    bus.up(1);
    let client = bus.open();
    bus.request(client, 0, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/new", &json!({}));
    bus.answer(1, 1, &able());
    bus.answer(1, 2, &json!({"sessionId": "b"}));
    bus.kill_worker(0);
    bus.kill_worker(1);
    bus.advance(5.0);
    let there: Vec<u32> = (0..8).filter(|worker| bus.core.workers.key_at(*worker).is_some()).collect();
    there.iter().for_each(|worker| bus.up(*worker));
    bus.seen();
    bus.request(client, 2, "session/prompt", &prompt("a"));
    bus.request(client, 3, "session/prompt", &prompt("b"));
    bus.request(client, 4, "session/new", &json!({}));
    for worker in 0..8 {
        if bus.core.workers.key_at(worker).is_some() {
            bus.up(worker);
            bus.answer(worker, 1, &able());
        }
    }
    let seen = bus.seen();
    let opened: Vec<&str> =
        seen.lines().filter(|line| line.contains("session/resume") || line.contains("session/new")).collect();
    let mut workers: Vec<&str> = opened.iter().map(|line| &line[..2]).collect();
    workers.sort_unstable();
    workers.dedup();
    assert_eq!((opened.len(), workers.len()), (3, 3), "{seen}");
}

fn resume(bus: &mut TestBus, client: u32, id: u64, name: &str) {
    bus.request(client, id, "session/resume", &json!({"sessionId": name, "cwd": "/"}));
}

#[test]
fn a_client_whose_resume_failed_with_its_worker_does_not_own_the_session() {
    let mut bus = TestBus::shared(1);
    let (one, two, three) = (bus.open(), bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    resume(&mut bus, two, 7, "a");
    bus.kill_worker(0);
    assert!(bus.seen().contains(r#"c1 < {"jsonrpc":"2.0","id":7,"error":{"code":-32010"#));
    bus.request(two, 8, "session/prompt", &prompt("a"));
    assert_eq!(
        bus.seen(),
        r#"c1 < {"jsonrpc":"2.0","id":8,"error":{"code":-32002,"message":"session must be loaded or resumed first","data":{"condition":"not_found","retryable":false,"effects":"none"}}}"#
    );
    // Another connection of the same identity can resume the lost session.
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    bus.seen();
    resume(&mut bus, three, 9, "a");
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_failed_resume_takes_no_session_from_the_client_that_resumed_it_since() {
    let mut bus = TestBus::shared(1);
    let (one, two, three) = (bus.open(), bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    resume(&mut bus, two, 7, "a");
    let first = bus.last_id(0);
    bus.disconnect(two);
    resume(&mut bus, three, 8, "a");
    let second = bus.last_id(0);
    bus.seen();
    bus.fail(0, first, -32603);
    bus.answer(0, second, &json!({}));
    assert_eq!(bus.seen(), r#"c2 < {"jsonrpc":"2.0","id":8,"result":{}}"#);
    bus.request(three, 9, "session/prompt", &prompt("a"));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn of_two_requests_to_resume_a_session_one_that_succeeds_is_enough() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.disconnect(one);
    resume(&mut bus, two, 7, "a");
    let first = bus.last_id(0);
    resume(&mut bus, two, 8, "a");
    let second = bus.last_id(0);
    bus.fail(0, first, -32603);
    bus.answer(0, second, &json!({}));
    bus.seen();
    bus.request(two, 9, "session/prompt", &prompt("a"));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_client_whose_resume_timed_out_does_not_own_the_session() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.kill_worker(0);
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    // The session is being restored for the first client when that client disconnects.
    bus.request(one, 7, "session/prompt", &prompt("a"));
    bus.disconnect(one);
    resume(&mut bus, two, 8, "a");
    bus.seen();
    bus.advance(120.0);
    let seen = bus.seen();
    assert!(seen.contains(r#"c1 < {"jsonrpc":"2.0","id":8,"error""#), "{seen}");
    bus.request(two, 9, "session/prompt", &prompt("a"));
    let seen = bus.seen();
    assert!(seen.contains("session must be loaded or resumed first"), "{seen}");
}

#[test]
fn a_load_is_answered_after_its_worker_closed_its_input_and_the_session_was_requested_again() {
    let mut bus = TestBus::shared(1);
    let one = bus.open();
    bus.request(one, 7, "session/load", &json!({"sessionId": "a", "cwd": "/"}));
    let load = bus.last_id(0);
    let bytes_read = bus.output.queued[&0].len() as u64;
    bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::InputClosed { bytes_read }, &mut bus.output);
    bus.seen();
    // The first response decides whether the session exists. Until then, the session does not move.
    resume(&mut bus, one, 8, "a");
    let seen = bus.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":8,"error":{"code":-32010"#), "{seen}");
    bus.answer(0, load, &json!({}));
    let seen = bus.seen();
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","id":7,"result":{}}"#), "{seen}");
}
