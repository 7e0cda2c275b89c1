//! Regression tests: each case is a former defect.

use super::super::StuckReason;
use super::*;

fn two_pools() -> Config {
    let named = |name: &str| Pool { name: name.into(), ..pool(ShareMode::All) };
    config(vec![named("p"), named("q")])
}

fn unknowing(instances: u32) -> TestBus {
    let pool = Pool { instances, protocol: PoolProtocol::JsonRpc, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![pool]));
    (0..instances).for_each(|worker| bus.up(worker));
    bus.seen();
    bus
}

/// Returns a client with an exclusive worker. If `session` is `true`, the client also has a session.
fn exclusive(share: ShareMode, most: u32, session: bool) -> (TestBus, u32) {
    let mut bus = TestBus::new(&config(vec![Pool { max_instances: most, ..pool(share) }]));
    bus.up(0);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1}));
    bus.answer(0, 1, &able());
    if session {
        bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
        bus.answer(0, 2, &json!({"sessionId": "a"}));
    }
    bus.seen();
    (bus, client)
}

fn changed() -> Config {
    config(vec![Pool { command: vec!["other".into()], ..pool(ShareMode::All) }])
}

#[test]
fn a_partly_written_message_does_not_close_the_client() {
    struct Partial(Vec<CoreAction>);
    impl CoreOutput for Partial {
        fn to_client(&mut self, _: ClientId, parts: &[&[u8]]) -> usize {
            parts.concat().len() - (2 << 20)
        }
        fn to_worker(&mut self, _: WorkerId, _: &[&[u8]]) -> usize {
            0
        }
        fn perform(&mut self, action: CoreAction) {
            self.0.push(action);
        }
    }
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    let mut out = Partial(Vec::new());
    let line = json!({"jsonrpc": "2.0", "id": 3, "result": {"x": "y".repeat(20 << 20)}}).to_string();
    bus.core.worker_line(bus.now, WorkerId(0), View::parse(line.as_bytes()), &mut out);
    assert_eq!(out.0, []);
}

#[test]
fn a_pool_recovers_fully_although_some_workers_never_failed() {
    let mut bus = TestBus::shared(4);
    let mut young = vec![1, 2, 3];
    let mut opened = false;
    for _ in 0..20 {
        if !opened {
            young.drain(..).for_each(|worker| bus.kill_worker(worker));
        }
        bus.advance(5.0);
        let seen = bus.seen();
        opened |= seen.contains("CircuitOpened");
        let spawned =
            |line: &str| line.strip_prefix("Spawn { worker: WorkerId(")?.split(')').next()?.parse().ok();
        for worker in seen.lines().filter_map(spawned) {
            bus.up(worker);
            bus.answer(worker, 1, &able());
            young.push(worker);
        }
    }
    assert!(opened);
    let pools = bus.core.status(bus.now).pools;
    assert_eq!((pools[0].workers.len(), pools[0].state), (4, "ready"));
}

