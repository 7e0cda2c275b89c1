//! Keys of sessions, clients and workers that are remembered for longer than these live.

use super::super::Stuck;
use super::identities::asking;
use super::*;

/// Two identities, each with a worker of its own, in a pool that all share.
fn apart() -> (Scene, u32, u32) {
    let settings = asking(vec![Pool { instances: 2, max_instances: 4, ..pool(Share::All) }]);
    let mut scene = Scene::new(&settings);
    for worker in 0..2 {
        scene.up(worker);
        scene.answer(worker, 1, &able());
    }
    let (mallory, alice) = (scene.open_as("token:mallory"), scene.open_as("token:alice"));
    scene.session(mallory, 0, "hers");
    (scene, mallory, alice)
}

#[test]
fn a_late_answer_does_not_end_the_session_that_has_the_slot_by_then() {
    for ends in ["session/delete", "session/close"] {
        let (mut scene, mallory, alice) = apart();
        scene.ask(mallory, 1, ends, &json!({"sessionId": "hers"}));
        let id = scene.last_id(0);
        let taken = scene.sight.queued[&0].len() as u64;
        scene.core.worker_stuck(scene.now, WorkerId(0), Stuck::InputClosed { taken }, &mut scene.sight);
        scene.ask(mallory, 2, "session/close", &json!({"sessionId": "hers"}));
        assert!(scene.seen().contains(r#""id":2,"result":{}"#), "{ends}");
        scene.session(alice, 1, "alices");
        scene.ask(alice, 1, "session/prompt", &prompt("alices"));
        scene.seen();
        scene.answer(0, id, &json!({}));
        let seen = scene.seen();
        assert!(!seen.contains("c1 <") && !seen.contains("alices"), "{ends}: {seen}");
        scene.ask(alice, 2, "session/set_mode", &json!({"sessionId": "alices", "modeId": "m"}));
        assert!(scene.seen().starts_with("w1 < "), "{ends}");
    }
}

#[test]
fn what_was_asked_in_a_session_that_was_closed_is_asked_of_nobody_else() {
    let settings = asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]);
    let mut scene = Scene::new(&settings);
    scene.up(0);
    scene.answer(0, 1, &able());
    let (alice, hers) = (scene.open_as("token:alice"), scene.open_as("token:alice"));
    let (mallory, other) = (scene.open_as("token:mallory"), scene.open_as("token:mallory"));
    scene.session(alice, 0, "a");
    scene.ask(hers, 1, "session/resume", &json!({"sessionId": "a"}));
    scene.said(0, r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a","options":[]}}"#);
    scene.ask(alice, 2, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.seen();
    scene.answer(0, id, &json!({}));
    // Who watched need not answer any more.
    let seen = scene.seen();
    assert!(seen.contains(&format!("c{hers} < ")) && seen.contains("$/cancel_request"), "{seen}");
    scene.session(mallory, 0, "m");
    scene.ask(other, 1, "session/resume", &json!({"sessionId": "m"}));
    let seen = scene.seen();
    assert!(seen.contains(r#""id":1,"result""#) && !seen.contains("session/request_permission"), "{seen}");
}

#[test]
fn keys_in_another_case_reach_no_session_and_no_request_of_others() {
    let mut scene = Scene::new(&asking(vec![Pool { mix_identities: true, ..pool(Share::All) }]));
    scene.up(0);
    scene.answer(0, 1, &able());
    let (alice, bob) = (scene.open_as("token:alice"), scene.open_as("token:bob"));
    scene.session(alice, 0, "a");
    scene.session(bob, 0, "b");
    scene.seen();
    for key in ["SessionId", "session_id", "sessionID", "RequestId"] {
        for (method, params) in [
            ("session/prompt", json!({"sessionId": "b", "prompt": []})),
            ("session/set_mode", json!({"sessionId": "b", "modeId": "m"})),
            ("session/load", json!({"sessionId": "b", "cwd": "/"})),
            ("session/close", json!({"sessionId": "b"})),
            ("session/list", json!({})),
        ] {
            let mut odd = params.clone();
            odd[key] = json!("a");
            scene.ask(bob, 9, method, &odd);
            let seen = scene.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{method} {key}: {seen}");
            let mut line = json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params});
            line[key] = json!("a");
            scene.line(bob, &line.to_string());
            let seen = scene.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{method} {key}: {seen}");
        }
        for method in ["session/cancel", "$/cancel_request"] {
            scene.note(bob, method, &json!({"sessionId": "b", "requestId": 1, key: "a"}));
            assert_eq!(scene.seen(), "", "{method} {key}");
        }
    }
    for key in ["Method", "Params", "ID"] {
        let line = json!({"jsonrpc": "2.0", "id": 9, "method": "session/set_mode",
            "params": {"sessionId": "b", "modeId": "m"}, key: "session/new"});
        scene.line(bob, &line.to_string());
        let seen = scene.seen();
        assert!(!seen.contains("w0 < ") && seen.contains("-32600"), "{key}: {seen}");
    }
}
