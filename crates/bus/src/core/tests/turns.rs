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