#[test]
fn equal_session_names_in_two_workers_stay_apart_without_a_known_protocol() {
    let mut bus = unknowing(2);
    let (a, b) = (bus.open(), bus.open());
    for (client, worker) in [(a, 0), (b, 1)] {
        bus.request(client, 1, "open", &json!({}));
        bus.answer(worker, 1, &json!({"sessionId": "1"}));
    }
    assert!(bus.seen().contains(r#"c1 < {"jsonrpc":"2.0","id":1,"result":{"sessionId":"1~2"}}"#));
    bus.request(b, 2, "use", &json!({"sessionId": "1~2"}));
    assert!(bus.seen().starts_with("w1 < ") && bus.output.queued[&1].ends_with(b"\"sessionId\":\"1\"}}\n"));
}

#[test]
fn a_session_without_a_known_protocol_keeps_its_worker_when_its_first_client_disconnects() {
    let mut bus = unknowing(2);
    let (a, b) = (bus.open(), bus.open());
    for client in [a, b] {
        bus.request(client, 1, "use", &json!({"sessionId": "s"}));
    }
    bus.disconnect(a);
    bus.advance(1.0);
    bus.seen();
    bus.request(b, 2, "use", &json!({"sessionId": "s"}));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_list_without_a_worker_or_with_a_missing_part_is_an_error() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.kill_worker(0);
    bus.seen();
    bus.request(client, 1, "session/list", &json!({}));
    assert_eq!(bus.seen(), "");
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.request(client, 1, "session/list", &json!({}));
    bus.answer(0, 2, &json!({"sessions": [{"sessionId": "x"}]}));
    bus.kill_worker(1);
    assert!(bus.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":1,"error":{"code":-32010"#));
    // One worker that has deleted the session is enough for success.
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/delete", &json!({"sessionId": "stored"}));
    bus.advance(31.0);
    assert!(bus.seen().contains(r#""effects":"possible""#));
}

#[test]
fn a_reload_ends_no_turn_and_no_session() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.core.reload(bus.now, &changed(), &mut bus.output);
    bus.up(1);
    bus.answer(1, 1, &able());
    bus.advance(3_600.0);
    bus.seen();
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    let seen = bus.seen();
    assert!(
        seen.starts_with("c0 < ") && seen.ends_with("Stop { worker: WorkerId(0), kill: false }"),
        "{seen}"
    );
    // A session stays open if its agent could not restore it.
    let mut bus = TestBus::new(&config(vec![pool(ShareMode::All)]));
    bus.up(0);
    bus.answer(0, 1, &json!({"protocolVersion": 1}));
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.core.reload(bus.now, &changed(), &mut bus.output);
    bus.seen();
    bus.request(client, 1, "session/prompt", &prompt("a"));
    assert!(bus.seen().starts_with("w0 < "));
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    bus.disconnect(client);
    bus.advance(1.0);
    assert!(bus.seen().contains("Stop { worker: WorkerId(0)"));
}

#[test]
fn a_pool_shrinks_by_unused_workers() {
    let mut bus = TestBus::shared(2);
    let (a, b) = (bus.open(), bus.open());
    bus.session(a, 0, "a");
    bus.session(b, 1, "b");
    bus.request(a, 1, "session/close", &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({}));
    bus.seen();
    bus.core.reload(bus.now, &config(vec![pool(ShareMode::All)]), &mut bus.output);
    assert_eq!(bus.seen(), "Stop { worker: WorkerId(0), kill: false }");
}

#[test]
fn a_pending_list_survives_a_reload() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/list", &json!({}));
    bus.core.reload(bus.now, &changed(), &mut bus.output);
    bus.seen();
    bus.answer(0, 2, &json!({"sessions": []}));
    assert!(bus.seen().starts_with(r#"c0 < {"jsonrpc":"2.0","id":1,"result""#));
}

#[test]
fn a_worker_without_a_client_does_not_stay_for_abandoned_requests() {
    for session in [false, true] {
        let (mut bus, client) = exclusive(ShareMode::Connection, 1, session);
        bus.request(client, 3, "authenticate", &json!({"methodId": "x"}));
        bus.disconnect(client);
        bus.seen();
        bus.advance(400.0);
        assert!(bus.seen().contains("Stop { worker: WorkerId(0)"), "{session}");
    }
}

#[test]
fn the_session_without_a_client_for_longest_is_closed_first() {
    let (mut bus, client) = exclusive(ShareMode::Connection, 1, true);
    bus.disconnect(client);
    bus.seen();
    let other = bus.open();
    bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
    assert_eq!(bus.seen(), "Stop { worker: WorkerId(0), kill: false }");
    bus.kill_worker(0);
    bus.up(0);
    assert!(bus.seen().contains(r#"w0 < {"jsonrpc":"2.0","id":1,"method":"initialize""#));
}

#[test]
fn a_worker_that_floods_and_does_not_read_is_not_read() {
    let mut bus = TestBus::shared(1);
    for number in 0..100_000 {
        bus.worker_sends(0, &format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"x"}}"#));
    }
    assert_eq!(bus.seen().matches("PauseWorker(WorkerId(0))").count(), 1);
    assert!(bus.core.has_pending_work(WorkerId(0)));
    bus.core.worker_drained(bus.now, WorkerId(0), &mut bus.output);
    assert_eq!(bus.seen(), "ResumeWorker(WorkerId(0))");
}

#[test]
fn request_numbers_of_one_worker_do_not_apply_to_another() {
    let mut bus = TestBus::shared(2);
    let (a, b) = (bus.open(), bus.open());
    bus.request(b, 1, "session/new", &json!({"cwd": "/"}));
    bus.request(b, 2, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "b0"}));
    bus.answer(1, 2, &json!({"sessionId": "b1"}));
    bus.request(a, 1, "session/load", &json!({"sessionId": "x"}));
    bus.request(a, 2, "session/prompt", &prompt("x"));
    bus.request(b, 3, "_ext", &json!({"sessionId": "b1"}));
    bus.request(b, 4, "session/prompt", &prompt("b1"));
    bus.fail(0, 3, -32_002);
    bus.answer(1, 5, &json!({}));
    bus.request(a, 5, "session/close", &json!({"sessionId": "x"}));
    bus.seen();
    bus.answer(1, 6, &json!({}));
    assert_eq!(bus.seen(), r#"c0 < {"jsonrpc":"2.0","id":5,"result":{}}"#);
}

#[test]
fn a_loaded_session_stays_although_another_response_about_it_is_invalid() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "session/load", &json!({"sessionId": "x"}));
    bus.request(client, 2, "session/set_mode", &json!({"sessionId": "x"}));
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":3}"#);
    bus.answer(0, 2, &json!({}));
    bus.seen();
    bus.request(client, 3, "session/prompt", &prompt("x"));
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_client_waiting_for_another_pool_delays_no_other() {
    let mut bus = TestBus::new(&two_pools());
    let (one, two) = (bus.open(), bus.open());
    bus.request(one, 1, "session/new", &json!({"_meta": {"narrows/pool": "p"}}));
    bus.request(one, 2, "session/new", &json!({"_meta": {"narrows/pool": "q"}}));
    bus.request(two, 1, "session/new", &json!({"_meta": {"narrows/pool": "p"}}));
    bus.up(0);
    bus.seen();
    bus.answer(0, 1, &able());
    assert_eq!(bus.seen().matches("w0 < ").count(), 2);
}

#[test]
fn a_client_that_names_a_missing_pool_gets_no_other() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "initialize", &json!({"protocolVersion": 1, "_meta": {"narrows/pool": "nope"}}));
    bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
    let seen = bus.seen();
    assert!(seen.contains("-32602") && seen.contains("-32600") && !seen.contains("w0 < "), "{seen}");
    bus.request(client, 3, "initialize", &json!({"protocolVersion": 1}));
    bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().contains("w0 < "));
}

#[test]
fn a_client_that_asked_for_a_missing_pool_can_choose_another() {
    let pools = [("p", ShareMode::All), ("own", ShareMode::Connection)];
    let mut bus =
        TestBus::new(&config(pools.map(|(name, share)| Pool { name: name.into(), ..pool(share) }).into()));
    let client = bus.open();
    let initialize = |pool: &str| json!({"protocolVersion": 1, "_meta": {"narrows/pool": pool}});
    bus.request(client, 1, "initialize", &initialize("nope"));
    bus.request(client, 2, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.request(client, 3, "initialize", &initialize("own"));
    assert!(!bus.seen().contains("error"), "a refused request has no effect");
}

#[test]
fn a_session_belongs_to_the_identity_that_requested_it_even_if_its_client_is_gone() {
    let shared = Pool { mix_identities: true, ..pool(ShareMode::All) };
    let mut bus = TestBus::new(&config(vec![shared]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let clients = ["uid:1", "uid:2"].map(|identity| {
        let from = ClientInfo::new(0, identity);
        let client = bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0;
        bus.initialized(client);
        client
    });
    for client in clients {
        bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    }
    bus.disconnect(clients[0]);
    bus.answer(0, 2, &json!({"sessionId": "of the first"}));
    bus.seen();
    bus.request(clients[1], 2, "session/load", &json!({"sessionId": "of the first"}));
    assert!(bus.seen().contains("-32002"));
}

#[test]
fn no_client_logs_a_shared_agent_out_and_a_refused_login_is_not_a_loss() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.request(client, 1, "logout", &json!({}));
    assert!(bus.seen().contains("-32602"));
    let (mut bus, client) = exclusive(ShareMode::Session, 8, true);
    bus.request(client, 3, "authenticate", &json!({"methodId": "x"}));
    bus.answer(0, 3, &json!({}));
    bus.up(1);
    bus.request(client, 4, "session/new", &json!({"cwd": "/"}));
    bus.answer(1, 1, &able());
    bus.seen();
    bus.fail(1, 2, -32_000);
    bus.kill_worker(1);
    let seen = bus.seen();
    assert!(seen.contains(r#""id":4,"error":{"code":-32000"#) && !seen.contains("Lost"), "{seen}");
}

#[test]
fn stderr_of_one_clients_worker_is_not_shown_to_others() {
    let (mut bus, _) = exclusive(ShareMode::Connection, 1, false);
    let end = WorkerExit { reason: "exit status 1; stderr: SECRET".into(), ..WorkerExit::default() };
    bus.core.worker_gone(bus.now, WorkerId(0), &end, &mut bus.output);
    for _ in 0..5 {
        bus.advance(3.0);
        bus.core.worker_gone(bus.now, WorkerId(0), &end, &mut bus.output);
    }
    let other = bus.open();
    bus.seen();
    bus.request(other, 1, "initialize", &json!({"protocolVersion": 1}));
    let seen = bus.seen();
    assert!(seen.contains("exit status 1") && !seen.contains("SECRET"), "{seen}");
    assert_eq!(bus.core.status(bus.now).pools[0].state, "tripped");
}

#[test]
fn a_client_paused_for_a_worker_with_closed_input_is_resumed() {
    let mut bus = TestBus::shared(1);
    let (a, b) = (bus.open(), bus.open());
    bus.session(a, 0, "a");
    bus.session(b, 0, "b");
    bus.request(a, 1, "session/prompt", &prompt("a"));
    let bytes_read = bus.output.queued[&0].len() as u64;
    bus.request(b, 1, "session/prompt", &json!({"sessionId": "b", "prompt": "x".repeat(9 << 20)}));
    assert!(bus.seen().contains("PauseClient(ClientId(1))"));
    bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::InputClosed { bytes_read }, &mut bus.output);
    assert!(bus.seen().contains("ResumeClient(ClientId(1))"));
}

#[test]
fn a_worker_with_closed_stdout_gets_no_new_requests() {
    let mut bus = TestBus::shared(2);
    let client = bus.open();
    bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::OutputClosed, &mut bus.output);
    bus.seen();
    bus.request(client, 1, "session/new", &json!({"cwd": "/"}));
    assert!(bus.seen().starts_with("w1 < "));
}

#[test]
fn requests_in_a_session_that_was_not_opened_reach_no_client() {
    let mut bus = TestBus::shared(1);
    let (a, b) = (bus.open(), bus.open());
    bus.request(a, 1, "session/load", &json!({"sessionId": "x"}));
    bus.fail(0, 2, -32_603);
    bus.request(b, 1, "session/new", &json!({"cwd": "/"}));
    bus.seen();
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"x"}}"#,
    );
    assert!(bus.seen().starts_with("w0 < "));
}

#[test]
fn a_cancelled_prompt_request_has_the_cancel_grace() {
    let mut bus = TestBus::shared(1);
    let client = bus.open();
    bus.session(client, 0, "a");
    bus.request(client, 1, "session/prompt", &prompt("a"));
    bus.notify(client, "$/cancel_request", &json!({"requestId": 1}));
    bus.seen();
    bus.advance(31.0);
    assert!(bus.seen().contains(r#"c0 < {"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}"#));
}

#[test]
fn names_of_sessions_have_a_bounded_length() {
    let mut bus = unknowing(1);
    let client = bus.open();
    bus.request(client, 1, "use", &json!({"sessionId": "x".repeat(5_000)}));
    assert!(bus.seen().contains("-32602"));
}
