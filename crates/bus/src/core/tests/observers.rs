//! Several clients in one session.

use insta::assert_snapshot;

use super::*;

const PERMISSION: &str = r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a","options":[]}}"#;
const YES: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#;

fn bus() -> TestBus {
    observable_bus(BusLimits::default(), ShareMode::All)
}

fn observable_bus(limits: BusLimits, share: ShareMode) -> TestBus {
    let listen = vec![ListenerSettings::parse("http://127.0.0.1:1/acp").unwrap()];
    let mut bus = TestBus::new(&Config { listen, limits, ..config(vec![pool(share)]) });
    bus.up(0);
    if share == ShareMode::All {
        bus.answer(0, 1, &able());
    }
    bus.output.seen.clear();
    bus
}

impl TestBus {
    /// Returns two clients: the first has session `a` and the second observes it.
    fn watched(&mut self) -> (u32, u32) {
        let (one, two) = (self.open(), self.open());
        self.session(one, 0, "a");
        let key = self.core.clients.key_at(two);
        if let Some(state) = key.and_then(|key| self.core.clients.get_mut(key)) {
            state.initialize = Some(b"{}".as_slice().into());
        }
        self.request(two, 1, "session/resume", &json!({"sessionId": "a"}));
        self.output.seen.clear();
        (one, two)
    }
}

#[test]
fn a_late_observer_gets_the_replay_and_then_the_updates() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.request(one, 1, "session/new", &json!({"cwd": "/"}));
    bus.answer(0, 2, &json!({"sessionId": "a", "modes": {"currentModeId": "m"}}));
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.update(0, "a", "one");
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"session/update","params":{"_meta":{"x":1,"narrows":{"y":2}},"sessionId":"a","update":"two"}}"#);
    bus.seen();
    bus.request(two, 7, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    bus.update(0, "a", "three");
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"one","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"update":"two","sessionId":"a","_meta":{"x":1,"narrows":{"y":2,"replay":true}}}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"modes":{"currentModeId":"m"},"_meta":{"narrows":{"replay":{"complete":true}}}}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"three"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"three"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn sessions_cannot_be_observed_without_a_network_listener() {
    let mut bus = TestBus::shared(1);
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.request(two, 7, "session/load", &json!({"sessionId": "a"}));
    assert!(bus.seen().contains("session_in_use"));
}

#[test]
fn the_first_answer_wins_and_the_request_is_withdrawn_from_the_others() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    let three = bus.open();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.worker_sends(0, PERMISSION);
    // An observer that joins later gets the permission request too.
    bus.request(three, 1, "session/load", &json!({"sessionId": "a"}));
    bus.line(two, YES);
    bus.line(one, YES);
    bus.line(three, YES);
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#,
    );
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c2 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c2 < {"jsonrpc":"2.0","id":1,"result":{"_meta":{"narrows":{"replay":{"complete":true}}}}}
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c2 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    c0 < {"jsonrpc":"2.0","id":2,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    "#);
}

#[test]
fn a_permission_request_is_withdrawn_from_all_when_its_agent_exits_or_cancels_it() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.worker_sends(0, PERMISSION);
    bus.worker_sends(0, &PERMISSION.replace("\"p\"", "\"q\""));
    bus.seen();
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p"}}"#);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    "#);
    bus.line(two, &YES.replace("\"id\":1", "\"id\":2"));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    "#);
    bus.worker_sends(0, &PERMISSION.replace("\"p\"", "\"r\""));
    bus.seen();
    bus.kill_worker(0);
    let seen = bus.seen();
    assert_eq!(
        seen.matches("c1 < {\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\"").count(),
        1,
        "{seen}"
    );
}

#[test]
fn a_cancelled_permission_request_is_withdrawn_once_from_an_observer() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#,
    );
    bus.worker_sends(0, PERMISSION);
    bus.seen();
    // Some agents also name the session in a cancellation. Each client knows the request by another id.
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"sessionId":"a","requestId":"p"}}"#,
    );
    bus.line(one, r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32800,"message":"cancelled"}}"#);
    bus.line(two, YES);
    // An observer that joins later does not get the withdrawn request.
    let three = bus.open();
    bus.request(three, 1, "session/resume", &json!({"sessionId": "a"}));
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"sessionId":"a","requestId":2}}
    c1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    w0 < {"jsonrpc":"2.0","id":"p","error":{"code":-32800,"message":"cancelled"}}
    c2 < {"jsonrpc":"2.0","id":1,"result":{"_meta":{"narrows":{"replay":{"complete":true}}}}}
    "#);
    // A message that names no known request is sent to all clients.
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}"#);
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    c1 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    c2 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    "#);
}

