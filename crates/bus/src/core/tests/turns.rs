//! Turns of version 2, which are over when their session says so, whoever shares the agent.

use super::*;

const SHARES: [Share; 3] = [Share::All, Share::Connection, Share::Session];

/// One client with a turn that runs in session `a` of worker 0.
fn running(share: Share) -> (Scene, u32) {
    let mut scene = Scene::new(&config(vec![Pool { instances: 1, protocol: Protocol::V2, ..pool(share) }]));
    let answer = json!({"protocolVersion": 2, "capabilities": {}});
    scene.up(0);
    let client = scene.open();
    if share == Share::All {
        scene.answer(0, 1, &answer);
    } else {
        scene.ask(client, 1, "initialize", &json!({"protocolVersion": 2}));
        scene.answer(0, 1, &answer);
    }
    scene.session(client, 0, "a");
    scene.ask(client, 2, "session/prompt", &prompt("a"));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.state("running");
    scene.seen();
    (scene, client)
}

impl Scene {
    /// Worker 0 says how its session is.
    fn state(&mut self, state: &str) {
        let params = json!({"sessionId": "a", "update": {"sessionUpdate": "state_update", "state": state}});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        self.said(0, &line.to_string());
    }

    #[track_caller]
    fn sees(&mut self, what: &str) {
        let seen = self.seen();
        assert!(seen.contains(what), "{what} is not in:\n{seen}");
    }
}

#[test]
fn a_turn_whose_worker_dies_is_said_to_be_over() {
    for share in SHARES {
        let (mut scene, _) = running(share);
        scene.dies(0);
        scene.sees(r#""state":"idle","stopReason":"error","error":{"code":-32010"#);
    }
}

#[test]
fn a_turn_that_goes_on_though_it_was_cancelled_is_ended() {
    for share in SHARES {
        let (mut scene, client) = running(share);
        scene.note(client, "session/cancel", &json!({"sessionId": "a"}));
        scene.pass(29.9);
        assert!(!scene.seen().contains("idle"));
        scene.pass(0.2);
        let seen = scene.seen();
        assert!(seen.contains(r#""state":"idle","stopReason":"cancelled""#), "{seen}");
        assert!(seen.contains("Stop { worker: WorkerId(0)"), "{seen}");
    }
}

#[test]
fn a_turn_whose_client_goes_is_cancelled() {
    for share in SHARES {
        let (mut scene, client) = running(share);
        scene.leaves(client);
        scene.pass(0.1);
        scene.sees(r#"w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}"#);
    }
}

#[test]
fn a_bus_that_stops_waits_for_a_turn_and_says_when_it_does_no_more() {
    for share in SHARES {
        let (mut scene, _) = running(share);
        scene.core.drain(scene.now, &mut scene.sight);
        scene.pass(29.9);
        assert_eq!(scene.seen(), "");
        scene.pass(0.2);
        scene.sees(r#""state":"idle","stopReason":"error","error":{"code":-32016"#);
        let (mut scene, _) = running(share);
        scene.core.drain(scene.now, &mut scene.sight);
        scene.state("idle");
        scene.sees("Close { client: ClientId(0), reason: Draining }");
    }
}

/// Two identities at one worker, each with a turn, in sessions `a` and `b`. Returns the ids of their prompts at the worker too.
fn two_turns() -> (Scene, u32, [u64; 2]) {
    let mut scene = Scene::new(&config(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let (one, two) = (scene.open_as("token:one"), scene.open_as("token:two"));
    let mut prompts = [0; 2];
    for (client, name) in [(one, "a"), (two, "b")] {
        scene.session(client, 0, name);
        scene.ask(client, 7, "session/prompt", &prompt(name));
        prompts[usize::from(name == "b")] = scene.last_id(0);
    }
    scene.seen();
    (scene, one, prompts)
}

impl Scene {
    /// Worker 0 asks the client of session `a` for something.
    fn asks(&mut self, id: &str, method: &str) {
        let params = json!({"sessionId": "a", "options": [], "path": "/x"});
        self.said(0, &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
    }
}

#[test]
fn open_permission_requests_of_a_cancelled_turn_are_answered_as_cancelled() {
    let (mut scene, one, prompts) = two_turns();
    scene.asks("p", "session/request_permission");
    scene.seen();
    scene.note(one, "session/cancel", &json!({"sessionId": "a"}));
    assert!(!scene.seen().contains("outcome"), "its client has its time to answer");
    scene.pass(29.0);
    let seen = scene.seen();
    let answer = r#"w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"cancelled"}}}"#;
    assert!(seen.contains(answer), "{seen}");
    assert!(seen.contains(r#"c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#));
    // One that the agent has asked for since is answered at once.
    scene.asks("q", "session/request_permission");
    assert_eq!(scene.seen(), answer.replace(r#""p""#, r#""q""#));
    scene.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    scene.seen();
    scene.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    scene.pass(100.0);
    assert_eq!(scene.seen(), "", "the worker goes on, and so does the turn of the other");
    scene.ask(one, 8, "session/prompt", &prompt("a"));
    scene.asks("r", "session/request_permission");
    scene.sees(r#"c0 < {"jsonrpc":"2.0","id":3,"method":"session/request_permission""#);
}

#[test]
fn permission_requests_that_the_client_answers_itself_are_answered_once() {
    let (mut scene, one, prompts) = two_turns();
    scene.asks("p", "session/request_permission");
    scene.note(one, "session/cancel", &json!({"sessionId": "a"}));
    scene.seen();
    scene.line(one, r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"cancelled"}}}"#);
    scene.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    scene.pass(100.0);
    assert_eq!(scene.seen().matches(r#"{"outcome":{"outcome":"cancelled"}}"#).count(), 1);
}

#[test]
fn other_requests_of_a_cancelled_turn_fail_before_its_worker_is_to_blame() {
    let (mut scene, one, prompts) = two_turns();
    scene.asks("f", "fs/read_text_file");
    scene.note(one, "session/cancel", &json!({"sessionId": "a"}));
    scene.seen();
    scene.pass(14.0);
    assert_eq!(scene.seen(), "");
    scene.pass(2.0);
    scene.sees(r#"w0 < {"jsonrpc":"2.0","id":"f","error":{"code":-32800"#);
    scene.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    scene.seen();
    scene.pass(100.0);
    assert_eq!(scene.seen(), "");
}

#[test]
fn a_turn_that_was_begun_before_a_cancelled_one_ended_is_not_taken_for_it() {
    let (mut scene, one, prompts) = two_turns();
    scene.note(one, "session/cancel", &json!({"sessionId": "a"}));
    scene.ask(one, 8, "session/prompt", &prompt("a"));
    scene.answer(0, prompts[0], &json!({"stopReason": "cancelled"}));
    scene.asks("p", "session/request_permission");
    scene.seen();
    scene.pass(100.0);
    assert_eq!(scene.seen(), "");
}
