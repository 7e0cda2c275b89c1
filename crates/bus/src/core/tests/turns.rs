//! Turns of version 2, which end with a state update, in all share modes.

use super::*;

const SHARES: [ShareMode; 3] = [ShareMode::All, ShareMode::Connection, ShareMode::Session];

/// Returns a client with a turn that runs in session `a` of worker 0.
fn running(share: ShareMode) -> (TestBus, u32) {
    let mut bus =
        TestBus::new(&config(vec![Pool { instances: 1, protocol: PoolProtocol::V2, ..pool(share) }]));
    let answer = json!({"protocolVersion": 2, "capabilities": {}});
    bus.up(0);
    let client = bus.open();
    if share == ShareMode::All {
        bus.answer(0, 1, &answer);
    } else {
        bus.request(client, 1, "initialize", &json!({"protocolVersion": 2}));
        bus.answer(0, 1, &answer);
    }
    bus.session(client, 0, "a");
    bus.request(client, 2, "session/prompt", &prompt("a"));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.state("running");
    bus.seen();
    (bus, client)
}

impl TestBus {
    fn state(&mut self, state: &str) {
        let params = json!({"sessionId": "a", "update": {"sessionUpdate": "state_update", "state": state}});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        self.worker_sends(0, &line.to_string());
    }

    #[track_caller]
    fn sees(&mut self, what: &str) {
        let seen = self.seen();
        assert!(seen.contains(what), "{what} is not in:\n{seen}");
    }
}

#[test]
fn a_turn_of_a_lost_worker_is_reported_as_ended() {
    for share in SHARES {
        let (mut bus, _) = running(share);
        bus.kill_worker(0);
        bus.sees(r#""state":"idle","stopReason":"error","error":{"code":-32010"#);
    }
}

#[test]
fn a_cancelled_turn_that_continues_is_ended_by_the_bus() {
    for share in SHARES {
        let (mut bus, client) = running(share);
        bus.notify(client, "session/cancel", &json!({"sessionId": "a"}));
        bus.advance(29.9);
        assert!(!bus.seen().contains("idle"));
        bus.advance(0.2);
        let seen = bus.seen();
        assert!(seen.contains(r#""state":"idle","stopReason":"cancelled""#), "{seen}");
        assert!(seen.contains("Stop { worker: WorkerId(0)"), "{seen}");
    }
}

#[test]
fn a_turn_whose_client_disconnects_is_cancelled() {
    for share in SHARES {
        let (mut bus, client) = running(share);
        bus.disconnect(client);
        bus.advance(0.1);
        bus.sees(r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}"#);
    }
}

#[test]
fn a_drain_waits_for_a_turn_and_reports_when_it_gives_up() {
    for share in SHARES {
        let (mut bus, _) = running(share);
        bus.core.drain(bus.now, &mut bus.output);
        bus.advance(29.9);
        assert_eq!(bus.seen(), "");
        bus.advance(0.2);
        bus.sees(r#""state":"idle","stopReason":"error","error":{"code":-32016"#);
        let (mut bus, _) = running(share);
        bus.core.drain(bus.now, &mut bus.output);
        bus.state("idle");
        bus.sees("Close { client: ClientId(0), reason: Draining }");
    }
}

/// Returns two identities in one worker, each with a running turn, in sessions `a` and `b`, and the worker's
/// ids of the two prompts.
fn two_turns() -> (TestBus, u32, [u64; 2]) {
    let mut bus = TestBus::new(&config(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (one, two) = (bus.open_as("token:one"), bus.open_as("token:two"));
    let mut prompts = [0; 2];
    for (client, name) in [(one, "a"), (two, "b")] {
        bus.session(client, 0, name);
        bus.request(client, 7, "session/prompt", &prompt(name));
        prompts[usize::from(name == "b")] = bus.last_id(0);
    }
    bus.seen();
    (bus, one, prompts)
}

impl TestBus {
    /// Sends a request of worker 0 to the client of session `a`.
    fn asks(&mut self, id: &str, method: &str) {
        let params = json!({"sessionId": "a", "options": [], "path": "/x"});
        self.worker_sends(
            0,
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        );
    }
}

#[test]
fn open_permission_requests_of_a_cancelled_turn_are_answered_as_cancelled() {
    let (mut bus, one, prompts) = two_turns();
    bus.asks("p", "session/request_permission");
    bus.seen();
    bus.notify(one, "session/cancel", &json!({"sessionId": "a"}));
    assert!(!bus.seen().contains("outcome"), "the client still has time to answer");
    bus.advance(29.0);
    let seen = bus.seen();
    let answer = r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#;
    assert!(seen.contains(answer), "{seen}");
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#));
    // The agent's next request in the cancelled turn is answered at once.
    bus.asks("q", "session/request_permission");
    assert_eq!(bus.seen(), answer.replace(r#""p""#, r#""q""#));
    bus.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    bus.seen();
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bus.advance(100.0);
    assert_eq!(bus.seen(), "", "the worker and the turn of the other client continue");
    bus.request(one, 8, "session/prompt", &prompt("a"));
    bus.asks("r", "session/request_permission");
    bus.sees(r#"c0 < {"jsonrpc":"2.0","id":3,"method":"session/request_permission""#);
}

#[test]
fn permission_requests_that_the_client_answers_itself_are_answered_once() {
    let (mut bus, one, prompts) = two_turns();
    bus.asks("p", "session/request_permission");
    bus.notify(one, "session/cancel", &json!({"sessionId": "a"}));
    bus.seen();
    bus.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    bus.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    bus.advance(100.0);
    assert_eq!(bus.seen().matches(r#"{"outcome":{"outcome":"cancelled"}}"#).count(), 1);
}

#[test]
fn other_requests_of_a_cancelled_turn_fail_before_the_cancel_grace_ends() {
    let (mut bus, one, prompts) = two_turns();
    bus.asks("f", "fs/read_text_file");
    bus.notify(one, "session/cancel", &json!({"sessionId": "a"}));
    bus.seen();
    bus.advance(14.0);
    assert_eq!(bus.seen(), "");
    bus.advance(2.0);
    bus.sees(r#"w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32800"#);
    bus.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    bus.seen();
    bus.advance(100.0);
    assert_eq!(bus.seen(), "");
}

#[test]
fn a_turn_begun_before_a_cancelled_one_ended_is_not_cancelled() {
    let (mut bus, one, prompts) = two_turns();
    bus.notify(one, "session/cancel", &json!({"sessionId": "a"}));
    bus.request(one, 8, "session/prompt", &prompt("a"));
    bus.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    bus.asks("p", "session/request_permission");
    bus.seen();
    bus.advance(100.0);
    assert_eq!(bus.seen(), "");
}