#[test]
fn a_prompt_makes_the_controller_and_none_interrupts_another_turn() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.request(two, 2, "session/prompt", &prompt("a"));
    bus.notify(two, "session/cancel", &json!({"sessionId": "a"}));
    bus.answer(0, 3, &json!({"stopReason": "cancelled"}));
    bus.request(two, 3, "session/prompt", &prompt("a"));
    bus.worker_sends(
        0,
        r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#,
    );
    bus.update(0, "a", "both hear it");
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"session in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"both hear it"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"both hear it"}}
    "#);
    // The former controller is now an observer, and may end that.
    bus.request(one, 4, "session/close", &json!({"sessionId": "a"}));
    bus.update(0, "a", "one hears it");
    assert_snapshot!(bus.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":4,"result":{}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"one hears it"}}
    "#);
}

#[test]
fn a_turn_continues_while_an_observer_is_connected() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.worker_sends(0, PERMISSION);
    bus.seen();
    bus.disconnect(one);
    bus.advance(60.0);
    assert_eq!(bus.seen(), "");
    bus.line(two, YES);
    bus.update(0, "a", "still there");
    let before = bus.seen();
    bus.request(two, 9, "session/prompt", &prompt("a"));
    assert!(bus.seen().contains("session_in_use"), "the turn belongs to the former controller");
    bus.answer(0, 3, &json!({"stopReason": "end_turn"}));
    bus.request(two, 2, "session/prompt", &prompt("a"));
    assert_snapshot!(before + "\n" + &bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"still there"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
    // After the last client has disconnected, the session behaves like one without observers.
    bus.disconnect(two);
    bus.advance(0.1);
    assert!(bus.seen().contains("session/cancel"));
}

#[test]
fn an_observer_can_cancel_a_turn_by_a_request_too() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.seen();
    bus.request(two, 2, "session/cancel", &json!({"sessionId": "a"}));
    assert_snapshot!(bus.seen(), @r#"w0 < {"jsonrpc":"2.0","id":4,"method":"session/cancel","params":{"sessionId":"a"}}"#);
}

#[test]
fn a_disconnected_observer_gets_no_requests_and_uses_no_memory() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.worker_sends(0, PERMISSION);
    bus.disconnect(two);
    bus.seen();
    // A later client that gets the same number is not an observer.
    let next = bus.open();
    assert_eq!(next, two);
    bus.update(0, "a", "x");
    bus.line(next, YES);
    bus.line(one, YES);
    let seen = bus.seen();
    assert!(!seen.contains(&format!("c{next} <")), "{seen}");
    assert_eq!(seen.matches("w0 < ").count(), 1, "{seen}");
}

#[test]
fn an_observer_learns_that_the_beginning_is_missing() {
    let mut bus = observable_bus(BusLimits { replay_bytes: 300, ..BusLimits::default() }, ShareMode::All);
    let (one, two) = (bus.open(), bus.open());
    bus.request(
        two,
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}}),
    );
    bus.session(one, 0, "a");
    for number in 0..10 {
        bus.update(0, "a", &format!("{number}"));
    }
    bus.seen();
    bus.request(two, 7, "session/resume", &json!({"sessionId": "a"}));
    assert_snapshot!(bus.seen(), @r#"
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"notice","severity":"info","title":"Replay is incomplete","description":"Older updates of this session are no longer available."},"_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"7","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"8","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"9","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"_meta":{"narrows":{"replay":{"complete":false}}}}}
    "#);
    assert!(bus.core.kept_replay_bytes <= 300);
    bus.request(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    assert_eq!(bus.core.kept_replay_bytes, 0);
    bus.seen();
    bus.request(two, 8, "session/prompt", &prompt("a"));
    assert!(bus.seen().contains("-32002"));
}

#[test]
fn a_replay_reaches_only_the_client_that_requested_it() {
    let mut bus = bus();
    let (one, two) = bus.watched();
    bus.update(0, "a", "said once");
    bus.seen();
    bus.request(one, 5, "session/load", &json!({"sessionId": "a"}));
    bus.update(0, "a", "said once");
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({}));
    bus.update(0, "a", "new");
    let seen = bus.seen();
    assert_eq!(seen.matches("said once").count(), 1, "{seen}");
    assert_eq!(seen.matches("new").count(), 2, "{seen}");
    bus.request(two, 6, "session/resume", &json!({"sessionId": "a"}));
    let seen = bus.seen();
    assert_eq!(seen.matches("said once").count(), 1, "{seen}");
    assert!(seen.contains("\"complete\":true"), "{seen}");
}

