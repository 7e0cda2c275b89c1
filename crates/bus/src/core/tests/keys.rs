//! Keys of sessions, clients and workers that outlive their entries.

use super::super::StuckReason;
use super::identities::authenticating;
use super::*;

/// Returns two identities, each with a worker of its own in a shared pool.
fn apart() -> (TestBus, u32, u32) {
    let settings = authenticating(vec![Pool { instances: 2, max_instances: 4, ..pool(ShareMode::All) }]);
    let mut bus = TestBus::new(&settings);
    for worker in 0..2 {
        bus.up(worker);
        bus.answer(worker, 1, &able());
    }
    let (mallory, alice) = (bus.open_as("token:mallory"), bus.open_as("token:alice"));
    bus.session(mallory, 0, "hers");
    (bus, mallory, alice)
}

#[test]
fn a_late_answer_does_not_end_the_next_session_in_the_slot() {
    for ends in ["session/delete", "session/close"] {
        let (mut bus, mallory, alice) = apart();
        bus.request(mallory, 1, ends, &json!({"sessionId": "hers"}));
        let id = bus.last_id(0);
        let bytes_read = bus.output.queued[&0].len() as u64;
        bus.core.worker_stuck(bus.now, WorkerId(0), StuckReason::InputClosed { bytes_read }, &mut bus.output);
        bus.request(mallory, 2, "session/close", &json!({"sessionId": "hers"}));
        assert!(bus.seen().contains(r#""id":2,"result":{}"#), "{ends}");
        bus.session(alice, 1, "alices");
        bus.request(alice, 1, "session/prompt", &prompt("alices"));
        bus.seen();
        bus.answer(0, id, &json!({}));
        let seen = bus.seen();
        assert!(!seen.contains("c1 <") && !seen.contains("alices"), "{ends}: {seen}");
        bus.request(alice, 2, "session/set_mode", &json!({"sessionId": "alices", "modeId": "m"}));
        assert!(bus.seen().starts_with("w1 < "), "{ends}");
    }
}

#[test]
fn requests_of_a_closed_session_are_sent_to_no_other_client() {
    let settings = authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]);
    let mut bus = TestBus::new(&settings);
    bus.up(0);
    bus.answer(0, 1, &able());
    let (alice, hers) = (bus.open_as("token:alice"), bus.open_as("token:alice"));
    let (mallory, other) = (bus.open_as("token:mallory"), bus.open_as("token:mallory"));
    bus.session(alice, 0, "a");
    bus.request(hers, 1, "session/resume", &json!({"sessionId": "a"}));
    bus.worker_sends(0, r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a","options":[]}}"#);
    bus.request(alice, 2, "session/close", &json!({"sessionId": "a"}));
    let id = bus.last_id(0);
    bus.seen();
    bus.answer(0, id, &json!({}));
    // The observer gets a cancellation of the permission request.
    let seen = bus.seen();
    assert!(seen.contains(&format!("c{hers} < ")) && seen.contains("$/cancel_request"), "{seen}");
    bus.session(mallory, 0, "m");
    bus.request(other, 1, "session/resume", &json!({"sessionId": "m"}));
    let seen = bus.seen();
    assert!(seen.contains(r#""id":1,"result""#) && !seen.contains("session/request_permission"), "{seen}");
}

#[test]
fn keys_in_another_case_reach_no_session_and_no_request_of_others() {
    let mut bus = TestBus::new(&authenticating(vec![Pool { mix_identities: true, ..pool(ShareMode::All) }]));
    bus.up(0);
    bus.answer(0, 1, &able());
    let (alice, bob) = (bus.open_as("token:alice"), bus.open_as("token:bob"));
    bus.session(alice, 0, "a");
    bus.session(bob, 0, "b");
    bus.seen();
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
            bus.request(bob, 9, method, &odd);
            let seen = bus.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{method} {key}: {seen}");
            let mut line = json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params});
            line[key] = json!("a");
            bus.line(bob, &line.to_string());
            let seen = bus.seen();
            assert!(!seen.contains("w0 < ") && seen.contains("-32602"), "{method} {key}: {seen}");
        }
        for method in ["session/cancel", "$/cancel_request"] {
            bus.notify(bob, method, &json!({"sessionId": "b", "requestId": 1, key: "a"}));
            assert_eq!(bus.seen(), "", "{method} {key}");
        }
    }
    for key in ["Method", "Params", "ID"] {
        let line = json!({"jsonrpc": "2.0", "id": 9, "method": "session/set_mode",
            "params": {"sessionId": "b", "modeId": "m"}, key: "session/new"});
        bus.line(bob, &line.to_string());
        let seen = bus.seen();
        assert!(!seen.contains("w0 < ") && seen.contains("-32600"), "{key}: {seen}");
    }
}