#[test]
fn other_identities_cannot_observe() {
    let mut bus = bus();
    let (_, two) = bus.watched();
    bus.disconnect(two);
    let from = ClientInfo::new(0, "token:x");
    let other = bus.core.client_open(bus.now, from, &mut bus.output).unwrap().0;
    bus.initialized(other);
    bus.seen();
    for method in ["session/load", "session/resume", "session/prompt"] {
        bus.request(other, 7, method, &prompt("a"));
        assert!(bus.seen().contains("-32002"), "{method}");
    }
}

#[test]
fn a_session_of_an_exclusive_worker_can_be_observed() {
    let mut bus = observable_bus(BusLimits::default(), ShareMode::Connection);
    let (one, two) = bus.watched();
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.update(0, "a", "x");
    let seen = bus.seen();
    assert!(seen.contains("c0 <") && seen.contains("c1 <"), "{seen}");
    bus.disconnect(one);
    bus.advance(1.0);
    bus.update(0, "a", "y");
    assert!(bus.seen().contains(&format!("c{two} <")));
}

#[test]
fn the_agent_replays_an_idle_session_to_the_client_that_loads_it() {
    let mut bus = bus();
    let (one, two) = (bus.open(), bus.open());
    bus.session(one, 0, "a");
    bus.request(
        two,
        7,
        "session/load",
        &json!({"sessionId": "a", "cwd": "/other", "mcpServers": [{"type": "acp", "name": "x", "id": "1"}]}),
    );
    bus.update(0, "a", "history");
    // A prompt waits until the replay of the history ends.
    bus.request(one, 2, "session/prompt", &prompt("a"));
    bus.update(0, "a", "more history");
    let id = bus.last_id(0);
    bus.answer(0, id, &json!({"modes": null}));
    bus.update(0, "a", "news");
    bus.answer(0, id + 1, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(bus.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/load","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"history"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"more history"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"modes":null}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"news"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"news"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn an_incomplete_replay_leaves_no_state_behind() {
    let start_replay = |share| {
        let mut bus = observable_bus(BusLimits::default(), share);
        let (one, two) = (bus.open(), bus.open());
        bus.session(one, 0, "a");
        bus.request(two, 7, "session/load", &json!({"sessionId": "a"}));
        bus.request(one, 2, "session/prompt", &prompt("a"));
        let id = bus.last_id(0);
        bus.seen();
        (bus, one, two, id)
    };
    // If the client that asked for the replay disconnects, no client gets the rest, not even a later client
    // with the same number.
    let (mut bus, _, two, id) = start_replay(ShareMode::All);
    bus.disconnect(two);
    bus.open();
    bus.update(0, "a", "history");
    assert_eq!(bus.seen(), "");
    bus.answer(0, id, &json!({}));
    bus.update(0, "a", "news");
    let seen = bus.seen();
    assert!(seen.starts_with("w0 < ") && seen.contains("session/prompt"), "{seen}");
    assert_eq!(seen.matches("news").count(), 1, "{seen}");
    // If the agent refuses the replay, the client that asked for it does not become an observer.
    let (mut bus, _, two, id) = start_replay(ShareMode::All);
    bus.fail(0, id, -32603);
    bus.update(0, "a", "news");
    let seen = bus.seen();
    assert_eq!(seen.matches(&format!("c{two} <")).count(), 1, "{seen}");
    assert!(seen.contains("session/prompt"), "{seen}");
    // If the agent exits during the replay, the session is restored for the client that waits.
    let (mut bus, _, two, _) = start_replay(ShareMode::All);
    bus.kill_worker(0);
    let seen = bus.seen();
    assert!(seen.contains(&format!("c{two} < ")) && seen.contains("-32010"), "{seen}");
    bus.advance(1.0);
    bus.up(0);
    bus.answer(0, 1, &able());
    let id = bus.last_id(0);
    let seen = bus.seen();
    assert!(seen.contains("session/resume"), "{seen}");
    bus.answer(0, id, &json!({}));
    assert!(bus.seen().contains("session/prompt"));
    // A request of the controller to close the session is handled after the replay.
    let (mut bus, one, _, id) = start_replay(ShareMode::All);
    bus.request(one, 3, "session/close", &json!({"sessionId": "a"}));
    bus.answer(0, id, &json!({}));
    let seen = bus.seen();
    assert!(seen.contains("session/prompt") && seen.contains("session/close"), "{seen}");
}
